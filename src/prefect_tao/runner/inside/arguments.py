"""The command line: the user's command with its spec file or its arguments."""

from __future__ import annotations

import os

from .atomic import write_atomic
from .scratch import scratch

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    Plan = Mapping[str, Any]


def command_line(plan: Plan, tree: Any, work: str) -> list[str]:
    """The command as an argument list; argument values reach it as they are, without passing through a shell."""
    command = plan["command"]
    if plan["mode"] == "config":
        from .configs import config_text

        path = os.path.join(work, "spec.%s" % plan["config_format"])
        write_atomic(path, config_text(tree, plan["config_format"]).encode())
        return [shell(), "-c", command.replace("{config_path}", plain_path(path))]
    if plan["mode"] == "passthrough":
        return [shell(), "-c", command]
    words = []
    for key, value in tree.items():
        if value is None or value is False:
            continue
        words.append(option(key))
        if value is not True:
            words += [str(item) for item in value] if isinstance(value, list) else [str(value)]
    words += [option(flag) for flag in plan["flags"]]
    return [shell(), "-c", command.rstrip() + ' "$@"', "tao"] + words


def shell() -> str:
    return "/bin/bash" if os.path.exists("/bin/bash") else "/bin/sh"


def plain_path(path: str) -> str:
    """`path`, or a link to it that a shell needs no quotes for: how the command quotes it is not known."""
    if all(char.isalnum() or char in "/._-+=:@%," for char in path):
        return path
    link = os.path.join(scratch(), os.path.basename(path))
    os.symlink(path, link)
    return link


def option(name: str) -> str:
    """An option as its command wants it, given as verbose, --verbose or -v."""
    return name if name.startswith("-") else "--" + name
