"""The Prefect server of this machine: on a Postgres of its own where there is one, found by all that need it."""
