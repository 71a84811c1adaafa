"""Where things are on the cluster's shared file system, below one base folder."""

from __future__ import annotations

from dataclasses import dataclass

from prefect_tao.jobs.naming import JobName
from prefect_tao.platforms.slurm import enroot

# What lies in a job's folder. The claim is a link to the id of the job that runs: made at once and whole, everywhere.
HANDLE = "handle.json"
REQUEST = "request.json"
SCRIPT = "job.sbatch"
TASK = "task.sh"
SECRETS = "secrets.json"
ID = "id"
# The cluster and the user that the job belongs to: others may share the folder.
SITE_FILE = "site"
TRY = "try"
CLAIM = "claim"
STOP = "stop"
TENURE = "tenure"
EXIT = "exit.json"
END = "end.json"
BAD_NODES = "bad-nodes"
LOGS = "slurm-logs"
PROGRAM = "program"
# Not a job's name, so that nothing lists it as one.
INCOMING = ".incoming-"
PROBE = ".prefect-tao-probe"
# When somebody has last looked for secrets that jobs have left.
SWEPT = ".swept"


@dataclass(frozen=True)
class Layout:
    """The folders below `base`, which is an absolute path without a slash at its end."""

    base: str

    @property
    def jobs(self) -> str:
        """One folder per attempt, named like the attempt."""
        return f"{self.base}/jobs"

    @property
    def results(self) -> str:
        """One folder per key, shared by all attempts of it."""
        return f"{self.base}/results"

    @property
    def images(self) -> str:
        """Images that were converted once for all jobs."""
        return f"{self.base}/images"

    def converted(self, image: str) -> str:
        """The file of an image that was converted."""
        return f"{self.images}/{enroot.cached_name(image)}"

    def conversion_log(self, image: str) -> str:
        """What its conversion has printed."""
        return f"{self.images}/{enroot.conversion_name(image)}.log"

    def program(self, digest: str) -> str:
        """The runner as one version of this package has it, shared by all jobs that were launched with it."""
        return f"{self.base}/program/{digest}"

    def job(self, key: str, attempt: int) -> str:
        """The folder of one attempt."""
        return f"{self.jobs}/{JobName(key, attempt)}"

    def results_of(self, key: str) -> str:
        """The folder of a key's results."""
        return f"{self.results}/{key}"
