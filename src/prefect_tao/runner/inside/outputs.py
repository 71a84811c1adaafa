"""Outputs: where the command writes each of them, and where it is kept."""

from __future__ import annotations

import os

from .paths import is_below, own_name, refuse_outside, safe_name
from .pointers import UNSET, get_pointer, leaf, set_pointer
from .schemes import is_local, local_path

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from .sync import Sync
    from .where import Where

    Plan = Mapping[str, Any]


def choose_outputs(plan: Plan, tree: Any, where: Where, sync: Sync) -> dict[str, str]:
    """Decide for each output where the command writes it and where it is kept; returns {key: kept where}."""
    if plan["mode"] == "passthrough":
        return _plain_outputs(plan["outputs"], where, sync)
    kept: dict[str, str] = {}
    names: set[str] = set()
    for key, rule in plan["outputs"].items():
        is_file = rule.get("type") == "file"
        local, kept[key] = _output(key, own_name(key, names), get_pointer(tree, key), is_file, where)
        os.makedirs(os.path.dirname(local) if is_file else local, exist_ok=True)
        if local != kept[key]:
            sync.add(local, kept[key])
        set_pointer(tree, key, local)
    return kept


def _plain_outputs(paths: Sequence[str], where: Where, sync: Sync) -> dict[str, str]:
    kept: dict[str, str] = {}
    names: set[str] = set()
    for path in dict.fromkeys(map(os.path.abspath, paths)):
        # Two outputs with one basename must not meet: the second and later ones carry their whole path.
        name = os.path.basename(path)
        name = own_name(name if safe_name(name) not in names else path.strip("/"), names)
        if where.kind == "ephemeral" or (where.kind == "mount" and is_below(path, os.path.dirname(where.base))):
            kept[name] = path
        else:
            kept[name] = "%s/%s" % (where.base, name)
            sync.add(path, kept[name])
    return kept


def _output(key: str, name: str, value: Any, is_file: bool, where: Where) -> tuple[str, str]:
    """Where the command writes one output, and where it is kept."""
    value = "" if value in UNSET else local_path(value)
    own = os.path.join(where.work, "outputs", name)
    if not is_local(value):
        return os.path.join(own, os.path.basename(value.rstrip("/"))) if is_file else own, value
    below = leaf(key) if is_file else ""
    if os.path.isabs(value):
        # With a bucket alone, a path in the container would end with the container.
        kept = "/".join((where.base, name, os.path.basename(value) if is_file else "")).rstrip("/")
        return value, kept if where.is_remote else value
    # A relative value says the name below the output's own folder; leaving that folder is refused.
    if value and os.path.normpath(value) != ".":
        below = os.path.normpath(value)
        refuse_outside("output %s" % key, own, below)
    kept = "/".join(filter(None, (where.base, name, below)))
    return os.path.join(own, below).rstrip("/") if where.is_remote else kept, kept


def results_folder(kept: dict[str, str], where: Where, sync: Sync) -> str:
    """The folder that TAO_RESULTS_DIR names: there whatever the outputs are, and kept like them."""
    if "results_dir" in kept:
        destination = kept["results_dir"]
        return next((local for local, carried_to in sync.routes if carried_to == destination), destination)
    folder = os.path.join(os.path.join(where.work, "outputs") if where.is_remote else where.base, "results_dir")
    os.makedirs(folder, exist_ok=True)
    if where.is_remote:
        sync.add(folder, where.base + "/results_dir")
    if not kept:
        kept["results_dir"] = where.base + "/results_dir"
    return folder
