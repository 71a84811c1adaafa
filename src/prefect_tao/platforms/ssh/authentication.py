"""Proving who we are, key by key as OpenSSH does: first those of the agent, then the files, never by a prompt."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from prefect_tao.platforms.ssh import faults
from prefect_tao.platforms.ssh.ssh_config import Route

if TYPE_CHECKING:
    import paramiko


def log_in(transport: paramiko.Transport, route: Route) -> None:
    """Log in by one of the keys. Raises Silent with the reason for a refusal; paramiko's errors for a lost line."""
    import paramiko

    agent = _agent(route)
    locked: list[Path] = []
    tried, methods = 0, ""
    try:
        for key in _keys(route, agent, locked):
            tried += 1
            try:
                more = transport.auth_publickey(route.user, key)
            except paramiko.BadAuthenticationType as error:
                raise faults.no_keys_allowed(route, ", ".join(error.allowed_types)) from error
            except paramiko.SSHException as error:
                if isinstance(error, paramiko.AuthenticationException) and transport.is_active():
                    continue
                # One key is never too many: then the line was lost.
                if tried > 1 and not transport.is_active():
                    raise faults.too_many_keys(route) from error
                raise
            if more:
                raise faults.second_factor(route, ", ".join(more))
            return
        if not tried and not locked:
            methods = _methods(transport, route)
            if transport.is_authenticated():
                return
            if methods and "publickey" not in methods:
                raise faults.no_keys_allowed(route, methods)
    finally:
        if agent is not None:
            agent.close()
    raise faults.locked_key(route, str(locked[0])) if locked else faults.refused(route, methods, tried)


def _methods(transport: paramiko.Transport, route: Route) -> str:
    """What the host would take, where there is no key to show it."""
    import paramiko

    try:
        transport.auth_none(route.user)
    except paramiko.BadAuthenticationType as error:
        return ", ".join(error.allowed_types)
    return ""


def _agent(route: Route) -> paramiko.Agent | None:
    """The ssh agent; not where a key file was named."""
    import paramiko

    named = route.destination.key_path and not route.destination.is_jump
    if named or not os.environ.get("SSH_AUTH_SOCK"):
        return None
    try:
        return paramiko.Agent()
    except (paramiko.SSHException, OSError):
        return None


def _keys(route: Route, agent: paramiko.Agent | None, locked: list[Path]) -> Iterator[paramiko.PKey]:
    """The keys in the order in which they are tried; files that cannot be opened come into `locked`."""
    files = [(path, _public(path)) for path in route.keys]
    wanted = [public for _, public in files if public]
    held = {key.get_base64(): key for key in (agent.get_keys() if agent else ())}
    chosen = [public for public in wanted if public in held]
    others = [public for public in held if public not in chosen and not route.identities_only]
    for public in (*chosen, *others):
        yield held[public]
    for path, public in files:
        if public not in held and (key := _opened(route, path, locked)):
            yield key


def _public(path: Path) -> str:
    """The public half of a key file in base64, where it lies beside it."""
    try:
        return Path(f"{path}.pub").read_text().split()[1]
    except (OSError, IndexError, UnicodeDecodeError):
        return ""


def _opened(route: Route, path: Path, locked: list[Path]) -> paramiko.PKey | None:
    """A private key from its file; None when it cannot be used. Raises Silent for a named one that is not there."""
    import paramiko

    is_named = route.destination.key_path and path == Path(route.destination.key_path).expanduser()
    passphrase = route.destination.passphrase if is_named else None
    try:
        return paramiko.PKey.from_path(path, passphrase.encode() if passphrase else None)  # type: ignore[arg-type]
    except OSError as error:
        if is_named and not route.destination.is_jump:
            raise faults.missing_key(route, str(path)) from error
    except TypeError as error:
        if "not encrypted" not in str(error):
            locked.append(path)
        else:
            return paramiko.PKey.from_path(path)
    except (paramiko.SSHException, ValueError) as error:
        if passphrase:
            raise faults.wrong_passphrase(route, str(path)) from error
        if isinstance(error, paramiko.PasswordRequiredException):
            locked.append(path)
    return None
