# shellcheck shell=bash
# What every question to a login node begins with.
#
# The answer is records; a record is the number of its fields and then the fields, each ended by a NUL. Only what goes
# to descriptor 3 is part of it, so nothing that SLURM's programs print by themselves can be taken for an answer.

# What a person has set for SLURM's commands would choose other partitions, or hide jobs from us. Where the cluster is
# stays known.
unset "${!SBATCH_@}" "${!SQUEUE_@}" "${!SACCT_@}" "${!SCANCEL_@}" "${!SINFO_@}" "${!SRUN_@}" "${!SCONTROL_@}"
for name in "${!SLURM_@}"; do
    case $name in SLURM_CONF | SLURM_CLUSTERS | SLURM_JWT) ;; *) unset "$name" ;; esac
done

say() { printf '%s\0' "$#" "$@" >&3; }

stream() { # a record whose last field is what comes in, in base64 because it may hold any byte
    printf '%s\0' "$(($# + 1))" "$@" >&3
    base64 -w0 >&3
    printf '\0' >&3
}

show() { # the first line of each file that is there
    local file line
    for file; do
        if [ -r "$file" ]; then
            IFS= read -r line <"$file"
            say file "$file" "$line"
        fi
    done
}

own_site() { # sets site, to what is given where that is known; fails when SLURM does not tell it
    site=$1
    if [ -z "$site" ]; then
        site=$(scontrol show config 2>/dev/null | awk '$1 == "ClusterName" {print $3; exit}')
        # While the controller is away, the accounting knows it by the jobs of the last days.
        [ -n "$site" ] || site=$(sacct -n -P -X -S now-7days -o Cluster 2>/dev/null | head -n 1)
        [ -n "$site" ] || return
        site="SLURM cluster $site, user $(id -un)"
    fi
    say site "$site"
}

is_foreign() { # whether the job in this folder says that it belongs to another site
    local line=
    [ -r "$1/$TAO_SITE_FILE" ] && IFS= read -r line <"$1/$TAO_SITE_FILE"
    [ -n "$line" ] && [ "$line" != "$site" ]
}

choose() { # sets chosen: the option of squeue that names these jobs; of many jobs all of the user's are asked for
    local IFS=,
    # shellcheck disable=SC2034 # the scripts use it
    if [ $# -gt "$TAO_MANY" ]; then chosen=(); else chosen=("--name=$*"); fi
}

queued() { squeue -h -u "$USER" "$@" -o '%A %j %o' 2>&1; }

ours() { # of such lines the ids and names of the jobs whose script is in this folder; anybody may use the name
    here=$(pwd -P) script=$TAO_SCRIPT awk '{
        id = $1; name = $2; sub(/^[^ ]+ +[^ ]+ +/, "")
        if ($0 == ENVIRON["here"] "/" name "/" ENVIRON["script"]) print id, name
    }'
}

in_doubt() { # from an exit code and words: whether it is unknown what SLURM did. A refusal has words
    case "$1:$2" in
        0:* | *: | 12[89]:* | 1[3-9][0-9]:*) ;;
        *imed\ out* | *nable\ to\ contact* | *onnection* | *ommunication* | *ero\ Bytes* | *emporar*) ;;
        *ot\ responding* | *I/O* | *receive\ failure* | *nexpected\ message* | *nsane\ message*) ;;
        *nspecified\ error* | *standby\ mode* | *uthentication* | *etwork\ is* | *route\ to\ host*) ;;
        *roken\ pipe* | *[Mm]unge* | *credential*) ;;
        *) return 1 ;;
    esac
}
