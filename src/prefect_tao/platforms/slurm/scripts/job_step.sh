# shellcheck shell=bash
# Several nodes and containers take a step of their own.
declare folder
declare nodes gpus first_port ports
declare image converted conversion_log
declare -a step # options of srun

meet() { # the variables by which the nodes find each other; WORLD_SIZE counts nodes, as TAO's launchers expect
    local first
    first=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
    # Some sites give their nodes names that only SLURM knows.
    getent hosts "$first" >/dev/null || first=$(scontrol show node "$first" | sed -n 's/.*NodeAddr=\([^ ]*\).*/\1/p')
    # Each job has a port of its own, because two may share their first node.
    export MASTER_ADDR=$first MASTER_PORT=${MASTER_PORT:-$((first_port + SLURM_JOB_ID % ports))}
    export WORLD_SIZE=$SLURM_NNODES NNODES=$SLURM_NNODES
    export NUM_GPU_PER_NODE=$gpus NPROC_PER_NODE=$((gpus > 1 ? gpus : 1))
}

contain() { # in the image, as a file where it was converted to one
    if [ -s "$converted" ]; then
        image=$converted
    elif [ -n "$converted" ]; then
        echo "[prefect-tao] the image was not converted; it is pulled now instead" >&2
        tail -n 20 "$conversion_log" >&2
    fi
    step+=("--container-image=$image")
}

start() {
    [ "$nodes" = 1 ] || meet
    [ -z "$image" ] || contain
    exec srun "${step[@]}" /bin/sh "$folder/$TAO_TASK"
}

warn() { scancel --signal=TERM "$SLURM_JOB_ID.0"; }
