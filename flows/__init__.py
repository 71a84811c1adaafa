"""Prefect flows, for async code, notebooks and deployments; `from prefect_tao import run` is one as a plain call."""

import sys

from prefect_tao.settings import prepare_prefect

prepare_prefect()
if "prefect" in sys.modules:  # Prefect was imported before us, and has read its settings already
    from prefect.context import refresh_global_settings_context

    refresh_global_settings_context()

from prefect_tao.flows.action import run  # noqa: E402
from prefect_tao.flows.attach import watch  # noqa: E402
from prefect_tao.flows.chains import chain  # noqa: E402
from prefect_tao.flows.example import quickstart  # noqa: E402
from prefect_tao.flows.search import automl  # noqa: E402
from prefect_tao.flows.sweeps import sweep  # noqa: E402
from prefect_tao.tasks.cancellation import cancel_jobs  # noqa: E402
from prefect_tao.tasks.targets.servers import server_url  # noqa: E402

server_url()  # flows of others that import ours use the server that runs here too

__all__ = ["automl", "cancel_jobs", "chain", "quickstart", "run", "sweep", "watch"]
