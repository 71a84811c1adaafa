"""Where a platform lets two jobs bear one name, the first that starts claims it beside the results."""

from __future__ import annotations

import os

from .failures import RUNNER_FAILED, RunnerError
from .log import say
from .store import with_store

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .where import Where


def turned_away(where: Where) -> int | None:
    """The code to leave with at once, because the name is another job's or cannot be claimed; None when it is ours."""
    own = os.environ.get("TAO_NATIVE_ID", "")
    if not own or where.kind == "ephemeral":
        return None
    place = "%s/attempts/%s.claim" % (where.base, os.environ.get("TAO_ATTEMPT") or "1")
    try:
        first = _in_storage(place, own) if where.is_remote else _on_mount(place, own)
    except (OSError, RunnerError) as error:
        say("ERROR: the job cannot claim its name, so it runs nothing: %s" % error)
        return RUNNER_FAILED
    if first == own:
        return None
    say("job %s has this name; nothing to do" % first)
    return 0


def _in_storage(place: str, own: str) -> str:
    found = str(with_store("inputs", place, lambda store: store.claim(place, own)))
    if not found:
        say("WARNING: %s cannot be claimed there; two jobs of one name would both run" % place)
    return found or own


def _on_mount(place: str, own: str) -> str:
    os.makedirs(os.path.dirname(place), exist_ok=True)
    try:
        os.symlink(own, place)
    except FileExistsError:
        return os.readlink(place)
    return own
