"""What this machine offers to a process job: paths, folders that can be written, and what a request asks for."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

from prefect_tao.jobs.finding import COMPUTE, NO_GATE, Finding, GateName, Level
from prefect_tao.jobs.request import ALL_GPUS, JobRequest, Resources
from prefect_tao.platforms import gpus
from prefect_tao.platforms.files import LocalFiles


def writable_findings(**folders: Path) -> list[Finding]:
    """Whether each folder can be written, found out without writing."""
    return [_writable(subject, path) for subject, path in folders.items()]


def _writable(subject: str, path: Path) -> Finding:
    if LocalFiles().writable(str(path)):
        return Finding(level=Level.OK, subject=subject, message=f"{path} can be written")
    return _failed(
        subject,
        f"{path} cannot be written",
        "choose another folder: PREFECT_TAO_HOME for jobs, TAO_RESULTS_ROOT for results",
    )


def fit_findings(
    request: JobRequest, devices: Callable[[], Mapping[str, Sequence[str]]], named: bool = False
) -> list[Finding]:
    """What this machine lacks for `request`; `devices` is asked for GPUs only when the request wants some."""
    findings, wanted = [], request.resources
    have = devices() if wanted.gpus else {}
    if why := gpus.shortage(wanted.gpus, list(have), gpus.busy_here(have, named)):
        findings.append(_failed("gpus", why, gpus.BUSY_REMEDY, COMPUTE))
    if wanted.gpus and has_too_few(wanted, have):
        findings.append(
            _failed(
                "gpus",
                too_few(wanted, have),
                "ask for fewer, choose another target, or name the devices in PREFECT_TAO_GPUS",
                COMPUTE,
            )
        )
    if request.workdir and not Path(request.workdir).is_dir():
        findings.append(
            _failed("workdir", f"{request.workdir} is not a folder on this machine", "create it or name another one")
        )
    return findings + _unheeded(request)


def has_too_few(wanted: Resources, devices: Collection[str]) -> bool:
    """Whether this machine cannot give what is wanted: who wants all GPUs wants at least one."""
    return len(devices) < (1 if wanted.gpus == ALL_GPUS else wanted.gpus)


def too_few(wanted: Resources, devices: Collection[str]) -> str:
    """The same in words."""
    return f"{wanted.gpus_shown} were asked for, and this machine has {len(devices)}"


def _unheeded(request: JobRequest) -> list[Finding]:
    """What the request says that a bare process does not do."""
    findings = []
    if request.image:
        findings.append(
            _warned(
                "image",
                f"process runs the command on this machine itself; the image {request.image} is not used",
                "choose local-docker to run in the image",
            )
        )
    for subject, asked in (("memory", request.resources.memory), ("cpus", request.resources.cpus)):
        if asked is not None:
            findings.append(
                _warned(
                    subject,
                    f"process does not limit {subject}: the job may use all that this machine has",
                    f"leave {subject} out, or choose a target that enforces it, such as local-docker or slurm",
                    COMPUTE,
                )
            )
    if "CUDA_VISIBLE_DEVICES" in request.env:
        findings.append(
            _warned(
                "CUDA_VISIBLE_DEVICES",
                "process sets CUDA_VISIBLE_DEVICES to the GPUs that the job reserved; the given value is not used",
                "ask for a number of GPUs; PREFECT_TAO_GPUS says which ones jobs on this machine may have",
            )
        )
    return findings


def _warned(subject: str, message: str, remedy: str, gate: GateName = NO_GATE) -> Finding:
    return Finding(level=Level.WARN, subject=subject, message=message, remedy=remedy, gate=gate)


def _failed(subject: str, message: str, remedy: str, gate: GateName = NO_GATE) -> Finding:
    return Finding(level=Level.FAIL, subject=subject, message=f"{subject}: {message}", remedy=remedy, gate=gate)
