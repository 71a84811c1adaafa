# shellcheck shell=bash
# Every attempt of some keys, or of all: job NAME ID and its handle as file PATH LINE, and what the results folder
# remembers, as file PATH LINE too. queue CODE when the queue had to be asked; nobase "" when the folder cannot be
# entered now, nobase PATH when it will never be because PATH, itself or a folder above it, is not ours.
# site WORDS: which site this is. Of each job the site it belongs to is a file PATH LINE; here NAME for one without it
# that SLURM knows.
#
# A job that was staged but never submitted is not listed; whether it was, the queue says.
declare base results everything site
declare -a keys

declare -A wanted=()
for key in "${keys[@]}"; do wanted[$key]=1; done
unsure=() unnamed=()
declare -a chosen=()

job() {
    say job "$1" "$2"
    [ -e "$1/$TAO_SITE_FILE" ] || unnamed+=("$2 $1")
    show "$1/$TAO_SITE_FILE" "$1/$TAO_HANDLE"
}

own_site "$site"
if cd "$base" && [ -x . ] && { [ ! -e jobs ] || cd jobs; }; then
    for n in tao-*; do
        # The key first: a look into every folder that was ever made would take long.
        key=${n#tao-}
        [ "$everything" = 1 ] || [ -n "${wanted[${key%-*}]:-}" ] || continue
        [ -f "$n/$TAO_HANDLE" ] || continue
        id=
        if [ -L "$n/$TAO_CLAIM" ]; then
            id=$(readlink "$n/$TAO_CLAIM")
        elif [ -s "$n/$TAO_ID" ]; then
            id=$(<"$n/$TAO_ID")
        fi
        if [ -n "$id" ] || is_foreign "$n"; then job "$n" "$id"; else unsure+=("$n"); fi
    done
    if [ ${#unsure[@]} -gt 0 ]; then
        choose "${unsure[@]}"
        rows=$(queued -t all "${chosen[@]}")
        say queue $?
        rows=$(printf '%s\n' "$rows" | ours)
        for n in "${unsure[@]}"; do
            id=$(printf '%s\n' "$rows" | awk -v n="$n" '$2 == n {print $1}' | sort -n | head -n 1)
            [ -z "$id" ] || job "$n" "$id"
        done
    fi
    if [ ${#unnamed[@]} -gt 0 ]; then # from before jobs named their site: ours are those that SLURM lists
        list=$(printf '%s,' "${unnamed[@]%% *}")
        rows=$(queued -t all | ours; sacct -n -P -X -j "$list" -o JobIDRaw,JobName 2>/dev/null | tr '|' ' ')
        while read -r id n; do [ -z "$n" ] || say here "$n"; done < <(
            printf '%s\n' "${unnamed[@]}" | grep -Fx "$rows"
        )
    fi
    for key in "${!wanted[@]}"; do show "$results/$key"/attempts/*.json; done
else
    # It is new where it could be made. A file system that is not mounted leaves an empty folder that only root may
    # write; below any other one that cannot be written it will never be.
    path=$base
    while [ ! -e "$path" ]; do
        path=${path%/*}
        path=${path:-/}
    done
    if [ "$path" = "$base" ]; then
        if [ -d "$path" ] && [ -x "$path" ]; then say nobase ""; else say nobase "$path"; fi
    elif [ ! -w "$path" ]; then
        if [ -d "$path" ] && [ -r "$path" ] && [ -z "$(ls -A "$path")" ]; then say nobase ""; else say nobase "$path"; fi
    fi
fi
