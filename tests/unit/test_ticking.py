"""A wait shows for how long it has lasted."""

from __future__ import annotations

import io
import re
import time

import pytest
from rich.console import Console

from prefect_tao.cli import ticking
from prefect_tao.cli.screen import Screen
from prefect_tao.cli.ticking import Ticker


def test_what_takes_long_is_said_again_with_the_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ticking, "LINE_SECONDS", 0.02)
    text = io.StringIO()
    ticker = Ticker(Screen(Console(file=text)))
    ticker.tell("starting Prefect's server")
    while "server (" not in text.getvalue():
        time.sleep(0.005)
    ticker.stop()
    lines = text.getvalue().splitlines()
    assert "starting Prefect's server" in lines
    assert any(re.fullmatch(r"starting Prefect's server \(\d+ s\)", line) for line in lines)
