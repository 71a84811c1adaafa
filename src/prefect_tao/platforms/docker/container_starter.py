"""The first thing that runs in a container: it takes the secrets, waits for its GPUs and becomes the runner.

Sent along with the runner, in one archive. Standard library only, Python 3.8 and newer.
"""

from __future__ import annotations

import os

# The folder of the archive that this file is in.
HERE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
JOB, STOP, BEGUN, TAKEN, STARTED, SECRETS = "job.json", "stop", "begun", "taken", "started", "secrets"
STOPPED = 128 + 15  # as SIGTERM would end it
AGAIN = 125


def place(name: str) -> str:
    """A file of ours."""
    return os.path.join(HERE, name)


def is_first_run() -> bool:
    """Whether this container runs for the first time.

    A launcher whose call for the start got no answer calls again. If the first call was only slow, and the job short,
    the second one comes after the end of the job, and the engine starts what has ended once more.
    """
    try:
        os.close(os.open(place(BEGUN), os.O_CREAT | os.O_EXCL | os.O_WRONLY))
    except FileExistsError:
        return False
    return True


def take_secrets() -> None:
    """The secrets into the environment, and their files away.

    Each launcher that started this job left a file of its own: whole before it called for the start, and all alike.
    """
    from inside.fast_imports import loads  # type: ignore[import-not-found]

    folder = place(SECRETS)
    for name in sorted(os.listdir(folder)) if os.path.isdir(folder) else ():
        try:
            with open(os.path.join(folder, name), encoding="utf-8") as file:
                os.environ.update(loads(file.read()))
        except (OSError, ValueError):  # one that comes too late and is being written; it is of no use
            continue
    forget_secrets()


def forget_secrets() -> None:
    """Remove them; the folder may be a file by now, put there by a cancellation."""
    path = place(SECRETS)
    if os.path.isdir(path):
        for name in os.listdir(path):
            os.unlink(os.path.join(path, name))
        os.rmdir(path)
    elif os.path.exists(path):
        os.unlink(path)


def mark(name: str) -> None:
    """Show those who look into the container how far we are."""
    with open(place(name), "w"):
        pass


def leave() -> None:
    """End as one who was asked to."""
    forget_secrets()
    os._exit(STOPPED)


def main() -> None:
    """Stop at once if we are cancelled already; else get ready and run the plan."""
    import inside.main  # type: ignore[import-not-found]
    from inside.fast_imports import loads, signal

    # The first process of a container ignores every signal that it does not handle.
    signal.signal(signal.SIGTERM, lambda *_: leave())
    if os.path.exists(place(STOP)):
        leave()
    if not is_first_run():
        os.write(1, b"[prefect-tao] this container has run its job already; launch the next attempt instead\n")
        forget_secrets()
        os._exit(AGAIN)
    take_secrets()
    mark(TAKEN)
    with open(place(JOB), encoding="utf-8") as file:
        job = loads(file.read())
    os.environ.update(TAO_NATIVE_ID=job["id"], TAO_SITE=job["site"], TAO_TARGET=job["target"])
    os.environ["TAO_STOP_FILE"] = place(STOP)
    locks: list[int] = []
    if job["gpus"]:
        import gpu_locks  # type: ignore[import-not-found]

        locks = gpu_locks.wait_for_names(job["locks"], job["gpus"])
    if os.path.exists(place(STOP)):
        leave()
    mark(STARTED)
    # The command holds the locks too: should this process be killed alone, a GPU still in use stays taken.
    inside.main.main([place("plan.json")], keep_fds=tuple(locks))
