"""Targets as Prefect tasks use them: opened once, with their credentials, and no fuller than they may be."""
