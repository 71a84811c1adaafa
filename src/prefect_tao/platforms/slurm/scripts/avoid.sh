# shellcheck shell=bash
# Remembers nodes that the next attempt is to avoid.
declare job
declare -a nodes
cd "$job" && printf '%s\n' "${nodes[@]}" >"$TAO_BAD_NODES"
