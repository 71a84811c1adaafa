"""The core API for people who write Python: `from prefect_tao import connect`."""
