"""Jobs on their way to the cluster, and found there again: what is sent, and what the answers mean. Pure."""

from __future__ import annotations

import hashlib
import io
import json
import posixpath
import tarfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from pydantic import ValidationError

from prefect_tao.jobs.errors import SubmitFailed, Unreachable
from prefect_tao.jobs.handle import JobHandle
from prefect_tao.jobs.launching import refusal
from prefect_tao.jobs.naming import JobName, is_our_name
from prefect_tao.jobs.platform import Rendered
from prefect_tao.platforms.markers import UNNAMED, left_by, read_object
from prefect_tao.platforms.slurm import enroot, layout
from prefect_tao.platforms.slurm.layout import Layout
from prefect_tao.platforms.slurm.questions import Answer, Value, program, question
from prefect_tao.platforms.slurm.queue import FINAL
from prefect_tao.runner.entrypoint import program_files

Batch = tuple[Rendered, Mapping[str, str]]
# How often launches look for secrets of jobs that are over and that were not watched to their end.
SWEEP_MINUTES = 30
# After which a launcher that brought the files of a job and has not submitted it must be gone.
LOST_MINUTES = 60
_ENDED = " ".join(sorted(FINAL))


@dataclass(frozen=True)
class Conversion:
    """How images become files that all nodes share."""

    partition: str
    minutes: int
    memory_gb: int
    account: str | None = None
    again: bool = False

    @property
    def options(self) -> list[str]:
        """What sbatch is asked for."""
        shape = [f"--partition={self.partition}", f"--time={self.minutes}", f"--mem={self.memory_gb}G"]
        return [*shape, "--nodes=1", "--ntasks=1", *([f"--account={self.account}"] if self.account else [])]


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


def submit_question(
    place: Layout,
    incoming: str,
    images_of: Mapping[str, str | None],
    conversion: Conversion,
    denial_seconds: float,
    lost: Iterable[str] = (),
    site: str = "",
) -> str:
    """Put what was staged in `incoming` into place and submit each job (name -> image to convert) once."""
    images = list(dict.fromkeys(image for image in images_of.values() if image))
    return question(
        "submit",
        "sweep",
        minutes=SWEEP_MINUTES,
        lost_minutes=LOST_MINUTES,
        ended=_ENDED,
        jobs=place.jobs,
        incoming=incoming,
        program=place.program(program_digest()),
        images=place.images,
        denial_seconds=round(denial_seconds),
        tries=[
            part for name, image in images_of.items() for part in (name, enroot.conversion_name(image) if image else "")
        ],
        conversions=[part for image in images for part in _conversion_parts(place, image, conversion)],
        conversion_options=conversion.options,
        lost=lost,
        site=site,
    )


def _conversion_parts(place: Layout, image: str, conversion: Conversion) -> tuple[str, str, str, str]:
    file, again = place.converted(image), str(int(conversion.again and enroot.is_latest(image)))
    script = program("convert", file=file, uri=enroot.enroot(image), again=again)
    return enroot.conversion_name(image), file, again, f"#!/bin/bash\n{script}"


def read_submits(
    answer: Answer, jobs: Mapping[str, Batch], target: str, place: Layout, host: str
) -> dict[str, JobHandle | BaseException]:
    """What became of each job, by name."""
    answers: dict[str, JobHandle | BaseException] = {
        name: Unreachable(f"{host} did not say what became of {name}", "launch again: it attaches") for name in jobs
    }
    before, site = dict(fields for fields in answer.all("was")), answer.text("site")
    if not site:
        silent = Unreachable("scontrol does not say which cluster this is; nothing was submitted", "try again later")
        return dict.fromkeys(jobs, silent)
    for word, fields in answer:
        match word, fields:
            case "unpacked", [words]:
                failed = SubmitFailed(
                    f"the job's files cannot be written below {place.jobs}: {' '.join(words.split())}",
                    "check the folder's rights, the quota and the free space there, or name another results folder",
                )
                return dict.fromkeys(jobs, failed)
            case "id", [name, id]:
                ours = jobs[name][0].files[layout.HANDLE].decode()
                answers[name] = handle_of(target, place, name, id, before.get(name, ours), site)
            case "elsewhere", [name, where]:
                answers[name] = refusal(handle_of(target, place, name, "", "", where))
            case "taken", [name]:
                answers[name] = SubmitFailed(
                    f"{place.jobs}/{name} is there, but it is not a job of prefect-tao",
                    "move it away and try again",
                )
            case "refused", [name, words]:
                answers[name] = SubmitFailed(f"sbatch refused the job: {_plain(words)}", _refusal_remedy(words))
            case "doubt", [name, words]:
                answers[name] = Unreachable(
                    f"whether SLURM has {name} is not known: {_plain(words)}", "launch again: it attaches"
                )
    return answers


def _plain(words: str) -> str:
    return " ".join(words.replace("sbatch: error: ", "").split()) or "sbatch said nothing"


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
        (remedy for sign, remedy in _REFUSALS.items() if sign in words), "correct what sbatch names, then launch again"
    )


# -- found again -------------------------------------------------------------------------------------------------------


def find_question(place: Layout, keys: Sequence[str] | None, site: str = "") -> str:
    """What to ask for every attempt of these keys; or of all, which sweeps too. `site` is ours, where it is known."""
    given: dict[str, Value] = {"base": place.base, "results": place.results, "keys": keys or (), "site": site}
    if keys is not None:
        return question("find", everything=0, **given)
    sweep: dict[str, Value] = {"jobs": place.jobs, "minutes": 0, "lost_minutes": LOST_MINUTES, "ended": _ENDED}
    return question("find", "sweep", everything=1, **sweep, **given)


def handle_of(target: str, place: Layout, name: str, id: str, text: str, site: str) -> JobHandle:
    """The job of this name; `text` is the handle file in its folder, written by whichever version launched it."""
    key, attempt = JobName.parse(name)
    told = {field: value for field, value in (read_object(text) or {}).items() if field in ("digest", "labels")}
    facts = {"target": target, "key": key, "attempt": attempt, "native_id": id, "site": site}
    facts |= {"results": place.results_of(key)}
    try:
        return JobHandle.model_validate({**facts, **told})
    except ValidationError:
        return JobHandle.model_validate(facts)


def read_jobs(answer: Answer, target: str, place: Layout, host: str) -> Iterator[JobHandle]:
    """The jobs that a login node has found. Raises Unreachable when it could not look."""
    ids, sites = dict[str, str](), dict[str, str]()
    own, here = answer.text("site"), {name for (name,) in answer.all("here")}
    if not own:
        raise Unreachable("scontrol does not say which cluster this is", "look again later")
    for word, fields in answer:
        match word, fields:
            case "nobase", [""]:
                raise Unreachable(f"{place.jobs} cannot be entered on {host}", "look again later")
            case "nobase", [above]:
                cause = f"the results folder {place.base} cannot be used on {host}: {above} is closed to you"
                raise Unreachable(cause, "choose a results folder that is yours", retryable=False)
            case "queue", [code] if code != "0":
                raise Unreachable("squeue does not answer, so it is not known which jobs there are", "look again later")
            case "job", [name, id]:
                ids[name] = id
            case "file", [path, line]:
                folder, file = posixpath.split(path)
                name = posixpath.basename(folder)
                if file == layout.SITE_FILE:
                    sites[name] = line
                elif file == layout.HANDLE:
                    site = sites.get(name) or (own if name in here else UNNAMED)
                    yield handle_of(target, place, name, ids[name], line, site)
                # The results still show a job whose folder is gone. Files of other ranks do not count.
                elif is_our_name(name := f"tao-{posixpath.basename(posixpath.dirname(folder))}-{file[:-5]}"):
                    yield left_by(handle_of(target, place, name, "", "", own), read_object(line), own)
