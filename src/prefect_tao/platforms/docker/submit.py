"""From a rendered job to a container that runs: created once, filled with its files, started, or adopted."""

from __future__ import annotations

import json
import logging
import re
import secrets as tokens
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import ValidationError

from prefect_tao.jobs.errors import InvalidInput, SubmitFailed, Unreachable
from prefect_tao.jobs.handle import JobHandle
from prefect_tao.jobs.platform import Rendered
from prefect_tao.jobs.request import JobRequest
from prefect_tao.platforms import doubt, gpu_locks, gpus
from prefect_tao.platforms.container_jobs import wanted_gpus
from prefect_tao.platforms.docker import container_starter, devices, pulling, render
from prefect_tao.platforms.docker.client import CONFLICT, NOT_FOUND, REMOVAL, ROOT, Engine, Owner, TarEntry
from prefect_tao.platforms.docker.observe import ContainerObserver, forget_secrets
from prefect_tao.platforms.docker.settings import DockerSettings
from prefect_tao.platforms.doubt import LONGEST_PAUSE, Refused, is_doubt, is_in_doubt, sure
from prefect_tao.platforms.files import Files, User
from prefect_tao.runner.entrypoint import PLAN_FILE
from prefect_tao.runner.zipped import zipped

# How long a container that somebody else has just created is left to its creator.
RIVAL_SECONDS = 5.0
TAKEN_SECONDS = 15.0
NOT_MODIFIED = 304
_log = logging.getLogger(__name__)
BUILT_IN_NETWORKS = ("bridge", "host", "none", "default")


class _Made(NamedTuple):
    """A container with the wanted name: new, or `there` before; `is_ours` unless somebody else has just created it."""

    id: str
    there: dict[str, Any] | None
    is_ours: bool


@dataclass
class Launcher:
    """Starts jobs on one engine. Its methods block; they raise SubmitFailed, Unreachable, InvalidInput."""

    engine: Engine
    observer: ContainerObserver
    settings: DockerSettings
    credentials: Mapping[str, str] = field(default_factory=dict)
    looked: gpus.Seen | None = None
    _networks: set[str] = field(default_factory=set)
    _folders: set[str] = field(default_factory=set)
    _users: dict[tuple[str, str], Owner] = field(default_factory=dict)
    _pulling: dict[str, Future[None]] = field(default_factory=dict)
    _choosing: threading.Lock = field(default_factory=threading.Lock)

    @property
    def host(self) -> Files:
        """The files of the engine's host."""
        return self.observer.host

    def info(self) -> dict[str, Any]:
        """What the engine tells about itself."""
        return self.observer.info

    def submit(self, rendered: Rendered, secrets: Mapping[str, str]) -> JobHandle:
        """Start the job, or adopt the container that has its name."""
        name, image = render.name_of(rendered.key, rendered.attempt), str(rendered.request.image)
        wants_gpus = bool(wanted_gpus(rendered.request, self.settings))
        takes_time = self.settings.pull_policy == "always" or wants_gpus
        if takes_time and (there := self.observer.inspect(name)):
            return self._adopt(there, rendered, secrets, patience=RIVAL_SECONDS)
        if self.settings.pull_policy == "always" or (wants_gpus and not pulling.inspect(self.engine, image)):
            self._pull(image)  # before the choice: others need not wait for it, and it is an image to look with
        body = json.loads(rendered.files[render.BODY])
        self._prepare(body, rendered.request)
        with self._choosing if wants_gpus else nullcontext():  # two that choose at once would choose alike
            self._add_gpus(body, rendered.request)
            made = self._create(name, body)
        if made.there is None:
            return self._complete(made.id, body["Labels"], rendered.files, secrets, image, body.get("User", ""))
        return self._adopt(made.there, rendered, secrets, patience=0.0 if made.is_ours else RIVAL_SECONDS)

    # -- before it is created ------------------------------------------------------------------------------------------

    def _prepare(self, body: dict[str, Any], request: JobRequest) -> None:
        self._ensure_network(render.network(self.settings))
        folders = render.written_folders(request, self.settings)
        for folder in folders:
            if folder not in self._folders:
                try:
                    self.host.make(folder)
                except InvalidInput as error:
                    raise SubmitFailed(error.cause, error.remedy) from error
                self._folders.add(folder)
        if owner := self.runs_as(request):
            render.with_user(body, *owner)

    def runs_as(self, request: JobRequest) -> User | None:
        """The user that the job runs as on the engine; None for the image's own."""
        if self.settings.user:
            return User(self.settings.user, ())
        return self._owner if render.written_folders(request, self.settings) else None

    @cached_property
    def _owner(self) -> User | None:
        """Who the job has to run as, so that its results belong to the one who launched it; None for the image's user.

        Root is the engine's own default, and an engine without root maps its root to its user already.
        """
        owner = self.host.user()
        if owner is None or owner.user.partition(":")[0] == "0":
            return None
        options = " ".join(self.info().get("SecurityOptions") or [])
        return None if "name=rootless" in options or "name=userns" in options else owner

    def _ensure_network(self, name: str) -> None:
        if name in BUILT_IN_NETWORKS or name.startswith("container:") or name in self._networks:
            return
        try:
            sure(lambda: self.engine.ask("GET", f"/networks/{name}"))
        except Refused as error:
            if error.status != NOT_FOUND:
                raise _explained(f"the network {name} cannot be looked up", error) from error
            self._make_network(name)
        self._networks.add(name)

    def _make_network(self, name: str) -> None:
        body = {"Name": name, "CheckDuplicate": True, "Labels": {"prefect-tao.network": ""}}
        try:
            self.engine.ask("POST", "/networks/create", body=body)
        except Refused as error:
            if error.status != CONFLICT:  # somebody else was faster
                raise _explained(f"the network {name} cannot be made", error) from error

    def _add_gpus(self, body: dict[str, Any], request: JobRequest) -> None:
        wanted = wanted_gpus(request, self.settings)
        if not wanted:
            return
        info = self.info()
        seen = self.seen_gpus(str(request.image))
        ids = gpus.candidates(seen, self.settings.gpu_ids)
        if ids and wanted > len(ids):
            raise SubmitFailed(
                f"gpus: {wanted} were asked for, and {self.engine.shown} has {len(ids)}",
                "ask for fewer, or choose another target",
            )
        folder, _ = self._lock_folder
        reserved = self.reserved_gpus(ids, seen)
        in_use = self.gpus_in_use(ids, reserved, seen)
        if why := gpus.shortage(wanted, ids, in_use):
            raise SubmitFailed(f"gpus: {why}", gpus.BUSY_REMEDY)
        chosen = gpus.choose(wanted, without(ids, in_use), reserved)
        devices.give(body, wanted, chosen, info, folder, seen)

    @cached_property
    def _lock_folder(self) -> tuple[str, bool]:
        """Where the locks of GPUs are on the engine's host, and whether everybody may lock there already."""
        folder = gpu_locks.lock_folder()
        return folder, self.host.share(folder)

    def reserved_gpus(self, ids: Sequence[str], seen: gpus.Seen | None) -> list[str]:
        """The GPUs that jobs have or wait for: containers of ours, and, on this machine, what else locks them."""
        ours = self.observer.reserved_gpus()
        if not self.engine.is_here:
            return ours
        names = {gpu.number: (gpu.uuid,) for gpu in (seen.gpus if seen else ())}
        others = gpu_locks.taken({name: names.get(name, ()) for name in ids}, gpu_locks.lock_folder())
        return [*ours, *(name for name in others if name not in ours)]

    def gpus_in_use(self, ids: Sequence[str], reserved: Sequence[str], seen: gpus.Seen | None) -> list[gpus.Gpu]:
        """The GPUs that others than our jobs compute on."""
        return gpus.busy(ids, reserved, seen, named=bool(self.settings.gpu_ids))

    def all_gpus(self, image: str | None) -> int | None:
        """How many GPUs a job gets that asks for all; None when nothing can look."""
        return len(gpus.candidates(self.seen_gpus(image), self.settings.gpu_ids)) or None

    def seen_gpus(self, image: str | None) -> gpus.Seen | None:
        """The GPUs as the engine's side sees them; None when nothing can look. Raises Refused in doubt."""
        try:
            return self.look_at_gpus(image)
        except Refused as error:
            if is_in_doubt(error):
                raise
            return None  # the start itself will say it, in the engine's own words

    def look_at_gpus(self, image: str | None) -> gpus.Seen | None:
        """The same, and Refused where the engine cannot hand any out."""
        there = image if image and pulling.inspect(self.engine, image) else None
        self.looked = devices.look(self.engine, self.host, there, self.info())
        return self.looked

    # -- creating ------------------------------------------------------------------------------------------------------

    def _create(self, name: str, body: Mapping[str, Any]) -> _Made:
        """Create the container, or find the one that has the name already."""
        pulled, doubts, vanished, give_up = False, 0, 0, time.monotonic() + doubt.DOUBT_SECONDS
        while True:
            try:
                made = self.engine.json("POST", "/containers/create", params={"name": name}, body=body)
                return _Made(str(made["Id"]), None, is_ours=True)
            except Unreachable as error:
                doubts += 1
                if not error.retryable or time.monotonic() > give_up:
                    raise
            except Refused as error:
                if error.status == CONFLICT:
                    if there := sure(lambda: self.observer.inspect(name)):
                        return _Made(str(there["Id"]), there, is_ours=doubts > 0)
                    vanished += 1  # taken a moment ago, and no more
                    if time.monotonic() > give_up:
                        remedy = f"look for it on the engine's host: docker ps --all --filter name={name}"
                        raise Unreachable(
                            f"the name {name} is taken by something that cannot be seen", remedy
                        ) from error
                elif error.status == NOT_FOUND and "image" in error.said.lower() and not pulled:
                    if there := self.observer.inspect(name):  # it was made from an image that is gone by now
                        return _Made(str(there["Id"]), there, is_ours=doubts > 0)
                    pulled = True
                    self._pull(str(body["Image"]))
                    continue
                elif is_in_doubt(error) and time.monotonic() <= give_up:
                    doubts += 1
                    _log.warning("the engine answered %d: %s; the container is asked for again", error.status, error)
                else:
                    if is_doubt(error.status):  # it may have been made all the same
                        self._withdraw(name)
                    raise _explained("the engine refused the container", error) from error
            time.sleep(min(0.1 * 2 ** (doubts + vanished), LONGEST_PAUSE))

    def _pull(self, image: str) -> None:
        if self.settings.pull_policy == "never":
            raise SubmitFailed(
                f"the image {image} is not there, and the pull policy is never",
                "pull it on the engine's host, or set the pull policy to missing",
            )
        mine: Future[None] = Future()
        pull = self._pulling.setdefault(image, mine)
        if pull is not mine:  # once for all jobs that wait for it, and what it comes to is the same for all
            pull.result()
            return
        try:
            if self.settings.pull_policy == "always" or not pulling.inspect(self.engine, image):
                pulling.pull(self.engine, image, pulling.supplied(self.credentials))
                self._users.clear()  # the new one may have another user
            pull.set_result(None)
        except BaseException as error:
            pull.set_exception(error)
            raise
        finally:
            del self._pulling[image]

    # -- adopting ------------------------------------------------------------------------------------------------------

    def _adopt(
        self, there: dict[str, Any], rendered: Rendered, secrets: Mapping[str, str], patience: float
    ) -> JobHandle:
        """The container that has the name: ours, or refused. One that is not started within `patience` is completed."""
        name, native_id = str(there["Name"]).lstrip("/"), str(there["Id"])
        labels = there["Config"].get("Labels") or {}
        handle = self.observer.handle_of(native_id, labels)
        if handle is None or (handle.key, handle.attempt) != (rendered.key, rendered.attempt):
            raise SubmitFailed(
                f"a container {name} is there, but it is not a job of prefect-tao",
                f"rename it (docker rename {name} other) or remove it, and launch again",
            )
        if not self._is_abandoned(native_id, patience):
            return handle
        files = self._own_files(native_id, handle, rendered)
        image, user = str(there["Config"]["Image"]), str(there["Config"].get("User") or "")
        return self._complete(native_id, labels, files, secrets, image, user)

    def _is_abandoned(self, container: str, patience: float) -> bool:
        """Whether no launcher starts the container: its launcher died half-way. A fresh one is left to its creator."""
        deadline = time.monotonic() + patience
        while True:
            facts = self.observer.inspect(container)
            if facts is None or facts["State"]["Status"] != "created" or self.observer.is_asked_to_stop(container):
                return False
            if time.monotonic() >= deadline:
                return True
            time.sleep(0.1)

    def _own_files(self, container: str, handle: JobHandle, rendered: Rendered) -> Mapping[str, bytes]:
        """The files of the job as it was created, even where it is asked for with another request by now."""
        if handle.digest == rendered.request.digest:
            return rendered.files
        kept = self.engine.get(container, f"{render.HOME}/{render.REQUEST}")
        try:
            request = JobRequest.model_validate_json(kept or b"")
        except ValidationError:
            raise SubmitFailed(
                f"{handle.name} was created with another request and never started",
                f"remove it (docker rm {render.name_of(handle.key, handle.attempt)}) and launch again",
            ) from None
        return {PLAN_FILE: render.plan(request), render.REQUEST: kept or b""}

    # -- starting ------------------------------------------------------------------------------------------------------

    def _complete(
        self,
        container: str,
        labels: Mapping[str, str],
        files: Mapping[str, bytes],
        secrets: Mapping[str, str],
        image: str,
        user: str,
    ) -> JobHandle:
        """Fill the container and start it."""
        try:
            owner = self._users.get((image, user)) or sure(lambda: self._user_inside(container))
            self._users[image, user] = owner  # the same for all jobs of this user in this image
            sure(lambda: self.engine.put(container, self._delivery(container, labels, files, secrets), owner))
            was_first = self._start(container)
        except Refused as error:
            if REMOVAL in error.said or (error.status == NOT_FOUND and self.observer.inspect(container) is None):
                # It may have run before it was removed; what it left among the results tells.
                raise Unreachable(f"the container {container[:12]} is gone", "look for the job by its name") from error
            self._withdraw(container)
            raise _explained("the container could not be started", error) from error
        if not was_first and secrets:
            self._settle_secrets(container)
        handle = self.observer.handle_of(container, labels)
        assert handle is not None  # noqa: S101 - the labels are ours
        return handle

    def _delivery(
        self, container: str, labels: Mapping[str, str], files: Mapping[str, bytes], secrets: Mapping[str, str]
    ) -> list[TarEntry]:
        job = {"id": container, "site": self.observer.site, "target": self.observer.target}
        entries = delivery(job, labels, files, secrets)
        if render.locks(labels) and not self._lock_folder[1]:
            entries.append(TarEntry(render.LOCKS.lstrip("/"), None, 0o1777))
        return entries

    def _user_inside(self, container: str) -> Owner:
        """Whom the job runs as: what we asked for, else the image's own user, whom only the image knows by number."""
        facts = self.observer.inspect(container)
        if facts is None:
            raise Refused(NOT_FOUND, "the container is gone")
        name, _, group = str(facts["Config"].get("User") or "0").partition(":")
        if name.isdigit():
            return Owner(int(name), int(group) if group.isdigit() else 0)
        known = (self.engine.get(container, "/etc/passwd") or b"").decode(errors="replace")
        parts = next((parts for line in known.splitlines() if (parts := line.split(":"))[0] == name), [])
        return Owner(int(parts[2]), int(parts[3])) if len(parts) > 3 else ROOT

    def _start(self, container: str) -> bool:
        """Start; false when it had been started before: the engine would start one that has ended a second time.

        One that starts and ends between the look and the call sees to that itself, see the starter.
        """
        was_asked = False

        def start() -> bool:
            nonlocal was_asked
            facts = self.observer.inspect(container)
            if facts is None and was_asked:
                return True  # that call has started it, and it has ended and removed itself since
            if facts and facts["State"]["Status"] != "created":
                return False
            already, was_asked = was_asked, True
            try:
                answer = self.engine.ask("POST", f"/containers/{container}/start")
            except Refused as error:
                if already and error.status == NOT_FOUND:
                    return True
                raise
            return bool(answer.status_code != NOT_MODIFIED)

        return sure(start)

    def _withdraw(self, container: str) -> None:
        """Remove what never ran, so that no job bears the name; one that does run after all stays, as does another's.

        Raises Unreachable while it is not known to be gone.
        """
        sure(lambda: self._remove_unstarted(container))

    def _remove_unstarted(self, container: str) -> None:
        facts = self.observer.inspect(container)
        if facts is None or facts["State"]["Status"] != "created":
            return
        if render.handle_of(self.observer.target, "", facts["Config"].get("Labels") or {}) is None:
            return
        try:
            self.engine.ask("DELETE", f"/containers/{facts['Id']}", params={"v": 1})
        except Refused as error:
            if is_in_doubt(error):
                raise
            if error.status != NOT_FOUND:
                raise _explained("the container could not be removed", error) from error

    def _settle_secrets(self, container: str) -> None:
        """Somebody else started the job; what we put may have come too late to be taken."""
        deadline = time.monotonic() + TAKEN_SECONDS
        while time.monotonic() < deadline:
            facts = self.observer.inspect(container)
            if facts is None:
                return
            is_over = facts["State"]["Status"] not in ("running", "paused", "restarting")
            if is_over or self.engine.has(container, f"{render.HOME}/{container_starter.TAKEN}"):
                forget_secrets(self.engine, container)
                return
            time.sleep(0.1)


def without(ids: Sequence[str], in_use: Sequence[gpus.Gpu]) -> list[str]:
    """Those of `ids` that a launch may have."""
    return [name for name in ids if name not in {gpu.number for gpu in in_use}]


def delivery(
    job: Mapping[str, str], labels: Mapping[str, str], files: Mapping[str, bytes], secrets: Mapping[str, str]
) -> list[TarEntry]:
    """What is put into a container before it starts; `job` says which and where it is.

    Secrets are in a file of their own, which the job removes.
    """
    home = render.HOME.lstrip("/")
    facts = {**job, "gpus": render.locks(labels), "locks": render.LOCKS}
    sent = {name: data for name, data in files.items() if name != render.BODY}
    entries = [
        TarEntry(home, None, 0o755),
        TarEntry(f"{home}/home", None, 0o700),
        TarEntry(f"{home}/{render.PROGRAM}", zipped(Path(container_starter.__file__), Path(gpu_locks.__file__)), 0o644),
        TarEntry(f"{home}/{container_starter.JOB}", json.dumps(facts).encode(), 0o644),
        *(TarEntry(f"{home}/{name}", data, 0o600) for name, data in sent.items()),
    ]
    # A volume belongs to root at first, and jobs of all users share this one.
    if labels[render.RESULTS].startswith(render.VOLUME_SCHEME):
        entries.append(TarEntry(render.VOLUME_RESULTS.lstrip("/"), None, 0o777))
    if secrets:
        folder = f"{home}/{container_starter.SECRETS}"
        own = f"{folder}/{tokens.token_hex(4)}.json"
        entries += [TarEntry(folder, None, 0o700), TarEntry(own, json.dumps(dict(secrets)).encode(), 0o600)]
    return entries


_REMEDIES = (
    (r"bind source path does not exist: (\S+)", "create it on the engine's host, or correct the path"),
    (r"no space left on device", "free space on the engine's host: docker system df shows what is used"),
    (r"exec format error", "use an image that is built for the processor of the engine's host"),
    (r'exec: "?/bin/sh"?', "use an image with a shell: the job is started by /bin/sh"),
    (r"executable file not found|no such file or directory", "check the image's entrypoint, and that it has a shell"),
    (r"Range of CPUs", "ask for fewer CPUs"),
    (r"Minimum memory limit", "ask for more memory"),
    (r"permission denied", "check the rights of the folders that are mounted into the job"),
    (r"network \S+ not found", "create the network, or name another one in DOCKER_NETWORK"),
)


def _explained(what: str, error: Refused) -> SubmitFailed:
    if why := devices.why_not(error):
        remedy = "install the NVIDIA container toolkit on the engine's host and restart Docker, or ask for --gpus 0"
        return SubmitFailed(f"{why}: {error.said}", remedy)
    remedy = next(
        (text for pattern, text in _REMEDIES if re.search(pattern, error.said)),
        "correct what the engine names, or look at its log: journalctl -u docker",
    )
    return SubmitFailed(f"{what}: {error.said}", remedy)
