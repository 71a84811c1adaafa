"""Cancel and Retry, as a person presses them on the page of a run."""

from __future__ import annotations

from pathlib import Path

import pytest
from deployed import begin
from prefect_tools import Api, job_states, wait_for

from prefect_tao.jobs.state import JobState

from .conftest import Look

pytestmark = [pytest.mark.long, pytest.mark.xdist_group("deployments"), pytest.mark.timeout(300)]


CONFIRM = {"v1": {"Cancel": "Confirm", "Retry": "Retry"}, "v2": {"Cancel": "Cancel Flow Run", "Retry": "Retry"}}
ASKED = {
    "v1": {"Cancel": "into a Cancelling state", "Retry": "This will retry flow run"},
    "v2": {"Cancel": "Are you sure you want to cancel", "Retry": "Retry the flow run"},
}


def press(look: Look, run: str, state: str, button: str) -> None:
    """Press a button of a run that is in this state, and say yes when asked."""
    look.open(f"/runs/flow-run/{run}", state)
    if look.version == "v2":
        look.browser.click("Open menu")
    look.browser.click(button)
    look.browser.sees(ASKED[look.version][button])
    look.picture(button.lower())
    look.browser.click(CONFIRM[look.version][button])


def test_cancel_ends_the_job_and_retry_runs_what_failed(look: Look, api: Api, standing: Path, tmp_path: Path) -> None:
    mended = tmp_path / "mended"
    long = begin(api, "run/run", command="sleep 600")
    failing = begin(api, "run/run", command=f"test -e {mended}")
    wait_for(lambda: JobState.RUNNING in job_states(standing, long), 120)
    press(look, long, "Running", "Cancel")
    wait_for(lambda: api.state(failing) == "FAILED", 120)
    mended.touch()
    press(look, failing, "Failed", "Retry")
    wait_for(lambda: api.state(long) == "CANCELLED", 120)
    assert job_states(standing, long) == [JobState.CANCELED]
    wait_for(lambda: api.state(failing) == "COMPLETED", 120)
    assert api.run(failing)["run_count"] == 2
