"""A container without an engine: the command in a root, a process table and a host name of its own, with its volumes.

Run by the stand-in's kubelet as `python kube_container.py spec.json`; needs root. It ends with the command's own code,
and 128+n where a signal ended it. Standard library only.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
from typing import Any

NEW_NS, NEW_UTS, NEW_IPC, NEW_PID = 0x00020000, 0x04000000, 0x08000000, 0x20000000
BIND, REC, PRIVATE, READ_ONLY, REMOUNT = 4096, 16384, 1 << 18, 1, 32
DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
LINKS = {"fd": "/proc/self/fd", "stdin": "/proc/self/fd/0", "stdout": "/proc/self/fd/1", "stderr": "/proc/self/fd/2"}
NOT_STARTED = 128
_libc = ctypes.CDLL(None, use_errno=True)


def _checked(result: int, what: str) -> None:
    if result:
        error = ctypes.get_errno()
        raise OSError(error, f"{what}: {os.strerror(error)}")


def mount(source: str, target: str, kind: str = "", flags: int = 0, options: str = "") -> None:
    words = (source.encode(), target.encode(), kind.encode() or None, flags, options.encode() or None)
    _checked(_libc.mount(*words), f"mount {source} at {target}")


def bind(source: str, target: str, read_only: bool = False) -> None:
    if os.path.isdir(source):
        os.makedirs(target, exist_ok=True)
    elif not os.path.exists(target):
        os.makedirs(os.path.dirname(target), exist_ok=True)
        open(target, "w").close()
    mount(source, target, flags=BIND | REC)
    if read_only:
        mount(source, target, flags=BIND | REMOUNT | READ_ONLY)


def new_root(spec: dict[str, Any]) -> str:
    """This machine's files, but with mount points that only this container has."""
    root = spec["root"]
    os.makedirs(root, exist_ok=True)
    mount("none", "/", flags=REC | PRIVATE)
    mount("tmpfs", root, "tmpfs", options="mode=755")
    for name in os.listdir("/"):
        here, there = f"/{name}", f"{root}/{name}"
        if os.path.islink(here):
            os.symlink(os.readlink(here), there)
        elif name not in ("proc", "dev", "run") and os.path.isdir(here):
            bind(here, there)
    os.makedirs(f"{root}/run")
    os.makedirs(f"{root}/proc")
    mount("proc", f"{root}/proc", "proc")
    os.makedirs(f"{root}/dev/shm")
    for name in DEVICES:
        if os.path.exists(f"/dev/{name}"):
            bind(f"/dev/{name}", f"{root}/dev/{name}")
    for name, target in LINKS.items():
        os.symlink(target, f"{root}/dev/{name}")
    mount("tmpfs", f"{root}/dev/shm", "tmpfs", options="mode=1777,size=64m")
    for one in spec["mounts"]:
        target = root + one["target"]
        if one.get("tmpfs"):
            os.makedirs(target, exist_ok=True)
            mount("tmpfs", target, "tmpfs", options=one["tmpfs"])
        else:
            bind(one["source"], target, one.get("read_only", False))
    return root


def become(spec: dict[str, Any]) -> None:
    """In the new process table: the files, the name, the user, and then the command."""
    root = new_root(spec)
    name = spec["hostname"].encode()
    _libc.sethostname(name, len(name))
    os.chroot(root)
    os.chdir(spec.get("cwd") or "/")
    if spec.get("gid") is not None:
        os.setgroups([spec["gid"]])
        os.setgid(spec["gid"])
    if spec.get("uid") is not None:
        os.setuid(spec["uid"])
    os.setsid()
    os.execvpe(spec["argv"][0], spec["argv"], spec["env"])


def main() -> int:
    with open(sys.argv[1], encoding="utf-8") as file:
        spec = json.load(file)
    _checked(_libc.unshare(NEW_NS | NEW_UTS | NEW_IPC | NEW_PID), "unshare")
    child = os.fork()
    if not child:
        try:
            become(spec)
        except OSError as error:
            with open(spec["error_file"], "w", encoding="utf-8") as file:
                file.write(str(error))
        os._exit(NOT_STARTED)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    with open(spec["pid_file"] + ".new", "w", encoding="utf-8") as file:
        file.write(str(child))
    os.rename(spec["pid_file"] + ".new", spec["pid_file"])
    _, status = os.waitpid(child, 0)
    return os.WEXITSTATUS(status) if os.WIFEXITED(status) else 128 + os.WTERMSIG(status)


if __name__ == "__main__":
    sys.exit(main())
