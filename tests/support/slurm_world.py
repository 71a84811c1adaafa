"""A real SLURM cluster as a world for the fault machine: each launcher logs in by itself, over a line that breaks."""

from __future__ import annotations

import asyncio
import os
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from secrets import token_hex

from proxy import Proxy
from slurm_cluster import Cluster
from slurm_shims import CUT, Shims
from slurm_tools import open_cluster

from prefect_tao.jobs.errors import Unreachable
from prefect_tao.jobs.handle import JobHandle
from prefect_tao.jobs.request import JobRequest
from prefect_tao.platforms.slurm import layout
from prefect_tao.platforms.slurm.client import CALL_SECONDS, Account, Login
from prefect_tao.platforms.ssh.connection import Connection
from prefect_tao.testing.noted_world import TOLD, NotedWorld
from prefect_tao.testing.world import Client, Event

SILENT = "fail:slurm_load_jobs error: Unable to contact slurm controller (connect failure):1"
# What SLURM's own programs do on a bad day.
PROGRAMS = {
    "sbatch": ("lost-reply", "cut-before", "timeout-after", "timeout-before"),
    "squeue": (SILENT,),
    "scancel": ("lost-reply", "cut-before"),
    "sacct": ("fail:sacct: error: slurmdbd: connection refused:1",),
}
LINES = {"none": "", "lost request": f"{CUT}cut\n", "lost reply": f"{CUT}trap cut EXIT\n"}
# As when the controller has forgotten all that is over: it shows what lives, and nothing else.
FORGETFUL = """#!/bin/bash
words=()
while [ $# -gt 0 ]; do
    if [ "$1 $2" = "-t all" ]; then shift; else words+=("$1"); fi
    shift
done
exec {real} "${{words[@]}}"
"""


class BadDays:
    """Folders to put before the login node's PATH, one for each fault; made once for a cluster."""

    def __init__(self, cluster: Cluster) -> None:
        self.folder = cluster.base / "bad-days"
        self.folder.mkdir(exist_ok=True)
        self.lines = dict(LINES)
        for program, modes in PROGRAMS.items():
            for number, mode in enumerate(modes):
                own = self._folder(f"{program}-{number}")
                Shims(own).add(program, mode, None, f"/usr/bin/{program}")
                self.lines[f"{program} {mode.partition(':')[0]}"] = f"export PATH={own}:$PATH\n"
        squeue = self._folder("forgetful") / "squeue"
        squeue.write_text(FORGETFUL.format(real="/usr/bin/squeue"))
        squeue.chmod(0o755)
        self.forgetful = f"export PATH={squeue.parent}:$PATH\n"

    def _folder(self, name: str) -> Path:
        path = self.folder / name
        path.mkdir(exist_ok=True)
        return path


class BrittleLogin(Login):
    """A login whose next questions go wrong as `faults` say. With `is_dead` its process was killed."""

    def __init__(self, account: Account, spoil: Callable[[str], str]) -> None:
        super().__init__(account)
        self.faults: deque[str] = deque()
        self.spoil = spoil
        self.is_dead = False

    async def run(self, script: str, seconds: float = CALL_SECONDS, *, again: bool = True) -> str:
        if self.is_dead:
            await asyncio.get_running_loop().create_future()
        fault = self.faults.popleft() if self.faults else "none"
        return await super().run(self.spoil(fault) + script, seconds, again=again)

    def _connected(self) -> Connection:
        if self.is_dead:
            raise Unreachable("this process is gone", "wait")
        return super()._connected()

    def kill(self) -> None:
        self.is_dead = True
        for connection in self._connections.values():
            connection.close()


class SlurmWorld(NotedWorld):
    """Jobs of `cluster`, reached through `line`, which can be cut."""

    events = frozenset({*TOLD, Event.STOPPED, Event.FORGOTTEN, Event.REQUEUED})
    pauses = (0.0, 0.1, 0.3, 0.6, 1.2)
    settle_seconds = 120.0
    refuses = True

    def __init__(self, cluster: Cluster, line: Proxy, bad_days: BadDays, known_hosts: Path) -> None:
        self.base = cluster.shared / f"machine-{token_hex(4)}"
        super().__init__(self.base / "notes")
        self.cluster, self.line, self.bad_days, self.known_hosts = cluster, line, bad_days, known_hosts
        self.faults = tuple(bad_days.lines)
        self.logins: list[BrittleLogin] = []
        self.is_away = self.has_forgotten = False
        cluster.admin(f"chown -R {cluster.user} {self.base}")

    def client(self) -> Client:
        platform = open_cluster(
            self.cluster,
            str(self.base),
            ssh_port=self.line.port,
            known_hosts=str(self.known_hosts),
            poll_seconds=0.3,
        )
        platform.poll_seconds = (0.3, 1.0)
        platform.denial_seconds, platform.gone_seconds = 1.0, 15.0
        login = BrittleLogin(platform.login.account, self._spoil)
        platform.login = login
        self.logins.append(login)
        return Client(platform, login.faults.append, login.kill)

    def _spoil(self, fault: str) -> str:
        return (self.bad_days.forgetful if self.has_forgotten else "") + self.bad_days.lines[fault]

    def request(self, refused: bool = False) -> JobRequest:
        request = super().request()
        # Longer than the partition allows.
        endless = request.resources.model_copy(update={"time_limit": 5 * 3600.0})
        return request.model_copy(update={"resources": endless}) if refused else request

    # -- what happens --------------------------------------------------------------------------------------------------

    async def happens(self, event: Event, key: str) -> None:
        if event is Event.FORGOTTEN:
            self.has_forgotten = True
        elif event is Event.STOPPED:
            for name in self.live(key):
                self.stopped_at[name] = time.time()
                self.cluster.run(f"scancel --name={name}", check=True)
        elif event is Event.REQUEUED:
            for name in self.live(key):
                # What has ended would be started once more, too.
                if not self.is_told_to_end(name):
                    self.cluster.run(f"squeue -h -t RUNNING --name={name} -o %A | xargs -r scontrol requeue")
        else:
            await super().happens(event, key)

    def set_away(self, away: bool) -> None:
        if away != self.is_away:
            self.line.cut() if away else self.line.mend()
        self.is_away = away

    def let_end(self) -> None:
        for login in self.logins:
            login.faults.clear()
        super().let_end()

    def hours_pass(self) -> None:
        for path in (self.base / "jobs").glob(f"*/{layout.HANDLE}"):
            if not (path.with_name(layout.ID).exists() or path.with_name(layout.CLAIM).is_symlink()):
                os.utime(path, (1, 1))
        for path in (self.base / "jobs").glob(f"{layout.INCOMING}*"):
            os.utime(path, (1, 1))

    # -- the truth -----------------------------------------------------------------------------------------------------

    def _jobs(self, states: str) -> list[tuple[str, str]]:
        """Name and state of our jobs."""
        rows = self.cluster.run(f"squeue -h -t {states} -o '%j %T'", check=True).stdout.splitlines()
        return [(name, state) for name, state in (row.split() for row in rows) if self._folder(name).is_dir()]

    def _folder(self, name: str) -> Path:
        return self.base / "jobs" / name

    def living(self) -> list[str]:
        return [name for name, _ in self._jobs("PENDING,CONFIGURING,RUNNING,SUSPENDED")]

    def has_begun(self, handle: JobHandle) -> bool:
        return any(name == handle.name for name, _ in self._jobs("all"))

    def was_asked_to_end(self, name: str) -> bool:
        return (self._folder(name) / layout.STOP).exists()

    def secrets_left(self) -> list[str]:
        value = self.secrets["TOKEN"].encode()
        return [str(path) for path in self.base.rglob("*") if path.is_file() and value in path.read_bytes()]

    def close(self) -> None:
        for login in self.logins:
            login.kill()
        self.cluster.run(f"scancel -u {self.cluster.user}")
