"""Prefect tasks: the gates, launch, watch, and the action that launches and watches one job."""

from prefect_tao.tasks.action import run_action
from prefect_tao.tasks.gates import gate
from prefect_tao.tasks.launch import launch
from prefect_tao.tasks.watch import watch_job

__all__ = ["gate", "launch", "run_action", "watch_job"]
