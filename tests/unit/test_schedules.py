"""A schedule of prefect.yaml that can never make a run is refused before anything is deployed."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from prefect_tao.deployments.deploying import deploy
from prefect_tao.deployments.described import Described
from prefect_tao.deployments.schedules import schedule_findings
from prefect_tao.flows.chains import chain
from prefect_tao.jobs.errors import InvalidInput

ROOT = Path(__file__).parents[2]
PAST = {"slug": "once", "rrule": "DTSTART:20200101T000000Z\nFREQ=DAILY;COUNT=3", "timezone": "UTC"}


def messages(*schedules: dict[str, Any]) -> list[str]:
    named = [{"slug": str(number), **schedule} for number, schedule in enumerate(schedules, 1)]
    return [found.message for found in schedule_findings([Described({"name": "mine", "schedules": named}, chain)])]


def test_dates_that_have_passed_are_named() -> None:
    until = {"rrule": "FREQ=DAILY;UNTIL=20210101"}
    assert messages(PAST, until) == [
        "mine: the last date of its schedule once has passed",
        "mine: the last date of its schedule 2 has passed",
    ]


def test_dates_to_come_and_what_never_ends_are_fine() -> None:
    soon = datetime.now(UTC) + timedelta(days=1)
    assert not messages(
        {"rrule": f"DTSTART:{soon:%Y%m%dT%H%M%SZ}\nFREQ=DAILY;COUNT=1"},
        {"rrule": "FREQ=WEEKLY;BYDAY=MO", "timezone": "Europe/Berlin"},
        {"cron": "0 2 * * *"},
        {"interval": 3600},
        {"interval": "PT1H"},
        {"cron": "{{ $WHEN }}"},
    )
    assert not messages()


@pytest.mark.parametrize(
    "schedule", [{"rrule": "no rule"}, {"cron": "61 2 * * *"}, {"interval": 0}, {"timezone": "UTC"}, {"cron": 2}]
)
def test_what_is_no_schedule_is_named(schedule: dict[str, Any]) -> None:
    (message,) = messages(schedule)
    assert message.startswith("mine: its schedule 1 is none: ")


def test_the_old_way_to_write_a_rule_is_understood() -> None:
    rule = json.dumps({"rrule": PAST["rrule"], "timezone": "UTC"})
    assert messages({"rrule": rule}) == ["mine: the last date of its schedule 1 has passed"]


async def test_nothing_is_deployed_then(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    described = yaml.safe_load((ROOT / "prefect.yaml").read_text())
    described["deployments"][0]["schedules"] = [PAST]
    (tmp_path / "prefect.yaml").write_text(yaml.safe_dump(described))
    said: list[str] = []
    with pytest.raises(InvalidInput, match="run: the last date of its schedule once has passed"):
        await deploy(tmp_path, say=said.append)
    assert not said
