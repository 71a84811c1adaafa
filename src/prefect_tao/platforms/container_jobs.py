"""What platforms share whose jobs are containers: how many GPUs a job gets, and NVIDIA's registry. Pure."""

from __future__ import annotations

from typing import Protocol

from prefect_tao.jobs.request import JobRequest

NGC, NGC_USER = "nvcr.io", "$oauthtoken"


class HasGpus(Protocol):
    """Settings with the number of GPUs of a job that does not say how many."""

    @property
    def gpus(self) -> int: ...


def wanted_gpus(request: JobRequest, settings: HasGpus) -> int:
    """How many GPUs the job gets on each node; -1 is all that a node has. Who asks for none gets none."""
    return request.resources.gpus if "gpus" in request.resources.model_fields_set else settings.gpus
