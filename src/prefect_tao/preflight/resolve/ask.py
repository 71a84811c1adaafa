"""What a person asks for, and what it resolves to: the nouns between the catalog and the gates."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from prefect_tao.catalog.nouns import Source
from prefect_tao.jobs.finding import Finding
from prefect_tao.jobs.outcome import Outcome
from prefect_tao.jobs.request import ALL_GPUS, JobRequest


class Ask(BaseModel):
    """A launch in a person's words. Datasets come as roots, or as exact spec keys among the overrides, or both."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    model: str
    action: str
    target: str = "process"
    image: str | None = None
    roots: dict[Source, tuple[str, ...]] = Field(default_factory=dict)
    data_format: str | None = None
    spec: dict[str, Any] = Field(default_factory=dict)
    overrides: dict[str, Any] = Field(default_factory=dict)
    gpus: int | None = Field(None, ge=ALL_GPUS)
    nodes: int | None = Field(None, ge=1)
    cpus: int | None = None
    memory: str | None = None
    time_limit: str | None = None
    shm: str | None = None
    env: dict[str, str] = Field(default_factory=dict)
    secrets: tuple[str, ...] = ()
    parents: tuple[Outcome, ...] = ()


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
        default_factory=dict, description="files below the roots that the spec takes only where they exist"
    )
    roots: dict[str, str] = Field(default_factory=dict, description="the dataset roots that the action takes from")
    direct: tuple[str, ...] = Field((), description="the inputs whose location a person gave by key")
    credentials: tuple[str, ...] = ()
    findings: tuple[Finding, ...] = ()
