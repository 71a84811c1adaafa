"""The first thing a process job runs: it claims the job's name, waits for its GPUs and becomes the runner.

Run as `python -I -S starter.py <job folder>` with nothing but the standard library, so that it starts fast.
"""

from __future__ import annotations

import json
import os
import sys
from contextlib import suppress

HERE = os.path.dirname(os.path.abspath(__file__))
CLAIM, STARTED = "claim.json", "started"


def claim(folder: str, facts: dict[str, object]) -> bool:
    """Put our identity under the job's name, whole and once; False when another process was first."""
    temporary = os.path.join(folder, f".claim-{os.getpid()}")
    with open(temporary, "w", encoding="utf-8") as file:
        json.dump(facts, file)
    try:
        os.link(temporary, os.path.join(folder, CLAIM))
    except FileExistsError:
        return False
    finally:
        os.unlink(temporary)
    return True


def main(folder: str) -> None:
    """Claim, wait, run. A second process for the same job leaves at once without doing anything."""
    sys.path[:0] = [HERE, os.path.join(os.path.dirname(os.path.dirname(HERE)), "runner")]
    import proc  # type: ignore[import-not-found]

    ident = proc.identify(os.getpid())
    if not claim(folder, {"ident": str(ident), "oom_kills": proc.oom_kills()}):
        return
    import program  # type: ignore[import-not-found]

    os.environ["TAO_NATIVE_ID"] = str(ident)
    with open(os.path.join(folder, "job.json"), encoding="utf-8") as file:
        job = json.load(file)
    locks: dict[str, int] = {}
    if job["gpus"]:
        import gpus  # type: ignore[import-not-found]

        locks = gpus.wait_for(job["devices"], job["gpus"], job["locks"])
    os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(locks)
    # Tells a job that runs from one that waits, even when its results and the record among them are deleted.
    with suppress(OSError), open(os.path.join(folder, STARTED), "x"):
        pass
    # The command holds the locks too: should this process be killed, a GPU still in use stays taken.
    program.main([os.path.join(folder, "plan.json")], keep_fds=tuple(locks.values()))


if __name__ == "__main__":
    main(sys.argv[1])
