"""Searches over a model's hyperparameters: spaces, samplers and schedules, on Optuna."""
