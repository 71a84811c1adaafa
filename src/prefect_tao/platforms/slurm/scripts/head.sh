# shellcheck shell=bash
# The first bytes of a file as data DATA, where it can be read.
declare path limit
if [ -f "$path" ] && [ -r "$path" ]; then head -c "$limit" "$path" | stream data; fi
