"""A real SLURM cluster on the loopback, below one folder: accounting, a controller, nodes with pretended GPUs, and a
login node behind a real sshd. It needs root, because jobs run as another user."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import pwd
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import debian
from slurm_daemons import Daemons, checked
from slurm_layout import lay_out, remove_user, uid
from slurm_processes import end, free_ports, holders, is_free, marked, name_of, owned, send, wait_until
from slurm_shims import Shims
from slurm_site import ACCOUNT, MARK, Site

PROGRAMS = {
    "slurmctld": "slurmctld",
    "slurmd": "slurmd",
    "sbatch": "slurm-client",
    "munged": "munge",
    "sshd": "openssh-server",
    "ssh-keygen": "openssh-client",
    "gcc": "gcc",
    "useradd": "passwd",
    "/usr/include/slurm/spank.h": "libslurm-dev",
    "/usr/include/stdio.h": "libc6-dev",
}
ACCOUNTING_PROGRAMS = {
    "slurmdbd": "slurmdbd",
    "mariadbd": "mariadb-server-core",
    "mariadb": "mariadb-client-core",
}
FINAL = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "OUT_OF_MEMORY")


class Cluster:
    """One cluster. `start` and `stop` may be called again and again, also from another process on the same base."""

    def __init__(
        self, base: Path, accounting: bool = True, nodes: int = 4, gpus: int = 8, min_job_age: int = 300
    ) -> None:
        self.base = base.absolute()
        user = "tao-" + hashlib.sha256(str(self.base).encode()).hexdigest()[:8]
        ports: tuple[int, ...] = ()
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            ports = Site.load(self.base).ports
        if len(ports) != Site.ports_needed(nodes):
            ports = free_ports(Site.ports_needed(nodes))
        self.site = Site(self.base, user, accounting, nodes, gpus, min_job_age, ports)
        self._daemons = Daemons(self.site)

    @classmethod
    def load(cls, base: Path) -> Cluster:
        """The cluster that was started below `base`. Raises FileNotFoundError when there is none."""
        site = Site.load(base.absolute())
        return cls(site.base, site.accounting, site.nodes, site.gpus, site.min_job_age)

    # --- what a client needs to know

    host = "127.0.0.1"
    account = ACCOUNT
    partition = "polar"

    @property
    def user(self) -> str:
        """The account that logs in and owns the jobs."""
        return self.site.user

    @property
    def ssh_port(self) -> int:
        return self.site.ssh_port

    @property
    def key_path(self) -> Path:
        return self.base / "ssh" / "key"

    @property
    def known_hosts(self) -> Path:
        return self.base / "ssh" / "known_hosts"

    @property
    def shared(self) -> Path:
        """Stands for the shared file system; it belongs to the user."""
        return self.base / "shared"

    @property
    def home(self) -> Path:
        """The user's home folder on the login node."""
        return self.base / "home"

    @property
    def env(self) -> dict[str, str]:
        """The product's variables for this cluster."""
        return {
            "SLURM_USER": self.user,
            "SLURM_HOSTNAME": self.host,
            "SLURM_PARTITION": self.partition,
            "SLURM_ACCOUNT": self.account,
            "SSH_KEY_PATH": str(self.key_path),
            "SLURM_BASE_RESULTS_DIR": str(self.shared / "results"),
            "SLURM_CONTAINER_MOUNTS": str(self.shared),
            "SLURM_SSH_PORT": str(self.ssh_port),
            "SLURM_KNOWN_HOSTS": str(self.known_hosts),
        }

    # --- start and stop

    def start(self) -> None:
        """Install what is missing, write the files and start every daemon that does not run.

        Raises Missing where it cannot run, RuntimeError when a daemon does not come up.
        """
        self.install()
        if not any(self._pids()) and not all(is_free(port) for port in self.site.ports):
            self.site = replace(self.site, ports=free_ports(len(self.site.ports)))
            self._daemons = Daemons(self.site)
        # Whatever the caller's files are like, the user has to read these.
        with _umask(0o022):
            lay_out(self.site)
            for label in self._daemons.labels:
                self._daemons.start(label)
        wait_until(self._daemons.nodes_ready, 60, "all nodes idle")

    def install(self) -> None:
        """Have all programs on this machine. Raises Missing where the cluster cannot run."""
        if sys.platform != "linux" or os.geteuid() != 0:
            raise debian.Missing("the SLURM cluster on the loopback needs Linux and root: its jobs run as another user")
        debian.ensure({**PROGRAMS, **(ACCOUNTING_PROGRAMS if self.site.accounting else {})})

    def stop(self) -> None:
        """End all jobs, sessions and daemons of this cluster, and remove the account it made."""
        self.unshim()
        self._thaw_all()
        if self.is_running("slurmctld"):
            self._cancel_all()
        for label in reversed(self._daemons.labels):
            self._daemons[label].stop()
            if label == "slurmctld":
                # Nobody can start jobs any more. What still runs of them needs the remaining daemons for nothing.
                end(set(self.processes()) - set(self._pids()), 5)
        end(self.processes(), 5)
        remove_user(self.site)

    def reset(self) -> None:
        """Undo what a test did: shims, frozen or stopped daemons, jobs, nodes taken out."""
        self.unshim()
        self._thaw_all()
        for label, pid in self.daemons().items():
            if pid is None:
                self._daemons.start(label)
        self._cancel_all()
        if not self._daemons.nodes_ready():
            for name in self.site.node_names:
                self.admin(f"scontrol update nodename={name} state=resume", check=False)
            wait_until(self._daemons.nodes_ready, 60, "all nodes idle")

    def daemons(self) -> dict[str, int | None]:
        """Every daemon in the order of its start, with its pid if it runs."""
        return self._daemons.pids()

    def processes(self) -> list[int]:
        """The pids of everything that runs for this cluster: daemons, jobs, ssh sessions."""
        return sorted({*marked(MARK, str(self.base)), *self._owned(), *self._sessions(), *self._pids()})

    # --- commands

    def run(
        self, command: str, check: bool = False, timeout: float = 60, stdin: str | None = None
    ) -> subprocess.CompletedProcess[str]:
        """A shell command as the user in the user's home, without ssh, noise and shims.

        Raises RuntimeError when it fails and `check` is set.
        """
        account = pwd.getpwnam(self.user)
        env = {
            **self.site.user_env,
            "HOME": str(self.home),
            "USER": self.user,
            "LOGNAME": self.user,
            "LANG": "C.UTF-8",
        }
        reply = subprocess.run(
            ["bash", "-c", command],
            user=account.pw_uid,
            group=account.pw_gid,
            extra_groups=[],
            cwd=self.home,
            env=env,
            input=stdin if stdin is not None else "",
            capture_output=True,
            text=True,
            timeout=timeout,
        )
        return checked(command, reply) if check else reply

    def admin(self, command: str, check: bool = True, timeout: float = 60) -> subprocess.CompletedProcess[str]:
        """A shell command as the cluster's administrator. Raises RuntimeError when it fails and `check` is set."""
        return self._daemons.ask(command, check, timeout)

    def ssh_words(self, command: str = "") -> list[str]:
        """The argv of OpenSSH's client for a command on the login node."""
        options = [f"UserKnownHostsFile={self.known_hosts}", "StrictHostKeyChecking=yes", "BatchMode=yes"]
        options += ["IdentitiesOnly=yes", "KexAlgorithms=curve25519-sha256", "LogLevel=ERROR"]
        flags = [word for option in options for word in ("-o", option)]
        where = ["-i", str(self.key_path), "-p", str(self.ssh_port), f"{self.user}@{self.host}"]
        return ["ssh", "-F", "/dev/null", *flags, *where, *([command] if command else [])]

    def ssh(self, command: str, timeout: float = 60) -> subprocess.CompletedProcess[str]:
        """A command through a new ssh connection, noise and shims included."""
        words = self.ssh_words(command)
        return subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=timeout)

    def job_state(self, job: str | int) -> str:
        """What the controller says of a job, finished ones included; empty when it knows none."""
        return self.run(f"squeue -h -t all -j {job} -o %T").stdout.strip()

    def wait_state(self, job: str | int, *states: str, seconds: float = 30) -> str:
        """Wait until a job is in one of these states, and say in which. Raises RuntimeError when it is not in time."""
        seen = ""

        def settled() -> bool:
            nonlocal seen
            seen = self.job_state(job)
            return seen in states or seen in FINAL

        with contextlib.suppress(RuntimeError):
            wait_until(settled, seconds, "settled")
        if seen not in states:
            raise RuntimeError(f"job {job} should be {' or '.join(states)}, and is {seen or 'unknown'}")
        return seen

    def out_of_memory(self, job: str | int) -> None:
        """End a running job as if it had used more memory than it asked for."""
        self.admin(f"{self.base}/lib/complete {job} oom")

    def time_out(self, job: str | int) -> None:
        """Let a running job reach its time limit now; the controller looks every 30 s."""
        # A moment that has passed when the controller hears of it is refused.
        end_time = datetime.now() + timedelta(seconds=5)
        self.admin(f"scontrol update jobid={job} EndTime={end_time.isoformat(timespec='seconds')}")

    def pyxis_records(self) -> list[dict[str, Any]]:
        """What the stand-in for Pyxis was asked for, one entry per task."""
        return [json.loads(line) for line in self.site.pyxis_record.read_text().splitlines()]

    def enroot_calls(self) -> list[str]:
        """The arguments of every call of the stand-in for enroot."""
        return self.site.enroot_calls.read_text().splitlines()

    # --- faults

    def stop_daemon(self, name: str, node: str | None = None, sign: signal.Signals = signal.SIGTERM) -> None:
        """Stop munged, mariadbd, slurmdbd, slurmctld, sshd (its sessions go on) or slurmd (of all nodes or one)."""
        for label in self._daemons.named(name, node):
            self._daemons[label].stop(sign=sign)

    def start_daemon(self, name: str, node: str | None = None) -> None:
        """Start it again and wait until it answers."""
        for label in self._daemons.named(name, node):
            self._daemons.start(label)

    def is_running(self, name: str, node: str | None = None) -> bool:
        return all(self._daemons[label].pid is not None for label in self._daemons.named(name, node))

    def freeze(self, name: str, node: str | None = None) -> None:
        """Let a daemon keep its connections and say nothing; sshd with all its sessions."""
        self._signal(signal.SIGSTOP, name, node)

    def thaw(self, name: str, node: str | None = None) -> None:
        self._signal(signal.SIGCONT, name, node)

    def _signal(self, sign: signal.Signals, name: str, node: str | None) -> None:
        for label in self._daemons.named(name, node):
            self._daemons[label].signal(sign)
        for pid in self._sessions() if name == "sshd" else ():
            send(pid, sign)

    def kill_ssh_sessions(self) -> int:
        """Break every ssh connection there is; says how many processes that took."""
        sessions = self._sessions()
        for pid in sessions:
            send(pid, signal.SIGKILL)
        return len(sessions)

    def ssh_sessions_opened(self) -> int:
        """How many channels with a command, a shell or sftp were opened since the first start: the round trips."""
        return self._sshd_log().count("Starting session: ")

    def ssh_connections_opened(self) -> int:
        """How many times somebody logged in since the first start."""
        return self._sshd_log().count("Accepted publickey for ")

    def shim(self, program: str, mode: str, times: int | None = None) -> None:
        """Let `program` misbehave on the login node, for its next `times` calls or until `unshim`.

        pass            only count: `shim_calls`
        lost-reply      the real one runs, then the connection breaks before its reply
        cut-before      the connection breaks and the real one does not run
        hang-after      the real one runs, its reply never comes, the connection stays
        hang-before     nothing runs, no reply comes, the connection stays
        timeout-after   the real one runs, but says that it timed out, and ends with 1
        timeout-before  the real one does not run, and says that it timed out, and ends with 1
        slow:<seconds>  the real one runs later
        fail:<text>:<code>  nothing runs; the text on stderr, and that exit code
        """
        real = shutil.which(program, path=self.site.user_env["PATH"])
        if not real:
            raise ValueError(f"{program} is no program of the login node")
        self._shims.add(program, mode, times, real)

    def shim_calls(self, program: str) -> list[str]:
        """The arguments of every call since the program's shim was put up."""
        return self._shims.calls(program)

    def unshim(self, program: str | None = None) -> None:
        if not self._shims.folder.is_dir():
            return
        if program:
            self._shims.remove(program)
        else:
            self._shims.remove_all()

    # --- inside

    @property
    def _shims(self) -> Shims:
        return Shims(self.base / "shims")

    def _owned(self) -> list[int]:
        """The processes of the user, whose account is this cluster's alone."""
        number = uid(self.site)
        return [] if number is None else owned(number)

    def _sessions(self) -> list[int]:
        """The sshd processes of connections, those too whose listener is gone: they write the same log as it."""
        found = [pid for pid in holders(self.site.sshd_log) if name_of(pid).startswith("sshd")]
        return [pid for pid in found if pid != self._daemons["sshd"].pid]

    def _cancel_all(self) -> None:
        """Jobs that are cancelled while slurmctld runs leave no processes behind."""
        if not (jobs := self._unfinished()):
            return
        self.admin(f"echo {' '.join(jobs)} | xargs -n 200 scancel --quiet", check=False)

        def over() -> bool:
            # Those that do not listen would keep us waiting.
            for pid in self._owned():
                if not name_of(pid).startswith("sshd"):
                    send(pid, signal.SIGKILL)
            return not self._unfinished()

        wait_until(over, 30, "all jobs over")

    def _unfinished(self) -> list[str]:
        return self.admin("squeue -h -o %A", check=False).stdout.split()

    def _thaw_all(self) -> None:
        for pid in (*self._pids(), *self._sessions()):
            send(pid, signal.SIGCONT)

    def _pids(self) -> list[int]:
        return [pid for pid in self.daemons().values() if pid is not None]

    def _sshd_log(self) -> str:
        return self.site.sshd_log.read_text(errors="replace") if self.site.sshd_log.exists() else ""


@contextlib.contextmanager
def _umask(mask: int) -> Iterator[None]:
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)
