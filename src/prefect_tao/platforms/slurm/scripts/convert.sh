# shellcheck shell=bash
# The job that makes one file of an image for all nodes. It appears under its name only when it is whole.
declare file uri again
[ -s "$file" ] && [ "$again" = 0 ] && exit 0
part="$file.$SLURM_JOB_ID.part"
trap 'rm -f "$part"' EXIT
enroot import -o "$part" "$uri" && mv -f "$part" "$file"
