"""The first thing a process job runs: it claims the job's name, waits for its GPUs and becomes the runner.

Run as `python -I -S process_starter.py <job folder>` with nothing but the standard library, so that it starts fast.
"""

from __future__ import annotations

import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
CLAIM, STARTED = "claim.json", "started"


def claim(folder: str, facts: str) -> bool:
    """Put our identity, a JSON text, under the job's name, whole and once; False when another process was first."""
    # With the host, because several machines may share the folder and count their processes alike.
    temporary = os.path.join(folder, f".claim-{os.uname().nodename}-{os.getpid()}-{os.urandom(4).hex()}")
    try:
        with open(temporary, "w", encoding="utf-8") as file:
            file.write(facts)
        flush(temporary)  # a power cut must not leave a name that is claimed by no process
        os.link(temporary, os.path.join(folder, CLAIM))
    except FileExistsError:
        return False
    finally:
        forget(temporary)
    try:
        flush(folder)
    except OSError:  # the name is ours by now, whether the disk has it for good or not
        pass
    return True


def forget(path: str) -> None:
    """Remove a file that may be gone already."""
    try:
        os.unlink(path)
    except OSError:
        pass


def flush(path: str) -> None:
    """Make a file's content, or the names in a folder, survive a power cut."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def claim_or_forget(folder: str, facts: str) -> bool:
    """Claim; without the name the secrets that came with us are of no use to anybody and are removed."""
    claimed = False
    try:
        claimed = claim(folder, facts)
    finally:
        if not claimed:
            forget(os.environ.get("TAO_SECRETS_FILE", ""))
    return claimed


def main(folder: str) -> None:
    """Claim, wait, run. A second process for the same job leaves at once without doing anything."""
    platforms = os.path.dirname(HERE)
    sys.path[:0] = [HERE, os.path.join(os.path.dirname(platforms), "runner")]
    import client  # type: ignore[import-not-found]
    from inside.fast_imports import dumps, loads  # type: ignore[import-not-found]

    ident = client.identify(os.getpid(), os.environ.get("TAO_PLACE"))
    facts = {"ident": str(ident), "host": os.uname().nodename, "oom_kills": client.oom_kills()}
    if not claim_or_forget(folder, dumps(facts)):
        return
    import inside.main  # type: ignore[import-not-found]

    os.environ["TAO_NATIVE_ID"] = str(ident)
    with open(os.path.join(folder, "job.json"), encoding="utf-8") as file:
        job = loads(file.read())
    locks: dict[str, list[int]] = {}
    if job["gpus"]:
        sys.path.append(platforms)
        import gpu_locks  # type: ignore[import-not-found]

        locks = gpu_locks.wait_for(job["devices"], job["gpus"], job["locks"])
    os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(locks)
    # Tells a job that runs from one that waits, even when its results and the record among them are deleted.
    try:
        with open(os.path.join(folder, STARTED), "x"):
            pass
    except OSError:
        pass
    # The command holds the locks too: should this process be killed, a GPU still in use stays taken.
    held = tuple(lock for of_one in locks.values() for lock in of_one)
    inside.main.main([os.path.join(folder, "plan.json")], keep_fds=held)


if __name__ == "__main__":
    main(sys.argv[1])
