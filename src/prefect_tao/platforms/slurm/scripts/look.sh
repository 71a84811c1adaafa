# shellcheck shell=bash
# Everything there is to know of jobs now.
#
# now SECONDS; queue CODE ROWS; stop NAME for a job that was asked to end; for every job that the queue does not show as
# alive, alone and under its known id, its files as file PATH LINE, and claim NAME ID, id NAME ID as it was noted, or
# staged NAME; ours ID for those of several jobs of one name that were submitted from here; accounting CODE IDS ROWS for
# those that left no end; changed status files of jobs that have begun as status NAME TEXT; nobase when the folder
# cannot be entered.
declare jobs queue_format id_width name_width state_width over accounting_format status_bytes
declare -a wanted # of each job its name, from when on changes of its status file are new, its id or -, its results

declare -a chosen=()
names=()
set -- "${wanted[@]}"
while [ $# -gt 0 ]; do
    names+=("$1")
    shift 4
done
printf -v now '%(%s)T' -1
say now "$now"
choose "${names[@]}"
# -r: each task of an array on a line of its own; times as SLURM has them, whatever the site's default form is.
rows=$(SLURM_TIME_FORMAT=%s squeue -h -r -t all -u "$USER" "${chosen[@]}" -O "$queue_format" 2>&1)
code=$?
say queue $code "$rows"
declare -A alive=() listed=() waits=()
if [ $code = 0 ]; then
    while read -r name state id; do
        [ -n "$id" ] || continue
        listed[$name]+=" $id "
        [[ " $over " == *" $state "* ]] || alive[$name]+=$id
        [ "$state" != PENDING ] || waits[$name]=$id
    done < <(printf '%s\n' "$rows" | awk -v i="$id_width" -v n="$name_width" -v s="$state_width" '{
        print substr($0, i + 1, n), substr($0, i + n + 1, s), substr($0, 1, i)
    }')
fi

stopped() {
    local word=
    [ -r "$1/$TAO_STOP" ] && read -r word <"$1/$TAO_STOP"
    [ "$word" != cancel ] || say stop "$1"
}

is_clean() {
    local line=
    [ -r "$1" ] && IFS= read -r line <"$1"
    [[ $line == *'"exit_code": 0, "ended_by": "none"'* ]]
}

ids=() paths=() several=()
declare -A since_of=() name_of=() claims=()

read_claims() { # of all that need it at once, because a process per job costs more than all the rest
    local name id unsure=()
    set -- "${wanted[@]}"
    while [ $# -gt 0 ]; do
        [ "${alive[$1]:-}" = "$3" ] || unsure+=("$1/$TAO_CLAIM")
        shift 4
    done
    while read -r name _ id; do claims[${name%/*}]=$id; done < <(
        printf '%s\n' "${unsure[@]}" | QUOTING_STYLE=literal xargs -r stat -c %N 2>/dev/null
    )
}

examine() { # a job that is not simply alive
    local name=$1 native=$2 results=$3 id=${claims[$1]:-}
    show "$name/$TAO_END" "$name/$TAO_EXIT" "$results/attempts/${name##*-}.json"
    if [ -n "$id" ]; then
        say claim "$name" "$id"
    elif [ -s "$name/$TAO_ID" ]; then
        id=$(<"$name/$TAO_ID")
        say id "$name" "$id"
    fi
    [ -z "$id" ] && [ "$native" != - ] && id=$native
    [ -n "$id" ] || say staged "$name"
    case ${listed[$name]:-} in '' | " $native ") ;; *) several+=("$name") ;; esac
    # A marker that is not clean does not say who ended the job.
    if [ -n "$id" ] && [ ! -e "$name/$TAO_END" ] && ! is_clean "$name/$TAO_EXIT"; then
        case ${listed[$name]:-} in *" $id "*) ;; *) ids+=("$id") ;; esac
    fi
}

look() {
    local name=$1 since=$2 native=$3 results=$4 file newest=
    stopped "$name"
    if [ "${alive[$name]:-}" != "$native" ]; then
        examine "$name" "$native" "$results"
    elif [ "${waits[$name]:-}" = "$native" ]; then
        return # what rests costs nothing more
    fi
    for file in "$results"/*/status.json "$results"/*/*/status.json; do
        [ -r "$file" ] && { [ -z "$newest" ] || [ "$file" -nt "$newest" ]; } && newest=$file
    done
    [ -z "$newest" ] || { paths+=("$newest") since_of[$newest]=$since name_of[$newest]=$name; }
}

if cd "$jobs"; then
    read_claims
    set -- "${wanted[@]}"
    while [ $# -gt 0 ]; do
        look "$1" "$2" "$3" "$4"
        shift 4
    done
    if [ ${#several[@]} -gt 0 ]; then
        choose "${several[@]}"
        if reply=$(queued -t all "${chosen[@]}"); then
            while read -r id _; do say ours "$id"; done < <(printf '%s\n' "$reply" | ours)
        else
            say queue 1 "$reply"
        fi
    fi
else
    say nobase
fi

if [ $code = 0 ] && [ ${#ids[@]} -gt 0 ]; then
    # Others of too many come next time, whichever of them accounting has nothing to say about.
    [ ${#ids[@]} -le "$TAO_MANY" ] || mapfile -t ids < <(printf '%s\n' "${ids[@]}" | shuf -n "$TAO_MANY")
    list=$(IFS=, && echo "${ids[*]}")
    # By id, because accounting finds a job that was held by its id only; with every run of a requeued one.
    rows=$(SLURM_TIME_FORMAT=%s sacct -n -P -X -D -j "$list" -S now-365days -E now+1days -o "$accounting_format" 2>&1)
    say accounting $? "$list" "$rows"
fi
if [ ${#paths[@]} -gt 0 ]; then
    while read -r changed path; do
        [ "$changed" -ge "${since_of[$path]}" ] || continue
        say status "${name_of[$path]}" "$(tail -c "$status_bytes" "$path")"
    done < <(printf '%s\0' "${paths[@]}" | xargs -0 stat -c '%Y %n')
fi
