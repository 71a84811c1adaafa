# shellcheck shell=bash
# Writes down how jobs ended, where nobody has, and removes what a job that is over needs no more. Says file PATH LINE
# for what stands there then.
declare jobs
declare -a ends # of each job its name and the text

umask 077
needless=() # removed together, because a process per job costs more than all the rest
keep() {
    [ -d "$1" ] || return
    needless+=("$1/$TAO_SECRETS" "$1/$TAO_END.$$")
    printf '%s' "$2" >"$1/$TAO_END.$$" && ln "$1/$TAO_END.$$" "$1/$TAO_END" 2>/dev/null
    show "$1/$TAO_END"
}
if cd "$jobs"; then
    set -- "${ends[@]}"
    while [ $# -gt 0 ]; do
        keep "$1" "$2"
        shift 2
    done
    [ ${#needless[@]} = 0 ] || printf '%s\0' "${needless[@]}" | xargs -0 rm -f
fi
