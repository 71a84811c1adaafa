"""Prefect flows, for async code, notebooks and deployments; `from prefect_tao import run` is one as a plain call."""

from prefect_tao.flows.action import run
from prefect_tao.flows.example import quickstart

__all__ = ["quickstart", "run"]
