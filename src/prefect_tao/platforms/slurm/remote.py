"""The bash texts that run on a login node. Each does its work in one trip and prints lines that begin with a mark.

Names of jobs and variables are plain words; paths are quoted. Nothing here decides what an answer means, but for one
thing: whether sbatch refused a job or left it in doubt, because a refused job must leave nothing behind.
"""

from __future__ import annotations

import posixpath
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from prefect_tao.platforms.logtext import CHUNK, ENDING, USUAL_LINE
from prefect_tao.platforms.slurm import enroot, layout
from prefect_tao.platforms.slurm.layout import Layout

# squeue prints columns of these widths, without a separator.
COLUMNS = {"JobID": 24, "Name": 40, "State": 24, "Reason": 60, "StartTime": 24, "EndTime": 24, "RestartCnt": 8}
COLUMNS |= {"ReqNodes": 2, "NodeList": 200}
SACCT_FIELDS = ("JobIDRaw", "JobName", "State", "ExitCode", "Start", "End", "NodeList")
# Up to so many names or ids go on a command line; beyond, everything of the user is asked for.
MANY = 100
STATUS_BYTES = 1 << 19
# States in which SLURM does nothing more with a job.
OVER = frozenset(
    "COMPLETED FAILED CANCELLED TIMEOUT OUT_OF_MEMORY NODE_FAIL BOOT_FAIL DEADLINE PREEMPTED REVOKED".split()  # noqa: SIM905
)
# What sbatch says when nobody knows whether the controller has the job.
DOUBTS = (
    *("imed out", "nable to contact", "onnection", "ommunication", "ero Bytes", "emporar", "ot responding", "I/O"),
    *("receive failure", "nexpected message", "nsane message", "nspecified error", "standby mode", "uthentication"),
    *("etwork is", "route to host", "roken pipe", "munge", "Munge", "credential"),
)


def quoted(values: Iterable[str]) -> str:
    """Words for a command line."""
    return " ".join(shlex.quote(value) for value in values)


def _lines(values: Iterable[str]) -> str:
    """A here-document of one value per line."""
    return "<<'TAO_LIST'\n" + "".join(f"{value}\n" for value in values) + "TAO_LIST"


def squeue(names: Sequence[str]) -> str:
    """All that the queue knows of these names, finished jobs included; one call, however many names."""
    columns = ",".join(f"{name}:{width}" for name, width in COLUMNS.items())
    chosen = f" --name={','.join(names)}" if len(names) <= MANY else ""
    # -r: each task of an array on a line of its own; times as SLURM has them, whatever the site's default form is.
    return f'SLURM_TIME_FORMAT=%s squeue -h -r -t all -u "$USER"{chosen} -O {columns} 2>&1'


# What `ours` reads: a name is no proof of a job of ours, because anybody may give it to a job, but its script is.
_QUEUED = "'%A %j %o'"
_OURS = f"""ours() {{  # the ids and names of the jobs that were submitted from this folder
    here=$(pwd -P) awk '{{
        id = $1; name = $2; sub(/^[^ ]+ +[^ ]+ +/, "")
        if ($0 == ENVIRON["here"] "/" name "/{layout.SCRIPT}") print id, name
    }}'
}}"""


def in_doubt() -> str:
    """Bash that tells from an exit code and words whether nobody knows what SLURM did. A refusal has words."""
    doubts = "|".join(f"*{doubt.replace(' ', chr(92) + ' ')}*" for doubt in DOUBTS)
    return f"""in_doubt() {{ case "$1:$2" in 0:*|*:|12[89]:*|1[3-9][0-9]:*|{doubts}) ;; *) return 1 ;; esac; }}"""


# -- submit ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Conversion:
    """How images become files that all nodes share."""

    partition: str
    minutes: int
    memory_gb: int
    account: str | None = None
    again: bool = False


def submit(
    place: Layout,
    incoming: str,
    program: str,
    jobs: Mapping[str, str | None],
    conversion: Conversion | None,
    denial_seconds: float,
) -> str:
    """Put what was staged in `incoming` into place and submit each job (name -> image to convert) once.

    `@id NAME ID` is a job that exists now; `@taken NAME`, `@doubt NAME WORDS`, `@refused NAME WORDS` are not.
    """
    tries = "\n".join(
        f"submit {name} {shlex.quote(enroot.conversion_name(image)) if image else ''}" for name, image in jobs.items()
    )
    convert = "\n".join(
        f"convert {shlex.quote(enroot.conversion_name(image))} {shlex.quote(enroot.enroot(image))} "
        f"{shlex.quote(enroot.cached_name(image))} {int(bool(conversion.again and enroot.is_latest(image)))}"
        for image in dict.fromkeys(image for image in jobs.values() if image)
        if conversion
    )
    return f"""
umask 077
trap '' PIPE  # whoever has gone meanwhile: what was begun is brought to its end
in={shlex.quote(incoming)}
declare -A new=() wait_for=()
patience=15  # pauses of 0.2 s
{_OURS}
oneline() {{ local text=${{1//$'\\n'/ }}; printf '%s' "${{text:0:600}}"; }}
{_convert(place, conversion)}
settle() {{  # a name that is there is kept; its secrets are renewed as long as it has not begun
    local n=$1
    if [ ! -e "$in/$n" ]; then new[$n]=1; return 0; fi
    [ -f "$n/{layout.HANDLE}" ] || {{ echo "@taken $n"; return 1; }}
    local line=; IFS= read -r line <"$n/{layout.HANDLE}"; echo "@was $n $line"
    [ -L "$n/{layout.CLAIM}" ] || [ -e "$n/{layout.END}" ] || mv -f "$in/$n/{layout.SECRETS}" "$n/" 2>/dev/null
    return 0
}}
in_queue() {{  # sets id to that of the first job of ours under the name; fails when the queue does not answer
    local n=$1; shift
    id=
    reply=$(squeue -h "$@" -u "$USER" --name="$n" -o {_QUEUED} 2>&1) || return
    id=$(printf '%s\\n' "$reply" | ours | sort -n | sed -n '1s/ .*//p')
}}
send() {{  # sets id, or reply and rc
    local line n=$1; shift
    reply=$(exec sbatch --parsable "$@" "$n/{layout.SCRIPT}" 2>&1 </dev/null)
    rc=$? id=
    while read -r line; do [[ $line =~ ^([0-9]+)(;.*)?$ ]] && id=${{BASH_REMATCH[1]}}; done <<<"$reply"
    [ $rc = 0 ] && [ -n "$id" ]
}}
is_recent() {{ [ $(($(date +%s) - $(stat -c %Y "$1"))) -lt {denial_seconds:.0f} ]; }}
{in_doubt()}
submit() {{
    local n=$1 reply rc id said avoid= options=() bad=()
    settle "$n" || return
    if [ -s "$n/{layout.ID}" ]; then echo "@id $n $(<"$n/{layout.ID}")"; return; fi
    if [ -L "$n/{layout.CLAIM}" ]; then echo "@id $n $(readlink "$n/{layout.CLAIM}")"; return; fi
    if [ -z "${{new[$n]:-}}" ]; then
        in_queue "$n" -t all || {{ echo "@doubt $n $(oneline "$reply")"; return; }}
        [ -z "$id" ] || {{ keep "$n" "$id"; return; }}
        # Whoever staged it submits it at once; of those who try again the first goes ahead.
        if is_recent "$n/{layout.HANDLE}" || {{ ! mkdir "$n/{layout.TRY}" 2>/dev/null && is_recent "$n/{layout.TRY}"; }}
        then
            # He notes the id in a moment; all jobs of a batch together wait no longer than that.
            while [ $patience -gt 0 ] && [ ! -s "$n/{layout.ID}" ]; do sleep 0.2; patience=$((patience - 1)); done
            if [ -s "$n/{layout.ID}" ]; then echo "@id $n $(<"$n/{layout.ID}")"; return; fi
            echo "@doubt $n somebody submitted it a moment ago"; return
        fi
        touch "$n/{layout.TRY}"
    fi
    [ -z "${{2:-}}" ] || [ -z "${{wait_for[$2]:-}}" ] || options+=("--dependency=afterany:${{wait_for[$2]}}")
    for ((id = ${{n##*-}} - 1; id > 0; id--)); do
        [ ! -r "${{n%-*}}-$id/{layout.BAD_NODES}" ] || bad+=("${{n%-*}}-$id/{layout.BAD_NODES}")
    done
    [ ${{#bad[@]}} = 0 ] || avoid=$(sort -u "${{bad[@]}}" | paste -sd, -)
    if send "$n" "${{options[@]}}" ${{avoid:+"--exclude=$avoid"}}; then keep "$n" "$id"; return; fi
    # Too few nodes may be left: then one that failed is better than none.
    if [ -n "$avoid" ] && ! in_doubt "$rc" "$reply" && send "$n" "${{options[@]}}"; then keep "$n" "$id"; return; fi
    touch "$n/{layout.TRY}"
    said=$reply
    # A refusal stands when no such job waits or runs; some that were refused are shown as failed for a while.
    if in_doubt "$rc" "$said" || {{ [ $rc != 127 ] && ! in_queue "$n"; }}; then
        echo "@doubt $n $(oneline "$said")"; return
    fi
    [ -z "$id" ] || {{ keep "$n" "$id"; return; }}
    echo "@refused $n $(oneline "$said")"
    mv -T "$n" "$in/$n.refused"
}}
keep() {{  # the id that is noted first stays: by it everybody tells which of several jobs has the name
    set -C
    printf '%s' "$2" 2>/dev/null >"$1/{layout.ID}" || [ -s "$1/{layout.ID}" ] || printf '%s' "$2" >|"$1/{layout.ID}"
    set +C
    local id=; [ ! -s "$1/{layout.ID}" ] || read -r id <"$1/{layout.ID}"
    echo "@id $1 ${{id:-$2}}"
}}
if cd {shlex.quote(place.jobs)} && reply=$(tar -xzmf "$in/batch.tgz" -C "$in" 2>&1); then
    mkdir -p {shlex.quote(posixpath.dirname(place.program(program)))}
    mv -T "$in/{layout.PROGRAM}" {shlex.quote(place.program(program))} 2>/dev/null
    {convert or ":"}
    # All at once, because a process per job costs as much as its submission. What is there already stays behind.
    staged=("$in"/tao-*)
    mv -n "${{staged[@]}}" . 2>/dev/null
{tries}
    # What launchers that were killed have left, with secrets in it.
    find . -maxdepth 1 -name '{layout.INCOMING}*' -mmin +60 -exec rm -rf {{}} +
else
    echo "@unpacked $(oneline "${{reply:-the folder cannot be entered}}")"
fi
rm -rf "$in"
"""


def _convert(place: Layout, conversion: Conversion | None) -> str:
    if conversion is None:
        return ""
    words = [
        f"--partition={conversion.partition}",
        f"--time={conversion.minutes}",
        f"--mem={conversion.memory_gb}G",
        "--nodes=1",
        "--ntasks=1",
        *([f"--account={conversion.account}"] if conversion.account else []),
    ]
    # SLURM takes %j and its like in a file name for words of its own.
    output = shlex.quote(place.images.replace("%", "%%"))
    return _CONVERT.format(images=shlex.quote(place.images), output=output, options=quoted(words))


# Conversions of one image run one after the other, and whoever comes second finds the file. It appears under its name
# only when it is whole. `$4` asks for a new one even where there is one.
_CONVERT = """convert() {{
    local name=$1 uri=$2 file={images}/$3 again=$4 reply id
    [ -s "$file" ] && [ "$again" = 0 ] && return
    mkdir -p {images}
    id=$(squeue -h -u "$USER" --name="$name" -o %A 2>/dev/null | sort -n | tail -n 1)
    if [ -z "$id" ]; then
        reply=$(sbatch --parsable --job-name="$name" --dependency=singleton {options} \\
            --output={output}/"$name.log" --open-mode=truncate --no-requeue 2>&1 <<TAO_CONVERT
#!/bin/bash
file=$(printf %q "$file") uri=$(printf %q "$uri") again=$again
[ -s "\\$file" ] && [ "\\$again" = 0 ] && exit 0
part="\\$file.\\$SLURM_JOB_ID.part"
trap 'rm -f "\\$part"' EXIT
enroot import -o "\\$part" "\\$uri" && mv -f "\\$part" "\\$file"
TAO_CONVERT
        ) && id=$(printf '%s\\n' "$reply" | sed -n 's/^\\([0-9][0-9]*\\).*/\\1/p' | tail -n 1)
        # The job shows the end of this file when it has to pull the image itself.
        [ -n "$id" ] || printf 'no conversion was started: %s\\n' "$reply" >{images}/"$name.log"
    fi
    [ -z "$id" ] || wait_for[$name]=$id
}}
"""


# -- look --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Wanted:
    """One job to look at: its name, the results of its key, and from when on changes of its status file are new."""

    name: str
    results: str
    native_id: str = ""
    since: int = 0


def look(place: Layout, wanted: Sequence[Wanted]) -> str:
    """Everything there is to know of these jobs now.

    `@now SECONDS`; the queue's rows and `@squeue CODE`; for every job that the queue does not show as alive, alone and
    under its known id, its files as `@file PATH` and a line, its claim and its noted id; `@ours ID` for those of
    several jobs of one name that were submitted from here; accounting's rows, `@asked IDS` and `@sacct CODE` for those
    that left no end; changed status files of jobs that have begun as `@status NAME` with their text up to `@end`.
    """
    rows = [f"{one.name} {one.since} {one.native_id or '-'} {one.results}" for one in wanted]
    state = sum(list(COLUMNS.values())[:2]) + 1
    return f"""
{_OURS}
echo "@now $(date +%s)"
rows=$({squeue([one.name for one in wanted])})
code=$?
printf '%s\\n@squeue %s\\n' "$rows" $code
declare -A alive=() listed=() waits=()
if [ $code = 0 ]; then
    while read -r name state id; do
        [ -n "$id" ] || continue
        listed[$name]+=" $id "
        case $state in {"|".join(sorted(OVER))}) ;; *) alive[$name]+=$id ;; esac
        [ "$state" != PENDING ] || waits[$name]=$id
    done < <(printf '%s\\n' "$rows" | awk '{{print substr($0, {COLUMNS["JobID"] + 1}, {COLUMNS["Name"]}), \\
        substr($0, {state}, {COLUMNS["State"]}), substr($0, 1, {COLUMNS["JobID"]})}}')
fi
show() {{
    local f line
    for f; do [ -r "$f" ] && {{ IFS= read -r line <"$f"; printf '@file %s\\n%s\\n' "$f" "$line"; }}; done
}}
stopped() {{ local word=; [ -r "$1/{layout.STOP}" ] && read -r word <"$1/{layout.STOP}"; \
    [ "$word" != cancel ] || echo "@stop $1"; }}
is_clean() {{ local line=; [ -r "$1" ] && IFS= read -r line <"$1"; \
    [[ $line == *'"exit_code": 0, "ended_by": "none"'* ]]; }}
ids=() paths=() unsure=() several=()
declare -A since_of=() name_of=() claims=()
if cd {shlex.quote(place.jobs)}; then
    # The claims of all that need it at once, because a process per job costs more than all the rest.
    while read -r name native; do [ "${{alive[$name]:-}}" = "$native" ] || unsure+=("$name/{layout.CLAIM}"); \
        done {_lines(f"{one.name} {one.native_id or '-'}" for one in wanted)}
    while read -r name _ id; do claims[${{name%/*}}]=$id; done < <(
        printf '%s\n' "${{unsure[@]}}" | QUOTING_STYLE=literal xargs -r stat -c %N 2>/dev/null)
    while read -r name since native results; do
        stopped "$name"
        if [ "${{alive[$name]:-}}" != "$native" ]; then
            show "$name/{layout.END}" "$name/{layout.EXIT}" "$results/attempts/${{name##*-}}.json"
            id=${{claims[$name]:-}}
            [ -z "$id" ] || echo "@claim $name $id"
            if [ -z "$id" ] && [ -s "$name/{layout.ID}" ]; then id=$(<"$name/{layout.ID}"); echo "@id $name $id"; fi
            [ -z "$id" ] && [ "$native" != - ] && id=$native
            [ -n "$id" ] || echo "@staged $name"
            case ${{listed[$name]:-}} in ''|" $native ") ;; *) several+=("$name") ;; esac
            # A marker that is not clean does not tell who ended the job.
            if [ -n "$id" ] && [ ! -e "$name/{layout.END}" ] && ! is_clean "$name/{layout.EXIT}"; then
                case ${{listed[$name]:-}} in *" $id "*) ;; *) ids+=("$id") ;; esac
            fi
        elif [ "${{waits[$name]:-}}" = "$native" ]; then
            continue  # what rests costs nothing more
        fi
        newest=
        for f in "$results"/*/status.json "$results"/*/*/status.json; do
            [ -r "$f" ] && {{ [ -z "$newest" ] || [ "$f" -nt "$newest" ]; }} && newest=$f
        done
        [ -z "$newest" ] || {{ paths+=("$newest"); since_of[$newest]=$since; name_of[$newest]=$name; }}
    done {_lines(rows)}
    if [ ${{#several[@]}} -gt 0 ]; then
        chosen=(); [ ${{#several[@]}} -gt {MANY} ] || chosen=("--name=$(IFS=,; echo "${{several[*]}}")")
        if reply=$(squeue -h -t all -u "$USER" "${{chosen[@]}}" -o {_QUEUED} 2>&1); then
            printf '%s\\n' "$reply" | ours | while read -r id _; do echo "@ours $id"; done
        else
            printf '%s\\n@squeue 1\\n' "$reply"
        fi
    fi
else
    echo "@nobase"
fi
if [ $code = 0 ] && [ ${{#ids[@]}} -gt 0 ]; then
    # Others of too many come next time, whichever of them accounting has nothing to say about.
    [ ${{#ids[@]}} -le {MANY} ] || mapfile -t ids < <(printf '%s\\n' "${{ids[@]}}" | shuf -n {MANY})
    list=$(IFS=,; echo "${{ids[*]}}")
    # By id, because accounting finds a job that was held by its id only; with every run of a requeued one.
    SLURM_TIME_FORMAT=%s sacct -n -P -X -D -j "$list" -S now-365days -E now+1days -o {",".join(SACCT_FIELDS)} 2>&1
    printf '@sacct %s\\n@asked %s\\n' $? "$list"
fi
if [ ${{#paths[@]}} -gt 0 ]; then
    while read -r changed path; do
        [ "$changed" -ge "${{since_of[$path]}}" ] || continue
        printf '@status %s\n' "${{name_of[$path]}}"; tail -c {STATUS_BYTES} "$path"; printf '\n@end\n'
    done < <(printf '%s\0' "${{paths[@]}}" | xargs -0 stat -c '%Y %n')
fi
"""


def keep_ends(place: Layout, ends: Mapping[str, str]) -> str:
    """Write down how jobs ended (name -> text), where nobody has, and remove what a job that is over needs no more."""
    texts = "\n".join(f"keep {name} {shlex.quote(text)}" for name, text in ends.items())
    return f"""
umask 077
needless=()  # removed together, because a process per job costs more than all the rest
keep() {{
    [ -d "$1" ] || return
    needless+=("$1/{layout.SECRETS}")
    [ -z "$2" ] && return
    needless+=("$1/{layout.END}.$$")
    printf '%s' "$2" >"$1/{layout.END}.$$" && ln "$1/{layout.END}.$$" "$1/{layout.END}" 2>/dev/null
    show "$1/{layout.END}"
}}
show() {{ local line; [ -r "$1" ] && {{ IFS= read -r line <"$1"; printf '@file %s\\n%s\\n' "$1" "$line"; }}; }}
cd {shlex.quote(place.jobs)} && {{ :
{texts}
[ ${{#needless[@]}} = 0 ] || printf '%s\\0' "${{needless[@]}}" | xargs -0 rm -f
}}
"""


# -- find, list, cancel ------------------------------------------------------------------------------------------------


def find(place: Layout, keys: Sequence[str]) -> str:
    """Every attempt of these keys: `@job NAME ID`, with its handle file, and what the results folder remembers.

    A job that was staged but never submitted is not listed; whether it was, the queue says.
    """
    return _listing(place, keys)


def jobs(place: Layout) -> str:
    """Every job below the base folder, as `find` tells them."""
    return _listing(place, None)


def _listing(place: Layout, keys: Sequence[str] | None) -> str:
    # The key first: a look into every folder that was ever made would take long.
    chosen = "" if keys is None else 'key=${n#tao-}; [ -n "${wanted[${key%-*}]:-}" ] || continue'
    return f"""
show() {{ local line; [ -r "$1" ] && {{ IFS= read -r line <"$1"; printf '@file %s\\n%s\\n' "$1" "$line"; }}; }}
{_OURS}
declare -A wanted=()
for key in {quoted(keys or ())}; do wanted[$key]=1; done
unsure=()
if cd {shlex.quote(place.base)} && [ -x . ] && {{ [ ! -e jobs ] || cd jobs; }}; then
    for n in tao-*; do
        {chosen}
        [ -f "$n/{layout.HANDLE}" ] || continue
        id=
        if [ -L "$n/{layout.CLAIM}" ]; then id=$(readlink "$n/{layout.CLAIM}"); \\
        elif [ -s "$n/{layout.ID}" ]; then id=$(<"$n/{layout.ID}"); fi
        if [ -n "$id" ]; then echo "@job $n $id"; show "$n/{layout.HANDLE}"; else unsure+=("$n"); fi
    done
    if [ ${{#unsure[@]}} -gt 0 ]; then
        names=(); [ ${{#unsure[@]}} -gt {MANY} ] || names=("--name=$(IFS=,; echo "${{unsure[*]}}")")
        rows=$(squeue -h -t all -u "$USER" "${{names[@]}}" -o {_QUEUED} 2>&1)
        echo "@squeue $?"
        rows=$(printf '%s\\n' "$rows" | ours)
        for n in "${{unsure[@]}}"; do
            id=$(printf '%s\\n' "$rows" | awk -v n="$n" '$2 == n {{print $1}}' | sort -n | head -n 1)
            [ -z "$id" ] || {{ echo "@job $n $id"; show "$n/{layout.HANDLE}"; }}
        done
    fi
    for key in "${{!wanted[@]}}"; do
        for f in {shlex.quote(place.results)}/"$key"/attempts/*.json; do show "$f"; done
    done
else
    # It is new where it could be made. A file system that is not mounted leaves a folder that only root may write.
    path={shlex.quote(place.base)}
    [ ! -e "$path" ] || echo "@nobase"
    while [ ! -e "$path" ]; do path=${{path%/*}}; path=${{path:-/}}; done
    [ -w "$path" ] || echo "@nobase"
fi
"""


def cancel(place: Layout, names: Sequence[str]) -> str:
    """Ask jobs to end: a note for one that may start yet, and scancel for every id that bears the name."""
    return f"""
{_OURS}
ids=()
declare -A asked=()
if cd {shlex.quote(place.jobs)}; then
    while read -r n; do
        [ -d "$n" ] || continue
        asked[$n]=1
        [ -e "$n/{layout.EXIT}" ] || [ -e "$n/{layout.END}" ] || printf cancel >"$n/{layout.STOP}"
        [ -s "$n/{layout.ID}" ] && ids+=("$(<"$n/{layout.ID}")")
        [ -L "$n/{layout.CLAIM}" ] && ids+=("$(readlink "$n/{layout.CLAIM}")")
    done {_lines(names)}
    reply=$(squeue -h -u "$USER"{f" --name={','.join(names)}" if len(names) <= MANY else ""} -o {_QUEUED} 2>&1)
    # A reply that was lost may have left a second job of the name.
    while read -r id n; do [ -n "${{asked[$n]:-}}" ] && ids+=("$id"); done < <(printf '%s\n' "$reply" | ours)
    [ ${{#ids[@]}} = 0 ] || printf '%s\n' "${{ids[@]}}" | sort -u | xargs -n 200 scancel 2>&1
fi
"""


def cancel_surplus(place: Layout, ids: Sequence[str]) -> str:
    """Take jobs out of the queue that wait under a name that another one has; never one that has begun."""
    return f"""
{_OURS}
cd {shlex.quote(place.jobs)} && squeue -h -t PENDING -j {",".join(ids)} -o {_QUEUED} | ours | while read -r id _; do
    scancel --state=PENDING "$id"
done
"""


# -- reading -----------------------------------------------------------------------------------------------------------

LOG_FILES = ("main.out", "main.err")


def _log_folder(place: Layout, name: str) -> str:
    """Bash that enters the folder of the logs of the job that has the name, or fails."""
    folder = shlex.quote(f"{place.jobs}/{name}")
    return (
        f"cd {folder} 2>/dev/null && "
        f"id=$(readlink {layout.CLAIM} || cat {layout.ID}) 2>/dev/null && cd {layout.LOGS}/{name}-$id 2>/dev/null"
    )


def read_logs(place: Layout, name: str, offsets: Sequence[int], tail: int | None) -> str:
    """Each log from its offset on, or its end: `@log FILE START DATA`, in base64 because a log may hold any byte."""
    if tail is None:
        parts = [f"part {file} {offset} {CHUNK}" for file, offset in zip(LOG_FILES, offsets, strict=True)]
    else:
        parts = [f"part {file} $(start {file}) {1 << 30}" for file in LOG_FILES]
    window = USUAL_LINE * (tail or 0) + ENDING
    return f"""
start() {{ local size; size=$(stat -c %s "$1" || echo 0); echo $((size > {window} ? size - {window} : 0)); }}
part() {{ [ -r "$1" ] && echo "@log $1 $2 $(tail -c +$(($2 + 1)) "$1" | head -c "$3" | base64 -w0)"; }}
{_log_folder(place, name)} && {{ {"; ".join(parts)}; }}
"""


def read_evidence(place: Layout, name: str, results: str) -> str:
    """What tells why a job ended: the runner's record, the ends of its logs, and which of its nodes are down."""
    record = shlex.quote(f"{results}/attempts/{name.rpartition('-')[2]}.json")
    batch = f"{shlex.quote(f'{place.jobs}/{name}/{layout.LOGS}')}/batch-$id.out"
    return f"""
id=
ended() {{ for f; do [ -r "$f" ] && tail -c {ENDING} "$f"; done; }}
echo "@record $(head -c 65536 {record} 2>/dev/null | base64 -w0)"
{_log_folder(place, name)}
echo "@id $id"
echo "@log $(ended main.out main.err {batch} | base64 -w0)"
if [ -n "$id" ]; then
    list=$(squeue -h -t all -j "$id" -o %N 2>/dev/null | head -n 1)
    [ -n "$list" ] || list=$(sacct -n -P -X -j "$id" -o NodeList 2>/dev/null | tail -n 1)
    case "$list" in ''|*None*) ;; *)
        echo "@hosts $(scontrol show hostnames "$list" | paste -sd' ' -)"
        echo "@nodes $(sinfo -h -N -n "$list" -t down,drain,fail,no_respond -o %N | sort -u | paste -sd' ' -)"
    esac
fi
"""


def hostnames(nodes: Iterable[str]) -> str:
    """The names in SLURM's lists of nodes, one per line, each list after `@list`."""
    lines = [f'echo "@list"; scontrol show hostnames {shlex.quote(one)}' for one in nodes]
    return "\n".join(lines)


def note_bad_nodes(place: Layout, name: str, nodes: Sequence[str]) -> str:
    """Remember nodes that the next attempt is to avoid."""
    return f"cd {shlex.quote(f'{place.jobs}/{name}')} && printf '%s\\n' {quoted(nodes)} >{layout.BAD_NODES}"


def list_folder(path: str) -> str:
    """What is in a folder: its kind and its path, each after a NUL."""
    quoted_path = shlex.quote(path)
    return f"""
if [ ! -e {quoted_path} ]; then echo @missing
elif [ -d {quoted_path} ] && ! [ -r {quoted_path} -a -x {quoted_path} ]; then echo @denied
else find -L {quoted_path} -mindepth 1 -maxdepth 1 -printf '\\0%y%p' 2>/dev/null; fi
"""


def list_tree(path: str, depth: int, limit: int, skip: Sequence[str]) -> str:
    """The files below a folder, each before a NUL, after `@tree`; `@all` when every folder could be looked into."""
    place, pruned = shlex.quote(path), " -o ".join(f"-name {shlex.quote(name)}" for name in skip) or "-false"
    return f"""
printf '@tree\\0'
if [ -e {place} ]; then
    find {place} -mindepth 1 -maxdepth {depth} \\( -type d \\( {pruned} \\) -prune \\) -o -type f -printf '%p\\0' \\
        2>/dev/null | head -z -n {limit + 1}
    [ "${{PIPESTATUS[0]}}" = 0 ] && echo @all
else echo @all; fi
"""
