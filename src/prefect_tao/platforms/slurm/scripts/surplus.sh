# shellcheck shell=bash
# Takes jobs out of the queue that wait under a name that another one has; never one that has begun.
declare jobs
declare -a ids

list=$(IFS=, && echo "${ids[*]}")
cd "$jobs" && queued -t PENDING -j "$list" | ours | while read -r id _; do scancel --state=PENDING "$id"; done
