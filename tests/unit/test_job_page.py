"""The page of a job while it runs, and the titles that pages have."""

from __future__ import annotations

from uuid import uuid4

from prefect_tao.jobs.handle import JobHandle
from prefect_tao.jobs.points import PointOutcome, SweepOutcome
from prefect_tao.jobs.state import JobState, Observation
from prefect_tao.jobs.statusfile import CurvePoint, Progress
from prefect_tao.tasks.artifacts import pages
from prefect_tao.tasks.artifacts.job_page import running_markdown
from prefect_tao.tasks.artifacts.leaderboard import SHOWN, board_markdown
from prefect_tao.tasks.artifacts.pages import links, note_page, page_key

HANDLE = JobHandle(target="slurm/polar", key="0123456789abcdef", attempt=1)
RUNNING = Observation(state=JobState.RUNNING)


def test_a_page_is_called_what_it_is_about() -> None:
    assert page_key("review", "dino train on slurm/polar", HANDLE.key) == "review-dino-train-on-slurm-polar-012345"
    assert page_key("chain", "tiny: train > export", HANDLE.key) == "chain-tiny-train-export-012345"
    assert page_key("job", "…", HANDLE.key) == "job-012345"
    assert len(page_key("job", "x" * 500, HANDLE.key)) < 100


def test_a_running_job_shows_its_bar_its_curves_and_the_end_of_its_log() -> None:
    history = tuple(CurvePoint(epoch=epoch, metrics={"loss": 1 / epoch}) for epoch in (1, 2))
    progress = Progress(epoch=2, max_epoch=8, fraction=0.25, metrics={"loss": 0.5}, history=history, eta_seconds=45)
    log = "\x1b[32mgreen\x1b[0m\nfirst\rsecond\r\n~~~~~~~~\n\n"
    page = running_markdown("dino train", HANDLE, RUNNING, progress, log)
    assert f"| progress | `{'█' * 10}{'░' * 30}` 25%<br>epoch 2/8, loss 0.5, about 45 s left |" in page
    assert "![loss](data:image/svg+xml;base64," in page
    assert page.endswith("~~~~~~~~\ngreen\nsecond\n~~~~\n~~~~~~~~")
    assert "watch" not in page


def test_a_job_that_is_watched_no_longer_says_how_to_come_back() -> None:
    page = running_markdown("dino train", HANDLE, RUNNING, None, "", watched=False)
    assert f"`prefect-tao watch {HANDLE.name} --target slurm/polar`" in page
    assert "progress" not in page


def test_links_are_relative_because_the_two_uis_have_two_roots() -> None:
    key, artifact = uuid4().hex[:16], uuid4()
    assert links(key) == ""
    note_page(key, artifact)
    pages._tasks[key] = task = uuid4()
    assert links(key) == f"[page]({artifact}), [log](../../runs/task-run/{task})"


def test_a_leaderboard_has_a_link_per_row_and_says_how_many_rows_it_leaves_out() -> None:
    points = tuple(PointOutcome(name=str(n), label=f"lr={n}", overrides={"lr": f"{n}|<b>"}) for n in range(SHOWN + 3))
    page = board_markdown(SweepOutcome(points=points), [f"[log]({n})" for n in range(SHOWN)])
    rows = page.splitlines()
    assert rows[2].startswith("| rank | in Prefect | lr | state |")
    assert rows[4].startswith("|  | [log](0) | 0&#124;&lt;b&gt; | Waiting |")
    assert rows[-1].startswith("3 more are in the table")
