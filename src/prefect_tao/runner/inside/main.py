"""From the plan to the exit code."""

from __future__ import annotations

import os
import sys

from .arguments import command_line
from .command import Command, Stopped
from .failures import RUNNER_FAILED, RunnerError, described
from .fast_imports import loads, signal
from .inputs import fetch_inputs
from .log import say
from .outputs import choose_outputs, results_folder
from .record import Record
from .resume import resume
from .schemes import is_local
from .scratch import keep_scratch, remove_scratch
from .secrets import take_secrets
from .store import fetch, with_store
from .sync import Sync
from .tenure import Tenure
from .where import Where

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any, NoReturn

    Plan = Mapping[str, Any]


def prepare(plan: Plan, where: Where, record: Record, sync: Sync) -> list[str]:
    """All that comes before the command: outputs, inputs, resume, spec. Returns the command's argument list."""
    record.refuse_foreign()
    again = record.is_repeated()
    if again or plan["inputs"]:  # the command may begin much later than the job
        record.write()
    tree = plan["specs"] if plan["mode"] == "config" else plan["args"]
    if plan.get("workdir"):
        os.chdir(plan["workdir"])
    kept = choose_outputs(plan, tree, where, sync)
    os.environ["TAO_RESULTS_DIR"] = results_folder(kept, where, sync)
    if where.kind == "mount":
        os.environ.setdefault("TAO_API_RESULTS_DIR", os.path.dirname(where.base))
    if record.rank:
        del sync.routes[:]  # every node sees the same outputs; one of them carries them
    for _, destination in sync.routes:
        if not is_local(destination):
            with_store("inputs", destination, lambda _: None)  # an image that cannot reach it says so now, not later
    fetch_inputs(plan, tree, where.work)
    resume(tree, kept, where, again)
    record.phase = "spec"
    argv = command_line(plan, tree, where.work)
    record.write(outputs=kept)
    return argv


def run(plan: Plan, keep_fds: Sequence[int] = ()) -> int:
    """Everything from the plan to the exit code."""
    command = Command(plan.get("time_limit"), plan.get("grace", 20))
    os.environ.update(plan.get("env", {}))
    no_secrets = None
    try:
        take_secrets()  # they may say where the results go
    except Exception as error:
        no_secrets = RunnerError("inputs", "the secrets file could not be read and removed: %s" % described(error))
    where = Where(os.environ.setdefault("TAO_JOB_ID", "job-" + os.urandom(4).hex()))
    if where.kind == "ephemeral":
        say("WARNING: no TAO_RESULTS_ROOT, no S3_BUCKET_NAME: results stay in %s and end with it" % where.base)
    if os.environ.pop("TAO_CLAIM", ""):
        from .claiming import turned_away

        away = turned_away(where)
        if away is not None:
            return away
    tenure = Tenure(os.environ.pop("TAO_TENURE_FILE", ""))
    record = Record(where, tenure)
    sync = Sync(plan["upload_excludes"], where.not_outputs(), tenure)
    code, problem = RUNNER_FAILED, ""
    try:
        try:
            command.listen()
            if no_secrets:
                raise no_secrets
            tenure.take()
            argv = prepare(plan, where, record, sync)
            record.follow_status()
            sync.start(plan.get("sync_interval", 60))
            record.phase = "command"
            code = command.run(argv, keep_fds)
        except Exception as error:
            record.phase, problem = getattr(error, "phase", record.phase), described(error)
        finally:
            command.stopping = True  # from here on no signal keeps us from carrying away what is there
    except Stopped:
        code, problem = 128 + signal.SIGTERM, "stopped before the command was started"
    if problem:
        say("ERROR in %s: %s" % (record.phase, problem))
    try:
        sync.finish(lambda: command.is_hurried)
    except Exception as error:
        say("ERROR: outputs were not all saved: %s" % described(error))
        keep_scratch()
        if code == 0:
            code, record.phase, problem = RUNNER_FAILED, "outputs", described(error)
    record.end(code, command.ended_by, problem)
    tenure.leave()
    return code


def main(argv: Sequence[str] | None = None, keep_fds: Sequence[int] = ()) -> NoReturn:
    """Run the plan in the file that the first argument names; leaves with the command's own exit code."""
    path = (argv or sys.argv[1:])[0]
    with open(path, encoding="utf-8") as file:
        plan = loads(file.read())
    if "at" in plan:  # it was too large to come with the job
        take_secrets()  # the keys of the storage it is in may be among them
        with open(fetch(plan["at"], path + ".whole"), encoding="utf-8") as file:
            plan = loads(file.read())
    code = run(plan, keep_fds)
    remove_scratch()
    os._exit(code)  # transfer threads of a stopped run must not hold up the end
