"""Why a job ended: one vocabulary for all platforms, what each word allows, and how evidence becomes a verdict."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from signal import Signals
from types import MappingProxyType
from typing import Any

from pydantic import BaseModel, ConfigDict

from prefect_tao.jobs.categories import Category, ErrClass, Policy
from prefect_tao.jobs.signatures import KILLED, KILLED_REMEDY, PLATFORM_FACTS, SURROUNDINGS, Hit, Log, cut, find_in_text
from prefect_tao.jobs.state import EndedBy

__all__ = ["POLICIES", "Category", "ErrClass", "Evidence", "NodeEvent", "Policy", "Verdict", "classify"]

MAX_DELAY_SECONDS = 600.0
_QUOTE_WIDTH = 200


# Looked up here, so that a test can make waiting short.
POLICIES: Mapping[Category, Policy] = MappingProxyType({category: category.policy for category in Category})


class NodeEvent(BaseModel):
    """Something that happened to a machine while the job was there."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    message: str
    node: str | None = None


class Verdict(BaseModel):
    """Why a job ended, what to do about it and whether trying again can help."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    category: Category
    err_class: ErrClass
    cause: str
    remedy: str
    retryable: bool
    node_events: tuple[NodeEvent, ...] = ()
    log_excerpt: str = ""
    exit_code: int | None = None
    evidence: str = ""

    def allows_retry(self, retries_so_far: int, progressed: bool) -> bool:
        """Whether one more attempt is worth it after `retries_so_far` retries for this same category."""
        policy = POLICIES[self.category]
        return self.retryable and retries_so_far < policy.budget and (progressed or not policy.needs_progress)

    def delay(self, retries_so_far: int) -> float:
        """Seconds to wait before the next attempt; doubles with each retry, up to ten minutes."""
        doublings = min(max(retries_so_far, 0), 20)
        return min(POLICIES[self.category].backoff_seconds * 2.0**doublings, MAX_DELAY_SECONDS)

    def as_failure_analysis(self) -> dict[str, Any]:
        """The same in the shape of the TAO SDK's failure analysis."""
        events = [{"node_event_name": event.name, "message": event.message} for event in self.node_events]
        return {
            "err_class": self.err_class.value,
            "suggestion": self.remedy,
            "job_failure_by_node_event": events,
            "category": self.category.value,
            "cause": self.cause,
        }


class Evidence(BaseModel):
    """All that a driver could find out about a job that is over.

    `phase` is where the in-container runner itself failed ("claim", "inputs", "spec", "outputs") or "command".
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    exit_code: int | None = None
    ended_by: EndedBy = EndedBy.NONE
    native_state: str = ""
    reason: str = ""
    oom_killed: bool = False
    phase: str = ""
    runner_error: str = ""
    log_tail: str = ""
    node_events: tuple[NodeEvent, ...] = ()


@dataclass(frozen=True)
class _Opinion:
    """What one rule concluded, and from what."""

    category: Category
    cause: str
    because: str
    quote: str = ""
    remedy: str = ""
    retryable: bool | None = None
    index: int | None = None

    @classmethod
    def of(cls, hit: Hit, because: str) -> _Opinion:
        row = hit.signature
        return cls(row.category, row.cause, because, hit.line, row.remedy, row.retryable, hit.index)


def classify(evidence: Evidence) -> Verdict:
    """The verdict on `evidence`. Pure; the strongest kind of evidence decides, the exit code is the weakest."""
    log = Log.read(evidence.log_tail)
    opinion = next(filter(None, (rule(evidence, log) for rule in _RULES)), None) or _unknown(evidence)
    policy = POLICIES[opinion.category]
    # Where no line decided, the last error that was logged is still what a person wants to see.
    index = log.last_error() if opinion.index is None else opinion.index
    return Verdict(
        category=opinion.category,
        err_class=policy.err_class,
        cause=f'{opinion.cause}: "{cut(opinion.quote, _QUOTE_WIDTH)}"' if opinion.quote else f"{opinion.cause}.",
        remedy=opinion.remedy or policy.remedy,
        retryable=policy.retryable if opinion.retryable is None else opinion.retryable,
        node_events=evidence.node_events,
        log_excerpt=log.excerpt(index),
        exit_code=evidence.exit_code,
        evidence=opinion.because,
    )


_ENDED_BY = {
    EndedBy.TIME_LIMIT: (Category.TIME_LIMIT, "The job was stopped at its time limit"),
    EndedBy.CANCEL: (Category.CANCELED, "The job was cancelled"),
    EndedBy.PREEMPT: (Category.PREEMPTED, "The platform took the job's machine away"),
}


def _by_ended_by(evidence: Evidence, log: Log) -> _Opinion | None:
    if evidence.ended_by not in _ENDED_BY:
        return None
    category, cause = _ENDED_BY[evidence.ended_by]
    return _Opinion(category, cause, f"exit marker: ended_by {evidence.ended_by}")


def _by_oom_flag(evidence: Evidence, log: Log) -> _Opinion | None:
    if not evidence.oom_killed:
        return None
    cause = "The container exceeded its memory limit and was killed"
    return _Opinion(Category.OUT_OF_MEMORY, cause, "the platform's out-of-memory flag", _platform_words(evidence))


# Whole words as the platforms spell them, in the order in which they decide.
_WORDS: Mapping[str, Category] = MappingProxyType(
    dict.fromkeys(
        ("NODE_FAIL", "BOOT_FAIL", "NodeDown", "NodeLost", "NodeNotReady", "NodeShutdown"), Category.NODE_FAILURE
    )
    | dict.fromkeys(("UnexpectedAdmissionError", "FailedCreatePodSandBox", "DeletionByPodGC"), Category.NODE_FAILURE)
    | dict.fromkeys(("OUT_OF_MEMORY", "OOMKilled", "OutOfMemory"), Category.OUT_OF_MEMORY)
    | dict.fromkeys(("PREEMPTED", "REVOKED", "Evicted", "Preempted", "Preempting"), Category.PREEMPTED)
    | dict.fromkeys(("PreemptionByScheduler", "DeletionByTaintManager", "EvictionByEvictionAPI"), Category.PREEMPTED)
    | dict.fromkeys(("TerminationByKubelet",), Category.PREEMPTED)
    | dict.fromkeys(("TIMEOUT", "DEADLINE", "DeadlineExceeded", "TimeLimit"), Category.TIME_LIMIT)
    | dict.fromkeys(("ImagePullBackOff", "ErrImagePull", "InvalidImageName", "ErrImageNeverPull"), Category.IMAGE)
    | dict.fromkeys(("ImageInspectError", "RegistryUnavailable"), Category.IMAGE)
    | dict.fromkeys(("FailedMount", "FailedAttachVolume", "FailedMapVolume", "UnboundVolumeClaim"), Category.STORAGE)
    | dict.fromkeys(("QuotaExceeded", "Unschedulable", "NoCapacity"), Category.CAPACITY)
    | dict.fromkeys(("OutOfcpu", "OutOfmemory", "OutOfpods", "OutOfnvidia", "OutOfamd"), Category.CAPACITY)
    | dict.fromkeys(("NodeAffinity",), Category.CAPACITY)  # the node's labels changed under a Pod that was sent to it
    | dict.fromkeys(
        ("FailedCreate", "CreateContainerConfigError", "CreateContainerError", "RunContainerError", "StartError"),
        Category.PROGRAM,
    )
    | dict.fromkeys(("Stuck",), Category.STUCK)
    | dict.fromkeys(("CANCELLED",), Category.CANCELED)
)
_WORD_CAUSES: Mapping[Category, str] = MappingProxyType(
    {
        Category.NODE_FAILURE: "A node of the job failed",
        Category.OUT_OF_MEMORY: "The job exceeded its memory limit and was killed",
        Category.PREEMPTED: "The platform took the job's machine away",
        Category.TIME_LIMIT: "The platform ended the job at its time limit",
        Category.IMAGE: "The image could not be pulled",
        Category.STORAGE: "A volume of the job could not be mounted",
        Category.CAPACITY: "The platform found no room for the job",
        Category.STUCK: "The job could not start on the node that it was given, and was stopped",
        Category.PROGRAM: "The platform could not start the job as it was asked for",
        Category.CANCELED: "The job was cancelled on the platform",
    }
)
_WORD_REMEDIES: Mapping[Category, str] = MappingProxyType(
    {
        Category.STORAGE: "Create the volume, claim or Secret that is named, or correct its name, then run again.",
        Category.PROGRAM: "Create what is named there, or correct the name, the command or the image, then run again.",
    }
)
_OWN_STORAGE_LIMIT = re.compile(r"(?:storage|emptyDir)\b.*\bexceeds the (?:\w+ )?limit", re.IGNORECASE)


def _by_platform_word(evidence: Evidence, log: Log) -> _Opinion | None:
    text = _platform_words(evidence)
    word = _first_word(text)
    if word is None:
        return None
    category, because = _WORDS[word], f"the platform says {word}"
    if category is Category.IMAGE:
        return _pull_failure(evidence, because)
    if word == "Evicted" and _OWN_STORAGE_LIMIT.search(text):
        cause, remedy = (
            "The job wrote more than its own storage limit",
            "Raise the limit, or write to the results mount.",
        )
        return _Opinion(Category.STORAGE, cause, because, text, remedy)
    return _Opinion(category, _WORD_CAUSES[category], because, text, _WORD_REMEDIES.get(category, ""))


def _first_word(text: str) -> str | None:
    said = set(re.findall(r"[A-Za-z]\w*", text))
    return next((word for word in _WORDS if word in said), None)


def _platform_words(evidence: Evidence) -> str:
    return ", ".join(part.strip() for part in (evidence.native_state, evidence.reason) if part.strip())


def _pull_failure(evidence: Evidence, because: str) -> _Opinion:
    """Why a pull failed: only what looks like a passing trouble of the registry is worth another try."""
    said = "\n".join((evidence.reason, *(event.message for event in evidence.node_events)))
    pull_rows = [row for row in SURROUNDINGS if row.category in (Category.IMAGE, Category.CREDENTIALS)]
    hit = find_in_text(said, pull_rows)
    if hit:
        return _Opinion.of(hit, because)
    cause = _WORD_CAUSES[Category.IMAGE]
    lost = find_in_text(said, [row for row in SURROUNDINGS if row.category is Category.NETWORK])
    if lost:
        return _Opinion(Category.IMAGE, cause, because, lost.line)
    return _Opinion(Category.IMAGE, cause, because, _platform_words(evidence), retryable=False)


_TRANSFER_CATEGORIES = (Category.STORAGE, Category.CREDENTIALS, Category.NETWORK, Category.PROGRAM)
# What the runner says of inputs that are not there or that it does not take: they will be no better next time.
_BAD_INPUT = re.compile(
    r"\b(?:no such|does not exist|not found|nothing at|refused$|cannot unpack|in the image|inputs can be)",
    re.IGNORECASE,
)
_PHASES = {
    "claim": "The job's name belongs to a job elsewhere",
    "inputs": "The job's inputs could not be fetched",
    "outputs": "The job's outputs could not be saved",
    "spec": "The job's spec could not be prepared",
}


def _by_runner_phase(evidence: Evidence, log: Log) -> _Opinion | None:
    # A runner that was itself ended by a signal did not fail at what it was doing.
    if evidence.phase not in _PHASES or _signal_number(evidence.exit_code) is not None:
        return None
    cause, because = _PHASES[evidence.phase], f"the runner failed in its phase {evidence.phase}"
    said = evidence.runner_error.strip().split("\n")[-1]
    hit = find_in_text(evidence.runner_error or evidence.log_tail)
    if hit and hit.signature.category in _TRANSFER_CATEGORIES:
        return _Opinion.of(hit, because)
    if evidence.phase == "claim":
        return _Opinion(Category.PROGRAM, cause, because, said, "Go on with the job there, or use another run_key.")
    if evidence.phase == "spec":
        return _Opinion(Category.PROGRAM, cause, because, said, "Correct the spec and the overrides.")
    if evidence.phase == "inputs" and _BAD_INPUT.search(said):
        remedy = "Correct the input's location in the spec, or the image that has to fetch it."
        return _Opinion(Category.PROGRAM, cause, because, said, remedy)
    return _Opinion(Category.STORAGE, cause, because, said)


def _by_signature(evidence: Evidence, log: Log) -> _Opinion | None:
    for event in evidence.node_events:
        hit = find_in_text(f"{event.name}: {event.message}", PLATFORM_FACTS)
        # An event that the job waited for a machine is old news once it has run.
        if hit and hit.signature.category is not Category.CAPACITY:
            return _Opinion.of(hit, f"node event {event.name}")
    for because, text in (("the platform's reason", evidence.reason), ("the runner", evidence.runner_error)):
        hit = find_in_text(text)
        if hit:
            return _Opinion.of(hit, because)
    hit = log.find()
    return _Opinion.of(hit, "the log") if hit else None


_NODE_CATEGORIES = (Category.NODE_FAILURE, Category.PREEMPTED, Category.OUT_OF_MEMORY)


def _by_node_event(evidence: Evidence, log: Log) -> _Opinion | None:
    for event in evidence.node_events:
        word = _first_word(event.name)
        if word and _WORDS[word] in _NODE_CATEGORIES:
            cause = _WORD_CAUSES[_WORDS[word]]
            return _Opinion(_WORDS[word], cause, f"node event {event.name}", f"{event.name}: {event.message}")
    return None


_SIGNALS: Mapping[Signals, tuple[Category, str, str]] = MappingProxyType(
    {
        Signals.SIGKILL: (
            Category.UNKNOWN,
            KILLED,
            KILLED_REMEDY,
        ),
        Signals.SIGTERM: (Category.PREEMPTED, "something outside the job ended it", ""),
        Signals.SIGINT: (Category.CANCELED, "it was interrupted from outside", ""),
        Signals.SIGSEGV: (
            Category.PROGRAM,
            "it crashed with a segmentation fault",
            "Use the image that belongs to this model, unmodified; run once with PYTHONFAULTHANDLER=1 to see where.",
        ),
        Signals.SIGBUS: (
            Category.OUT_OF_MEMORY,
            "most often the shared memory (/dev/shm) is too small",
            "Ask for a larger shared memory (shm, 8g or more), or lower the number of data-loader workers.",
        ),
        Signals.SIGABRT: (Category.PROGRAM, "it aborted, as after a failed assertion", ""),
        Signals.SIGFPE: (Category.PROGRAM, "it divided by zero or made another invalid calculation", ""),
        Signals.SIGILL: (
            Category.PROGRAM,
            "it used an instruction that this processor does not have",
            "Use an image that was built for the node's processor.",
        ),
    }
)


def _by_signal(evidence: Evidence, log: Log) -> _Opinion | None:
    number = _signal_number(evidence.exit_code)
    if number is None:
        return None
    name = Signals(number).name
    category, why, remedy = _SIGNALS.get(Signals(number), (Category.UNKNOWN, "nothing that was seen explains it", ""))
    cause = f"The command ended by {name} (exit code {evidence.exit_code}); {why}"
    return _Opinion(category, cause, f"signal {name}", remedy=remedy)


def _signal_number(exit_code: int | None) -> int | None:
    number = -exit_code if exit_code is not None and exit_code < 0 else (exit_code or 0) - 128
    return number if number in set(Signals) else None


_SHELL_CODES = {
    126: "Make the command's file executable, or run it through its interpreter.",
    127: "Check the command's spelling, and that the image holds it.",
}


def _by_exit_code(evidence: Evidence, log: Log) -> _Opinion | None:
    code = evidence.exit_code
    if not code and not log.says_failed:
        return None
    cause = f"The command ended with exit code {code}" if code is not None else "The command reported a failure"
    remedy = _SHELL_CODES.get(code or 0, "")
    index = log.last_error()
    if evidence.runner_error:
        return _Opinion(Category.PROGRAM, "The command could not be run", "the runner", evidence.runner_error.strip())
    if index is None:
        return _Opinion(Category.PROGRAM, f"{cause} and left no log", "exit code", remedy=remedy)
    return _Opinion(Category.PROGRAM, f"{cause}; it last said", "exit code", log.quote(index), remedy, index=index)


def _unknown(evidence: Evidence) -> _Opinion:
    cause = "Nothing that was seen explains why the job ended"
    if evidence.exit_code == 0:
        cause = "The command ended with exit code 0, and nothing that was seen explains why the job failed"
    return _Opinion(Category.UNKNOWN, cause, "none", _platform_words(evidence))


_RULES: tuple[Callable[[Evidence, Log], _Opinion | None], ...] = (
    _by_ended_by,
    _by_oom_flag,
    _by_platform_word,
    _by_runner_phase,
    _by_signature,
    _by_node_event,
    _by_signal,
    _by_exit_code,
)
