"""What the runner says in the job's log."""

from __future__ import annotations

import os


def say(text: str) -> None:
    """A line in the job's log. Unbuffered, because signal handlers speak too; a full disk must not end the job."""
    try:
        os.write(1, ("[prefect-tao] %s\n" % text).encode("utf-8", "replace"))
    except OSError:
        pass
