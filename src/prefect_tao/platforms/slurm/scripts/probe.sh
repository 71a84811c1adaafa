# shellcheck shell=bash
# What a launch wants to know of a cluster. Nothing is left behind.
#
# missing TOOL; containers yes; noimage PATH; writable or readonly PATH, filesystem KIND; nomount PATH; for each partition
# partition ROW or nopartition NAME, and gpus NAME KINDS; conversion ROW or noconversion NAME; partitions NAMES where
# one is missing; silent WORDS where SLURM says nothing of use; credentials HOSTS; for the test fits, refused or silent
# WORDS.
declare base test image_file
declare -a tools mounts partitions conversion_partitions

for tool in "${tools[@]}"; do command -v "$tool" >/dev/null || say missing "$tool"; done
srun --help 2>/dev/null | grep -q -- --container-image && say containers yes

if [ -n "$base" ]; then # whether it, or the nearest folder above it that is there, can be written
    path=$base
    while [ ! -e "$path" ]; do path=$(dirname "$path"); done
    if [ -d "$path" ] && [ -w "$path" ] && [ -x "$path" ]; then say writable "$path"; else say readonly "$path"; fi
    say filesystem "$(stat -f -c %T "$path" 2>/dev/null)"
fi
if [ -n "$image_file" ] && { [ ! -f "$image_file" ] || [ ! -r "$image_file" ]; }; then say noimage "$image_file"; fi
for path in "${mounts[@]}"; do [ -e "$path" ] || say nomount "$path"; done

ask() { # word, partition; that it is missing only when SLURM itself says so
    local row
    if row=$(scontrol show partition "$2" -o 2>&1); then
        say "$1" "$row"
        return
    fi
    case $row in
        *"not found"* | *"nvalid partition"*)
            say "no$1" "$2"
            say partitions "$(sinfo -h -o %R 2>/dev/null | sort -u)"
            ;;
        *)
            say silent "$row"
            down=1 # it would be silent to the rest too, each time for as long
            ;;
    esac
}
down=
for partition in "${partitions[@]}"; do
    [ -z "$down" ] || break
    ask partition "$partition"
    say gpus "$partition" "$(sinfo -h -p "$partition" -o %G 2>/dev/null)"
done
for partition in "${conversion_partitions[@]}"; do [ -n "$down" ] || ask conversion "$partition"; done

[ ! -s ~/.config/enroot/.credentials ] ||
    say credentials "$(awk '$1 == "machine" {print $2}' ~/.config/enroot/.credentials)"

if [ -n "$test" ] && [ -z "$down" ]; then # SLURM's own opinion of the shape; nothing is queued
    reply=$(sbatch --test-only 2>&1 <<<"$test")
    code=$?
    if [ $code = 0 ]; then
        say fits "$reply"
    elif in_doubt $code "$reply"; then
        say silent "$reply"
    else
        say refused "$reply"
    fi
fi
