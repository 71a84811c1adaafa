"""The SLURM driver: jobs on a cluster, launched and watched through one ssh connection to a login node."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from secrets import token_hex
from typing import Any

from pydantic import ValidationError

from prefect_tao.jobs.describing import command_text, spec_lines
from prefect_tao.jobs.errors import InvalidInput, Unreachable
from prefect_tao.jobs.finding import Finding
from prefect_tao.jobs.handle import JobHandle
from prefect_tao.jobs.naming import JobName, is_our_name
from prefect_tao.jobs.platform import Listing, LogChunk, Rendered, Replica
from prefect_tao.jobs.request import JobRequest
from prefect_tao.jobs.state import Observation
from prefect_tao.jobs.statusfile import Progress, parse_status
from prefect_tao.jobs.verdict import Category, Evidence, NodeEvent, Verdict, classify
from prefect_tao.platforms import logtext
from prefect_tao.platforms.base import GRACE_SECONDS, Denials, Driver
from prefect_tao.platforms.batching import Batcher
from prefect_tao.platforms.markers import kept_end, read_object
from prefect_tao.platforms.slurm import enroot, layout, probes
from prefect_tao.platforms.slurm.client import CALL_SECONDS, Account, Login
from prefect_tao.platforms.slurm.layout import Layout
from prefect_tao.platforms.slurm.observe import Judged, QueueAnswer, Wanted, judge, look_question, read_look
from prefect_tao.platforms.slurm.questions import Answer, question, read_answer
from prefect_tao.platforms.slurm.render import (
    batch_script,
    check_flags,
    check_shape,
    check_words,
    command_seconds,
    task_script,
    variables,
)
from prefect_tao.platforms.slurm.settings import SlurmSettings
from prefect_tao.platforms.slurm.submit import (
    Batch,
    Conversion,
    find_question,
    packed,
    program_digest,
    read_jobs,
    read_submits,
    submit_question,
)
from prefect_tao.runner.entrypoint import PLAN_FILE, entrypoint_for
from prefect_tao.runner.inside.schemes import local_path

SUBMIT_SECONDS = 300.0
POLL = (5.0, 60.0)
# What a job prints is in these two.
LOG_FILES = ("main.out", "main.err")


class SlurmPlatform(Driver):
    """Jobs on a cluster. Their truth is in SLURM and in their folders on the cluster's shared file system."""

    denial_seconds = 30.0
    # How long the queue must have denied a job that left nothing behind: shared file systems show news late.
    gone_seconds = 90.0

    def __init__(self, target: str, settings: SlurmSettings) -> None:
        check_flags(settings.extra_flags)
        check_words(settings)
        super().__init__(target)
        self.options = settings
        self.place = Layout(_base(settings.results_root))
        self.runs_bare = settings.allow_bare
        self.jobs_own_requests = True  # a job runs as the user whose folders they are in
        self.ends_idle_jobs = not settings.allow_s3_inputs
        self.poll_seconds = settings.pauses(POLL)
        self.conversion = Conversion(
            settings.sqsh_partition,
            settings.sqsh_minutes,
            settings.sqsh_memory_gb,
            settings.account,
            again=settings.force_reconvert_latest,
        )
        self.login = Login(
            Account(
                settings.user,
                tuple(settings.hostnames),
                settings.ssh_port,
                settings.ssh_key_path,
                settings.known_hosts,
            )
        )
        self._progress: dict[str, Progress | None] = {}
        self._since: dict[str, int] = {}
        self._denials = Denials()
        self._site = ""
        self._lost: set[str] = set()  # what was staged with secrets in it, and no answer said what became of it
        self._submits: Batcher[Batch, JobHandle] = Batcher(self._submit_all)
        self._finds: Batcher[str, list[JobHandle]] = Batcher(self._find_all)
        self._listings: Batcher[tuple[str, int, int, tuple[str, ...]], Listing] = Batcher(self._list_all)

    def take_credentials(self, credentials: Mapping[str, str]) -> None:
        """The passphrase of the key file."""
        if passphrase := credentials.get("SSH_KEY_PASSPHRASE"):
            self.login.account = replace(self.login.account, passphrase=passphrase)

    # -- launch --------------------------------------------------------------------------------------------------------

    def render(self, request: JobRequest, key: str, attempt: int) -> Rendered:
        """The batch script and all that lies beside it. Raises InvalidInput for a shape that no node has."""
        check_shape(request.resources, self.options)
        if not self.place.base:
            raise InvalidInput(
                f"{self.target} has no results folder",
                "give the block a folder of the cluster's shared file system: SLURM_BASE_RESULTS_DIR",
            )
        entrypoint = entrypoint_for(_on_cluster(request), grace=GRACE_SECONDS)
        env = {**variables(request, key, attempt, self.place, self.options), "TAO_TARGET": self.target}
        plan = {**entrypoint.plan, "env": env, "time_limit": command_seconds(request.resources, self.options)}
        script = batch_script(request, key, attempt, self.place, self.options)
        task = task_script(request, key, attempt, self.place, self.options, program_digest())
        files = {
            layout.HANDLE: json.dumps(self._handle_facts(request, key, attempt)).encode(),
            layout.REQUEST: request.model_dump_json().encode(),
            layout.SCRIPT: script.encode(),
            layout.TASK: task.encode(),
            PLAN_FILE: json.dumps(plan).encode(),
        }
        return Rendered(request, key, attempt, _text(request, script, task, env), files)

    def _handle_facts(self, request: JobRequest, key: str, attempt: int) -> dict[str, Any]:
        return {
            "key": key,
            "attempt": attempt,
            "results": self.place.results_of(key),
            "digest": request.digest,
            "labels": request.labels,
        }

    async def submit(self, rendered: Rendered, secrets: Mapping[str, str]) -> JobHandle:
        """Submit, in one trip with all others that are submitted now. Raises SubmitFailed, Unreachable."""
        return await self._submits.ask((rendered, secrets))

    async def submit_many(self, jobs: Iterable[Batch]) -> list[JobHandle]:
        """Submit any number of jobs in two trips; raises the first failure after all have been tried."""
        answers = await self._submit_all(list(jobs))
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer
        return [answer for answer in answers if isinstance(answer, JobHandle)]

    async def _submit_all(self, jobs: Sequence[Batch]) -> list[JobHandle | BaseException]:
        if not jobs:
            return []
        # Two may ask for one name at once.
        unique = {str(JobName(rendered.key, rendered.attempt)): (rendered, secrets) for rendered, secrets in jobs}
        incoming = f"{self.place.jobs}/{layout.INCOMING}{token_hex(8)}"
        images_of = {name: self._to_convert(rendered.request) for name, (rendered, _) in unique.items()}
        lost, seconds = list(self._lost), self.denial_seconds
        script = submit_question(self.place, incoming, images_of, self.conversion, seconds, lost, self._site)
        try:
            await self.login.put(f"{incoming}/batch.tgz", packed(unique))
            answer = await self.ask(script, SUBMIT_SECONDS + len(unique), again=False)
        except Unreachable:
            self._lost.add(incoming)
            raise
        self._lost.difference_update(lost)
        answers = read_submits(answer, unique, self.target, self.place, self.login.host)
        return [answers[str(JobName(rendered.key, rendered.attempt))] for rendered, _ in jobs]

    def _to_convert(self, request: JobRequest) -> str | None:
        image = request.image
        return image if image and self.options.use_sqsh and not enroot.is_file(image) else None

    # -- look ----------------------------------------------------------------------------------------------------------

    async def look(self, handles: Sequence[JobHandle]) -> dict[JobHandle, Observation]:
        """One look at all jobs, and one note for those that have just ended. Raises Unreachable."""
        look = await self._look(handles)
        if not look.has_base:
            raise Unreachable(f"{self.place.jobs} cannot be entered on {self.login.host}", "the jobs go on; look later")
        seen = {handle: found for handle in handles if (found := self._judge(handle, look))}
        if not look.queue_answers and not any(found.observation.state.terminal for found in seen.values()):
            raise Unreachable(f"squeue does not answer: {look.queue_words}", "the jobs go on; look again later")
        kept = await self._keep(seen)
        await self._cancel_surplus([id for found in seen.values() for id in found.surplus])
        return {
            handle: kept.get(handle.name, found.observation).model_copy(
                update={"progress": self._progress.get(handle.name)}
            )
            for handle, found in seen.items()
        }

    async def _look(self, handles: Sequence[JobHandle]) -> QueueAnswer:
        wanted = [Wanted(one.name, self._results(one), one.native_id, self._since.get(one.name, 0)) for one in handles]
        return read_look(await self.ask(look_question(self.place, wanted)))

    def _folder(self, handle: JobHandle) -> str:
        return self.place.job(handle.key, handle.attempt)

    def _results(self, handle: JobHandle) -> str:
        return handle.results or self.place.results_of(handle.key)

    def _judge(self, handle: JobHandle, look: QueueAnswer) -> Judged | None:
        name = handle.name
        if name in look.statuses:
            self._progress[name] = parse_status(look.statuses[name])
        self._since[name] = int(look.now) - 2  # what changed in this very second may change once more
        listed = not look.queue_answers or bool(look.rows_of(handle))
        denied_for = self._denials.seconds(handle, is_listed=listed)
        return judge(handle, look, self.options.use_requeue, denied_for, self.gone_seconds)

    async def _keep(self, seen: Mapping[JobHandle, Judged]) -> dict[str, Observation]:
        """Write new ends down; returns what stands there, which may be what another process has written first."""
        ends = {handle.name: found.observation.model_dump_json() for handle, found in seen.items() if found.keep}
        if not ends:
            return {}
        parts = [part for end in ends.items() for part in end]
        files = read_look(await self.ask(question("keep", jobs=self.place.jobs, ends=parts))).files
        kept = {name: kept_end(files.get((name, layout.END), text)) for name, text in ends.items()}
        return {name: end for name, end in kept.items() if end}

    async def _cancel_surplus(self, ids: Sequence[str]) -> None:
        if ids:
            await self.ask(question("surplus", jobs=self.place.jobs, ids=ids))

    async def replicas(self, handle: JobHandle) -> list[Replica]:
        """The job's nodes, one by one, as the queue shows them; the job itself as long as it has none."""
        rows = (await self._look([handle])).rows_of(handle)
        if not rows:
            return await super().replicas(handle)
        lists = (await self.ask(question("hosts", lists=[row.nodes for row in rows]))).all("hosts")
        return [
            Replica(name, row.state, row.reason, row.why)
            for row, (names,) in zip(rows, lists, strict=True)
            for name in names.split() or [handle.name]
        ]

    async def logs(self, handle: JobHandle, *, tail: int | None = None, since: str | None = None) -> LogChunk:
        """Output, then error output; the cursor holds a byte offset for each. Raises Unreachable."""
        offsets = [int(part) for part in (since or "0:0").split(":")]
        starts = map(str, offsets) if tail is None else "-" * len(LOG_FILES)
        answer = await self.ask(
            question(
                "logs",
                job=self._folder(handle),
                window=logtext.USUAL_LINE * (tail or 0) + logtext.ENDING,
                chunk=logtext.CHUNK,
                parts=[part for pair in zip(LOG_FILES, starts, strict=True) for part in pair],
            )
        )
        found = {file: (int(start), base64.b64decode(data)) for file, start, data in answer.all("log")}
        parts, cursor = [], []
        for name, offset in zip(LOG_FILES, offsets, strict=True):
            start, data = found.get(name, (offset, b""))
            text, offset = logtext.chunk(start, data, tail)
            parts.append(text)
            cursor.append(str(offset))
        return LogChunk("".join(parts), ":".join(cursor))

    async def diagnose(self, handle: JobHandle) -> Verdict:
        """Why the job ended, from SLURM, its marker and its logs. Raises Unreachable."""
        seen = await self.seen(handle)
        path = f"{self._results(handle)}/attempts/{handle.attempt}.json"
        answer = await self.ask(question("evidence", job=self._folder(handle), record=path, ending=logtext.ENDING))
        record = read_object(answer.data("record")) or {}
        same = record.get("native_id") in ("", None, answer.text("id"))
        down, used = answer.text("nodes").split(), answer.text("hosts").split()
        # SLURM may not list the node as down yet, or not any more; where there was but one, it is the one.
        failed = down or (used if seen.native_state == "NODE_FAIL" and len(used) == 1 else [])
        verdict = classify(
            Evidence(
                exit_code=seen.exit_code,
                ended_by=seen.ended_by,
                native_state=seen.native_state,
                reason=seen.reason,
                phase=str(record.get("phase") or "") if same and "ended" in record else "",
                runner_error=str(record.get("error") or "") if same else "",
                log_tail=answer.data("log").decode(errors="replace"),
                node_events=tuple(
                    NodeEvent(name=seen.native_state, message=f"node {node} is down", node=node) for node in failed
                ),
            )
        )
        if verdict.category in (Category.NODE_FAILURE, Category.GPU_FAILURE):
            await self._note_bad_nodes(handle, down, used)
        return verdict

    async def _note_bad_nodes(self, handle: JobHandle, down: Sequence[str], used: Sequence[str]) -> None:
        """So that the next attempt is not sent to a node that has just failed; of several it is not known which."""
        if bad := down or (used if len(used) == 1 else ()):
            await self.ask(question("avoid", job=self._folder(handle), nodes=bad))

    # -- end -----------------------------------------------------------------------------------------------------------

    async def ask_to_end(self, handles: Sequence[JobHandle]) -> None:
        """A note beside each job, and one scancel for all; SLURM itself kills what does not end. Raises Unreachable."""
        await self.ask(question("cancel", jobs=self.place.jobs, names=[handle.name for handle in handles]))

    # -- find ----------------------------------------------------------------------------------------------------------

    async def site(self) -> str:
        """The cluster by its name, and the user, whose jobs alone the queue is asked for. Raises Unreachable."""
        if not self._site:
            await self.ask(question("site", site=""))
        if not self._site:
            raise Unreachable("scontrol does not say which cluster this is", "the jobs go on; look again later")
        return self._site

    async def find(self, keys: Sequence[str]) -> dict[str, list[JobHandle]]:
        """Every attempt that SLURM, the job folders or the results know. Raises Unreachable."""
        return dict(zip(keys, await asyncio.gather(*(self._finds.ask(key) for key in keys)), strict=True))

    async def _find_all(self, keys: Sequence[str]) -> list[list[JobHandle] | BaseException]:
        answer = await self.ask(find_question(self.place, list(dict.fromkeys(keys)), self._site))
        found: dict[str, dict[int, JobHandle]] = {key: {} for key in keys}
        for handle in read_jobs(answer, self.target, self.place, self.login.host):
            if handle.key in found:
                found[handle.key].setdefault(handle.attempt, handle)
        return [[found[key][attempt] for attempt in sorted(found[key])] for key in keys]

    async def jobs(self, labels: Mapping[str, str] | None = None) -> list[JobHandle]:
        """Our jobs below the base folder, newest first. Raises Unreachable."""
        wanted = (labels or {}).items()
        answer = await self.ask(find_question(self.place, None, self._site))
        found = list(read_jobs(answer, self.target, self.place, self.login.host))
        far = await self.elsewhere(found)
        mine = [handle for handle in found if handle not in far and wanted <= handle.labels.items()]
        return sorted(mine, key=lambda handle: int(handle.native_id.split("_")[0]), reverse=True)

    async def in_flight(self) -> int:
        """How many of our jobs the queue holds for this user. Raises Unreachable."""
        ((code, names),) = (await self.ask(question("count"))).all("queue")
        if code != "0":
            raise Unreachable(f"squeue does not answer: {names.strip()[:200]}", "look again later")
        return sum(is_our_name(name) for name in names.split())

    async def request_of(self, handle: JobHandle) -> JobRequest | None:
        """What the job was asked to do, as it lies in its folder."""
        data = await self._read(f"{self._folder(handle)}/{layout.REQUEST}", 64 << 20)
        try:
            return JobRequest.model_validate_json(data) if data else None
        except ValidationError:
            return None

    # -- paths ---------------------------------------------------------------------------------------------------------

    async def check_path(self, uri: str) -> bool:
        """Whether the path exists, seen from the login node. Raises Unreachable."""
        return "yes" in await self.ask(question("exists", path=local_path(uri)))

    async def list_path(self, uri: str) -> list[str]:
        """What is in a folder, seen from the login node. Raises InvalidInput, Unreachable."""
        path = local_path(uri).rstrip("/") or "/"
        answer = await self.ask(question("folder", path=path))
        if "missing" in answer:
            raise InvalidInput(f"{path} does not exist on {self.login.host}", "correct the path")
        if "denied" in answer:
            raise InvalidInput(f"{path} cannot be read on {self.login.host}", "check the rights of the folder")
        return sorted(f"{name}/" if kind == "d" else name for kind, name in answer.all("entry"))

    async def list_files(self, uri: str, depth: int, limit: int, skip: Collection[str]) -> Listing:
        """All files below a folder, in one trip with what others ask for now. Raises Unreachable."""
        return await self._listings.ask((local_path(uri), depth, limit, tuple(skip)))

    async def within(self, folder: str, paths: Sequence[str]) -> list[str]:
        """All of them: the lists hold no links, and a job has read what its user can read."""
        return list(paths)

    async def _list_all(
        self, questions: Sequence[tuple[str, int, int, tuple[str, ...]]]
    ) -> list[Listing | BaseException]:
        trees = [
            part
            for path, depth, limit, skip in questions
            # One more than is wanted shows that there are more.
            for part in (path, str(depth), str(limit + 1), str(len(skip)), *skip)
        ]
        found: list[tuple[list[str], set[str]]] = []
        for word, fields in await self.ask(question("trees", trees=trees)):
            if word == "tree":
                found.append(([], set()))
            elif word == "file":
                found[-1][0].extend(fields)
            else:
                found[-1][1].add(word)
        return [
            Listing(tuple(sorted(files[:limit])), len(files) <= limit and "all" in words)
            for (files, words), (_, _, limit, _) in zip(found, questions, strict=True)
        ]

    async def read_path(self, uri: str, limit: int) -> bytes:
        """The first `limit` bytes of a file there. Raises InvalidInput, Unreachable."""
        data = await self._read(local_path(uri), limit)
        if data is None:
            raise InvalidInput(f"{local_path(uri)} cannot be read on {self.login.host}", "correct the path")
        return data

    async def _read(self, path: str, limit: int) -> bytes | None:
        answer = await self.ask(question("head", path=path, limit=limit))
        return answer.data("data") if "data" in answer else None

    # -- the rest ------------------------------------------------------------------------------------------------------

    async def all_gpus(self, image: str | None = None) -> int | None:
        """What a node of the partition has, as the block says."""
        return self.options.max_gpus_per_node

    async def own_login(self) -> str:
        """The first key file, or other way to log in, that ~/.ssh/config has for a login node."""
        with suppress(Unreachable):
            for host in self.login.account.hosts:
                last = (await asyncio.to_thread(self.login.connection(host).routes))[-1]
                if last.keys or last.beyond:
                    return str(last.keys[0]) if last.keys else last.beyond
        return ""

    async def probe(self, request: JobRequest | None = None) -> list[Finding]:
        """Whether jobs can be launched there, and this one. Nothing is left behind."""
        return await probes.probe(self, request)

    async def ask(self, script: str, seconds: float = CALL_SECONDS, *, again: bool = True) -> Answer:
        """What a login node answers to a question. With `again` it is repeated once; raises Unreachable."""
        answer = read_answer(await self.login.run(script, seconds, again=again))
        self._site = self._site or answer.text("site")
        return answer

    async def close(self) -> None:
        """Let go of the connection; jobs go on."""
        await self.login.close()

    def settings(self) -> dict[str, Any]:
        """What a person may see of this cluster."""
        account = self.login.account
        return {
            "target": self.target,
            "login": f"{account.user}@{','.join(account.hosts)}" + (f":{account.port}" if account.port else ""),
            "partition": self.options.partition,
            "base": self.place.base,
        }


def _base(results_root: str | None) -> str:
    base = local_path(results_root or "").rstrip("/")
    if base and not base.startswith("/"):
        raise InvalidInput(
            f"the results folder {results_root!r} is not an absolute path", "write it as /lustre/team/me, say"
        )
    # Neither SLURM's own file names nor the mounts of a container can hold these.
    if any(character in base for character in "\n\\:,"):
        raise InvalidInput(f"the results folder {results_root!r} holds one of \\ : , or a line break", "choose another")
    return base


def _on_cluster(request: JobRequest) -> JobRequest:
    # {python} names the interpreter of this machine, which the cluster does not have.
    return request.model_copy(update={"command": request.command.replace("{python}", "python3")})


def _text(request: JobRequest, script: str, task: str, env: Mapping[str, str]) -> str:
    lines = [script, f"# {layout.TASK}, on every node:", *task.splitlines(), "# variables:"]
    lines += [f"#   {name}={value!r}" for name, value in sorted(env.items())]
    lines += [f"# secrets by name: {', '.join(request.secrets)}"] if request.secrets else []
    lines += [*spec_lines(request), "# the command:", *(f"#   {line}" for line in command_text(request).splitlines())]
    return "\n".join([*lines, ""])
