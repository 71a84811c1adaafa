"""Prefect-tao."""
