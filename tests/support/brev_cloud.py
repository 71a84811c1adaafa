"""A stand-in of Brev, written from the source of its command: instances that boot, each with an sshd of its own.

An instance that runs is a real sshd on its own port in front of a real Docker engine; both end with it. What costs
money is `paid`. The command of the tests asks here; faults are put into `faults` by the name of the command.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import socketserver
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from secrets import token_hex
from typing import Any, NoReturn

import brev_program
from docker_engine import Engine
from ssh_server import Sshd, make_key, new_server

OPTIONS = """  Hostname 127.0.0.1
  IdentityFile "{pem}"
  User {user}
  ServerAliveInterval 30
  UserKnownHostsFile /dev/null
  IdentitiesOnly yes
  StrictHostKeyChecking no
  PasswordAuthentication no
  AddKeysToAgent yes
  ForwardAgent yes
  RequestTTY yes
  ControlMaster auto
  ControlPath ~/.ssh/brev-control-%C
  ControlPersist 10m
  Port {port}
"""
LOGGED_OUT = "You are currently logged out, would you like to log in? [Y/n]: "
UNAUTHORIZED = 'https://brevapi.example/api/me?cli_version=v0.6.327&os=linux 401 Unauthorized {"errors":null}\n'
KEY_PREFIX = "bak-"
# Stands for a token that the command mints itself, with what it has for that.
RENEWED = "auto-login"


def offer(name: str, gpu: str, count: int, price: float, stoppable: bool = True, disk: float = 2000) -> dict[str, Any]:
    """A row of `brev search --json`."""
    return {
        "type": name,
        "cloud": "aws",
        "provider": "aws",
        "gpu_name": gpu,
        "gpu_count": count,
        "vram_per_gpu_gb": 24.0,
        "total_vram_gb": 24.0 * count,
        "capability": 8.6,
        "vcpus": 4,
        "memory": "16GiB",
        "ram_gb": 16,
        "arch": "x86_64",
        "disk_min_gb": 10,
        "disk_max_gb": disk,
        "boot_time_seconds": 180,
        "stoppable": stoppable,
        "rebootable": True,
        "flex_ports": False,
        "target_disk_gb": disk,
        "price_per_hour": price,
    }


OFFERS = [
    offer("g5.xlarge", "A10G", 1, 1.2),
    offer("g5.12xlarge", "A10G", 4, 6.8),
    offer("a2-highgpu-1g:nvidia-tesla-a100:1", "A100", 1, 4.4),
    offer("massedcompute_L40S", "L40S", 1, 1.1, stoppable=False),
]


class Told(Exception):
    """What the command says and ends with."""

    def __init__(self, out: str = "", err: str = "", code: int = 0) -> None:
        super().__init__(err or out)
        self.answer = {"out": out, "err": err, "code": code}


def fail(err: str, out: str = "") -> NoReturn:
    """Every failure is exit 1 with the message on stderr."""
    raise Told(out, err if err.endswith("\n") else f"{err}\n", 1)


@dataclass
class BrevInstance:
    """One rented machine. `since` is when it began to do what `doing` says."""

    name: str
    type: str
    boot: float
    doing: str = "create"
    since: float = field(default_factory=time.monotonic)
    id: str = field(default_factory=lambda: token_hex(5))
    fails: bool = False
    build: str | None = None
    health: str = ""
    sshd: Sshd | None = None
    engine: Engine | None = None

    @property
    def status(self) -> str:
        age = time.monotonic() - self.since
        if self.doing == "create":
            if age < 0.4 * self.boot:
                return "DEPLOYING"
            if self.fails:
                return "FAILURE"
            return "STARTING" if age < 0.6 * self.boot else "RUNNING"
        if self.doing == "start":
            return "STARTING" if age < 0.5 * self.boot else "RUNNING"
        if self.doing == "stop":
            return "STOPPING" if age < 0.5 * self.boot else "STOPPED"
        return "DELETING" if age < min(self.boot, 0.5) else ""

    @property
    def build_status(self) -> str:
        """Lags behind, and may stay wrong for ever."""
        if self.build is not None:
            return self.build
        age = (time.monotonic() - self.since) / self.boot
        return "" if age < 0.4 else "PENDING" if age < 0.6 else "BUILDING" if age < 1 else "COMPLETED"

    @property
    def is_reachable(self) -> bool:
        """Its sshd comes a while after RUNNING."""
        return self.status == "RUNNING" and time.monotonic() - self.since >= self.boot

    def row(self) -> dict[str, str]:
        """As `ls --json` shows it."""
        status = self.status
        is_ready = status == "RUNNING" and self.build_status == "COMPLETED"
        return {
            "name": self.name,
            "id": self.id,
            "status": "UNHEALTHY" if status == "RUNNING" and self.health == "UNHEALTHY" else status,
            "build_status": self.build_status,
            "shell_status": "READY" if is_ready else "NOT READY",
            "health_status": self.health,
            "instance_type": self.type,
            "instance_kind": "gpu",
            "gpu": next((one["gpu_name"] for one in OFFERS if one["type"] == self.type), "-"),
        }


class _Parser(argparse.ArgumentParser):
    """Refuses what the real command refuses, in its words."""

    def error(self, message: str) -> NoReturn:
        unknown = re.search(r"unrecognized arguments: (\S+)", message)
        fail(f"unknown flag: {unknown[1]}" if unknown else message)


def _parser() -> _Parser:
    parser = _Parser(prog="brev", add_help=False)
    words = parser.add_subparsers(dest="command", parser_class=_Parser)
    flags: dict[str, tuple[str, ...]] = {
        "ls": ("--json", "--all"),
        "create": ("--detached", "--stoppable", "--dry-run"),
        "start": ("--detached",),
        "search": ("--json",),
        "refresh": (),
        "stop": (),
        "delete": (),
        "login": (),
    }
    values = {
        "ls": ("--org",),
        "create": ("--type", "--gpu-name", "--provider", "--min-disk", "--timeout", "--startup-script", "--mode")
        + ("--container-image", "--jupyter"),
        "search": ("--gpu-name",),
        "login": ("--token", "--api-key", "--org-id"),
    }
    for name, own in flags.items():
        one = words.add_parser(name, add_help=False)
        one.add_argument("names", nargs="*")
        for flag in own:
            one.add_argument(flag, action="store_true")
        for flag in values.get(name, ()):
            one.add_argument(flag)
    return parser


class BrevCloud:
    """All instances of an organization, and the command's way to them."""

    def __init__(self, folder: Path, engines: list[Engine] | None = None, boot: float = 0.3) -> None:
        self.folder, self.boot = folder, boot
        self.engines = list(engines or [])
        self.has_engines = engines is not None
        self.instances: list[BrevInstance] = []
        self.calls: list[dict[str, Any]] = []
        self.faults: dict[str, deque[str]] = {}
        self.version = "0.6.335"
        self.shape = "dict"
        self.full: set[str] = set()  # types without capacity
        self.refusal = ""  # what every create is told
        self.keys = {"bak-good", "eyJ0.Z29vZA.x"}
        self.spoil: Callable[[dict[str, Any]], str] = lambda asked: ""
        self.lag = 0  # how many lists do not have yet what was made last
        self.is_away = False
        self.made = 0
        self._lock = threading.RLock()
        self._over = threading.Event()
        self._parser = _parser()
        self.folder.mkdir(parents=True, exist_ok=True)
        make_key(self.folder / "brev.pem")

    # -- what a test looks at ------------------------------------------------------------------------------------------

    @property
    def paid(self) -> list[str]:
        """Everything that costs money now, and will until somebody deletes it."""
        with self._lock:
            return [one.name for one in self.instances if one.doing != "delete"]

    def find(self, name: str) -> BrevInstance | None:
        with self._lock:
            self._pass_time()
            return next((one for one in self.instances if name in (one.name, one.id)), None)

    def add(self, name: str, type: str = "g5.xlarge", **facts: Any) -> BrevInstance:
        """One that a person has made in the console; it runs."""
        with self._lock:
            made = BrevInstance(name, type, self.boot, since=time.monotonic() - self.boot, **facts)
            self.instances.append(made)
            self._pass_time()
            return made

    # -- time ----------------------------------------------------------------------------------------------------------

    def keep_time(self) -> None:
        """Start and end sshds as instances come and go."""
        while not self._over.wait(0.05):
            with self._lock:
                self._pass_time()

    def _pass_time(self) -> None:
        for one in list(self.instances):
            if one.is_reachable and one.sshd is None:
                self._start(one)
            elif not one.is_reachable and one.sshd is not None:
                self._end(one)
            if not one.status:
                self._end(one)
                if one.engine:
                    one.engine.clear()
                    self.engines.append(one.engine)
                self.instances.remove(one)

    def _start(self, one: BrevInstance) -> None:
        if one.engine is None and self.has_engines:
            if not self.engines:
                return
            one.engine = self.engines.pop(0)
        one.sshd = new_server({"DOCKER_HOST": one.engine.host if one.engine else "unix:///nowhere"})
        shutil.copy(self.folder / "brev.pem.pub", one.sshd.folder / "authorized_keys")

    def _end(self, one: BrevInstance) -> None:
        """A machine that is gone takes its logins with it, those that are open too."""
        if one.sshd is None:
            return
        assert one.sshd.process
        children = Path(f"/proc/{one.sshd.process.pid}/task/{one.sshd.process.pid}/children").read_text().split()
        one.sshd.remove()
        for child in children:
            try:
                os.kill(int(child), 9)
            except ProcessLookupError:
                continue
        one.sshd = None

    def close(self) -> None:
        self._over.set()
        with self._lock:
            for one in self.instances:
                self._end(one)
                if one.engine:
                    one.engine.clear()

    # -- the command ---------------------------------------------------------------------------------------------------

    def answer(self, asked: dict[str, Any]) -> dict[str, Any] | None:
        """What the command prints and ends with; None for an answer that is lost on the way."""
        words: list[str] = asked["argv"]
        self.calls.append({"argv": words, "env": asked["env"], "session": asked["session"], "color": asked["color"]})
        fault = self.spoil(asked)
        if words and self.faults.get(words[0]):
            fault = self.faults[words[0]].popleft()
        if (self.is_away and words[:1] != ["--version"]) or fault == "away":
            return {"out": "", "err": 'Post "https://brevapi.example": dial tcp: i/o timeout\n', "code": 1}
        if fault.startswith("says "):
            return {"out": fault.removeprefix("says "), "err": "", "code": 0}
        if fault in ("slow", "late"):
            time.sleep(30 if fault == "slow" else 0.5)
        try:
            with self._lock:
                self._pass_time()
                self._do(words, asked)
        except Told as told:
            if fault == "lost":
                skipped = "".join(line for line in told.answer["err"].splitlines(True) if line.startswith("Skipping"))
                eof = 'Post "https://brevapi.example": unexpected EOF\n'
                return {"out": "", "err": skipped + eof, "code": 1}
            return {**told.answer, "leaves": fault == "leaves"}
        return {"out": "", "err": "", "code": 0}

    def _do(self, words: list[str], asked: dict[str, Any]) -> None:
        if words[:1] == ["--version"]:
            raise Told(f"Current Version: v{self.version}\n")
        if words[:1] == ["exec"]:
            self._exec([word for word in words[1:] if word != "--"], asked)
        if not words or words[0] not in ("ls", "create", "start", "stop", "delete", "search", "refresh", "login"):
            fail(f'unknown command "{words[0] if words else ""}" for "brev"')
        given = self._parser.parse_args(words)
        if given.command not in ("search", "login"):
            self._check_login(asked)
        getattr(self, f"_do_{given.command}")(given, asked)

    def _check_login(self, asked: Mapping[str, Any]) -> None:
        kept = asked["credentials"]
        new = self.version_numbers >= (0, 6, 335)
        key = (asked["api_key"] if new else "") or kept.get("api_key") or kept.get("access_token") or ""
        is_malformed = key == RENEWED and kept.get("refresh_token", "").count(":") != 1
        if not key or is_malformed:
            first = "WARN: malformed refresh token, logging out\n" if is_malformed else ""
            fail(f"{first}2026/11/18 10:00:00 WARN RESTY EOF, Attempt 1\nEOF", LOGGED_OUT)
        if key.startswith((KEY_PREFIX, "eyJ")) and key not in self.keys:
            fail(UNAUTHORIZED)
        if key == RENEWED:
            own = Path(asked["home"], ".brev/credentials.json")
            own.write_text(json.dumps({**kept, "access_token": f"minted-{token_hex(4)}"}))

    @property
    def version_numbers(self) -> tuple[int, ...]:
        return tuple(map(int, self.version.split(".")))

    def _do_ls(self, given: argparse.Namespace, asked: Mapping[str, Any]) -> None:
        if given.json and self.version_numbers < (0, 6, 317):
            fail("unknown flag: --json")
        if given.names:
            raise Told()  # whatever it was, it prints nothing and is content
        rows = [one.row() for one in self.instances if one.status]
        if rows and self.lag:
            self.lag -= 1
            rows.pop()
        shapes = {"dict": {"workspaces": rows or None}, "list": rows or None}
        raise Told(json.dumps(shapes[self.shape], indent=2) + "\n" if given.json else "NAME STATUS\n")

    def _do_search(self, given: argparse.Namespace, asked: Mapping[str, Any]) -> None:
        raise Told(json.dumps(OFFERS, indent=2) if given.json else "TYPE\n")

    def _do_create(self, given: argparse.Namespace, asked: Mapping[str, Any]) -> None:
        name = given.names[0] if given.names else ""
        if not re.fullmatch(r"[a-zA-Z0-9][a-zA-Z0-9._-]*", name) or len(name) > 63:
            fail("name must start with a letter or digit and contain only letters, digits, hyphens")
        said = ["Attempting to create 1 instance(s) with 1 parallel attempts"]
        if self.refusal:
            fail("\n".join([*said, self.refusal, "could only create 0/1 instances"]))
        for type in (given.type or "").split(","):
            if type not in [one["type"] for one in OFFERS]:
                said.append(f'Skipping: instance type "{type}" is not a recognized type')
            elif type in self.full:
                said.append(f'Skipping: instance type "{type}" is currently unavailable (no capacity)')
            elif self.find(name):
                said.append(
                    f"Error: workspace '{name}' already exists. Use a different name or delete the existing workspace"
                )
                break
            else:
                self.made += 1
                fails = bool(self.faults.get("boot") and self.faults["boot"].popleft())
                self.instances.append(BrevInstance(name, type, self.boot, fails=fails))
                raise Told(f"{name}\n", "\n".join([*said, f"[Worker 1] {type} Success! Created instance '{name}'\n"]))
        fail("\n".join([*said, "Warning: Only created 0/1 instances", "could only create 0/1 instances"]))

    def _named(self, given: argparse.Namespace) -> BrevInstance:
        found = self.find(given.names[0])
        if found is None or not found.status:
            trace = "1 error occurred:\n\t* [error] \ngithub.com/brevdev/brev-cli/pkg/cmd/x\n/x.go:1\n"
            fail(f"{trace}: instance with id/name {given.names[0]} not found\n\n")
        return found

    def _do_start(self, given: argparse.Namespace, asked: Mapping[str, Any]) -> None:
        name = given.names[0]
        found = self.find(name)
        if found is None:
            raise Told(f"tried to start with local path but path not found\n{name}\n")  # and all seems well
        if found.status != "STOPPED":
            fail(f"Instance is not stopped status={found.status}")
        found.doing, found.since = "start", time.monotonic()
        raise Told(f"Instance {name} is starting.\n{name}\n")

    def _do_stop(self, given: argparse.Namespace, asked: Mapping[str, Any]) -> None:
        found = self._named(given)
        if not next(one["stoppable"] for one in OFFERS if one["type"] == found.type):
            fail(f'instance "{found.name}" does not support stop.')
        found.doing, found.since = "stop", time.monotonic()
        raise Told(f"{found.name}\n")

    def _do_delete(self, given: argparse.Namespace, asked: Mapping[str, Any]) -> None:
        found = self._named(given)
        if found.doing != "delete":
            found.doing, found.since = "delete", time.monotonic()
        raise Told(f"{given.names[0]}\n")

    def _do_refresh(self, given: argparse.Namespace, asked: Mapping[str, Any]) -> None:
        """Writes the keys and aliases of those that run, and of no others, into the caller's home."""
        own, ssh = Path(asked["home"], ".brev"), Path(asked["home"], ".ssh")
        for folder in (own, ssh):
            folder.mkdir(parents=True, exist_ok=True)
        pem = own / "brev.pem"
        shutil.copy(self.folder / "brev.pem", pem)
        pem.chmod(0o600)
        text = f"# included in {ssh}/config\n"
        for one in self.instances:
            if one.status == "RUNNING":
                port = one.sshd.port if one.sshd else 9  # nothing listens yet
                user = one.sshd.user if one.sshd else "ubuntu"
                for alias in (one.name, f"{one.name}-host"):
                    text += f"Host {alias}\n" + OPTIONS.format(pem=pem, user=user, port=port) + "\n"
        (own / "ssh_config").write_text(text)
        config, line = ssh / "config", f'Include "{own}/ssh_config"\n'
        before = config.read_text() if config.exists() else ""
        if line not in before:
            config.write_text(line + before)
        raise Told("refreshing brev...\nbrev has been refreshed\n")

    def _exec(self, words: list[str], asked: Mapping[str, Any]) -> NoReturn:
        """The last word is the command and all before it are instances; what fails there is run a second time."""
        *names, command = words or [""]
        if not names:
            fail("requires at least 1 arg(s), only received 0")
        for name in names:
            found = self.find(name)
            if found is None or found.sshd is None:
                fail(f'ssh connection failed and could not look up instance "{name}": exit status 255')
            ssh = ["ssh", "-F", f"{asked['home']}/.ssh/config", "-T", "-o", "ControlPath=none", name, command]
            for _ in range(2):
                done = subprocess.run(ssh, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
                if done.returncode == 0:
                    break
            else:
                fail(f"exit status {done.returncode}", done.stdout)  # and the command ends with 1
            raise Told(f"{done.stdout}{name}\n", done.stderr)
        raise AssertionError

    def _do_login(self, given: argparse.Namespace, asked: Mapping[str, Any]) -> None:
        if given.api_key and not given.api_key.startswith(KEY_PREFIX):
            fail("api key must start with bak-")
        if not given.api_key and not given.token:
            fail("Enter your email: unexpected newline")
        kept = {"api_key": given.api_key, "api_key_org_id": given.org_id}
        if given.token:
            is_access = given.token.count(".") == 2
            kept = {"access_token": given.token if is_access else RENEWED}
            kept["refresh_token"] = RENEWED if is_access else given.token
        own = Path(asked["home"], ".brev")
        own.mkdir(parents=True, exist_ok=True)
        (own / "credentials.json").write_text(json.dumps(kept))
        raise Told(f"API key saved for org {given.org_id}\n" if given.api_key else "current organization: acme\n")


class _Service(socketserver.ThreadingUnixStreamServer):
    daemon_threads = True
    cloud: BrevCloud


class _Call(socketserver.StreamRequestHandler):
    server: _Service

    def handle(self) -> None:
        told = self.server.cloud.answer(json.loads(self.rfile.readline()))
        if told is not None:
            try:
                self.wfile.write(json.dumps(told).encode() + b"\n")
            except OSError:
                return  # whoever asked was killed


@contextmanager
def brev_cloud(folder: Path, engines: list[Engine] | None = None, boot: float = 0.3) -> Iterator[BrevCloud]:
    """The stand-in, with its command at `folder`/bin/brev and a home with a login at `folder`/home."""
    cloud = BrevCloud(folder, engines, boot)
    for name in ("bin", "home/.brev"):
        (folder / name).mkdir(parents=True)
    (folder / "home/.brev/credentials.json").write_text(json.dumps({"access_token": "t", "refresh_token": "r"}))
    (folder / "home/.brev/active_org.json").write_text(json.dumps({"id": "org-1", "name": "acme"}))
    program = folder / "bin" / "brev"
    text = Path(brev_program.__file__).read_text().replace("@SOCKET@", str(folder / "s"))
    program.write_text(f"#!{shutil.which('python3', path='/usr/bin:/bin') or shutil.which('python3')} -ES\n{text}")
    program.chmod(0o755)
    service = _Service(str(folder / "s"), _Call)
    service.cloud = cloud
    works = (lambda: service.serve_forever(0.02), cloud.keep_time)
    threads = [threading.Thread(target=work, daemon=True) for work in works]
    for thread in threads:
        thread.start()
    try:
        yield cloud
    finally:
        service.shutdown()
        service.server_close()
        cloud.close()
        for thread in threads:
            thread.join(10)
