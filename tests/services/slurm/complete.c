/*
 * Ends a running job with an exit code of our choice, or as OUT_OF_MEMORY, which otherwise takes a memory cgroup.
 * Usage: complete JOB oom|CODE. Only the job's owner and root may.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <slurm/slurm.h>
#include <slurm/slurm_errno.h>

/* What slurmstepd itself reports for a job that the kernel's memory limit ended. */
#define OUT_OF_MEMORY 253

int main(int count, char **words)
{
	uint32_t job, status;

	if (count != 3) {
		fprintf(stderr, "usage: %s JOB oom|CODE\n", words[0]);
		return 2;
	}
	job = (uint32_t) strtoul(words[1], NULL, 10);
	status = strcmp(words[2], "oom") == 0 ? OUT_OF_MEMORY : (uint32_t) strtoul(words[2], NULL, 10) << 8;
	slurm_init(NULL);
	if (slurm_complete_job(job, status) != SLURM_SUCCESS) {
		slurm_perror("complete");
		return 1;
	}
	slurm_fini();
	return 0;
}
