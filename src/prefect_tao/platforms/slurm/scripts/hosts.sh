# shellcheck shell=bash
# The names in SLURM's lists of nodes: for each list hosts NAMES.
declare -a lists
for list in "${lists[@]}"; do say hosts "$(scontrol show hostnames "$list")"; done
