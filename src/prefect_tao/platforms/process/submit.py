"""From a rendered job to a process that runs: staged once, started, and seen to have claimed its name."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from secrets import token_hex
from typing import Any

from prefect_tao.jobs.control import without_control
from prefect_tao.jobs.errors import SubmitFailed, Unreachable
from prefect_tao.jobs.platform import Rendered
from prefect_tao.jobs.request import ALL_GPUS
from prefect_tao.platforms import gpu_locks, gpus, logtext
from prefect_tao.platforms.process import client, job_folder, probes, process_starter

STARTER = Path(process_starter.__file__)
START_SECONDS = 30.0
# What steers Prefect and its workers has no business in a job.
CONTROL_PREFIXES = ("PREFECT_", "TAO_")


class JobStarter:
    """Starts jobs as processes that outlive this one; `children` are those that were not counted off yet."""

    def __init__(self, target: str, gpu_ids: Sequence[str] | None) -> None:
        self.target, self.gpu_ids = target, gpu_ids
        self.children: dict[int, subprocess.Popen[bytes]] = {}

    def count_off(self) -> None:
        """Let go of children that have ended, or they would stay in the process table."""
        for pid, child in list(self.children.items()):
            if child.poll() is not None:
                self.children.pop(pid, None)

    def submit(self, folder: Path, rendered: Rendered, secrets: Mapping[str, str]) -> None:
        """Stage the folder, start the job, return when it has claimed its name. Raises SubmitFailed, Unreachable."""
        try:
            job = self._staged(folder, rendered)
            if job and not (folder / job_folder.CLAIM).exists():
                self._start(folder, job["env"], secrets)
        except OSError as error:
            raise SubmitFailed(
                f"the job folder {folder} cannot be written: {error.strerror}",
                "free space or set PREFECT_TAO_HOME to a folder that can be written",
            ) from error

    def _staged(self, folder: Path, rendered: Rendered) -> dict[str, Any] | None:
        """The job in its folder, made when missing; None for one that a power cut damaged. Raises SubmitFailed."""
        if not folder.is_dir():
            self._stage(folder, rendered)
        job = job_folder.read_json(folder / job_folder.JOB)
        if job and job.get("name") == folder.name:
            return job
        if job is None and job_folder.is_damaged(folder):
            return None
        raise SubmitFailed(f"{folder} is there, but it is not a job of prefect-tao", "move it away and launch again")

    def _stage(self, folder: Path, rendered: Rendered) -> None:
        job = json.loads(rendered.files[job_folder.JOB])
        wanted = rendered.request.resources
        devices = gpus.inventory(self.gpu_ids) if wanted.gpus else {}
        if probes.has_too_few(wanted, devices):
            raise SubmitFailed(
                f"gpus: {probes.too_few(wanted, devices)}",
                "ask for fewer, choose another target, or name the devices in PREFECT_TAO_GPUS",
            )
        in_use = gpus.busy_here(devices, named=bool(self.gpu_ids))
        if why := gpus.shortage(wanted.gpus, list(devices), in_use):
            raise SubmitFailed(f"gpus: {why}", gpus.BUSY_REMEDY)
        taken = {name for gpu in in_use for name in (gpu.number, gpu.uuid)}
        devices = {name: others for name, others in devices.items() if name not in taken}
        job["gpus"] = len(devices) if wanted.gpus == ALL_GPUS else wanted.gpus
        job |= {"created": time.time(), "devices": devices, "locks": gpu_locks.lock_folder()}
        job_folder.stage(folder, {**rendered.files, job_folder.JOB: json.dumps(job).encode()})

    def _start(self, folder: Path, env: Mapping[str, str], secrets: Mapping[str, str]) -> None:
        """Start the job's process and wait until a process has claimed the name: ours, or a rival's."""
        secrets_file = folder / f"{job_folder.SECRETS}{token_hex(4)}.json"
        child, is_beaten = None, False
        try:
            job_folder.write_private(secrets_file, json.dumps(dict(secrets)).encode())
            here = {"TAO_SITE": client.site(), "TAO_PLACE": client.place(), "TAO_TARGET": self.target}
            child = self._spawn(folder, {**env, **here, "TAO_SECRETS_FILE": str(secrets_file)})
            is_beaten = not self._await_claim(folder, child)
        finally:
            # A process that is late may still claim and needs them; should it lose, it removes them itself.
            if is_beaten or child is None or child.poll() is not None:
                secrets_file.unlink(missing_ok=True)

    def _spawn(self, folder: Path, env: Mapping[str, str]) -> subprocess.Popen[bytes]:
        inherited = {
            key: value for key, value in without_control(os.environ).items() if not key.startswith(CONTROL_PREFIXES)
        }
        with open(folder / job_folder.LOG, "ab") as log:
            try:
                child = subprocess.Popen(
                    [sys.executable, "-I", "-S", str(STARTER), str(folder)],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    env={**inherited, **env},
                    start_new_session=True,
                )
            except OSError as error:
                raise SubmitFailed(
                    f"the job's process cannot be started on this machine: {error.strerror or error}",
                    "free processes and memory here (ulimit -u, free) or shorten the environment, and launch again",
                ) from error
        self.children[child.pid] = child
        return child

    def _await_claim(self, folder: Path, child: subprocess.Popen[bytes]) -> bool:
        """Wait until the name is claimed; returns whether `child` has it. Raises SubmitFailed, Unreachable."""
        try:
            self._await_any_claim(folder, child)
            claimed = client.Ident.parse(str((job_folder.read_json(folder / job_folder.CLAIM) or {}).get("ident")))
        except OSError as error:  # the process is there, so this is doubt and no refusal
            raise Unreachable(
                f"whether the job started cannot be read: {error}", "launch again: it attaches to the job"
            ) from error
        return claimed is not None and claimed.pid == child.pid and client.is_here(claimed)

    @staticmethod
    def _await_any_claim(folder: Path, child: subprocess.Popen[bytes]) -> None:
        deadline = time.monotonic() + START_SECONDS
        while not (folder / job_folder.CLAIM).exists():
            if child.poll() is not None and not (folder / job_folder.CLAIM).exists():
                raise SubmitFailed(
                    f"the job's process ended with {child.returncode} before it could start: "
                    f"{logtext.ending(folder / job_folder.LOG)}",
                    "see the message above; this is a fault of the machine or the installation, not of your command",
                )
            if time.monotonic() > deadline:
                raise Unreachable(
                    f"the job's process did not report within {START_SECONDS:g} s",
                    "launch again: it attaches to the job",
                )
            time.sleep(0.001)
