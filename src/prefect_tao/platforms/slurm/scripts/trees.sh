# shellcheck shell=bash
# The files below folders: for each folder tree, then each of its files as file PATH, then all when every folder below
# could be looked into.
declare -a trees # of each its path, how deep, how many files at most, how many names to leave out, and these

set -- "${trees[@]}"
while [ $# -gt 0 ]; do
    path=$1 depth=$2 most=$3 left_out=("${@:5:$4}")
    shift $((4 + $4))
    say tree
    pruned=(-false)
    for name in "${left_out[@]}"; do pruned+=(-o -name "$name"); done
    if [ -e "$path" ]; then
        # A record has three fields, its length included.
        find "$path" -mindepth 1 -maxdepth "$depth" \( -type d \( "${pruned[@]}" \) -prune \) -o -type f \
            -printf '2\0file\0%p\0' 2>/dev/null | head -z -n $((most * 3)) >&3
        [ "${PIPESTATUS[0]}" != 0 ] || say all
    else
        say all
    fi
done
