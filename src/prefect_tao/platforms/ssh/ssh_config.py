"""What ssh's configuration says of a host: by `ssh -G`, which knows all of it, else as paramiko reads the files."""

from __future__ import annotations

import base64
import getpass
import glob
import os
import re
import shlex
import shutil
import subprocess
from binascii import Error as NotBase64
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path

from prefect_tao.platforms.ssh import known_hosts
from prefect_tao.platforms.ssh.destination import KEY_NAMES, Destination
from prefect_tao.platforms.ssh.faults import Silent

PROGRAM = "ssh"
ASK_SECONDS = 15
MOST_JUMPS = 8
USUAL = ("none", "no", "false", "")
_LISTS = ("identityfile", "localforward", "remoteforward")  # what paramiko gives as lists
GLOBAL_CONFIG = "/etc/ssh/ssh_config"

Facts = Mapping[str, Sequence[str]]


@dataclass(frozen=True)
class Route:
    """One machine on the way, with everything that is needed to log in to it."""

    destination: Destination
    hostname: str
    port: int
    user: str
    keys: tuple[Path, ...] = ()
    identities_only: bool = False
    known_hosts: tuple[Path, ...] = ()
    host_key_alias: str = ""
    jumps: tuple[str, ...] = ()
    proxy_command: str = ""
    control_path: str = ""
    beyond: str = ""  # why paramiko cannot log in there as ssh would

    @property
    def known_as(self) -> str:
        """The name that known_hosts files have for it."""
        if self.host_key_alias:
            return self.host_key_alias
        return known_hosts.name_of(self.hostname, self.port)


def has_program() -> bool:
    """Whether there is an ssh program here."""
    return shutil.which(PROGRAM) is not None


def routes(destination: Destination) -> list[Route]:
    """Every machine on the way to `destination`, which comes last. Raises Silent for what ssh cannot read."""
    return _routes(destination, MOST_JUMPS)


def _routes(destination: Destination, most: int) -> list[Route]:
    route = _route(destination)
    if not route.jumps:
        return [route]
    if most <= len(route.jumps):
        raise Silent(f"the jump hosts of {destination.host} lead in a circle", "correct ProxyJump", retryable=False)
    first, *others = (destination.jump(spec) for spec in route.jumps)
    # Only the first is reached as its own configuration says; the others lie behind the one before.
    between = [replace(_route(other), jumps=(), proxy_command="") for other in others]
    return [*_routes(first, most - len(route.jumps)), *between, route]


def _route(destination: Destination) -> Route:
    facts = _facts_of_program(destination) if has_program() else _facts_of_files(destination)

    def fact(name: str, otherwise: str = "") -> str:
        value = facts.get(name, [otherwise])[0]
        return "" if value.lower() == "none" else value

    hostname, port = fact("hostname", destination.host), int(fact("port", "22"))
    route = Route(
        destination=destination,
        hostname=hostname,
        port=port,
        user=fact("user") or getpass.getuser(),
        keys=tuple(_keys(destination, facts)),
        identities_only=fact("identitiesonly") == "yes",
        known_hosts=tuple(_known_hosts(facts)),
        host_key_alias=fact("hostkeyalias"),
        jumps=tuple(spec.strip() for spec in fact("proxyjump").split(",") if spec.strip()),
        proxy_command=fact("proxycommand"),
        control_path=fact("controlpath"),
    )
    return replace(route, beyond=_beyond(route, facts))


def _keys(destination: Destination, facts: Facts) -> Iterator[Path]:
    """The key files to try. One that a block names is the only one."""
    named = destination.keys()
    yield from named
    if destination.key_path and not destination.is_jump:
        return
    for file in facts.get("identityfile") or [f"~/.ssh/{name}" for name in KEY_NAMES]:
        path = Path(file).expanduser()
        if path not in named and path.exists():
            yield path


def _known_hosts(facts: Facts) -> Iterator[Path]:
    for name in ("userknownhostsfile", "globalknownhostsfile"):
        for value in facts.get(name, ()):
            yield from (Path(file).expanduser() for file in shlex.split(value) if file.lower() != "none")


# -- what only the ssh program can do ----------------------------------------------------------------------------------


def _beyond(route: Route, facts: Facts) -> str:
    """Why the ssh program has to carry this; empty when paramiko can."""

    def says(name: str) -> bool:
        return any(value.lower() not in USUAL for value in facts.get(name, ()))

    wanted = {
        "pkcs11provider": "PKCS#11 keys",
        "certificatefile": "CertificateFile",
        "revokedhostkeys": "RevokedHostKeys",
        "knownhostscommand": "KnownHostsCommand",
        "verifyhostkeydns": "VerifyHostKeyDNS",
        "hostbasedauthentication": "host-based logins",
        "proxyusefdpass": "ProxyUseFdpass",
    }
    reasons = [shown for name, shown in wanted.items() if says(name)]
    if any(value not in ("ask", "yes", "true") for value in facts.get("stricthostkeychecking", ())):
        reasons.append("StrictHostKeyChecking")
    if any(value not in ("SSH_AUTH_SOCK", os.environ.get("SSH_AUTH_SOCK")) for value in facts.get("identityagent", ())):
        reasons.append("IdentityAgent")
    if any(_is_security_key(key) for key in route.keys):
        reasons.append("security keys")
    if says("gssapiauthentication") and _has_ticket():
        reasons.append("Kerberos logins")
    if known_hosts.has_authority(route.known_hosts, route.known_as):
        reasons.append("host certificates")
    if route.control_path and os.path.exists(route.control_path):
        reasons.append("a connection that is already open")
    return ", ".join(reasons)


def _is_security_key(path: Path) -> bool:
    """Whether the private key is in a piece of hardware; the public half is not encrypted in the file."""
    with suppress(OSError, NotBase64, ValueError):
        lines = path.read_text().strip().splitlines()
        return b"sk-" in base64.b64decode("".join(lines[1:-1]))[:300] if "OPENSSH" in lines[0] else False
    return False


def _has_ticket() -> bool:
    """Whether there is a Kerberos ticket; many systems allow such logins to everybody in their ssh_config."""
    try:
        return subprocess.run(["klist", "-s"], capture_output=True, timeout=ASK_SECONDS, check=False).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


# -- reading it --------------------------------------------------------------------------------------------------------


def _facts_of_program(destination: Destination) -> Facts:
    words = [PROGRAM, "-G", *destination.options(), "--", destination.host]
    try:
        done = subprocess.run(
            words, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=ASK_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        raise Silent(f"ssh -G {destination.host} does not end", "check Match exec in ~/.ssh/config") from None
    if done.returncode:
        said = done.stderr.strip().splitlines()[-1:] or ["ssh -G failed"]
        raise Silent(f"ssh cannot use its configuration for {destination.host}: {said[0]}", "correct it", False)
    facts: dict[str, list[str]] = {}
    for line in done.stdout.splitlines():
        name, _, value = line.partition(" ")
        facts.setdefault(name.lower(), []).append(value)
    return facts


def _facts_of_files(destination: Destination) -> Facts:
    """The same without an ssh program; what a person has named comes first."""
    import paramiko

    folder = Path(destination.folder or "~/.ssh").expanduser()
    config = folder / "config" if (folder / "config").exists() else Path("~/.ssh/config").expanduser()
    # The first value counts in ssh's configuration, so the person's file comes before everybody's.
    own, common = (_inlined(file, destination.host) for file in (config, Path(GLOBAL_CONFIG)))
    text = "\n".join([*own, "Host *", *common])
    try:
        found = paramiko.SSHConfig.from_text(text).lookup(destination.host)
    except (paramiko.SSHException, ImportError, ValueError) as error:
        remedy = "install the ssh program, which understands all of it (openssh-client)"
        raise Silent(f"{config} cannot be read without an ssh program: {error}", remedy, retryable=False) from error
    facts = {name: list(value) if name in _LISTS else [value] for name, value in found.items()}
    facts |= {"user": [destination.user]} if destination.user else {}
    facts |= {"port": [str(destination.port)]} if destination.port else {}
    if files := destination.known_hosts_files():
        facts["userknownhostsfile"] = [shlex.join(files)]
    facts.setdefault("userknownhostsfile", ["~/.ssh/known_hosts ~/.ssh/known_hosts2"])
    facts.setdefault("globalknownhostsfile", ["/etc/ssh/ssh_known_hosts /etc/ssh/ssh_known_hosts2"])
    return facts


def _inlined(path: Path, host: str, depth: int = 8) -> Iterator[str]:
    """The lines of a configuration file with its Includes in place, which paramiko does not know."""
    try:
        lines = path.read_text(errors="replace").splitlines()
    except OSError:
        return
    scope = "Host *"
    for line in lines:
        if re.match(r"\s*(host|match)[\s=]", line, re.IGNORECASE):
            scope = line
        included = re.match(r"\s*include[\s=]+(.*)", line, re.IGNORECASE)
        if not included:
            yield line
            continue
        for pattern in shlex.split(included[1]) if depth and _is_about(scope, host) else ():
            for file in sorted(glob.glob(str(path.parent / Path(pattern).expanduser()))):
                yield from _inlined(Path(file), host, depth - 1)
        yield scope


def _is_about(scope: str, host: str) -> bool:
    """Whether the lines below a Host or Match line count for `host`; of Match only what is for all does."""
    word, *patterns = re.split(r"[\s=]+", scope.strip().lower())
    if word == "match":
        return patterns == ["all"]
    denied = any(fnmatchcase(host.lower(), pattern[1:]) for pattern in patterns if pattern.startswith("!"))
    return not denied and any(fnmatchcase(host.lower(), pattern) for pattern in patterns)
