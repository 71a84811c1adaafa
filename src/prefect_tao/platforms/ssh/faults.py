"""What can be wrong with a login: in plain words, with what to do, and whether trying again can help."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

from prefect_tao.jobs.errors import Unreachable

if TYPE_CHECKING:
    from prefect_tao.platforms.ssh.ssh_config import Route

GOES_ON = "the job, if there is one, goes on; look again later"
SHARED_LOGIN = """let prefect-tao use a connection that you have opened yourself: add to ~/.ssh/config, for this host,
  ControlMaster auto
  ControlPath ~/.ssh/control-%C
  ControlPersist 12h
then log in once by hand and leave it open: ssh {shown}; or ask the site for logins by key alone"""


class Silent(Unreachable):
    """The other side did not answer at all, so nothing is known of any job there."""


class Lost(Exception):
    """The connection ended, or did not answer in time: whatever was asked may or may not have been done."""


class Busy(Exception):
    """The server opens no further session on this connection at the moment; nothing was done."""


class Unfit(Exception):
    """paramiko and the server have no common language; nothing was tried yet."""


def _fault(route: Route, cause: str, remedy: str, retryable: bool) -> Silent:
    kind = "jump host " if route.destination.is_jump else ""
    return Silent(f"{kind}{route.user}@{route.hostname}:{route.port}: {cause}", remedy, retryable)


def unreached(route: Route, why: str) -> Silent:
    """The machine was not reached; it may be later."""
    return _fault(route, why, f"check the name, the port and the network; {GOES_ON.partition(';')[0]}", True)


def unknown_host(route: Route) -> Silent:
    """Its key is in no known_hosts file, or there is no such file."""
    port = f"-p {route.port} " if route.port != 22 else ""
    file = route.destination.known_hosts or "~/.ssh/known_hosts"
    missing = route.destination.known_hosts and not os.path.exists(os.path.expanduser(file))
    why = f"there is no file {file}; " if missing else ""
    remedy = f"{why}check the host key with the site, then store it: ssh-keyscan {port}{route.hostname} >> {file}"
    return _fault(route, "Host key verification failed: its host key is not known here", remedy, False)


def changed_host(route: Route) -> Silent:
    """It shows another key than the one that is known."""
    cause = "Host key verification failed: its host key is not the one that is known; someone may be in between"
    remedy = f"ask the site whether its key changed; only then: ssh-keygen -R '{route.known_as}'"
    return _fault(route, cause, remedy, False)


def revoked_host(route: Route) -> Silent:
    """It shows a key that is marked as revoked."""
    cause = "Host key verification failed: its host key is revoked; someone may be in between"
    return _fault(route, cause, "ask the site for its new host key", False)


def locked_key(route: Route, key: str) -> Silent:
    """A key cannot be used without a passphrase."""
    remedy = "give the passphrase, or load the key into an ssh agent: ssh-add " + key
    return _fault(route, f"Permission denied: the key {key} is locked with a passphrase", remedy, False)


def wrong_passphrase(route: Route, key: str) -> Silent:
    """A passphrase does not open the key."""
    return _fault(route, f"the passphrase does not open the key {key}", "correct the passphrase", False)


def missing_key(route: Route, key: str) -> Silent:
    """The key file that was named is not there, or cannot be read."""
    setting = route.destination.key_setting
    return _fault(
        route, f"there is no key file {key}, or it cannot be read", f"no such file {key}; correct {setting}", False
    )


def refused(route: Route, methods: str, tried: int) -> Silent:
    """The login was refused, whatever key was shown."""
    there = route.destination
    port = f" -p {route.port}" if route.port != 22 else ""
    copy = f"ssh-copy-id -i KEY.pub{port} {route.user}@{route.hostname}"
    keys = "no key was found to show" if not tried else f"{tried} key{'s' if tried > 1 else ''} tried"
    cause = f"Permission denied ({methods or 'publickey'}): the login was refused, {keys}"
    remedy = f"let the host know your key: {copy}; choose another key with {there.key_setting}"
    return _fault(route, cause, remedy, False)


def too_many_keys(route: Route) -> Silent:
    """The host hung up before the right key came."""
    remedy = "name the one key to use, with IdentityFile and IdentitiesOnly yes in ~/.ssh/config, or in the block"
    cause = "the login was refused: the host takes no more keys (Too many authentication failures)"
    return _fault(route, cause, remedy, False)


def second_factor(route: Route, methods: str) -> Silent:
    """The key was accepted, and the host wants more than that."""
    cause = f"the host wants two-factor authentication: after the key it asks for {methods}, which needs a person"
    return _fault(route, cause, SHARED_LOGIN.format(shown=route.destination.shown), False)


def no_keys_allowed(route: Route, methods: str) -> Silent:
    """The host does not log anyone in by key."""
    cause = f"the login was refused: the host takes no keys, only {methods} (a password or a second factor)"
    return _fault(route, cause, SHARED_LOGIN.format(shown=route.destination.shown), False)


def no_commands(shown: str, said: str) -> Silent:
    """The login works, and its shell ends without running what it is given."""
    remedy = f"ask the site for a login that runs commands; by hand: ssh {shown} true"
    return Silent(f"{shown}: the login runs no commands, it says: {said}", remedy, retryable=False)


_DENIED = re.compile(r"Permission denied \(([^)]*)\)")


def of_program(route: Route, said: str) -> Silent:
    """The same from the words of the ssh program."""
    words = [line.strip() for line in said.splitlines() if line.strip()]
    last = words[-1] if words else "no connection"
    if "Too many authentication failures" in said:
        return too_many_keys(route)
    if denied := _DENIED.search(said):
        methods = denied[1].split(",")
        if "publickey" not in methods:
            return second_factor(route, denied[1])
        return refused(route, denied[1], 0 if "no such identity" in said else 1)
    if "HAS CHANGED" in said:
        return changed_host(route)
    if "revoked" in said.lower():
        return revoked_host(route)
    if "Host key verification failed" in said or "host key is known" in said:
        return unknown_host(route)
    return unreached(route, last)
