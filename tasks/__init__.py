"""Prefect tasks: check, launch, watch, and the action that is all of them for one job."""

from prefect_tao.tasks.action import run_action
from prefect_tao.tasks.check import check
from prefect_tao.tasks.launch import launch
from prefect_tao.tasks.watch import watch_job

__all__ = ["check", "launch", "run_action", "watch_job"]
