"""Which ends of a trial say something about its values, and which only about the machines."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from prefect_tao.cli.search_screen import SearchScreen
from prefect_tao.flows.pool import TrialEnd
from prefect_tao.flows.trials import not_its_fault
from prefect_tao.jobs.best_epoch import at_epoch
from prefect_tao.jobs.chain_outcome import StepState
from prefect_tao.jobs.handle import JobHandle
from prefect_tao.jobs.outcome import Outcome
from prefect_tao.jobs.search_outcome import SearchOutcome, TrialOutcome
from prefect_tao.jobs.state import JobState
from prefect_tao.jobs.verdict import POLICIES, Category, Verdict
from prefect_tao.tasks.artifacts.kept_board import hidden, read_hidden
from prefect_tao.tasks.artifacts.search_page import search_markdown

HANDLE = JobHandle(target="process", key="0" * 16, attempt=1)
MACHINES = {
    "capacity",
    "preempted",
    "node_failure",
    "stuck",
    "gpu_failure",
    "network",
    "storage",
    "image",
    "credentials",
}


def ended(category: Category) -> TrialEnd:
    policy = POLICIES[category]
    verdict = Verdict(category=category, err_class=policy.err_class, cause="it ended", remedy="", retryable=False)
    return TrialEnd(StepState.ERROR, Outcome(handle=HANDLE, state=JobState.ERROR, verdict=verdict), "it ended")


@pytest.mark.parametrize("category", list(Category))
def test_what_the_machines_do_is_not_held_against_the_values(category: Category) -> None:
    assert not_its_fault(ended(category)) == (category.value in MACHINES)


def test_a_job_that_was_never_launched_says_nothing_about_its_values() -> None:
    assert not_its_fault(TrialEnd(StepState.ERROR, None, "the platform refused it"))


def test_the_checkpoint_of_the_best_epoch_is_handed_on_where_it_is_there() -> None:
    files = ("/r/model_epoch_001.pth", "/r/model_epoch_002.pth", "/r/latest.pth", "/r/log.txt")
    outcome = Outcome(handle=HANDLE, state=JobState.COMPLETE, files=files)
    assert at_epoch(outcome, 1).files == ("/r/model_epoch_001.pth", "/r/log.txt")
    assert at_epoch(outcome, 7) is outcome
    assert at_epoch(outcome, None) is outcome


def trial(number: int, loss: float | None, rung: int = 0, **more: object) -> TrialOutcome:
    given: dict[str, object] = {
        "name": f"trial-{number}",
        "label": f"lr=0.{number}",
        "overrides": {"lr": number / 10, "how": "adam" if number % 2 else "sgd"},
        "number": number,
        "configuration": number,
        "rung": rung,
        "state": StepState.ERROR if loss is None else StepState.COMPLETE,
        "metrics": {} if loss is None else {"loss": loss, "speed": 1 - loss},
        "curve": {} if loss is None else {1: loss + 1, 2: loss},
        **more,
    }
    return TrialOutcome.model_validate(given)


def test_the_best_is_among_those_that_came_furthest_and_never_a_failure() -> None:
    found = SearchOutcome(
        points=(trial(0, 0.1), trial(1, None), trial(2, 0.5, rung=1), trial(3, 0.4, rung=1)),
        metric="loss",
        direction="minimize",
    )
    assert found.best is not None
    assert found.best.number == 3
    assert [one.label for one in found.ranked] == ["lr=0.3", "lr=0.2", "lr=0.0", "lr=0.1"]


def test_what_evaluations_around_a_search_found_is_told_in_words() -> None:
    found = SearchOutcome(points=(), final={"test_accuracy": 0.987654321, "test_loss": 0.5})
    assert found.evaluations == {"evaluation of the winner": "test_accuracy 0.98765, test_loss 0.5"}


def test_the_terminal_shows_the_best_so_far_how_long_it_may_take_and_what_was_used() -> None:
    used = {"seconds": 1800.0, "total_seconds": 1800.0, "gpus": 2}
    done = [trial(number, 0.5 - number / 10, **used) for number in range(3)]
    running = trial(3, None, state=StepState.RUNNING)
    board = SearchOutcome(
        points=(*done, running), metric="loss", direction="minimize", most_trials=8, concurrent=2, most_gpu_hours=6.0
    )
    out = Console(file=io.StringIO(), force_terminal=True, color_system=None, width=120, highlight=False)
    screen = SearchScreen(out, "key")
    screen.take(board)
    for line in screen.lines():
        out.print(line)
    text = out.file.getvalue()  # type: ignore[attr-defined]
    assert "3 of 8 trials" in text
    assert "best so far: loss 0.3 in trial 2" in text
    assert "about 1 h 07 min left" in text
    assert "3.000 of 6 GPU hours used" in text


def test_the_page_shows_what_a_search_has_learned_as_pictures() -> None:
    found = SearchOutcome(
        points=tuple(trial(number, number / 10) for number in range(5)),
        metric="loss",
        metrics=("loss", "speed"),
        direction="minimize",
        importance={"lr": 0.9, "how": 0.1},
        front=(0, 1),
        spec={"lr": 0.0},
        advice="the next trial is expected to gain little",
    )
    assert read_hidden(f"{search_markdown(found)}\n\n{hidden(found)}\n") == found
    assert read_hidden(search_markdown(found)) is None
    page = search_markdown(found)
    pictures = (
        "optimisation history",
        "learning curves",
        "importance of parameters",
        "the metric over",
        "Pareto front",
    )
    for words in pictures:
        assert f"![{words}" in page
    assert page.count("data:image/svg+xml;base64,") == len(pictures)
    assert "lr: 0.0" in page
    assert "expected to gain little" in page
    assert "![" not in search_markdown(SearchOutcome(points=(trial(0, None),), metric="loss"))
