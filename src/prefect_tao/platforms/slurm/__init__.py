"""SLURM clusters behind ssh: one connection, one question for all jobs, one job per name."""
