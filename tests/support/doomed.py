"""Calls flows in processes that kill themselves in the middle of a write: a program, and `Doomed`, which leads it.

Prefect takes seconds to import, so one process has imported everything and forks one for each life.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from types import TracebackType
from typing import Any

WRITES = ("os.rename", "os.link", "os.mkdir", "os.remove", "os.fork", "os.posix_spawn", "subprocess.Popen")
# What a flow imports when it comes to that: seconds in each of them.
LATER = (
    "alembic.command",
    "anyio._backends._asyncio",
    "coolname.data",
    "fastapi",
    "graphviz",
    "optuna.importance",
    "prefect.flow_engine",
    "prefect.task_engine",
    "prefect_tao.flows.search",
    "prefect_tao.searching.importance",
    "prefect_tao.searching.study",
    "sklearn.ensemble",
)
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT


class Doomed:
    """Lives of one flow, one after the other. `live` returns whether it was killed, and not over before."""

    def __init__(self, server: Any, home: Path) -> None:
        env = {**server.env, "PREFECT_TAO_HOME": str(home), "PREFECT_API_URL": server.api}
        self._log = open(home.parent / "doomed.log", "ab")  # noqa: SIM115 - closed at the end
        words = [sys.executable, __file__]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(words, env=env, stdin=pipe, stdout=pipe, stderr=self._log, text=True)

    def live(self, flow: str, writes: int, **parameters: Any) -> bool:
        """Call the flow, and kill its process as soon as it begins its write number `writes`."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps([flow, writes, parameters]) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        assert answer, f"the process that forks has ended: {self._log.name}"
        return int(answer) == signal.SIGKILL

    def __enter__(self) -> Doomed:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._process.kill()
        self._process.wait()
        self._log.close()


def _die_at(number: int) -> None:
    """Have the kernel kill this process when it begins its write of this number, whoever in it writes."""
    from sqlalchemy import event
    from sqlalchemy.engine import Engine

    left = number

    def count() -> None:
        nonlocal left
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    def audit(name: str, args: tuple[Any, ...]) -> None:
        if name in WRITES or (name == "open" and isinstance(args[2], int) and args[2] & WRITING):
            count()

    sys.addaudithook(audit)
    event.listen(Engine, "before_cursor_execute", lambda _, __, text, *___: _is_write(text) and count())
    event.listen(Engine, "commit", lambda _: count())


def _is_write(statement: str) -> bool:
    return statement.lstrip()[:6].upper() in ("INSERT", "UPDATE", "DELETE", "CREATE")


def main() -> None:
    """Fork one process for each line of the input, and say which signal has ended it."""
    import prefect_tao

    for name in LATER:
        import_module(name)
    for line in sys.stdin:
        flow, writes, parameters = json.loads(line)
        child = os.fork()
        if child == 0:
            os.dup2(2, 1)
            _die_at(writes)
            getattr(prefect_tao, flow)(**parameters)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        print(os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0, flush=True)


if __name__ == "__main__":
    main()
