# shellcheck shell=bash
# The batch script of a job, after what starts its task: `start` runs it, `warn` asks it to end.
#
# $SLURM_RESTART_COUNT tells the runs of one id apart: a requeued job keeps its id. The secrets stay where a signal or
# its node ended the job and SLURM may start it again; then they are removed when somebody sees the end. A step
# hears of a signal before the batch script does, so that its own record counts as well. A marker that is cut short
# counts as none.
declare folder record requeue
declare -a control # variables that have no business in a job

cd "$folder" || exit 125
logs=$TAO_LOGS/$SLURM_JOB_NAME-$SLURM_JOB_ID
mkdir -p "$logs" && exec >>"$logs/main.out" 2>>"$logs/main.err"

# The first job under this name has it; any other that a lost reply has left leaves at once.
if ! ln -sT "$SLURM_JOB_ID" "$TAO_CLAIM" 2>/dev/null; then
    holder=$(readlink "$TAO_CLAIM")
    if [ -z "$holder" ] && ! ln -sT "$SLURM_JOB_ID" "$TAO_CLAIM"; then
        echo "[prefect-tao] the job cannot claim its name, so it runs nothing" >&2
        exit 125
    fi
    if [ "${holder:-$SLURM_JOB_ID}" != "$SLURM_JOB_ID" ]; then
        echo "[prefect-tao] job $holder has this name; nothing to do" >&2
        exit 0
    fi
fi

# As little as possible is started here besides the task.
moment() {
    now=${EPOCHREALTIME:-$(date +%s.%3N)}
    now=${now/,/.}
}
moment
started=$now signaled=0 over=1 by_itself=1 restarts=${SLURM_RESTART_COUNT:-0}
[ ! -e "$TAO_EXIT" ] || rm -f "$TAO_EXIT"
finish() {
    local line='' latest=0
    # SLURM may have started the job again while this start lived on; then the end is for that one to tell.
    [ ! -r "$TAO_TENURE" ] || read -r latest line <"$TAO_TENURE"
    [ "$latest" -le "$restarts" ] || exit "$1"
    line=
    moment
    printf '{"native_id": "%s", "restarts": %d, "exit_code": %d, "ended_by": "%s", "started": %s, "ended": %s}' \
        "$SLURM_JOB_ID" "$restarts" "$1" "$2" "$started" "$now" >"$TAO_EXIT"
    if [ "$requeue" = 0 ] || { [ "$signaled$over$by_itself" = 011 ] && [ "$1" -le 128 ]; }; then
        [ ! -r "$TAO_SECRETS" ] || read -r line <"$TAO_SECRETS"
        [ "$line" = '{}' ] || rm -f "$TAO_SECRETS"
    fi
    exit "$1"
}
if [ -e "$TAO_STOP" ]; then
    case $(cat "$TAO_STOP") in cancel) finish 0 cancel ;; *) rm -f "$TAO_STOP" ;; esac
fi
trap 'signaled=1' TERM INT
# The wall is near: the runner ends its command in good order, and says that it was for the time limit.
trap 'echo time_limit >"$TAO_STOP"; warn "$pid" 2>/dev/null' USR1

unset "${control[@]}"
export TAO_NATIVE_ID=$SLURM_JOB_ID TAO_RESTARTS=$restarts
line=
[ ! -r "$TAO_SITE_FILE" ] || IFS= read -r line <"$TAO_SITE_FILE"
export TAO_SITE=$line

# In brackets, or bash would count itself out of SHLVL and the command's own shell would take itself for a login.
(start) &
pid=$!
# A signal ends a wait, but not the one that is waited for.
wait "$pid"
code=$?
while kill -0 "$pid" 2>/dev/null; do
    wait "$pid"
    code=$?
done
wait "$pid" 2>/dev/null
last=$?
[ "$last" = 127 ] || code=$last
# An srun that gives up, because it was told to or because its node is gone, says 0 whatever became of its tasks; the
# runner's own record shows whether they came to an end. If not, SLURM may start the job again.
line=
[ ! -r "$record" ] || read -r line <"$record"
[[ $line == *'"ended"'* ]] || over=0
[[ $line == *'"ended_by": "none"'* ]] || by_itself=0
[ "$code" != 0 ] || [ "$signaled$over" = 01 ] || code=143
# The signal reaches the command as well as its runner, which then may not know why the command has ended.
ended_by=none
[ "$code" = 0 ] || [ ! -s "$TAO_STOP" ] || read -r ended_by <"$TAO_STOP"
finish "$code" "$ended_by"
