# shellcheck shell=bash
# The names of all jobs that the queue holds of this user: queue CODE NAMES.
rows=$(squeue -h -r -u "$USER" -o %j 2>&1)
say queue $? "$rows"
