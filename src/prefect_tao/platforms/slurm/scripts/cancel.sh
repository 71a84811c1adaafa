# shellcheck shell=bash
# Asks jobs to end: a note for one that may start yet, and scancel for every id that bears the name.
declare jobs
declare -a names

ids=()
declare -a chosen=()
declare -A asked=()
if cd "$jobs"; then
    for n in "${names[@]}"; do
        [ -d "$n" ] || continue
        asked[$n]=1
        [ -e "$n/$TAO_EXIT" ] || [ -e "$n/$TAO_END" ] || printf cancel >"$n/$TAO_STOP"
        [ -s "$n/$TAO_ID" ] && ids+=("$(<"$n/$TAO_ID")")
        [ -L "$n/$TAO_CLAIM" ] && ids+=("$(readlink "$n/$TAO_CLAIM")")
    done
    choose "${names[@]}"
    # A reply that was lost may have left a second job of the name.
    while read -r id n; do [ -n "${asked[$n]:-}" ] && ids+=("$id"); done < <(queued "${chosen[@]}" | ours)
    [ ${#ids[@]} = 0 ] || printf '%s\n' "${ids[@]}" | sort -u | xargs -n 200 scancel
fi
