"""A batch of jobs on its way to the cluster: what is sent, and what SLURM's answers to it mean. Pure."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from collections.abc import Mapping
from functools import cache

from prefect_tao.jobs.errors import NameTaken, SubmitFailed, Unreachable
from prefect_tao.jobs.handle import JobHandle
from prefect_tao.jobs.platform import Rendered
from prefect_tao.platforms.slurm import layout
from prefect_tao.platforms.slurm.layout import Layout
from prefect_tao.platforms.slurm.records import handle_of
from prefect_tao.runner.entrypoint import program_files

Batch = tuple[Rendered, Mapping[str, str]]


@cache
def program_digest() -> str:
    """The version of the runner: jobs that were launched with another one keep theirs."""
    return hashlib.sha256(repr(program_files()).encode()).hexdigest()[:12]


def packed(jobs: Mapping[str, Batch]) -> bytes:
    """One archive of all job folders; the runner is in it once."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz", compresslevel=3) as archive:
        for file, data in program_files().items():
            _add(archive, f"{layout.PROGRAM}/{file}", data)
        for name, (rendered, secrets) in jobs.items():
            for folder in (name, f"{name}/{layout.LOGS}"):
                info = tarfile.TarInfo(folder)
                info.type, info.mode = tarfile.DIRTYPE, 0o700
                archive.addfile(info)
            for file, data in {**rendered.files, layout.SECRETS: json.dumps(dict(secrets)).encode()}.items():
                _add(archive, f"{name}/{file}", data)
    return stream.getvalue()


def _add(archive: tarfile.TarFile, name: str, data: bytes) -> None:
    info = tarfile.TarInfo(name)
    info.size, info.mode = len(data), 0o600
    archive.addfile(info, io.BytesIO(data))


def read_submits(
    text: str, jobs: Mapping[str, Batch], target: str, place: Layout, host: str
) -> dict[str, JobHandle | BaseException]:
    """What became of each job, by name, as `remote.submit` has printed it."""
    answers: dict[str, JobHandle | BaseException] = {
        name: Unreachable(f"{host} did not tell what became of {name}", "launch again: it attaches") for name in jobs
    }
    told: dict[str, str] = {}
    for line in text.split("\n"):
        mark, _, rest = line.partition(" ")
        name, _, words = rest.partition(" ")
        if mark == "@unpacked":
            failed = SubmitFailed(
                f"the job's files cannot be written below {place.jobs}: {rest}",
                "check the folder's rights, the quota and the free space there, or name another results folder",
            )
            return dict.fromkeys(jobs, failed)
        if name not in jobs:
            continue
        if mark == "@was":
            told[name] = words
        elif mark == "@id":
            ours = jobs[name][0].files[layout.HANDLE].decode()
            answers[name] = handle_of(target, place, name, words, told.get(name, ours))
        elif mark == "@taken":
            answers[name] = NameTaken(
                f"{place.jobs}/{name} is there, but it is not a job of prefect-tao",
                "move it away and try again",
            )
        elif mark == "@refused":
            answers[name] = SubmitFailed(f"sbatch refused the job: {_without_prefix(words)}", _refusal_remedy(words))
        elif mark == "@doubt":
            answers[name] = Unreachable(
                f"whether SLURM has {name} is not known: {_without_prefix(words)}", "launch again: it attaches"
            )
    return answers


def _without_prefix(words: str) -> str:
    return words.replace("sbatch: error: ", "").strip() or "sbatch said nothing"


_REFUSALS = {
    "account": "name an account you may use: SLURM_ACCOUNT, or the block's account (sacctmgr show associations)",
    "partition": "choose a partition that sinfo lists: SLURM_PARTITION, or the block's partition",
    "QOS": "choose another qos, or ask for less",
    "node configuration": "ask for fewer GPUs, CPUs or less memory per node, as sinfo -o '%P %G %c %m' shows",
    "time limit": "ask for less time, or for a partition that allows it",
    "Job violates": "ask for less, or wait until your other jobs are over",
}


def _refusal_remedy(words: str) -> str:
    return next(
        (remedy for sign, remedy in _REFUSALS.items() if sign in words), "mend what sbatch says, then launch again"
    )
