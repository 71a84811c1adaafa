"""Checks of a cluster before a launch, asked in one trip from the login node. They leave nothing behind."""

from __future__ import annotations

import asyncio
import os
import re
import shlex
import socket
import stat
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING

from prefect_tao.jobs import control
from prefect_tao.jobs.errors import InvalidInput, Unreachable
from prefect_tao.jobs.finding import COMPUTE, NO_GATE, REACHABLE, Finding, GateName, Level
from prefect_tao.jobs.quantities import format_seconds
from prefect_tao.jobs.request import JobRequest
from prefect_tao.platforms.slurm import enroot
from prefect_tao.platforms.slurm.client import Account, Login
from prefect_tao.platforms.slurm.questions import Answer, question
from prefect_tao.platforms.slurm.render import check_shape, directive_lines, directives, is_short, wall_seconds

if TYPE_CHECKING:
    from prefect_tao.platforms.slurm.driver import SlurmPlatform

TOOLS = ("sbatch", "srun", "squeue", "sacct", "scancel", "scontrol")
SHOWN_PARTITIONS = 12
# A name that no job will ever have; test submissions bear it.
_KEY = "0" * 16
_START = re.compile(r"to start at (\S+)")
_CLOCK = re.compile(r"(?:(\d+)-)?(\d+):(\d\d)(?::(\d\d))?")
_NETWORKED = ("lustre", "nfs", "gpfs", "beegfs", "ceph", "wekafs", "panfs", "smb", "fuse", "glusterfs", "afs")


async def probe(platform: SlurmPlatform, request: JobRequest | None) -> list[Finding]:
    """All findings; when no login node answers, only why."""
    account = platform.login.account
    findings = [*_key_findings(account), *await _host_findings(platform.login), *_variables(platform, request)]
    try:
        await platform.login.connect()
        answers = _answers(await platform.ask(_question(platform, request)))
    except Unreachable as error:
        level = Level.UNKNOWN if error.retryable else Level.FAIL
        return [*findings, _finding(level, "reachable", error.cause, error.remedy, REACHABLE)]
    where = platform.login.host
    there = Finding(level=Level.OK, subject="reachable", message=f"{account.user}@{where} answers", checked_from=where)
    findings.append(there)
    for check in (_tools, _containers, _image, _base_folder, _mounts, _partitions, _conversions, _fits, _enroot):
        findings += [
            finding.model_copy(update={"checked_from": where}) for finding in check(platform, request, answers)
        ]
    return findings


def _finding(level: Level, subject: str, message: str, remedy: str = "", gate: GateName = NO_GATE) -> Finding:
    return Finding(level=level, subject=subject, message=message, remedy=remedy, gate=gate)


def _key_findings(account: Account) -> Iterator[Finding]:
    """Whether the key is there and private, as ssh itself demands; said before any host is asked."""
    if account.key_path is None:
        return
    path = Path(account.key_path).expanduser()
    try:
        mode = path.stat().st_mode
    except OSError as error:
        words = f"the key file {path} cannot be read: {error.strerror}"
        yield _finding(Level.FAIL, "credential SSH_KEY_PATH", words, "set SSH_KEY_PATH to your private key")
        return
    if stat.S_IMODE(mode) & 0o077:
        words = f"the key file {path} may be read by others (mode {stat.S_IMODE(mode):o})"
        yield _finding(Level.FAIL, "credential SSH_KEY_PATH", words, f"chmod 600 {shlex.quote(str(path))}")


async def _host_findings(login: Login) -> list[Finding]:
    """Names that mean no host: as long as another login node answers, that goes unnoticed."""
    asked = (_host_finding(login, host) for host in login.account.hosts)
    return [finding for found in await asyncio.gather(*asked) for finding in found]


async def _host_finding(login: Login, host: str) -> list[Finding]:
    found = []
    try:
        *jumps, last = await asyncio.to_thread(login.connection(host).routes)
    except Unreachable as error:
        return [_finding(Level.WARN, "login nodes", error.cause, error.remedy)]
    if not (login.account.key_path or last.keys or last.beyond or os.environ.get("SSH_AUTH_SOCK")):
        words = f"there is neither a key file nor an ssh agent for {host}"
        found.append(_finding(Level.WARN, "credential SSH_KEY_PATH", words, "set SSH_KEY_PATH to your private key"))
    if jumps or last.proxy_command:
        return found  # only the machine before it has to know the name
    try:
        await asyncio.get_running_loop().getaddrinfo(last.hostname, last.port, type=socket.SOCK_STREAM)
    except OSError:
        words = f"the name {last.hostname} is not known here"
        found.append(_finding(Level.WARN, "login nodes", words, "correct SLURM_HOSTNAME"))
    return found


def _variables(platform: SlurmPlatform, request: JobRequest | None) -> Iterator[Finding]:
    given = {**platform.options.env, **(request.env if request else {})}
    if names := sorted(given.keys() & control.NAMES):
        words = f"{', '.join(names)} steer launchers and services, and are kept away from the job"
        yield _finding(Level.WARN, "env", words, "leave them out, or give them another name")


# -- one trip ----------------------------------------------------------------------------------------------------------


def _question(platform: SlurmPlatform, request: JobRequest | None) -> str:
    site, base = platform.options, platform.place.base
    return question(
        "probe",
        base=base,
        tools=TOOLS,
        mounts=[mount.split(":")[0] for mount in site.container_mounts],
        partitions=[name for name in site.partition.split(",") if name],
        image_file=_image_file(request),
        conversion_partitions=[platform.conversion.partition] if _converts(platform, request) else [],
        test=_test_script(platform, request) if request is not None and base else "",
    )


def _image_file(request: JobRequest | None) -> str:
    """The file that the image is on the cluster, if it is one."""
    return request.image if request and request.image and enroot.is_file(request.image) else ""


def _converts(platform: SlurmPlatform, request: JobRequest | None) -> bool:
    image = request.image if request else None
    return image is not None and platform.options.use_sqsh and not enroot.is_file(image)


def _test_script(platform: SlurmPlatform, request: JobRequest) -> str:
    """A script of the same shape. Without the log folder, which does not exist yet."""
    options = [
        option
        for option in directives(request, _KEY, 1, platform.place, platform.options)
        if not option.startswith(("--output", "--job-name"))
    ]
    return "\n".join(["#!/bin/bash", *directive_lines(options), "true"])


Answers = Mapping[str, list[str]]


def _answers(answer: Answer) -> Answers:
    """What was said, by its word, each on one line."""
    found: dict[str, list[str]] = {}
    for word, fields in answer:
        found.setdefault(word, []).append(" ".join(" ".join(fields).split()))
    return found


# -- what the answers mean ---------------------------------------------------------------------------------------------


def _tools(platform: SlurmPlatform, request: JobRequest | None, answers: Answers) -> Iterator[Finding]:
    if missing := answers.get("missing"):
        words = f"the login node has no {', '.join(missing)}"
        yield _finding(
            Level.FAIL, "tools", words, "log in where SLURM's commands are on the PATH of plain ssh commands"
        )
    else:
        yield _finding(Level.OK, "tools", f"{', '.join(TOOLS)} are there")


def _containers(platform: SlurmPlatform, request: JobRequest | None, answers: Answers) -> Iterator[Finding]:
    if request is None or request.image is None:
        return
    if "containers" not in answers:
        yield _finding(
            Level.FAIL,
            "containers",
            "srun has no --container-image: the site has no Pyxis",
            "ask the site for Pyxis and Enroot, or choose another target",
        )


def _image(platform: SlurmPlatform, request: JobRequest | None, answers: Answers) -> Iterator[Finding]:
    path = _image_file(request)
    if path and not path.startswith("/"):
        words = f"the image file {path} is a relative path, and a job begins in a folder of its own"
        yield _finding(Level.FAIL, "image file", words, "write it from the root on: --image /lustre/.../name.sqsh")
    elif "noimage" in answers:
        words = f"the image file {path} is not there on the login node, or cannot be read"
        yield _finding(Level.FAIL, "image file", words, "correct --image (image=...), or put the file there")


def _base_folder(platform: SlurmPlatform, request: JobRequest | None, answers: Answers) -> Iterator[Finding]:
    base = platform.place.base
    if not base:
        yield _finding(
            Level.FAIL,
            "results folder",
            "no folder for jobs and results is given",
            "set SLURM_BASE_RESULTS_DIR, or the block's results folder, to one of the cluster's shared file system",
        )
        return
    if "readonly" in answers:
        words = f"{answers['readonly'][0]} cannot be written, so {base} is of no use"
        yield _finding(Level.FAIL, "results folder", words, "choose a folder that is yours")
        return
    kind = (answers.get("filesystem") or [""])[0]
    if any(kind.startswith(name) for name in _NETWORKED):
        yield _finding(Level.OK, "results folder", f"{base} can be written ({kind})")
    else:
        words = f"{base} can be written, but {kind or 'its file system'} may not be shared with the compute nodes"
        yield _finding(Level.WARN, "results folder", words, "use a folder that every node sees, such as Lustre or NFS")


def _mounts(platform: SlurmPlatform, request: JobRequest | None, answers: Answers) -> Iterator[Finding]:
    for path in answers.get("nomount", []) if request is not None and request.image is not None else ():
        words = f"the container mount {path} does not exist on the login node"
        yield _finding(Level.FAIL, "container_mounts", words, "correct SLURM_CONTAINER_MOUNTS or the block's mounts")


def _partitions(platform: SlurmPlatform, request: JobRequest | None, answers: Answers) -> Iterator[Finding]:
    for name in answers.get("nopartition", []):
        words = f"there is no partition {name}"
        yield _finding(Level.FAIL, "partition", words, _other_partitions(name, answers), COMPUTE)
    for words in answers.get("silent", [])[:1]:
        cause = f"SLURM does not answer: {words}"
        yield _finding(Level.UNKNOWN, "partition", cause, "try again when squeue answers on the login node", COMPUTE)
    wanted = wall_seconds(request.resources, platform.options) if request else None
    for row in answers.get("partition", []):
        facts = dict(part.split("=", 1) for part in row.split() if "=" in part)
        name, limit = facts.get("PartitionName", "?"), _seconds(facts.get("MaxTime", ""))
        if facts.get("State", "UP") != "UP":
            words = f"the partition {name} is {facts['State']}"
            yield _finding(Level.FAIL, "partition", words, "choose another one, or wait", COMPUTE)
        elif wanted is not None and limit is not None and wanted > limit:
            words = f"{format_seconds(wanted)} were asked for, and the partition {name} allows {format_seconds(limit)}"
            # A short job has its wall a minute after its limit.
            room = limit - 60 if request and is_short(request.resources) and limit > 60 else limit
            shorter = f"{room / 3600:g}h" if room >= 3600 else f"{room / 60:g}m"
            remedy = f"ask for --time-limit {shorter}, or for a partition that allows more"
            yield _finding(Level.FAIL, "time_limit", words, remedy, COMPUTE)
        else:
            allowed = f", up to {format_seconds(limit)}" if limit is not None else ""
            yield _finding(Level.OK, "partition", f"the partition {name} is up{allowed}", gate=COMPUTE)


def _other_partitions(wrong: str, answers: Answers) -> str:
    there = next(iter(answers.get("partitions", [])), "").split()
    near = get_close_matches(wrong, there, n=1)
    meant = f"did you mean {near[0]}? " if near else ""
    shown = f"there are {', '.join(there[:SHOWN_PARTITIONS])}" if there else "sinfo lists what there is"
    return f"{meant}{shown}; correct the block's partition (SLURM_PARTITION, then prefect-tao setup slurm again)"


def _conversions(platform: SlurmPlatform, request: JobRequest | None, answers: Answers) -> Iterator[Finding]:
    for name in answers.get("noconversion", []):
        words = f"there is no partition {name} to convert images in, so that every job pulls its image itself"
        yield _finding(Level.WARN, "image conversion", words, "set the block's sqsh_partition, or turn use_sqsh off")


def _fits(platform: SlurmPlatform, request: JobRequest | None, answers: Answers) -> Iterator[Finding]:
    """Whether a node has what is asked for, and when the job would start."""
    if request is None:
        return
    try:
        check_shape(request.resources, platform.options)
    except InvalidInput:
        return  # rendering says so in full
    if reply := answers.get("fits"):
        if found := _START.search(reply[0]):
            yield _finding(Level.OK, "start", f"SLURM expects to start it at {found[1].replace('T', ' ')}")
        return
    if any(finding.blocks for finding in _partitions(platform, request, answers)):
        return  # SLURM's own words about it would only say the same once more
    for said in answers.get("refused", []):
        words = said.replace("sbatch: error: ", "").replace("allocation failure: ", "")
        yield _finding(Level.FAIL, "shape", f"SLURM would refuse the job: {words}", _shape_remedy(answers), COMPUTE)


def _shape_remedy(answers: Answers) -> str:
    kinds = "; ".join(row for row in answers.get("gpus", []) if "gpu" in row)
    return f"the nodes have: {kinds}" if kinds else "ask for what sinfo -o '%P %l %G %c %m' shows"


def _enroot(platform: SlurmPlatform, request: JobRequest | None, answers: Answers) -> Iterator[Finding]:
    """Enroot does not read NGC_KEY from the job: for private images it wants a file of its own on the cluster."""
    if request is None or request.image is None or not enroot.is_private(request.image):
        return
    if any("nvcr.io" in row for row in answers.get("credentials", [])):
        yield _finding(Level.OK, "image credentials", "Enroot has credentials for nvcr.io on the cluster")
        return
    yield _finding(
        Level.WARN,
        "image credentials",
        "Enroot has no credentials for nvcr.io on the cluster; only public images can be pulled",
        "for a private image, once: printf 'machine nvcr.io login $oauthtoken password %s\\n' \"$NGC_KEY\" | "
        f"ssh {platform.login.account.user}@{platform.login.host} "
        "'umask 077; mkdir -p ~/.config/enroot; cat >> ~/.config/enroot/.credentials'",
    )


def _seconds(clock: str) -> float | None:
    found = _CLOCK.fullmatch(clock)
    if found is None:
        return None
    days, hours, minutes, seconds = (int(part or 0) for part in found.groups())
    return float(days * 86400 + hours * 3600 + minutes * 60 + seconds)
