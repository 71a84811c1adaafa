"""What the runner itself puts into the temporary folder: in one folder, which goes when the runner does."""

from __future__ import annotations

import _thread

_made: list[str] = []
_making = _thread.allocate_lock()


def scratch() -> str:
    """The folder, made when it is first needed."""
    with _making:
        if not _made:
            import atexit
            import tempfile

            _made.append(tempfile.mkdtemp(prefix="tao-"))
            atexit.register(remove_scratch)
        return _made[0]


def keep_scratch() -> None:
    """Leave it where it is: it holds outputs that are nowhere else."""
    _made.clear()


def remove_scratch() -> None:
    """Remove it with all that is in it."""
    while _made:
        import shutil

        shutil.rmtree(_made.pop(), ignore_errors=True)
