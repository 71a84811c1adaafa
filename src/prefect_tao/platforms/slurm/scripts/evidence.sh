# shellcheck shell=bash
# What shows why a job ended: its runner's record DATA, its id ID, the ends of its logs as log DATA, the hosts NAMES
# that it used and which nodes NAMES of them are down.
declare job record ending

name=${job##*/} id=
ended() {
    local file
    for file; do [ ! -r "$file" ] || tail -c "$ending" "$file"; done
}
head -c 65536 "$record" 2>/dev/null | stream record
if cd "$job" 2>/dev/null; then id=$(readlink "$TAO_CLAIM" || cat "$TAO_ID"); fi
say id "$id"
ended "$job/$TAO_LOGS/$name-$id"/main.{out,err} "$job/$TAO_LOGS/batch-$id.out" | stream log
if [ -n "$id" ]; then
    list=$(squeue -h -t all -j "$id" -o %N 2>/dev/null | head -n 1)
    [ -n "$list" ] || list=$(sacct -n -P -X -j "$id" -o NodeList 2>/dev/null | tail -n 1)
    case $list in
        '' | *None*) ;;
        *)
            say hosts "$(scontrol show hostnames "$list")"
            say nodes "$(sinfo -h -N -n "$list" -t down,drain,fail,no_respond -o %N | sort -u)"
            ;;
    esac
fi
