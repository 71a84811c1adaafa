"""Prefect tasks: the gates, launch, watch, and one task per action, which launches and watches one job.

`run_action` is the action of any other name, and a plain command. For people's own flows there are the verbs of the
core API: `create_job`, `get_job_status` and so on, as `prefect_tao.connect` has them.
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
from prefect_tao.tasks.job_calls import (
    cancel_job,
    check_path,
    create_job,
    delete_instance,
    get_failure_analysis,
    get_job_logs,
    get_job_replicas,
    get_job_results_dir,
    get_job_status,
    list_instances,
    list_jobs,
    list_path,
)
from prefect_tao.tasks.launch import launch
from prefect_tao.tasks.plain_errors import log_errors_plainly
from prefect_tao.tasks.watch import watch_job

__all__ = [
    "cancel_job",
    "check_path",
    "create_job",
    "dataset_convert",
    "delete_instance",
    "distill",
    "evaluate",
    "export",
    "gate",
    "gen_trt_engine",
    "get_failure_analysis",
    "get_job_logs",
    "get_job_replicas",
    "get_job_results_dir",
    "get_job_status",
    "inference",
    "launch",
    "list_instances",
    "list_jobs",
    "list_path",
    "prune",
    "quantize",
    "retrain",
    "run_action",
    "train",
    "watch_job",
]

log_errors_plainly()
