"""`prefect-tao quickstart`: the whole thing once, small and real."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.console import Console

    from prefect_tao.jobs.outcome import Outcome

EPILOG = """\b
Example:
  prefect-tao quickstart --epochs 5
"""


def quickstart(
    epochs: Annotated[int, typer.Option(min=1, help="Epochs to train.")] = 20,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Show Prefect's own log.")] = False,
    json_: Annotated[bool, typer.Option("--json", help="The outcomes as JSON on standard output.")] = False,
) -> None:
    """Train, evaluate and export a small model on this machine, as three Prefect tasks."""
    from prefect_tao.cli.running import run_flow
    from prefect_tao.cli.screen import Screen, console

    screen = Screen(console())
    screen.out.print(
        "A real small training, then its evaluation and export, each launched exactly once as a Prefect task."
    )
    outcomes: list[Outcome] = run_flow("quickstart", screen, verbose, epochs=epochs)
    if json_:
        sys.stdout.write(json.dumps([outcome.model_dump(mode="json") for outcome in outcomes], indent=2) + "\n")
    else:
        _close(screen.out, outcomes)


def _close(out: Console, outcomes: list[Outcome]) -> None:
    from rich.table import Table

    from prefect_tao.cli.screen import STYLES, program
    from prefect_tao.jobs.quantities import format_seconds

    table = Table("step", "state", "took", "metric", title="What ran", title_justify="left", pad_edge=False)
    for step, outcome in zip(("train", "evaluate", "export"), outcomes, strict=True):
        metric = next((f"{name} {value:.3f}" for name, value in outcome.metrics.items() if "accuracy" in name), "")
        state = f"[{STYLES[outcome.state]}]{outcome.state.value}[/]"
        table.add_row(step, state, format_seconds(outcome.seconds or 0), metric)
    out.print()
    out.print(table)
    out.print("\nResults")
    for step, outcome in zip(("train", "evaluate", "export"), outcomes, strict=True):
        out.print(f"  {step:9} {outcome.results}", soft_wrap=True)
    us = program()
    out.print("\nNext")
    for words, why in (
        (f"{us} ui", "see this run in the Prefect UI"),
        (f"{us} jobs", "list the jobs of this machine"),
        (f"{us} logs {outcomes[0].handle.name}", "what the training printed"),
        (f"{us} run -- python my_script.py", "your own job"),
    ):
        out.print(f"  {words:52} {why}", soft_wrap=True)
