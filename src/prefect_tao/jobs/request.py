"""A job request: everything to run, as data. It never holds a secret, only the names of secrets."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, field_validator, model_validator

from prefect_tao.jobs.errors import InvalidInput
from prefect_tao.jobs.quantities import ALL_GPUS as ALL_GPUS
from prefect_tao.jobs.quantities import parse_bytes, parse_seconds

Bytes = Annotated[int, BeforeValidator(parse_bytes), Field(gt=0)]
Seconds = Annotated[float, BeforeValidator(parse_seconds), Field(gt=0)]

MAX_ENV_NAME = 255
_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# What keys, tokens and passwords in URLs look like; a form of a deployment refuses them with it too. A variable in the
# place of the password is none, and docker://image:tag@sha256:... names an image.
CREDENTIAL_PATTERN = (
    r"(?<![\w-])(?:nvapi-[\w-]{20,}|hf_[A-Za-z0-9]{30,}|AKIA[0-9A-Z]{16}(?![0-9A-Z])|ghp_[A-Za-z0-9]{30,}"
    r"|github_pat_\w{30,}|sk-(?:proj-[\w-]{20,}|[A-Za-z0-9]{40,})"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----|\w[\w+.-]*://[^/\s:@]*:[^/\s@$]+@(?!sha256:))"
)
_SECRET_VALUE = re.compile(CREDENTIAL_PATTERN)
# What variables that hold one are called.
CREDENTIAL_NAME = r"(?:^|_)(?:(?:API|NGC|ACCESS|SECRET|SECRET_ACCESS|PRIVATE)_KEY|TOKEN|SECRET|PASSWORD|PASSPHRASE)$"
_SECRET_NAME = re.compile(CREDENTIAL_NAME, re.IGNORECASE)
# What pydantic calls a type, and what we call it.
_PLAIN = {
    "integer": "a whole number",
    "number": "a number",
    "string": "text",
    "boolean": "true or false",
    "list": "a list",
    "tuple": "a list",
    "dictionary": "a map",
}


class Resources(BaseModel):
    """The compute shape of a job; counts are per node."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    gpus: int = Field(0, ge=ALL_GPUS, description="GPUs per node; -1 for all that a node has")
    nodes: int = Field(1, ge=1, description="number of nodes")
    cpus: int | None = Field(None, ge=1, description="CPU cores per node")
    memory: Bytes | None = Field(None, description="memory per node, for example 64G")
    time_limit: Seconds | None = Field(None, description="wall time of one attempt, for example 4h")
    shm: Bytes | None = Field(None, description="size of /dev/shm, for example 8G")

    @property
    def gpus_shown(self) -> str:
        """The GPUs per node, for people."""
        return "all" if self.gpus == ALL_GPUS else str(self.gpus)

    @property
    def total_gpus(self) -> int:
        """The GPUs of all nodes; 0 while their number is not known."""
        return max(self.gpus, 0) * self.nodes


class InputRule(BaseModel):
    """How a declared input reaches the command; its location is the value at its key in the spec."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    type: Literal["file", "folder", "list", "local_glob"] | None = None
    optional: bool = False
    container_path: str | None = None
    extract_to_parent: bool = False
    selective: dict[str, Any] | None = None


class OutputRule(BaseModel):
    """What a declared output is: a folder, or one file."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    type: Literal["file", "folder"] = "folder"


class JobRequest(BaseModel):
    """Everything one job needs, checked. two requests with the same `digest` are the same work."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    command: str
    image: str | None = None
    specs: dict[str, Any] | None = None
    args: dict[str, Any] | None = None
    flags: tuple[str, ...] = ()
    inputs: dict[str, InputRule | str] = Field(default_factory=dict)
    outputs: dict[str, OutputRule] | tuple[str, ...] = ()
    config_format: Literal["yaml", "toml", "json"] = "yaml"
    upload_excludes: tuple[str, ...] = ()
    workdir: str | None = None
    resources: Resources = Field(default_factory=Resources)
    env: dict[str, str] = Field(default_factory=dict)
    secrets: tuple[str, ...] = ()
    model: str | None = None
    action: str | None = None
    labels: dict[str, str] = Field(default_factory=dict)
    release_elsewhere: bool = False

    @field_validator("command")
    @classmethod
    def _command_says_something(cls, command: str) -> str:
        if not command.strip():
            raise ValueError("the command is empty; say what to run, for example python train.py")
        check_no_secret("the command", command)
        return command

    @field_validator("env")
    @classmethod
    def _env_is_plain(cls, env: dict[str, str]) -> dict[str, str]:
        for name, value in env.items():
            check_env_name(name)
            if _SECRET_NAME.search(name):
                raise ValueError(f"{name} is called like a secret; give its name under secrets instead")
            check_no_secret(f"the value of {name}", value)
            if "\0" in value:
                raise ValueError(f"the value of {name} holds a NUL character")
        return env

    @field_validator("labels")
    @classmethod
    def _labels_are_plain(cls, labels: dict[str, str]) -> dict[str, str]:
        for name, value in labels.items():
            check_no_secret(f"the label {name}", value)
        return labels

    @field_validator("secrets")
    @classmethod
    def _secrets_are_names(cls, secrets: tuple[str, ...]) -> tuple[str, ...]:
        for name in secrets:
            if "=" in name or _SECRET_VALUE.search(name):
                raise ValueError("secrets takes names such as NGC_KEY, never values; set the variable, give its name")
            check_env_name(name)
        return secrets

    @model_validator(mode="after")
    def _specs_or_args(self) -> JobRequest:
        if self.specs is not None and self.args is not None:
            raise ValueError("give either specs (a config file) or args (command line arguments), not both")
        check_values(self.specs if self.specs is not None else self.args or {})
        return self

    @property
    def digest(self) -> str:
        """A short hash of the work itself; labels, secret names and leave to let go do not change what runs."""
        text = self.model_dump_json(exclude={"labels", "secrets", "release_elsewhere"})
        return hashlib.sha256(json.dumps(json.loads(text), sort_keys=True).encode()).hexdigest()[:16]

    def lacking(self, secrets: Mapping[str, str]) -> list[str]:
        """The secrets that it names and that are not among these."""
        return [name for name in self.secrets if name not in secrets]

    @classmethod
    def build(cls, **fields: Any) -> JobRequest:
        """A checked request; raises InvalidInput with one finding per wrong field."""
        try:
            return cls(**fields)
        except ValidationError as error:
            raise invalid_fields(error) from None


def invalid_fields(error: ValidationError) -> InvalidInput:
    """What a validation error means for a person: which field, which value, what was expected."""
    from prefect_tao.jobs.finding import COMPUTE, IMAGE, MODEL_CREDENTIALS, NO_GATE, Finding, Level

    gates = {"image": IMAGE, "secrets": MODEL_CREDENTIALS, "resources": COMPUTE}
    # What may be of several types has a problem with each of them, and that is one problem for a person.
    problems: dict[tuple[str, str], list[str]] = {}
    for problem in error.errors(include_url=False):
        where = ".".join(str(part) for part in problem["loc"] if not _is_branch(part))
        shown = "" if problem["type"] == "value_error" else f" (got {_short(problem['input'])})"
        text = expected(problem["msg"].removeprefix("Value error, "))
        problems.setdefault((where, shown), []).append(text)
    findings = [
        Finding(
            gate=gates.get(where.partition(".")[0], NO_GATE),
            subject=where or "request",
            level=Level.FAIL,
            message=f"{where}: {_either(texts)}{shown}" if where else _either(texts),
            remedy="correct it and launch again",
        )
        for (where, shown), texts in problems.items()
    ]
    return InvalidInput.of(findings)


def expected(words: str) -> str:
    """What pydantic says about a value, in the words that our own checks use."""
    words = re.sub(r"^Input should be (?:a valid )?", "expected ", words)
    words = re.sub(r", unable to (?:parse|interpret) .*$", "", words)
    return re.sub(r"^expected (\w+)$", lambda found: f"expected {_PLAIN.get(found[1], found[1])}", words)


def _either(texts: list[str]) -> str:
    return " or ".join([texts[0], *(text.removeprefix("expected ") for text in texts[1:])])


def _is_branch(part: int | str) -> bool:
    return isinstance(part, str) and (part in ("InputRule", "str", "OutputRule") or "[" in part)


def _short(value: object) -> str:
    text = repr(value)
    if _SECRET_VALUE.search(text):
        return "what looks like a secret"
    return text if len(text) <= 60 else text[:57] + "..."


def check_env_name(name: str) -> None:
    """Raises ValueError when `name` cannot be an environment variable on every platform."""
    if len(name) > MAX_ENV_NAME:
        raise ValueError(
            f"the variable name {name[:20]}... has {len(name)} characters; at most {MAX_ENV_NAME} are kept"
        )
    if not _ENV_NAME.fullmatch(name):
        raise ValueError(f"{name!r} is not a variable name; use letters, digits and _, not starting with a digit")


def check_no_secret(where: str, text: str) -> None:
    """Raises ValueError when `text` holds what looks like a key or token; the error does not repeat it."""
    if _SECRET_VALUE.search(text):
        raise ValueError(f"{where} holds what looks like a secret; give its name under secrets instead")


def masked(text: str) -> str:
    """`text` without what looks like a key or token, for names and titles that are made before anything is checked."""
    return _SECRET_VALUE.sub("***", text)


def check_values(value: Any, where: str = "") -> None:
    """Raises ValueError at the first value that no config file can hold, naming its place."""
    try:
        _check_values(value, where)
    except RecursionError:
        raise ValueError("the spec is nested too deeply, or refers to itself") from None


def _check_values(value: Any, where: str) -> None:
    if isinstance(value, dict):
        for key, inner in value.items():
            if not isinstance(key, str):
                raise ValueError(f"{where or 'the spec'} has a key that is not text: {key!r}")
            _check_values(inner, f"{where}.{key}" if where else key)
    elif isinstance(value, (list, tuple)):
        for index, inner in enumerate(value):
            _check_values(inner, f"{where}[{index}]")
    elif isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{where} is {value}, which is not a number a config file can hold; give a finite number")
    elif isinstance(value, str):
        check_no_secret(where, value)
    elif value is not None and not isinstance(value, (int, float, bool)):
        raise ValueError(f"{where} is a {type(value).__name__}; a spec holds text, numbers, true/false, lists and maps")
