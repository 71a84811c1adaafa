"""The `prefect-tao` command. Prefect is imported only by the commands that run flows, so the others start at once."""

from __future__ import annotations

import logging
import sys
from typing import Annotated

import typer

from prefect_tao import __version__
from prefect_tao.cli import (
    automl,
    catalog,
    chain,
    doctor,
    jobs,
    looking,
    plan,
    quickstart,
    rented,
    results,
    run,
    setup,
    sweep,
    ui,
)

app = typer.Typer(
    name="prefect-tao",
    help="Training jobs as Prefect tasks: checked first, launched exactly once, cancelled for real.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"prefect-tao {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version and leave.", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    pass


app.command("quickstart", epilog=quickstart.EPILOG)(quickstart.quickstart)
app.command("platforms", epilog=catalog.PLATFORMS)(catalog.platforms)
app.command("models", epilog=catalog.MODELS)(catalog.models)
app.command("image", epilog=catalog.IMAGE)(catalog.image)
app.command("setup", epilog=setup.EPILOG)(setup.setup)
app.command("preflight", epilog=plan.PREFLIGHT)(plan.preflight)
app.command("plan", epilog=plan.PLAN)(plan.plan)
app.command("run", epilog=run.EPILOG)(run.run)
app.command("chain", epilog=chain.EPILOG)(chain.chain)
app.command("sweep", epilog=sweep.EPILOG)(sweep.sweep)
app.add_typer(automl.app, name="automl")
app.command("jobs", epilog=jobs.JOBS)(jobs.jobs)
app.command("logs", epilog=jobs.LOGS)(jobs.logs)
app.command("watch", epilog=jobs.WATCH)(jobs.watch)
app.command("cancel", epilog=jobs.CANCEL)(jobs.cancel)
app.command("results", epilog=results.EPILOG)(results.results)
app.command("ls", epilog=looking.LS)(looking.ls)
app.command("check", epilog=looking.CHECK)(looking.check)
app.command("replicas", epilog=looking.REPLICAS)(looking.replicas)
app.command("why", epilog=looking.WHY)(looking.why)
app.add_typer(rented.brev, name="brev")
app.command("doctor", epilog=doctor.EPILOG)(doctor.doctor)
app.command("ui", epilog=ui.EPILOG)(ui.ui)


class _Notes(logging.Handler):
    """What our own loggers say, of waiting above all, as plain lines beside the results."""

    def emit(self, record: logging.LogRecord) -> None:
        typer.echo(record.getMessage(), err=True)


def main() -> None:
    """Run the command; bad input ends with 2, a failed job with 1, and neither with a traceback."""
    from prefect_tao.jobs.errors import InvalidInput, JobFailed, TaoError
    from prefect_tao.launch.parameters.surfaces import speak_options

    speak_options()
    ours = logging.getLogger("prefect_tao")
    ours.addHandler(_Notes(logging.WARNING))
    ours.propagate = False
    try:
        app()
    except InvalidInput as error:
        typer.echo(f"error: {error}", err=True)
        sys.exit(2)
    except JobFailed as error:
        typer.echo(f"error: {error}", err=True)
        if error.outcome:
            from prefect_tao.cli.screen import logs_command

            typer.echo(f"  the whole log: {logs_command(error.outcome.handle)}", err=True)
        sys.exit(1)
    except TaoError as error:
        typer.echo(f"error: {error}", err=True)
        sys.exit(1)
    except BrokenPipeError:
        sys.exit(0)
