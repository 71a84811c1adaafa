"""The categories of a verdict: why a job ended, in the same words on every platform, and what each of them allows."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class ErrClass(StrEnum):
    """Who has to act: the author of the run, the platform's owner, the holder of the keys."""

    ERR_PROGRAM = "ERR_PROGRAM"
    ERR_INFRA = "ERR_INFRA"
    ERR_CREDENTIALS = "ERR_CREDENTIALS"
    ERR_CANCELED = "ERR_CANCELED"
    ERR_UNKNOWN = "ERR_UNKNOWN"


@dataclass(frozen=True)
class Policy:
    """What a category allows. With `needs_progress` a retry must follow an attempt that left a new checkpoint."""

    err_class: ErrClass
    remedy: str
    retryable: bool = False
    budget: int = 0
    backoff_seconds: float = 0.0
    needs_progress: bool = False


def _infra(backoff_seconds: float, remedy: str) -> Policy:
    return Policy(ErrClass.ERR_INFRA, remedy, retryable=True, budget=10, backoff_seconds=backoff_seconds)


class Category(StrEnum):
    """Why a job ended, each with what it allows."""

    policy: Policy

    def __new__(cls, word: str, policy: Policy) -> Category:
        """A member is its word, so that it is written and read as one."""
        member = str.__new__(cls, word)
        member._value_ = word
        member.policy = policy
        return member

    CAPACITY = ("capacity", _infra(60, "Wait, or choose another shape, partition or node group."))
    PREEMPTED = ("preempted", _infra(15, "Run again; training goes on from its last checkpoint."))
    NODE_FAILURE = ("node_failure", _infra(30, "Run again on another node; report this one if it fails again."))
    STUCK = (
        "stuck",
        Policy(
            ErrClass.ERR_INFRA,
            "Run again on another node; check the mounts of the job if it is stuck there too.",
            retryable=True,
            budget=3,
            backoff_seconds=15,
        ),
    )
    GPU_FAILURE = ("gpu_failure", _infra(30, "Run again on another node and exclude this one."))
    NETWORK = ("network", _infra(15, "Run again; if it repeats, check the network from the node."))
    STORAGE = (
        "storage",
        Policy(ErrClass.ERR_INFRA, "Check space, quota and rights where the job reads and writes, then run again."),
    )
    IMAGE = (
        "image",
        Policy(
            ErrClass.ERR_INFRA,
            "Check that the image's name is right and that the registry can be reached from the node.",
            retryable=True,
            budget=3,
            backoff_seconds=30,
        ),
    )
    CREDENTIALS = ("credentials", Policy(ErrClass.ERR_CREDENTIALS, "Renew the credentials, then run again."))
    # The budget only stops a run that makes a checkpoint each time and never ends.
    TIME_LIMIT = (
        "time_limit",
        Policy(
            ErrClass.ERR_PROGRAM,
            "Ask for more time, or save checkpoints often enough that each attempt leaves a new one to go on from.",
            retryable=True,
            budget=200,
            backoff_seconds=5,
            needs_progress=True,
        ),
    )
    OUT_OF_MEMORY = (
        "out_of_memory",
        Policy(
            ErrClass.ERR_PROGRAM,
            "Ask for more memory, or lower the batch size, the number of data-loader workers or what is cached.",
        ),
    )
    PROGRAM = (
        "program",
        Policy(ErrClass.ERR_PROGRAM, "Read the log excerpt and correct the spec, the data or the command."),
    )
    CANCELED = ("canceled", Policy(ErrClass.ERR_CANCELED, "Run it again when you want it."))
    UNKNOWN = ("unknown", Policy(ErrClass.ERR_UNKNOWN, "Read the job's full log and ask the platform about the job."))
