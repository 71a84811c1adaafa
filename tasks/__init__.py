"""Prefect tasks: the gates, launch, watch, and one task per action, which launches and watches one job.

`run_action` is the action of any other name, and a plain command.
"""

from prefect_tao.tasks.actions import (
    dataset_convert,
    distill,
    evaluate,
    export,
    gen_trt_engine,
    inference,
    prune,
    quantize,
    retrain,
    run_action,
    train,
)
from prefect_tao.tasks.gate_tasks import gate
from prefect_tao.tasks.launch import launch
from prefect_tao.tasks.watch import watch_job

__all__ = [
    "dataset_convert",
    "distill",
    "evaluate",
    "export",
    "gate",
    "gen_trt_engine",
    "inference",
    "launch",
    "prune",
    "quantize",
    "retrain",
    "run_action",
    "train",
    "watch_job",
]
