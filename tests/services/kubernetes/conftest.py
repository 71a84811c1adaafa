"""Platforms that lead to the stand-in cluster."""

from kube_jobs import opened as opened
