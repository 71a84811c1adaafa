"""The attempt's record, which is also the exit marker."""

from __future__ import annotations

import os
import time

from .atomic import write_atomic
from .failures import FULL, Missing, RunnerError
from .fast_imports import dumps, loads
from .log import say
from .store import find, upload

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .status_lines import StatusLines
    from .tenure import Tenure
    from .where import Where


class Record:
    """`attempts/<n>.json`: written at the start, and once more as the very last act. Its end is the exit marker."""

    ROOM = 8192  # taken at the start for what the end adds, so that a full disk cannot swallow the exit marker
    TOLD = 4000  # what a platform takes of an end

    def __init__(self, where: Where, tenure: Tenure) -> None:
        rank = int(os.environ.get("NODE_RANK") or 0)
        attempt = int(os.environ.get("TAO_ATTEMPT") or 1)
        name = "attempts/%d.json" % attempt if rank == 0 else "attempts/%d.rank%d.json" % (attempt, rank)
        self.remote = "%s/%s" % (where.base, name) if where.is_remote else None
        self.path = os.path.join(where.work if where.is_remote else where.base, name)
        self.rank = rank
        self.tenure = tenure
        self.phase = "inputs"
        self.is_foreign = False  # then nothing is written over it
        self.status: StatusLines | None = None
        self.facts: dict[str, Any] = {
            "name": os.environ.get("TAO_JOB_NAME", ""),
            "key": os.environ.get("TAO_JOB_ID", ""),
            "attempt": attempt,
            "native_id": os.environ.get("TAO_NATIVE_ID", ""),
            "site": os.environ.get("TAO_SITE", ""),
            "target": os.environ.get("TAO_TARGET", ""),
            "restarts": int(os.environ.get("TAO_RESTARTS") or 0),
            "rank": rank,
            "host": os.uname().nodename,
            "pid": os.getpid(),
            "started": time.time(),
        }

    def refuse_foreign(self) -> None:
        """Leave a name alone that a job of another site has, of which our launcher could not know."""
        try:
            with open(self.path, encoding="utf-8") as file:
                found = loads(file.read())
        except (OSError, ValueError):  # nothing there, or nothing that tells
            return
        site = found.get("site") if isinstance(found, dict) else None
        if site and self.facts["site"] and site != self.facts["site"]:
            self.is_foreign = True
            raise RunnerError("claim", "attempt %(attempt)s of this key belongs to " % self.facts + str(site)[:200])

    def is_repeated(self) -> bool:
        """Whether the job has run before: an earlier attempt, or this one, started anew by its platform."""
        if self.facts["attempt"] > 1 or self.facts["restarts"]:
            return True
        if not self.remote:
            return os.path.exists(self.path)
        try:
            find(self.remote)
        except Missing:
            return False
        except RunnerError as error:
            say("%s; treated as the first start" % error)
            return False
        return True

    def follow_status(self) -> None:
        """Have the first node repeat the status file in the log, where a launcher sees no more than that."""
        if os.environ.pop("TAO_STATUS_IN_LOG", "") and not self.rank:
            from .status_lines import follow

            self.status = follow(self.facts.get("outputs", {}))

    def write(self, **facts: Any) -> None:
        if self.tenure.is_lost():
            return
        self.facts.update(facts)
        if self.is_foreign:
            return
        data = dumps(self.facts).encode("utf-8", "replace")
        try:
            os.makedirs(os.path.dirname(self.path), exist_ok=True)
            write_atomic(self.path, data.ljust(len(data) + self.ROOM))
        except OSError as error:
            if error.errno not in FULL or not os.path.exists(self.path):
                raise
            with open(self.path, "r+b", buffering=0) as file:
                file.write(data.ljust(os.path.getsize(self.path)))
        if self.remote:
            upload([(self.path, self.remote, False, lambda: None)])

    def end(self, code: int, ended_by: str, error: str) -> None:
        try:
            facts = {"exit_code": code, "ended_by": ended_by, "phase": self.phase, "error": error[:1000]}
            self.write(ended=time.time(), **facts)
        except (OSError, RunnerError) as problem:
            say("the exit marker could not be written: %s" % problem)
        if self.status:
            self.status.finish()
        self._tell()

    def _tell(self) -> None:
        """The end in a file that the platform itself reads, where it has one; it takes only so much."""
        path = os.environ.get("TAO_END_FILE")
        if not path:
            return
        facts = {name: self.facts[name] for name in self.facts if name != "outputs"}
        facts["error"] = str(facts.get("error", ""))[:500]
        try:
            with open(path, "wb", buffering=0) as file:
                file.write(self._with_status(facts))
        except OSError as problem:
            say("the end could not be reported to the platform: %s" % problem)

    def _with_status(self, facts: dict[str, Any]) -> bytes:
        """The facts, with as many of the last status lines as there is room for."""
        data = dumps(facts).encode("utf-8", "replace")
        lines: list[str] = []
        for line in reversed(self.status.last if self.status else []):
            lines.insert(0, line)
            longer = dumps({**facts, "status": lines}).encode("utf-8", "replace")
            if len(longer) > self.TOLD:
                break
            data = longer
        return data
