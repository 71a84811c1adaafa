"""Variables that steer launchers and services: they have no business in a job, wherever they come from."""

from __future__ import annotations

from collections.abc import Mapping

NAMES = frozenset({"BACKEND", "DOCKER_HOST", "DOCKER_NETWORK", "HOST_PLATFORM", "MONGOSECRET", "PREFECT_API_KEY"})


def without_control(env: Mapping[str, str]) -> dict[str, str]:
    """The variables that a job may have."""
    return {name: value for name, value in env.items() if name not in NAMES}
