"""Short ways to say what is wrong with an ask: the key, what it holds, what was expected, what to do."""

from __future__ import annotations

import difflib
import shlex
from collections.abc import Iterable

from prefect_tao.jobs.finding import NO_GATE, Finding, GateName, Level
from prefect_tao.jobs.request import check_no_secret

CLOSE = 0.85


def fail(subject: str, message: str, remedy: str, gate: GateName = NO_GATE) -> Finding:
    """Something that forbids the launch."""
    return Finding(level=Level.FAIL, subject=subject, message=message, remedy=remedy, gate=gate)


def warn(subject: str, message: str, remedy: str, gate: GateName = NO_GATE) -> Finding:
    """Something that a person should look at, and may launch with."""
    return Finding(level=Level.WARN, subject=subject, message=message, remedy=remedy, gate=gate)


def setting(key: str, value: object) -> str:
    """`--set KEY=VALUE` as bash and zsh both take it: zsh would look for files that fit `key[0]`."""
    return f"--set {shlex.quote(f'{key}={value}')}"


def nearest(word: str, known: Iterable[str], count: int = 3, cutoff: float = 0.6) -> list[str]:
    """The names among `known` that `word` may have meant, best first."""
    return difflib.get_close_matches(word, list(known), count, cutoff)


def did_you_mean(names: Iterable[str], otherwise: str) -> str:
    """A question that names the candidates, or `otherwise` when there are none."""
    names = list(names)
    return f"did you mean {' or '.join(names)}?" if names else otherwise


def shown(value: object) -> str:
    """A value as a message repeats it; what looks like a secret is not repeated."""
    text = repr(value)
    try:
        check_no_secret("", text)
    except ValueError:
        return "what looks like a secret"
    return text if len(text) <= 60 else text[:57] + "..."
