"""Handles of jobs, read from what lies on the cluster about them. Pure; what is torn or unknown there is left out."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator

from pydantic import ValidationError

from prefect_tao.jobs.errors import Unreachable
from prefect_tao.jobs.handle import JobHandle
from prefect_tao.jobs.naming import JobName, is_our_name
from prefect_tao.platforms.slurm import layout
from prefect_tao.platforms.slurm.layout import Layout
from prefect_tao.platforms.slurm.observe import read_json


def handle_of(target: str, place: Layout, name: str, id: str, text: str) -> JobHandle:
    """The job of this name; `text` is the handle file in its folder, written by whichever version launched it."""
    key, attempt = JobName.parse(name)
    told = {field: value for field, value in (read_json(text) or {}).items() if field in ("digest", "labels")}
    facts = {"target": target, "key": key, "attempt": attempt, "native_id": id, "results": place.results_of(key)}
    try:
        return JobHandle.model_validate({**facts, **told})
    except ValidationError:
        return JobHandle.model_validate(facts)


def read_jobs(text: str, target: str, place: Layout, host: str) -> Iterator[JobHandle]:
    """The jobs that `remote.find` or `remote.jobs` has printed. Raises Unreachable when it could not look."""
    lines, ids = iter(text.split("\n")), dict[str, str]()
    for line in lines:
        mark, _, rest = line.partition(" ")
        if mark == "@nobase":
            raise Unreachable(f"{place.jobs} cannot be entered on {host}", "look again later")
        if mark == "@squeue" and rest != "0":
            raise Unreachable("squeue does not answer, so nobody knows which jobs there are", "look again later")
        if mark == "@job":
            name, _, ids[name] = rest.partition(" ")
        elif mark == "@file":
            told = next(lines, "")
            folder, file = posixpath.split(rest)
            if file == layout.HANDLE:
                name = posixpath.basename(folder)
                yield handle_of(target, place, name, ids[name], told)
            # Of a job whose folder is gone the results still tell that it was there. Other ranks' files count not.
            elif is_our_name(name := f"tao-{posixpath.basename(posixpath.dirname(folder))}-{file[:-5]}"):
                yield handle_of(target, place, name, str((read_json(told) or {}).get("native_id") or ""), "")
