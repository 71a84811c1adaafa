# shellcheck shell=bash
# One node without a container needs no step, which would be one more thing to wait for.
declare folder

start() {
    # A shell has its background commands ignore these two signals, which a training may want to hear.
    trap - INT QUIT
    # shellcheck source=/dev/null
    . "$folder/$TAO_TASK"
}

warn() { kill -TERM "$1"; }
