# shellcheck shell=sh
# What runs on every node, in the container where there is one.
export NODE_RANK="${SLURM_NODEID:-0}"
command -v python3 >/dev/null || {
    echo "[prefect-tao] the image has no python3, which the job needs" >&2
    exit 127
}
# Imported, and not run as a file: so only the first job has to compile it.
exec python3 -S -c "import sys; sys.path.insert(0, sys.argv.pop(1)); import ${module:?}; $module.main()" \
    "${program:?}" "${plan:?}"
