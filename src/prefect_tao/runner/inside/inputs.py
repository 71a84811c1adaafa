"""Inputs: every declared location becomes a local path."""

from __future__ import annotations

import os

from .failures import Missing, RunnerError
from .fast_imports import partial
from .parallel import run_parallel
from .paths import own_name, refuse_outside, safe_name
from .pointers import UNSET, get_pointer, set_pointer, walk
from .schemes import find_scheme, is_local, is_location, local_path, scheme_of
from .store import fetch

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    Plan = Mapping[str, Any]


def fetch_inputs(plan: Plan, tree: Any, work: str) -> None:
    """Make every declared input a local path, all at once, and write the paths into `tree`."""
    if plan["mode"] == "passthrough":
        run_parallel([partial(place, uri, path) for path, uri in plan["inputs"].items()])
        return
    pending: dict[str, Callable[[], str]] = {}
    names: set[str] = set()
    for key, rule in plan["inputs"].items():
        pending.update(_declared(tree, key, rule, os.path.join(work, "inputs", own_name(key, names))))
    for spot, value in walk(tree):
        if isinstance(value, str) and spot not in pending and _is_fetched_everywhere(value):
            pending[spot] = partial(localize, value, {}, os.path.join(work, "ptm", own_name(spot, names)))
    for spot, path in zip(pending, run_parallel(list(pending.values()))):
        set_pointer(tree, spot, path)


def _declared(tree: Any, key: str, rule: dict[str, Any], folder: str) -> dict[str, Callable[[], str]]:
    """What has to be done for one declared input: {pointer: how to get its local path}."""
    value = get_pointer(tree, key)
    if isinstance(value, str) and value not in UNSET:
        if rule.get("selective"):
            return {key: partial(selected, tree, key, rule, folder)}
        return {key: partial(localize, value, rule, folder)}
    found: dict[str, Callable[[], str]] = {}
    for index, uri in enumerate(value if isinstance(value, list) else ()):
        if isinstance(uri, str) and uri not in UNSET and (rule.get("type") != "list" or is_location(uri)):
            # Each element has a folder of its own: two of them may have one basename.
            inside = os.path.join(rule.get("container_path") or folder, str(index))
            found["%s[%d]" % (key, index)] = partial(localize, uri, dict(rule, container_path=None), inside)
    return found


def localize(uri: str, rule: Mapping[str, Any], folder: str) -> str:
    """The local path of one input, fetched into `folder` where it has to be."""
    kind, optional = rule.get("type"), rule.get("optional")
    path = local_path(uri)
    if is_local(uri):
        if not os.path.exists(path) and kind != "local_glob" and not optional:
            raise RunnerError("inputs", "the input %s does not exist where the job runs" % path)
        if os.path.isdir(path):
            return path
    else:
        path = rule.get("container_path") or os.path.join(folder, safe_name(os.path.basename(uri.rstrip("/"))))
        path = os.path.abspath(path)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        try:
            path = fetch(uri, path)
        except Missing:
            if not optional:
                raise
    from .archives import is_archive, unpack

    if kind == "file" or not is_archive(path) or not os.path.isfile(path):
        return path
    unpacked = unpack(path, os.path.join(folder, "unpacked"))
    return os.path.dirname(unpacked) if rule.get("extract_to_parent") else unpacked


def _is_fetched_everywhere(value: str) -> bool:
    """Whether a value of the spec is fetched although no input declares it."""
    scheme = find_scheme(scheme_of(value))
    return scheme is not None and scheme.is_everywhere


def _is_whole(root: str) -> bool:
    """Whether a folder can only be had as a whole: it is here, or its storage cannot be searched."""
    scheme = find_scheme(scheme_of(root))
    return scheme is None or not scheme.is_seen


def selected(tree: Any, key: str, rule: Mapping[str, Any], folder: str) -> str:
    """Fetch only the media files that an annotation names; where that is not known, all of them."""
    from .annotations import references
    from .archives import is_archive

    choice = rule["selective"]
    root, annotation = get_pointer(tree, key), get_pointer(tree, choice["annotation"])
    if _is_whole(root) or is_archive(root) or not isinstance(annotation, str) or annotation in UNSET:
        return localize(root, rule, folder)
    local = localize(annotation, {"type": "file"}, os.path.join(folder, "annotation"))
    base, wanted = (
        root.rstrip("/") + "/",
        os.path.abspath(rule.get("container_path") or os.path.join(folder, "selected")),
    )
    found = references(local, choice.get("format") or "", choice.get("keys") or ("file_name", "video"))
    names = sorted({os.path.normpath(name[len(base) :] if name.startswith(base) else name) for name in found})
    if not names:
        raise RunnerError("inputs", "%s names no media; check `keys` of the selective input %s" % (annotation, key))
    os.makedirs(wanted, exist_ok=True)
    for name in names:
        refuse_outside(annotation, wanted, name)
    fetch(root, wanted, names)
    return wanted


def place(uri: str, path: str) -> None:
    """Make the input `uri` visible at the fixed `path` that a plain command expects."""
    path = os.path.abspath(path)
    local = os.path.abspath(localize(uri, {"container_path": path, "type": "file"}, os.path.dirname(path)))
    if os.path.realpath(local) == os.path.realpath(path):
        return
    if os.path.islink(path):
        os.unlink(path)  # from an earlier attempt
    elif os.path.isdir(path) and not os.listdir(path):
        os.rmdir(path)
    elif os.path.exists(path):
        raise RunnerError("inputs", "%s cannot be put at %s: there is something else; refused" % (uri, path))
    os.makedirs(os.path.dirname(path), exist_ok=True)
    os.symlink(local, path)
