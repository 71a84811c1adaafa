# shellcheck shell=bash
# Removes the secrets of jobs that are over and that nobody has watched to their end. Only a job that SLURM will not
# start again is over: the queue or accounting says so, or its end was written down. Jobs of other sites are left alone.
# What launchers that were killed have left, with secrets in it, goes after a while.
#
# It looks into every folder, so a launch does it only when nobody has for some minutes.
declare jobs minutes site
declare lost_minutes # after which the launcher of what was never submitted must be gone
declare ended # the states of a job that SLURM will not start again

needless=() ids=()
declare -A alive=() over=() name_of=()

has_secrets() {
    local line=
    [ -s "$1/$TAO_SECRETS" ] && { read -r line <"$1/$TAO_SECRETS" || [ -n "$line" ]; } && [ "$line" != '{}' ]
}

judge() {
    local n=$1 id=
    [ -z "${alive[$n]:-}" ] || return
    if [ -n "${over[$n]:-}" ]; then
        needless+=("$n/$TAO_SECRETS")
        return
    fi
    if [ -L "$n/$TAO_CLAIM" ]; then
        id=$(readlink "$n/$TAO_CLAIM")
    elif [ -s "$n/$TAO_ID" ]; then
        id=$(<"$n/$TAO_ID")
    fi
    if [ -n "$id" ]; then
        ids+=("$id") name_of[$id]=$n
    elif [ -n "$(find "$n/$TAO_HANDLE" -mmin "+$lost_minutes")" ]; then # a launch that submits it brings them again
        needless+=("$n/$TAO_SECRETS")
    fi
}

sweep() {
    local n id name state rows unsure=()
    for n in tao-*; do
        has_secrets "$n" || continue
        ! is_foreign "$n" || continue
        if [ -e "$n/$TAO_END" ]; then needless+=("$n/$TAO_SECRETS"); else unsure+=("$n"); fi
    done
    if [ ${#unsure[@]} -gt 0 ] && rows=$(squeue -h -t all -u "$USER" -o '%j %T' 2>&1); then
        while read -r n state; do
            [ -n "$state" ] || continue
            if [[ " $ended " == *" $state "* ]]; then over[$n]=1; else alive[$n]=1; fi
        done <<<"$rows"
        for n in "${unsure[@]}"; do judge "$n"; done
    fi
    # What the queue has forgotten accounting may know.
    if [ ${#ids[@]} -gt 0 ]; then
        while IFS='|' read -r id name state; do
            n=${name_of[$id]:-}
            [ "$n" != "$name" ] || [[ " $ended " != *" ${state%% *} "* ]] || needless+=("$n/$TAO_SECRETS")
        done < <(sacct -n -P -X -j "$(IFS=, && echo "${ids[*]:0:$TAO_MANY}")" -o JobIDRaw,JobName,State 2>/dev/null)
    fi
    [ ${#needless[@]} = 0 ] || printf '%s\0' "${needless[@]}" | xargs -0 rm -f
    find . -maxdepth 1 -name "$TAO_INCOMING*" -mmin "+$lost_minutes" -exec rm -rf {} +
}

note=${jobs%/*}/$TAO_SWEPT
if [ -n "$site" ] && cd "$jobs" 2>/dev/null && { [ "$minutes" = 0 ] || [ -z "$(find "$note" -mmin "-$minutes" 2>/dev/null)" ]; }; then
    sweep
    touch "$note"
fi
