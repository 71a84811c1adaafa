"""The settings this product wants for Prefect, as environment variables, so that nothing here has to import it."""

from __future__ import annotations

import os

# Each holds unless the user has set it. Why: an outage of minutes at the end of a run must not lose its state;
# Prefect's own temporary server needs up to half a minute to start; leases must survive a restart of the server; a
# machine without the internet must not be asked to report usage to it; and pages show no advertisements. A server
# that writes down every state of every task by itself spends two thirds of its time on that; together, and at most a
# second late (it knows whole seconds only), they cost next to nothing. What our own loggers say, of waiting above
# all, belongs into the log of the run that waits.
PREFECT_DEFAULTS = {
    "PREFECT_CLIENT_MAX_RETRIES": "8",
    "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "120",
    "PREFECT_SERVER_CONCURRENCY_LEASE_STORAGE": "prefect.server.concurrency.lease_storage.filesystem",
    "PREFECT_SERVER_SERVICES_TASK_RUN_RECORDER_BATCH_SIZE": "100",
    "PREFECT_SERVER_SERVICES_TASK_RUN_RECORDER_FLUSH_INTERVAL": "1",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "PREFECT_SERVER_UI_SHOW_PROMOTIONAL_CONTENT": "false",
    "DO_NOT_TRACK": "1",
    "PREFECT_LOGGING_EXTRA_LOGGERS": "prefect_tao",
    "PREFECT_LOGGING_TO_API_WHEN_MISSING_FLOW": "ignore",
}


def prepare_prefect() -> None:
    """Set our defaults in the environment. Prefect reads it when it is imported, so call this before."""
    for name, value in PREFECT_DEFAULTS.items():
        os.environ.setdefault(name, value)
