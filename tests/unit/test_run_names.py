"""The name of a run: what a person typed stays; one that Prefect made up becomes what runs, and with which values."""

from __future__ import annotations

import pytest
from prefect.utilities.names import generate_slug

from prefect_tao.flows.launch_flow import differing, typed_name


@pytest.mark.parametrize(("name", "typed"), [("nightly", "nightly"), ("my train 3", "my train 3"), ("", "")])
def test_a_name_that_a_person_typed_is_kept(name: str, typed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PREFECT__RUNTIME__FLOW_RUN__NAME", name)
    assert typed_name() == typed


def test_a_name_that_prefect_made_up_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(200):
        monkeypatch.setenv("PREFECT__RUNTIME__FLOW_RUN__NAME", generate_slug(2))
        assert typed_name() == ""


def test_values_that_tell_runs_apart_are_short() -> None:
    assert differing({"train.optim.lr": 0.1, "num_epochs": 3}) == "lr=0.1, num_epochs=3"
    assert differing(None) == ""
    assert "nvapi" not in differing({"token": "nvapi-" + "x" * 40})
