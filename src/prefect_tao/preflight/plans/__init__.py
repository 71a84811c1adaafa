"""Chains, their steps and sweeps, planned before anything runs. Pure."""
