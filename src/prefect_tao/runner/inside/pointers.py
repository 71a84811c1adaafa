"""Pointers into nested specs: a.b[0].c."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

UNSET = (None, "", "???")


def parse_pointer(pointer: str) -> list[str | int]:
    """The steps of `a.b[0].c`: ["a", "b", 0, "c"]. Raises ValueError when it is not a pointer."""
    steps: list[str | int] = []
    for part in pointer.split("."):
        name, bracket, rest = part.partition("[")
        if name:
            steps.append(name)
        elif not bracket or not steps:
            raise ValueError("%r is not a pointer such as a.b[0].c" % pointer)
        while bracket:
            index, closing, rest = rest.partition("]")
            if not closing or not index.isdigit():
                raise ValueError("%r is not a pointer such as a.b[0].c" % pointer)
            steps.append(int(index))
            if rest and not rest.startswith("["):
                raise ValueError("%r is not a pointer such as a.b[0].c" % pointer)
            bracket, rest = rest[:1], rest[1:]
    return steps


def _steps(tree: Any, pointer: str) -> list[str | int]:
    """The steps of `pointer` in `tree`; an argument's name may hold points itself, so a key that is there wins."""
    name, bracket, rest = pointer.partition("[")
    if isinstance(tree, dict) and name in tree:
        return [name] + parse_pointer("x" + bracket + rest)[1:]
    return parse_pointer(pointer)


def get_pointer(tree: Any, pointer: str) -> Any:
    """The value at `pointer`, or None where the path ends early."""
    for step in _steps(tree, pointer):
        try:
            tree = tree[step]
        except (KeyError, IndexError, TypeError):
            return None
    return tree


def set_pointer(tree: Any, pointer: str, value: Any) -> None:
    """Put `value` at `pointer`, making maps on the way. Raises ValueError where the tree has another shape."""
    steps = _steps(tree, pointer)
    for step, following in zip(steps, steps[1:]):
        if isinstance(step, int):
            if not isinstance(tree, list) or step >= len(tree):
                raise ValueError("%s: there is no element %d" % (pointer, step))
        elif not isinstance(tree, dict):
            raise ValueError("%s: %r is not a map" % (pointer, step))
        elif tree.get(step) is None:
            tree[step] = [] if isinstance(following, int) else {}
        tree = tree[step]
    last = steps[-1]
    if isinstance(last, int):
        if not isinstance(tree, list) or last > len(tree):
            raise ValueError("%s: there is no element %d" % (pointer, last))
        tree[last : last + 1] = [value]
    elif isinstance(tree, dict):
        tree[last] = value
    else:
        raise ValueError("%s: its parent is not a map" % pointer)


def walk(tree: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Every leaf of `tree` as (pointer, value)."""
    if isinstance(tree, dict):
        for key, value in tree.items():
            yield from walk(value, "%s.%s" % (prefix, key) if prefix else key)
    elif isinstance(tree, list):
        for index, value in enumerate(tree):
            yield from walk(value, "%s[%d]" % (prefix, index))
    else:
        yield prefix, tree


def leaf(pointer: str) -> str:
    return pointer.rpartition(".")[2].partition("[")[0]
