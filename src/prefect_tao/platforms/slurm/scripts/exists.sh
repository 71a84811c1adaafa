# shellcheck shell=bash
# Says yes where something has this path.
declare path
[ ! -e "$path" ] || say yes
