# shellcheck shell=bash
# Puts what was staged in a folder of its own into place, and submits each job once.
#
# id NAME ID: the job exists; was NAME HANDLE: and did so before. taken NAME, elsewhere NAME WORDS, doubt NAME WORDS and
# refused NAME WORDS: it does not, or perhaps. unpacked WORDS: nothing could be put into place. site WORDS: which site
# this is; without it nothing is done.
declare jobs incoming program images denial_seconds site
declare -a tries              # of each job its name and the conversion that it waits for
declare -a conversions        # of each its name, the file it makes, whether even where there is one, and its script
declare -a conversion_options # for sbatch
declare -a lost               # folders that were staged earlier, without an answer

umask 077
trap '' PIPE # what was begun is brought to its end even if the asking side has gone
declare -A new=() wait_for=()
patience=15 # pauses of 0.2 s

# Conversions of one image run one after the other, and the second finds the file.
convert() {
    local name=$1 file=$2 again=$3 script=$4 reply id
    [ -s "$file" ] && [ "$again" = 0 ] && return
    mkdir -p "$images"
    id=$(squeue -h -u "$USER" --name="$name" -o %A 2>/dev/null | sort -n | tail -n 1)
    if [ -z "$id" ]; then
        # SLURM takes %j and its like in a file name for words of its own.
        reply=$(sbatch --parsable --job-name="$name" --dependency=singleton "${conversion_options[@]}" \
            --output="${images//%/%%}/$name.log" --open-mode=truncate --no-requeue 2>&1 <<<"$script") &&
            id=$(printf '%s\n' "$reply" | sed -n 's/^\([0-9][0-9]*\).*/\1/p' | tail -n 1)
        # The job shows the end of this file when it has to pull the image itself.
        [ -n "$id" ] || printf 'no conversion was started: %s\n' "$reply" >"$images/$name.log"
    fi
    [ -z "$id" ] || wait_for[$name]=$id
}

settle() { # a name that is there is kept; its secrets are renewed as long as it has not begun
    local n=$1 line=
    if [ ! -e "$incoming/$n" ]; then
        new[$n]=1
        return 0
    fi
    [ -f "$n/$TAO_HANDLE" ] || {
        say taken "$n"
        return 1
    }
    if is_foreign "$n"; then
        IFS= read -r line <"$n/$TAO_SITE_FILE"
        say elsewhere "$n" "$line"
        return 1
    fi
    IFS= read -r line <"$n/$TAO_HANDLE"
    say was "$n" "$line"
    [ -L "$n/$TAO_CLAIM" ] || [ -e "$n/$TAO_END" ] || mv -f "$incoming/$n/$TAO_SECRETS" "$n/" 2>/dev/null
    return 0
}

in_queue() { # sets id to that of the first job of ours under the name; fails when the queue does not answer
    local n=$1
    shift
    id=
    reply=$(queued "$@" --name="$n") || return
    id=$(printf '%s\n' "$reply" | ours | sort -n | sed -n '1s/ .*//p')
}

send() { # sets id, or reply and rc
    local line n=$1
    shift
    reply=$(exec sbatch --parsable "$@" "$n/$TAO_SCRIPT" 2>&1 </dev/null)
    rc=$? id=
    while read -r line; do [[ $line =~ ^([0-9]+)(;.*)?$ ]] && id=${BASH_REMATCH[1]}; done <<<"$reply"
    [ $rc = 0 ] && [ -n "$id" ]
}

keep() { # the id that is noted first stays: by it everybody knows which of several jobs has the name
    local id=
    set -C
    printf '%s' "$2" 2>/dev/null >"$1/$TAO_ID" || [ -s "$1/$TAO_ID" ] || printf '%s' "$2" >|"$1/$TAO_ID"
    set +C
    [ ! -s "$1/$TAO_ID" ] || read -r id <"$1/$TAO_ID"
    say id "$1" "${id:-$2}"
}

has_begun() { # sets id to that of a job that has begun under the name, whatever sbatch said of it
    local n=$1
    if [ -L "$n/$TAO_CLAIM" ]; then
        id=$(readlink "$n/$TAO_CLAIM")
    else # a shared file system may show the claim late; the name alone may be that of another folder's job
        id=$(sacct -n -P -X -u "$USER" --name="$n" -S now-1hours -o JobIDRaw,NodeList,WorkDir 2>/dev/null |
            here=$(pwd -P) awk -F'|' '$2 != "" && $2 != "None assigned" && $3 == ENVIRON["here"] {print $1; exit}')
    fi
    [ -n "$id" ]
}

is_recent() { [ $(($(date +%s) - $(stat -c %Y "$1"))) -lt "$denial_seconds" ]; }

known() { # says the id where the job is known to exist, or that it is in doubt; fails when it is to be submitted
    local n=$1 reply id
    if [ -s "$n/$TAO_ID" ]; then
        say id "$n" "$(<"$n/$TAO_ID")"
        return
    fi
    if [ -L "$n/$TAO_CLAIM" ]; then
        say id "$n" "$(readlink "$n/$TAO_CLAIM")"
        return
    fi
    [ -z "${new[$n]:-}" ] || return 1
    if ! in_queue "$n" -t all; then
        say doubt "$n" "${reply:0:600}"
        return
    fi
    if [ -n "$id" ]; then
        keep "$n" "$id"
        return
    fi
    # The launcher that staged it submits it at once; of those who try again the first goes ahead.
    if is_recent "$n/$TAO_HANDLE" || { ! mkdir "$n/$TAO_TRY" 2>/dev/null && is_recent "$n/$TAO_TRY"; }; then
        # It notes the id in a moment; all jobs of a batch together wait no longer than that.
        while [ $patience -gt 0 ] && [ ! -s "$n/$TAO_ID" ]; do
            sleep 0.2
            patience=$((patience - 1))
        done
        [ -s "$n/$TAO_ID" ] || say doubt "$n" "somebody submitted it a moment ago"
        [ ! -s "$n/$TAO_ID" ] || say id "$n" "$(<"$n/$TAO_ID")"
        return
    fi
    touch "$n/$TAO_TRY"
    return 1
}

replace() { # puts our files where others stood that a killed launcher had left, and that SLURM has just refused
    local n=$1 line=
    [ -d "$incoming/$n" ] && ! cmp -s "$incoming/$n/$TAO_SCRIPT" "$incoming/$n.refused/$TAO_SCRIPT" || return
    [ -e "$incoming/$n/$TAO_SECRETS" ] || mv "$incoming/$n.refused/$TAO_SECRETS" "$incoming/$n/"
    mv -nT "$incoming/$n" "$n"
    [ ! -e "$incoming/$n" ] || return
    IFS= read -r line <"$n/$TAO_HANDLE"
    say was "$n" "$line"
}

submit() {
    local n=$1 conversion=$2 reply rc id said avoid='' options=() bad=()
    settle "$n" || return
    known "$n" && return
    [ -z "$conversion" ] || [ -z "${wait_for[$conversion]:-}" ] ||
        options+=("--dependency=afterany:${wait_for[$conversion]}")
    for ((id = ${n##*-} - 1; id > 0; id--)); do
        [ ! -r "${n%-*}-$id/$TAO_BAD_NODES" ] || bad+=("${n%-*}-$id/$TAO_BAD_NODES")
    done
    [ ${#bad[@]} = 0 ] || avoid=$(sort -u "${bad[@]}" | paste -sd, -)
    if send "$n" "${options[@]}" ${avoid:+"--exclude=$avoid"} ||
        # Too few nodes may be left: then one that failed is better than none.
        { [ -n "$avoid" ] && ! in_doubt "$rc" "$reply" && send "$n" "${options[@]}"; }; then
        keep "$n" "$id"
        return
    fi
    touch "$n/$TAO_TRY"
    said=$reply
    # A refusal stands when no such job waits, runs or has run; the queue shows some that were refused as failed.
    if in_doubt "$rc" "$said" || { [ "$rc" != 127 ] && ! in_queue "$n"; }; then
        say doubt "$n" "${said:0:600}"
    elif [ -n "$id" ] || has_begun "$n"; then
        keep "$n" "$id"
    else
        mv -T "$n" "$incoming/$n.refused"
        if replace "$n"; then submit "$n" "$conversion"; else say refused "$n" "${said:0:600}"; fi
    fi
}

if ! own_site "$site"; then
    :
elif cd "$jobs" && reply=$(tar -xzmf "$incoming/batch.tgz" -C "$incoming" 2>&1); then
    mkdir -p "${program%/*}"
    mv -T "$incoming/$TAO_PROGRAM" "$program" 2>/dev/null
    set -- "${conversions[@]}"
    while [ $# -gt 0 ]; do
        convert "$1" "$2" "$3" "$4"
        shift 4
    done
    # All at once, because a process per job costs as much as its submission. What is there already stays behind.
    staged=("$incoming"/tao-*)
    for n in "${staged[@]}"; do printf '%s\n' "$site" >"$n/$TAO_SITE_FILE"; done
    mv -n "${staged[@]}" . 2>/dev/null
    set -- "${tries[@]}"
    while [ $# -gt 0 ]; do
        submit "$1" "$2"
        shift 2
    done
else
    say unpacked "${reply:-the folder cannot be entered}"
fi
rm -rf "$incoming" "${lost[@]}"
