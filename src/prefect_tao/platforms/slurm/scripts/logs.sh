# shellcheck shell=bash
# Each log of the job that has the name, as log FILE START DATA: from its offset on, or its end where that is -.
declare job window chunk
declare -a parts # of each log its file and its offset

name=${job##*/}
if cd "$job" 2>/dev/null && id=$(readlink "$TAO_CLAIM" || cat "$TAO_ID") && cd "$TAO_LOGS/$name-$id" 2>/dev/null; then
    set -- "${parts[@]}"
    while [ $# -gt 0 ]; do
        start=$2 length=$chunk
        if [ "$start" = - ]; then
            size=$(stat -c %s "$1" 2>/dev/null || echo 0)
            start=$((size > window ? size - window : 0)) length=$((1 << 30))
        fi
        [ ! -r "$1" ] || tail -c "+$((start + 1))" "$1" | head -c "$length" | stream log "$1" "$start"
        shift 2
    done
fi
