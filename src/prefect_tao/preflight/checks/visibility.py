"""Whether the data of a launch can be seen from where the job will run, and its results be written."""

from __future__ import annotations

import asyncio
import os
import posixpath
import shlex
from collections.abc import Coroutine, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any

from prefect_tao.catalog.nouns import PlatformEntry
from prefect_tao.jobs.errors import InvalidInput, TaoError, Unreachable
from prefect_tao.jobs.finding import Finding, Level
from prefect_tao.jobs.request import JobRequest
from prefect_tao.preflight.checked_launch import SKIPPED, Launch, Location, error_findings, is_below, texts
from prefect_tao.preflight.checks import object_storage
from prefect_tao.preflight.checks.annotation_fields import check_annotation
from prefect_tao.preflight.checks.credentials import is_set
from prefect_tao.preflight.checks.idle_gpus import download_findings
from prefect_tao.preflight.resolve.handoffs import STEP_SCHEME
from prefect_tao.preflight.resolve.problems import fail, setting
from prefect_tao.runner.entrypoint import input_locations
from prefect_tao.runner.inside.pointers import get_pointer
from prefect_tao.runner.inside.schemes import LOCAL_SCHEMES, bucket_uri, is_local, scheme_of
from prefect_tao.runner.inside.stores import Scheme
from prefect_tao.storage.known_schemes import everything, is_seen, opening, scheme_for

# Where a plain absolute path is one of the platform's own file system. Elsewhere it must be mounted into the job.
HOST_STORAGE = ("lustre", "local", "file")
BUCKET = "S3_BUCKET_NAME"
RESULTS_ROOT = "TAO_RESULTS_ROOT"
_Answer = Coroutine[Any, Any, list[Finding]]


async def check_visibility(launch: Launch) -> list[Finding]:
    """One finding per location, per annotation file with required fields, and per place for results in storage;
    one more where GPUs would wait for data from there.
    """
    places = launch.places()
    async with object_storage.StorageLooks(launch.credentials) as store:
        checks = [
            *(_look_around(launch, place, store) for place in places),
            *(_unused(launch, label, uri, store) for label, uri in launch.resolved.optional_datasets.items()),
            *_annotations(launch, store),
            *_results(launch, store),
            download_findings(launch, store),
        ]
        answers = await asyncio.gather(*checks)
        seen = dict(zip(places, answers, strict=False))  # the places come first
        return [finding for answer in answers for finding in answer] + await _bad_roots(launch, seen)


async def _bad_roots(launch: Launch, seen: Mapping[Location, Sequence[Finding]]) -> list[Finding]:
    """A finding for every root that is a file, or that is there and has nothing that the launch would take from it."""
    found = []
    for label, root in launch.resolved.roots.items():
        is_whole = all(_all(Level.OK, seen[place]) for place in seen if is_below(place.uri, root) and place.uri != root)
        if not is_whole and await _is_file(launch, root):
            message = f"{label}: {root} is a file, and a root is the folder that holds the data"
            found.append(fail(f"dataset {label}", message, f"name its folder: {posixpath.dirname(root)}"))
            continue
        inside = [place for place in seen if place.optional and is_below(place.uri, root)]
        is_there = any(label in place.labels and _all(Level.OK, seen[place]) for place in seen)
        if is_there and inside and all(_all(Level.WARN, seen[place]) for place in inside):
            names = ", ".join(place.uri.removeprefix(root).lstrip("/") for place in inside)
            message = f"{label}: {root} is there, but has nothing that this launch takes: {names}"
            found.append(fail(f"dataset {label}", message, f"put it there, give another root, or leave {label} out"))
    return found


async def _is_file(launch: Launch, root: str) -> bool:
    """Whether a root is a single file, where the platform can tell: one is listed as itself."""
    try:
        return launch.platform is not None and root in await launch.platform.list_path(root)
    except TaoError:
        return False


def _all(level: Level, findings: Sequence[Finding]) -> bool:
    return all(finding.level is level for finding in findings)


# -- one location ------------------------------------------------------------------------------------------------------


async def _look_around(launch: Launch, place: Location, store: object_storage.StorageLooks) -> list[Finding]:
    """As `_look`; where nothing is, the other names that a dataset file may have are tried for the remedy."""
    findings = await _look(launch, place, store)
    others = [(label, uri) for label in place.labels for uri in launch.resolved.alternatives.get(label, ())]
    if not others or all(finding.level is not Level.FAIL for finding in findings):
        return findings
    seen = await asyncio.gather(*(_look(launch, Location(uri, (label,)), store) for label, uri in others))
    for (label, uri), looks in zip(others, seen, strict=True):
        if all(look.level is Level.OK for look in looks):
            remedy = f"{uri} is there; use it with {setting(label, uri)}"
            return [finding.model_copy(update={"remedy": remedy}) for finding in findings]
    return findings


async def _unused(launch: Launch, label: str, uri: str, store: object_storage.StorageLooks) -> list[Finding]:
    """An optional file of a dataset that is there, and that the spec does not take by itself."""
    looks = await _look(launch, Location(uri, (label,), True), store)
    if any(look.level is not Level.OK for look in looks):
        return []
    place = Location(uri, (label,))
    return [_said(Level.WARN, place, "is there, and is not used", f"use it with {setting(label, uri)}")]


async def _look(launch: Launch, place: Location, store: object_storage.StorageLooks) -> list[Finding]:
    scheme = scheme_of(place.uri)
    if scheme == STEP_SCHEME:
        made_by = place.uri.partition("://")[2].partition("/")[0]
        return [_said(Level.DEFERRED, place, f"is made by the step {made_by}, and looked at before it is used")]
    if names_nothing(place.uri):
        form = f"write {scheme}://<bucket>/<path>"
        return [_said(Level.FAIL, place, "names no place there, only the kind of storage", form)]
    if is_seen(place.uri):
        return await _look_in_storage(launch, place, store)
    if scheme_for(place.uri):
        return [_said(Level.WARN, place, "is fetched by the job itself; not checked")]
    if not is_local(place.uri):
        known = ", ".join(f"{known.name}://" for known in everything())
        remedy = f"give a path, or a location that begins with {known}"
        return [_said(Level.FAIL, place, f"the job cannot fetch {scheme}:// locations", remedy)]
    entry = launch.entry
    if entry is None:
        return [_unchecked(_said(Level.UNKNOWN, place, "not checked: the platform is not known"))]
    if refusal := refuse_local(entry, launch.platform_name, place):
        return [refusal]
    if entry.remote and entry.storage.scheme not in HOST_STORAGE:
        return await _look_at_mount(launch, entry, place)
    return await _look_there(launch, place)


def names_nothing(uri: str) -> bool:
    """Whether a location is its scheme alone."""
    return scheme_for(uri) is not None and not uri.partition("://")[2].strip("/")


def refuse_local(entry: PlatformEntry, platform: str, place: Location) -> Finding | None:
    """A finding when the path is one of this machine, and the job runs elsewhere."""
    scheme = scheme_of(place.uri)
    if not entry.remote or (scheme and scheme in (entry.storage.scheme, scheme_of(entry.storage.uri))):
        return None
    if not scheme and PurePosixPath(place.uri).is_absolute():
        return None
    if scheme in LOCAL_SCHEMES and scheme != "file" and entry.storage.scheme == "lustre":
        return None
    return _said(
        Level.FAIL,
        place,
        f"is a path of this machine, and {platform} does not see it",
        _examples(entry, "put the data where the platform sees it and give that location"),
    )


def _examples(entry: PlatformEntry, advice: str) -> str:
    return f"{advice}, for example {' or '.join(entry.path_examples)}" if entry.path_examples else advice


async def _look_there(launch: Launch, place: Location) -> list[Finding]:
    """Ask the platform itself."""
    where = launch.checked_from
    if launch.skip_access:
        return [_said(Level.WARN, place, SKIPPED)]
    probe = await launch.probe()
    if not probe.reached or launch.platform is None:
        return [probe.unchecked(_subject(place), f"{_subject(place)}: {place.uri}", where)]
    uri = _from_workdir(launch, place.uri)
    if uri is None:
        remedy = f"give the whole path: {posixpath.join(os.getcwd(), place.uri)}"
        return [_said(Level.FAIL, place, "is a relative path, and the job begins in a folder of its own", remedy)]
    try:
        seen = await launch.platform.check_path(uri)
    except TaoError as error:
        return [_retold(found, place) for found in error_findings(error, _subject(place), where)]
    if seen:
        return [_said(Level.OK, place, "", checked_from=where)]
    if place.optional:
        return [_said(Level.WARN, place, f"is optional, and does not exist on {where}", checked_from=where)]
    which = f"{uri} does" if uri != place.uri else "does"
    return [_said(Level.FAIL, place, f"{which} not exist on {where}", "correct the path, or put the data there", where)]


def _from_workdir(launch: Launch, uri: str) -> str | None:
    """The location as the job will read it; None for a relative path that begins nowhere that is known."""
    request = launch.resolved.request
    if scheme_of(uri) or uri.startswith("/") or launch.model is not None:
        return uri
    if request and request.workdir:
        return posixpath.join(request.workdir, uri)
    begins_here = launch.entry is not None and not launch.entry.remote and not launch.entry.containers
    return posixpath.join(os.getcwd(), uri) if begins_here else None


async def _look_at_mount(launch: Launch, entry: PlatformEntry, place: Location) -> list[Finding]:
    """A path of a volume: believed on proof or on the driver's own look, never otherwise."""
    if proof := mount_proof(launch.mount_proof, place.uri):
        return [_said(Level.OK, place, "is mounted, as was said", evidence=proof)]
    if launch.platform and not launch.skip_access and (await launch.probe()).reached:
        try:
            if await launch.platform.check_path(place.uri):
                return [_said(Level.OK, place, "", checked_from=launch.checked_from)]
        except (InvalidInput, Unreachable):
            pass  # no evidence is not evidence for it
    proof = shlex.quote(f"{place.uri}=HOW")
    return [
        _said(
            Level.FAIL,
            place,
            f"nothing proves that this path is mounted into jobs on {launch.platform_name}",
            _examples(entry, f"say how it is mounted: --mount-proof {proof}; or give an object location"),
        )
    ]


def mount_proof(proofs: Mapping[str, str], path: str) -> str:
    """What was said of the mount that holds `path`; the longest prefix counts. Nothing said is the empty string."""
    wanted = PurePosixPath(path)
    for prefix in sorted(proofs, key=len, reverse=True):
        if prefix.startswith("/") and wanted.is_relative_to(prefix) and ".." not in wanted.parts:
            return proofs[prefix].strip()
    return ""


async def _look_in_storage(launch: Launch, place: Location, store: object_storage.StorageLooks) -> list[Finding]:
    if launch.skip_access:
        return [_said(Level.WARN, place, SKIPPED)]
    if names := object_storage.lacking(place.uri, launch.credentials):
        return [_unchecked(_said(Level.UNKNOWN, place, f"not checked: {names} missing", "supply them first"))]
    return [await object_storage.check_readable(store, place.label, place.uri, optional=place.optional)]


# -- annotation files --------------------------------------------------------------------------------------------------


def _annotations(launch: Launch, store: object_storage.StorageLooks) -> list[_Answer]:
    where = {label: place.uri for place in launch.places() for label in place.labels}
    wanted = {label: tuple(fields) for label, fields in launch.json_required_fields.items()}
    action = launch.model.actions.get(launch.resolved.action) if launch.model else None
    for label, fields in (action.json_required_fields if action else {}).items():
        if label in where:
            wanted[label] = tuple(dict.fromkeys((*fields, *wanted.get(label, ()))))
    checks = [_annotation(launch, store, label, where.get(label), fields) for label, fields in wanted.items() if fields]
    for label, fields in (action.json_advised_fields if action else {}).items():
        if lacking := tuple(field for field in fields if field not in wanted.get(label, ())):
            checks += [_advised(launch, store, label, where[label], lacking)] if label in where else []
    return checks


async def _advised(
    launch: Launch, store: object_storage.StorageLooks, label: str, uri: str, fields: Sequence[str]
) -> list[Finding]:
    """What only some images need is a warning where it is missing, and nothing where it cannot be looked at."""
    found = await _annotation(launch, store, label, uri, fields)
    lacking = [one for one in found if one.level is Level.FAIL and "lacks " in one.message]
    named = ", ".join(fields)
    remedy = f"go on with an image that does not need it; --json-required-field {label}={named} refuses such data"
    return [one.model_copy(update={"level": Level.WARN, "remedy": remedy}) for one in lacking]


async def _annotation(
    launch: Launch, store: object_storage.StorageLooks, label: str, uri: str | None, fields: Sequence[str]
) -> list[Finding]:
    def said(level: Level, message: str, remedy: str = "") -> list[Finding]:
        subject = f"annotation {label}"
        return [Finding(level=level, subject=subject, message=f"{subject}: {message}", remedy=remedy)]

    if uri is None:
        known = ", ".join(label for place in launch.places() for label in place.labels) or "none"
        return said(Level.FAIL, "no path has this label", f"use one of the labels of this launch: {known}")
    if launch.skip_access:
        return said(Level.WARN, SKIPPED)
    in_storage = is_seen(uri)
    if not in_storage and not (probe := await launch.probe()).reached:
        return [probe.unchecked(f"annotation {label}", f"annotation {label}", launch.checked_from)]
    if in_storage and (names := object_storage.lacking(uri, launch.credentials)):
        return [_unchecked(*said(Level.UNKNOWN, f"not checked: {names} missing", "supply them first"))]
    if not in_storage and launch.platform is None:
        return said(Level.UNKNOWN, f"not checked: {uri} cannot be read from here", "look at its first records yourself")
    read = launch.platform.read_path if launch.platform and not in_storage else store.read
    seen_from = "here" if in_storage else launch.checked_from
    try:
        return [await check_annotation(label, uri, fields, read, checked_from=seen_from)]
    except TaoError as error:
        level = Level.UNKNOWN if isinstance(error, Unreachable) else Level.FAIL
        return said(level, f"{uri}: {error.cause}", error.remedy)


# -- results -----------------------------------------------------------------------------------------------------------


def _results(launch: Launch, store: object_storage.StorageLooks) -> list[_Answer]:
    """The places in storage that results go to: those written in the spec, and the default bucket where it is used."""
    spots = {}
    request = launch.resolved.request
    # The outputs of a plain command are paths, and no keys of a spec.
    for key in request.outputs if request and launch.tree else ():
        value = get_pointer(launch.tree, key)
        if isinstance(value, str) and is_seen(value):
            spots[key] = (value, value)
    if launch.entry and uses_bucket(launch.entry, launch.credentials):
        bucket = bucket_uri(launch.credentials[BUCKET])
        spots[BUCKET] = (f"{bucket}/{object_storage.RESULTS_PREFIX}", f"the bucket of {BUCKET}")
    return [_result(launch, store, label, uri, shown) for label, (uri, shown) in spots.items()]


def uses_bucket(entry: PlatformEntry, credentials: Mapping[str, str]) -> bool:
    """Whether results go to the default bucket: not where the platform has a results folder of its own."""
    own_folder = entry.storage.scheme == "lustre" or not entry.containers or is_set(credentials, RESULTS_ROOT)
    return is_set(credentials, BUCKET) and not own_folder


def used_schemes(request: JobRequest, entry: PlatformEntry, credentials: Mapping[str, str]) -> list[Scheme]:
    """The storage that the job itself has to reach with credentials: for data, or for its results."""
    places = [uri for uri, _ in input_locations(request).values()]
    bucket = [bucket_uri("")] if uses_bucket(entry, credentials) else []
    return opening([*places, *texts(request.specs or request.args or {}), *bucket])


async def _result(
    launch: Launch, store: object_storage.StorageLooks, label: str, uri: str, shown: str
) -> list[Finding]:
    subject = f"results {label}"
    if launch.skip_access:
        return [Finding(level=Level.WARN, subject=subject, message=f"{subject}: {SKIPPED}")]
    if names := object_storage.lacking(uri, launch.credentials):
        message = f"{subject}: not checked: {names} missing"
        found = Finding(level=Level.UNKNOWN, subject=subject, message=message, remedy="supply them first")
        return [_unchecked(found)]
    return [await object_storage.check_writable(store, label, uri, shown)]


# -- findings ----------------------------------------------------------------------------------------------------------


def _subject(place: Location) -> str:
    return f"input {place.label}"


def _said(
    level: Level, place: Location, message: str, remedy: str = "", checked_from: str = "here", evidence: str = ""
) -> Finding:
    return Finding(
        level=level,
        subject=_subject(place),
        message=f"{_subject(place)}: {place.uri}" + (f": {message}" if message else ""),
        checked_from=checked_from,
        evidence=evidence,
        remedy=remedy,
    )


def _unchecked(found: Finding) -> Finding:
    """It follows from another finding, which says what is missing."""
    return found.model_copy(update={"follows": True})


def _retold(found: Finding, place: Location) -> Finding:
    return found.model_copy(update={"subject": _subject(place), "message": f"{_subject(place)}: {found.message}"})
