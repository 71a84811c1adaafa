"""Measurements side by side, in one run, as ratios: `make bench` writes benchmarks/RESULTS.md."""
