"""The daemons of a loopback SLURM cluster: how each is started, when it is there, and what it needs to be told then."""

from __future__ import annotations

import subprocess
from pathlib import Path

from slurm_processes import Daemon, is_free, wait_until
from slurm_site import ACCOUNT, CLUSTER, DATABASE, OTHER_ACCOUNT, PASSWORD, Site

START_SECONDS = 60


def checked(command: str, reply: subprocess.CompletedProcess[str]) -> subprocess.CompletedProcess[str]:
    """The reply of a command that went well. Raises RuntimeError with what it said otherwise."""
    if reply.returncode:
        raise RuntimeError(f"{command}: exit code {reply.returncode}: {reply.stderr or reply.stdout}")
    return reply


class Daemons:
    """All daemons of one cluster, by label: the program's name, with the node's behind it for slurmd."""

    def __init__(self, site: Site) -> None:
        self.site = site
        accounting = ["mariadbd", "slurmdbd"] if site.accounting else []
        nodes = [f"slurmd.{name}" for name in site.node_names]
        self.labels = ["munged", *accounting, "slurmctld", *nodes, "sshd"]
        self._by_label = {label: self._daemon(label) for label in self.labels}

    def __getitem__(self, label: str) -> Daemon:
        return self._by_label[label]

    def pids(self) -> dict[str, int | None]:
        """Every daemon in the order of start, with its pid if it runs."""
        return {label: self[label].pid for label in self.labels}

    def named(self, name: str, node: str | None = None) -> list[str]:
        """The labels of a daemon: of slurmd on every node when none is given. Raises ValueError when there is none."""
        program = [label for label in self.labels if label.partition(".")[0] == name]
        found = [label for label in program if node is None or label == f"{name}.{node}"]
        if not found:
            raise ValueError(f"this cluster has no {name}{f' on {node}' if node else ''}")
        return found

    def start(self, label: str) -> None:
        """Start it unless it runs, and wait until it answers. Raises RuntimeError when it does not."""
        daemon = self[label]
        fresh = daemon.pid is None
        if fresh:
            self._prepare(label)
            daemon.start()

        def ready() -> bool:
            daemon.check()
            return self._answers(label)

        wait_until(ready, START_SECONDS, f"{label} answers")
        if fresh:
            self._settle(label)

    def ask(self, command: str, check: bool = True, timeout: float = 60) -> subprocess.CompletedProcess[str]:
        """A shell command as the cluster's administrator. Raises RuntimeError when it fails and `check` is set."""
        reply = subprocess.run(
            ["bash", "-c", command],
            env=self.site.admin_env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout,
        )
        return checked(command, reply) if check else reply

    def nodes_ready(self) -> bool:
        """Every node takes jobs: none is down, drained or, which a star shows, silent."""
        shown = self.ask("sinfo -h -N -p long -o %t", check=False).stdout.split()
        return len(shown) == self.site.nodes and set(shown) <= {"idle", "mix", "alloc", "comp"}

    def _daemon(self, label: str) -> Daemon:
        note, log = self.site.base / "run" / f"{label}.json", self.site.base / "log" / f"{label}.out"
        return Daemon(note, log, self._words(label), self.site.admin_env)

    def _words(self, label: str) -> list[str]:
        base = self.site.base
        name, _, node = label.partition(".")
        options = {
            "munged": self._munged(),
            "mariadbd": self._mariadbd(),
            "slurmd": ["-D", "-N", node],
            "sshd": ["-D", "-f", str(base / "etc" / "sshd_config"), "-E", str(self.site.sshd_log)],
        }
        return [f"/usr/sbin/{name}", *options.get(name, ["-D"])]

    def _munged(self) -> list[str]:
        base = self.site.base
        files = [f"--key-file={base}/munge/key", f"--seed-file={base}/munge/seed", f"--log-file={base}/munge/log"]
        files += [f"--socket={self.site.munge_socket}", f"--pid-file={base}/run/munged.pid"]
        return ["--foreground", "--num-threads=4", *files]

    def _mariadbd(self) -> list[str]:
        base = self.site.base
        where = [f"--datadir={base}/database", f"--socket={self.site.database_socket}"]
        where += [f"--pid-file={base}/run/mariadbd.pid", f"--port={self.site.database_port}"]
        where += ["--bind-address=127.0.0.1", "--skip-name-resolve"]
        # Nothing here needs to survive a power cut.
        quick = ["--innodb-flush-log-at-trx-commit=0", "--sync-binlog=0", "--skip-log-bin"]
        small = ["--innodb-buffer-pool-size=128M", "--innodb-log-file-size=32M", "--performance-schema=OFF"]
        other = ["--innodb-lock-wait-timeout=900", "--max-allowed-packet=16M"]
        return ["--no-defaults", "--user=root", *where, *quick, *small, *other]

    def _prepare(self, label: str) -> None:
        base = self.site.base
        if label == "mariadbd" and not (base / "database" / "mysql").is_dir():
            options = f"--no-defaults --user=root --datadir={base}/database --skip-test-db"
            log = base / "log" / "mariadb-install.log"
            self.ask(f"mariadb-install-db {options} --auth-root-authentication-method=socket >{log} 2>&1")
        if label == "sshd":
            Path("/run/sshd").mkdir(exist_ok=True)
        if label.startswith("slurmd."):
            (base / "spool" / label.partition(".")[2]).mkdir(exist_ok=True)

    def _answers(self, label: str) -> bool:
        questions = {
            "munged": f"munge -n --socket={self.site.munge_socket}",
            "mariadbd": self._sql("select 1"),
            "slurmdbd": "sacctmgr -n show cluster",
            "slurmctld": "scontrol ping | grep -q UP",
        }
        if label in questions:
            return self.ask(questions[label], check=False).returncode == 0
        return not is_free(self.site.ssh_port if label == "sshd" else self.site.node_port(label.partition(".")[2]))

    def _settle(self, label: str) -> None:
        if label == "mariadbd":
            grant = f"grant all on {DATABASE}.* to 'slurm'@'127.0.0.1' identified by '{PASSWORD}'"
            self.ask(self._sql(f"create database if not exists {DATABASE}; {grant}"))
        if label == "slurmdbd":
            # The cluster has to be known before slurmctld first registers with it.
            self._enter("cluster", CLUSTER, "")
            for account in (ACCOUNT, OTHER_ACCOUNT):
                self._enter("account", account, f"Cluster={CLUSTER}")
            self._enter("user", self.site.user, f"Account={ACCOUNT} Cluster={CLUSTER}")
        if label == "slurmctld":
            # `sacct -c` opens the file for writing, and slurmctld closes it to others at every start.
            wait_until(self.site.finished_jobs.exists, 10, "the file of finished jobs")
            self.site.finished_jobs.chmod(0o666)

    def _enter(self, kind: str, name: str, where: str) -> None:
        def is_there() -> bool:
            return bool(self.ask(f"sacctmgr -nP show {kind} {name} format={kind}", check=False).stdout.strip())

        def is_entered() -> bool:
            return is_there() or self.ask(f"sacctmgr -iQ add {kind} {name} {where}", check=False).returncode == 0

        # On a busy machine slurmdbd answers questions before it takes entries.
        wait_until(is_entered, 30, f"slurmdbd to take the {kind} {name}")

    def _sql(self, statement: str) -> str:
        return f'mariadb --no-defaults -S {self.site.database_socket} -e "{statement}"'
