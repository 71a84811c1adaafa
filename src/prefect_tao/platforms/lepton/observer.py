"""Looks at the jobs of one workspace: its list, what runners wrote among the results, and logs while they are there."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel, ValidationError

from prefect_tao.jobs.errors import InvalidInput, MissingDependency, Unreachable
from prefect_tao.jobs.handle import JobHandle
from prefect_tao.jobs.platform import LogChunk
from prefect_tao.jobs.state import JobState, Observation
from prefect_tao.platforms import markers, site_notes, stamped_logs
from prefect_tao.platforms.base import Denials
from prefect_tao.platforms.files import BucketFiles
from prefect_tao.platforms.lepton import observe
from prefect_tao.platforms.lepton.client import EVERYTHING, LeptonWorkspace
from prefect_tao.platforms.lepton.observe import LeptonRow, oldest
from prefect_tao.platforms.lepton.render import KEY, handle_of, results_of, site
from prefect_tao.platforms.logtext import last_lines
from prefect_tao.platforms.progress import ProgressReader
from prefect_tao.storage.known_schemes import is_seen

GONE_SECONDS = 60.0
# How many jobs are asked about one by one at each look: those that do not start, and those whose log is collected.
IN_TURN = 4
TAIL_LINES = 2000
MOST_TEXT = 1 << 18
SECOND = 1_000_000_000
LIVE_SECONDS = 1.0
NOT_SEEN = (InvalidInput, MissingDependency)
# How long a worker may say that it cannot start where it is; then the job is stopped, and tried elsewhere.
STUCK_SECONDS = {"ConfigError": 300.0, "Failed": 600.0}


class StuckNote(BaseModel):
    """Why a job was stopped that could not start, and where that was."""

    issue: str
    nodes: list[str] = []
    group: str = ""  # the node group that had no room, as the block calls it


@dataclass
class LeptonObserver:
    """What is known of jobs. Methods block; they raise Unreachable, and nothing is known then."""

    workspace: LeptonWorkspace
    target: str
    bucket: BucketFiles = field(default_factory=BucketFiles)
    _denials: Denials = field(default_factory=Denials)
    _progress: ProgressReader = field(default_factory=ProgressReader)
    _before: dict[JobHandle, JobState] = field(default_factory=dict)
    _issues: dict[str, str] = field(default_factory=dict)  # asked for last is last in line
    _stuck_since: dict[str, float] = field(default_factory=dict)
    _given_up: dict[str, StuckNote] = field(default_factory=dict)
    _texts: dict[str, tuple[str, str]] = field(default_factory=dict)  # cursor and end of the logs that were collected

    # -- the list ------------------------------------------------------------------------------------------------------

    def named(self, name: str) -> list[LeptonRow]:
        """All jobs of exactly this name, archived ones too."""
        return [row for row in self.workspace.jobs(EVERYTHING, part=name) if row.name == name]

    def of_keys(self, keys: Collection[str]) -> list[LeptonRow]:
        """All jobs of some keys, in one list for one key and in one for any number."""
        label = f"{KEY}={next(iter(keys))}" if len(keys) == 1 else ""
        found = self.workspace.jobs(EVERYTHING, **({"label": label} if label else {}))
        return [row for row in found if (one := handle_of(self.target, row.raw)) and one.key in keys]

    def handle(self, row: LeptonRow) -> JobHandle | None:
        """The handle of a listed job."""
        handle = handle_of(self.target, row.raw)
        return handle.model_copy(update={"site": site(self.workspace.settings)}) if handle else None

    def unseen(self, key: str, attempt: int = 1) -> JobHandle:
        """The handle of an attempt in this workspace of which nothing is known yet."""
        settings = self.workspace.settings
        results = results_of(key, settings)
        return JobHandle(target=self.target, key=key, attempt=attempt, site=site(settings), results=results)

    # -- notes of sites: mounts are out of reach -----------------------------------------------------------------------

    def leave_note(self, handle: JobHandle) -> None:
        """Note in storage that the attempt is this workspace's. Raises Elsewhere where another site was first."""
        if is_seen(handle.results):
            site_notes.leave(self.bucket, handle)

    def drop_note(self, handle: JobHandle) -> None:
        """Take the note back: there is no job."""
        if is_seen(handle.results):
            site_notes.drop(self.bucket, handle)

    def noted_elsewhere(self, keys: Sequence[JobHandle]) -> list[JobHandle]:
        """The attempts of some keys that other sites have noted in storage."""
        try:
            return site_notes.others(self.bucket, [one for one in keys if is_seen(one.results)])
        except NOT_SEEN:
            return []

    # -- looking -------------------------------------------------------------------------------------------------------

    def look(self, handles: Sequence[JobHandle]) -> dict[JobHandle, Observation]:
        """Every job as it is now; left out is what nothing is known of yet."""
        by_name: dict[str, list[LeptonRow]] = {}
        for row in self.workspace.jobs():
            by_name.setdefault(row.name, []).append(row)
        found: dict[JobHandle, LeptonRow] = {}
        seen: dict[JobHandle, Observation] = {}
        for handle in handles:
            if own := self._own(handle, by_name.get(handle.name, [])):
                found[handle] = own
            elif one := self._absent(handle):
                seen[handle] = one
        self._ask_in_turn(found)
        for handle, row in found.items():
            if one := self._seen(handle, row):
                seen[handle] = one
                self._before[handle] = one.state
        for handle, progress in self._progress_of(seen):
            seen[handle] = seen[handle].model_copy(update={"progress": progress})
        return seen

    def _own(self, handle: JobHandle, named: Sequence[LeptonRow]) -> LeptonRow | None:
        """The job that has the name; what is not alive any more is asked for by itself."""
        if not named:
            one = self.workspace.job(handle.native_id) if handle.native_id else None
            named = [one] if one else [] if handle.native_id else self.named(handle.name)
        row = self.bearer(handle, named)
        self._denials.seconds(handle, is_listed=row is not None)
        return row

    def bearer(self, handle: JobHandle, named: Sequence[LeptonRow]) -> LeptonRow | None:
        """Of the jobs with one name the one that claimed it, until then the oldest. Others that wait are stopped."""
        if not named or (len(named) == 1 and not self._may_be_away(handle, named[0])):
            return named[0] if named else None
        claimed = self.claimed(handle, named)
        if claimed is None:
            return oldest([row for row in named if not row.is_over] or named)
        for row in named:
            if row.id != claimed and row.job_state is JobState.PENDING:
                self.workspace.stop(row.id)
        return next((row for row in named if row.id == claimed), None) or self.workspace.job(claimed)

    def _may_be_away(self, handle: JobHandle, row: LeptonRow) -> bool:
        """Whether a job that ended well may have done so because another one has its name."""
        return row.job_state is JobState.COMPLETE and self._record(handle, row) is None

    def claimed(self, handle: JobHandle, named: Sequence[LeptonRow]) -> str | None:
        """The id of the job that claimed the name, beside the results or by what another one printed."""
        if is_seen(handle.results):
            data = self._kept(f"{handle.results}/attempts/{handle.attempt}.claim")
            return data.decode(errors="replace").strip() if data else None
        for row in named:
            if row.job_state is JobState.COMPLETE and (holder := observe.turned_away_by(self.tail(row, 50))):
                return holder
        return None

    def _seen(self, handle: JobHandle, row: LeptonRow) -> Observation | None:
        if not row.is_over:
            return observe.seen(row, issue=self._issues.get(row.id, ""), before=self._before.get(handle))
        try:
            record = self._record(handle, row)
        except Unreachable:
            return None  # how it ended is among the results, which do not answer now
        self.collect(row)
        for name in row.secrets:
            self.workspace.forget_secret(name)
        if row.job_state is JobState.CANCELED and record is None and (note := self.stuck_note(handle)):
            return observe.stuck(row, note.issue)
        return observe.seen(row, record)

    def _absent(self, handle: JobHandle) -> Observation | None:
        """A job that the workspace denies: its record tells how it ended, else time does."""
        record = self.record(handle)
        if markers.has_ended(record) or self._denials.seconds(handle) >= GONE_SECONDS:
            return observe.gone(record)
        return None

    def _ask_in_turn(self, found: Mapping[JobHandle, LeptonRow]) -> None:
        """Closer questions, a few at each look: why jobs do not start, and what running ones have printed."""
        alive = {row.id: row for row in found.values() if not row.is_over}
        self._issues = {id: text for id, text in self._issues.items() if id in alive}
        stuck = [id for id, row in alive.items() if row.job_state is JobState.PENDING]
        for id in sorted(stuck, key=lambda one: list(self._issues).index(one) if one in self._issues else -1)[:IN_TURN]:
            self._issues.pop(id, None)
            row, is_queued = alive[id], alive[id].state == "Queueing"
            replicas = None if is_queued else self.workspace.about(id, "replicas")
            self._issues[id] = observe.IN_QUEUE if is_queued else observe.explained(replicas)
            handle = next(one for one in found if found[one].id == id)
            if self._issues[id].startswith(observe.NO_ROOM):
                self._leave_full(handle, row)
            else:
                self._end_stuck(handle, row, replicas)
        running = [row for row in alive.values() if row.job_state is JobState.RUNNING]
        for row in sorted(running, key=lambda one: list(self._texts).index(one.id) if one.id in self._texts else -1)[
            :IN_TURN
        ]:
            self.collect(row)

    def _end_stuck(self, handle: JobHandle, row: LeptonRow, replicas: Any) -> None:
        """Stop a job that will never start on its node, once that is noted: it is no cancellation of a person."""
        issue = self._issues[row.id]
        patience = STUCK_SECONDS.get(issue.partition(":")[0])
        since = self._stuck_since.setdefault(row.id, time.monotonic())
        if patience is None:
            del self._stuck_since[row.id]
        elif time.monotonic() - since >= patience:
            self._give_up(handle, row, StuckNote(issue=issue, nodes=observe.bad_nodes(replicas)))

    def _leave_full(self, handle: JobHandle, row: LeptonRow) -> None:
        """Stop a job that has waited long enough for room, where a node group is left to try; else it stays in line."""
        minutes = self.workspace.settings.capacity_minutes
        is_late = time.time() - row.created / 1000 >= 60 * minutes
        own, *others = self.open_groups(handle) or [""]
        if others and is_late:
            issue = f"{self._issues[row.id]}; {own} had none for {minutes:g} minutes, {others[0]} is next"
            self._give_up(handle, row, StuckNote(issue=issue, group=own))
        elif others:
            self._issues[row.id] += f"; after {minutes:g} minutes it is sent to {others[0]}"
        elif is_late:
            self._issues[row.id] += "; the block names no other node group to try, so it stays in line"

    def _give_up(self, handle: JobHandle, row: LeptonRow, note: StuckNote) -> None:
        """Stop a job, once it is noted why."""
        if is_seen(handle.results):
            self.bucket.put_first(_stuck_place(handle), note.model_dump_json().encode())
        self._given_up[handle.name] = note
        self.workspace.stop(row.id)

    def open_groups(self, handle: JobHandle) -> list[str]:
        """The node groups that are left for an attempt, its own first; all of them where all had no room before."""
        named = self.workspace.settings.node_groups
        full = {note.group for note in self.earlier_notes(handle)} if len(named) > 1 else set()
        return [name for name in named if name not in full] or named

    def earlier_notes(self, handle: JobHandle) -> list[StuckNote]:
        """Why earlier attempts were stopped that could not start."""
        earlier = (handle.model_copy(update={"attempt": number}) for number in range(1, handle.attempt))
        return [note for one in earlier if (note := self.stuck_note(one))]

    def stuck_note(self, handle: JobHandle) -> StuckNote | None:
        """Why we stopped the job; None for one that we did not."""
        if handle.name in self._given_up or not is_seen(handle.results):
            return self._given_up.get(handle.name)
        try:
            return StuckNote.model_validate_json(self._kept(_stuck_place(handle)) or b"")
        except ValidationError:
            return None

    # -- what runners wrote --------------------------------------------------------------------------------------------

    def record(self, handle: JobHandle, id: str = "") -> dict[str, Any] | None:
        """The attempt's record among the results; None where there is none that can be looked into."""
        if not is_seen(handle.results):
            return None
        found = markers.read_record(self._kept(f"{handle.results}/attempts/{handle.attempt}.json"))
        return found if found and markers.is_of(found, id, handle.site) else None

    def _record(self, handle: JobHandle, row: LeptonRow) -> dict[str, Any] | None:
        """As `record`; where results are on a mount, the runner has printed its end."""
        return (
            self.record(handle, row.id) if is_seen(handle.results) else observe.end_in_log(self.tail(row, TAIL_LINES))
        )

    def _kept(self, place: str) -> bytes | None:
        try:
            return self.bucket.read(place, markers.MAX_RECORD)
        except NOT_SEEN:
            return None  # who has no keys to the results sees what Lepton tells

    def attempts(self, results: Sequence[str]) -> dict[str, list[int]]:
        """The attempts that left a record among each of some results."""
        folders = [f"{one}/attempts" for one in results if is_seen(one)]
        try:
            found = self.bucket.names(folders) if folders else {}
        except NOT_SEEN:
            return {}
        return {
            folder.rpartition("/")[0]: sorted(
                int(stem) for name in names if name.endswith(".json") and (stem := name[:-5]).isdigit()
            )
            for folder, names in found.items()
        }

    def _progress_of(self, seen: Mapping[JobHandle, Observation]) -> Iterator[tuple[JobHandle, Any]]:
        """How far the jobs are; what cannot be looked into has no progress."""
        begun = {one.results: one for one in seen if is_seen(one.results) and seen[one].state is not JobState.PENDING}
        ended = {folder for folder, handle in begun.items() if seen[handle].state.terminal}
        try:
            self._progress.refresh(self.bucket, list(begun), ended)
        except (Unreachable, *NOT_SEEN):
            return
        for folder, handle in begun.items():
            if progress := self._progress.of(folder):
                yield handle, progress

    # -- logs ----------------------------------------------------------------------------------------------------------

    def row(self, handle: JobHandle) -> LeptonRow | None:
        """The job itself."""
        one = self.workspace.job(handle.native_id) if handle.native_id else None
        named = [one] if one and not is_seen(handle.results) else self.named(handle.name) or ([one] if one else [])
        return self.bearer(handle, named)

    def after(self, row: LeptonRow, since: str | None) -> LogChunk:
        """All that was collected after a cursor, in whole lines, at most so much at once."""
        cursor = stamped_logs.Cursor.parse(since)
        start = cursor.anchor or (row.created - 1000) * 1_000_000
        return stamped_logs.after(self.workspace.lines_from(row.id, start, _soon()), cursor)

    def ending(self, row: LeptonRow, tail: int) -> LogChunk:
        """The last lines; of a job that has none any more, what was collected while it ran."""
        start = (row.created - 1000) * 1_000_000
        found = self.workspace.lines(row.id, start, _soon(), max(tail, 1), backward=True)
        if found:
            return stamped_logs.ending(found, tail)
        kept = self._texts.get(row.id, ("", ""))[1]
        text = kept if kept or row.is_over else self._live(row)
        return LogChunk(last_lines(text, tail), str(stamped_logs.Cursor()))

    def tail(self, row: LeptonRow, lines: int) -> str:
        """The last lines as text."""
        return self.ending(row, lines).text

    def collect(self, row: LeptonRow) -> None:
        """Keep the end of a log, because Lepton forgets logs soon after their jobs are over."""
        cursor, text = self._texts.pop(row.id, ("", ""))
        self._texts[row.id] = (cursor, text)
        try:
            chunk = self.after(row, cursor) if text else self.ending(row, TAIL_LINES)
        except Unreachable:
            return
        self._texts[row.id] = (chunk.cursor, (text + chunk.text)[-MOST_TEXT:])

    def _live(self, row: LeptonRow) -> str:
        """What the first worker prints right now, before any of it is collected."""
        names = [name for name, _, _ in observe.issues(self.workspace.about(row.id, "replicas")) if name]
        return self.workspace.live_text(row.id, names[0], LIVE_SECONDS) if names else ""


def _stuck_place(handle: JobHandle) -> str:
    return f"{handle.results}/attempts/{handle.attempt}.stuck"


def _soon() -> int:
    """The end of what can have been collected by now, with room for clocks that differ."""
    return time.time_ns() + 60 * SECOND
