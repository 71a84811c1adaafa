"""What a person asks for, and what it resolves to: the nouns between the catalog and the gates."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Unpack, cast, get_args

from pydantic import BaseModel, ConfigDict, Field

from prefect_tao.catalog.nouns import Source
from prefect_tao.jobs.errors import InvalidInput
from prefect_tao.jobs.finding import Finding
from prefect_tao.jobs.outcome import Outcome
from prefect_tao.jobs.request import JobRequest
from prefect_tao.launch.parameters.declared import StepParameters
from prefect_tao.launch.parameters.derived import checked

ROOT = "_root"


@dataclass(frozen=True)
class Ask:
    """A launch of an action in a person's words, checked, and what earlier steps have made for it.

    Datasets come as roots, or as exact spec keys among the overrides, or both.
    """

    given: StepParameters
    parents: tuple[Outcome, ...] = ()

    @classmethod
    def of(cls, **given: Unpack[StepParameters]) -> Ask:
        """The ask with these parameters. Raises InvalidInput for what is missing or has another form."""
        model, action = given.get("model"), given.get("action")
        if not model or not action:
            raise InvalidInput(
                f"the model {model} was named without an action"
                if model
                else "neither a command nor a model with an action was given",
                "give model and action, for example --model dino --action train, or a command after --",
            )
        return cls(cast(StepParameters, checked(StepParameters, given)))

    @property
    def model(self) -> str:
        """The model, in whatever words."""
        return str(self.given.get("model"))

    @property
    def action(self) -> str:
        """The model's action."""
        return str(self.given.get("action"))

    @property
    def target(self) -> str:
        """Where it is to run."""
        return str(self.given.get("target") or "process")

    @property
    def spec(self) -> Mapping[str, Any]:
        """The spec, nested."""
        return self.given.get("specs") or {}

    @property
    def overrides(self) -> Mapping[str, Any]:
        """Single spec values by key."""
        return self.given.get("overrides") or {}

    @cached_property
    def roots(self) -> Mapping[Source, tuple[str, ...]]:
        """The dataset roots by the kind of data."""
        found: dict[Source, Any] = {source: self.given.get(f"{source}{ROOT}") for source in get_args(Source)}
        return {source: (root,) if isinstance(root, str) else tuple(root) for source, root in found.items() if root}


class Resolved(BaseModel):
    """What will run. Findings say what is wrong with the ask itself; nothing outside was looked at."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    model: str
    action: str
    platform: str
    image: str | None
    image_source: str
    request: JobRequest | None
    spec: dict[str, Any]
    datasets: dict[str, str] = Field(default_factory=dict)
    alternatives: dict[str, tuple[str, ...]] = Field(
        default_factory=dict, description="other files that a dataset key may mean, where the first is not there"
    )
    optional_datasets: dict[str, str] = Field(
        default_factory=dict, description="files below the roots that the spec may take, where they exist"
    )
    roots: dict[str, str] = Field(default_factory=dict, description="the dataset roots that the action takes from")
    direct: tuple[str, ...] = Field((), description="the inputs whose location a person gave by key")
    credentials: tuple[str, ...] = ()
    findings: tuple[Finding, ...] = ()
