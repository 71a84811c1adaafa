"""A workspace as the real `leptonai` client reaches it, with what that lacks: patience, timeouts and an end to paging.

The client is loaded when it is first used. It retries nothing, follows pages for as long as a server answers, hides
rows that it does not understand, and loses a log that is cut inside a character; so answers are read here, raw.
"""

from __future__ import annotations

import codecs
import os
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

from prefect_tao.jobs.errors import InvalidInput, MissingDependency, SubmitFailed, Unreachable
from prefect_tao.platforms.doubt import LONGEST_PAUSE, TOO_MANY_REQUESTS, is_doubt
from prefect_tao.platforms.lepton.observe import LeptonRow, rows
from prefect_tao.platforms.lepton.render import OURS
from prefect_tao.platforms.lepton.settings import LeptonSettings
from prefect_tao.platforms.stamped_logs import LogEntry

T = TypeVar("T")
GATEWAY = "https://gateway.dgxc-lepton.nvidia.com/api/v2/workspaces"
CONNECT_SECONDS, READ_SECONDS = 5.0, 30.0
TRIES, PAUSES = 3, (0.2, 0.8)
PAGE, MOST_PAGES = 500, 200
# A page with so few rows is the last one, even where a server gives out fewer at once than it is asked for.
FEW = 50
LINES = 10_000
UNAUTHORIZED, FORBIDDEN, NOT_FOUND, CONFLICT = 401, 403, 404, 409
EVERYTHING, ALIVE = "alive_and_archive", "alive_only"
_loading = threading.Lock()


class NotTaken(Exception):
    """Lepton said no, in words of its own."""

    def __init__(self, status: int, said: str) -> None:
        super().__init__(f"{said} ({status})")
        self.status, self.said = status, said


SINCE = "prefect-tao-since-"


class LeptonWorkspace:
    """Asks one workspace. Methods block; they raise Unreachable where there is no answer, and NotTaken for a no."""

    def __init__(self, settings: LeptonSettings) -> None:
        check_workspace(settings)
        self.settings = settings
        self.token = ""
        self.url = settings.workspace_url or f"{GATEWAY}/{settings.workspace_id}"
        self.sleep: Callable[[float], object] = time.sleep
        self._client: Any = None

    @property
    def client(self) -> Any:
        """The real client. Raises Unreachable without a token, MissingDependency without the package."""
        if not self.token:
            raise Unreachable(
                f"there is no token for the workspace {self.settings.workspace_id}",
                "set LEPTON_AUTH_TOKEN, or save it in the block: prefect-tao setup lepton",
                retryable=False,
            )
        with _loading:
            if self._client is None or self._client.auth_token != self.token:
                self._client = _made(self.settings, self.url, self.token)
            return self._client

    # -- asking --------------------------------------------------------------------------------------------------------

    def get(self, path: str, **params: Any) -> Any:
        """What is at `path`, as JSON."""
        return self._patiently(lambda: self._ask("get", path, params=params))

    def change(self, method: str, path: str, **words: Any) -> Any:
        """A change that may be made twice without harm."""
        return self._patiently(lambda: self._ask(method, path, **words))

    def create(self, body: Mapping[str, Any]) -> LeptonRow | None:
        """One request for a new job, never repeated: each one that arrives makes a job. None where the answer is odd.

        Raises NotTaken, SubmitFailed for what the client itself refuses, NotNow, and Unreachable when nobody knows.
        """
        client = self.client
        from leptonai.api.v2.job_validation import validate_job_create  # type: ignore[import-untyped, unused-ignore]
        from leptonai.api.v2.types.job import LeptonJob  # type: ignore[import-untyped, unused-ignore]

        try:
            job = LeptonJob(**body)
            validate_job_create(job)
        except ValueError as error:
            raise SubmitFailed(f"Lepton's client refuses the job: {error}", "correct what it names") from None
        with _quiet():
            sent = client.job.safe_json(job)
        return LeptonRow.read(self._ask("post", "/jobs", json=sent))

    def _patiently(self, ask: Callable[[], T]) -> T:
        """Ask again after an answer that says nothing, as soon as the server wants that."""
        for pause in PAUSES:
            try:
                return ask()
            except _Doubt as error:
                if not error.retryable:
                    raise
                self.sleep(min(error.wait or pause, LONGEST_PAUSE))
        return ask()

    def _ask(self, method: str, path: str, **words: Any) -> Any:
        client = self.client
        import requests  # type: ignore[import-untyped, unused-ignore]

        try:
            answer = getattr(client, f"_{method}")(path, timeout=(CONNECT_SECONDS, READ_SECONDS), **words)
            status, text = answer.status_code, answer.text
        except requests.RequestException as error:
            raise _Doubt(self._lost(f"{type(error).__name__}"), "check the network and the API address") from error
        if status == TOO_MANY_REQUESTS:
            raise NotNow(self._lost("it takes no more requests now"), "try again in a while", _wait(answer.headers))
        if is_doubt(status):
            raise _Doubt(self._lost(f"it answered {status}"), "try again in a while", wait=_wait(answer.headers))
        if status in (UNAUTHORIZED, FORBIDDEN):
            raise self._denied(status, answer)
        if status >= 400:
            raise NotTaken(status, _said(answer))
        if not text.strip():
            return None
        try:
            return answer.json()
        except ValueError:
            raise _Doubt(self._lost("its answer is not JSON"), "check the API address of the workspace") from None

    def _lost(self, why: str) -> str:
        return f"Lepton did not answer for the workspace {self.settings.workspace_id}: {why}"

    def _denied(self, status: int, answer: Any) -> Exception:
        """A token that is refused stays refused; what the token's owner may not do is a plain no."""
        if status == FORBIDDEN:
            return NotTaken(status, _said(answer))
        return Unreachable(
            f"Lepton refuses the token for the workspace {self.settings.workspace_id} ({_said(answer)})",
            "create a new one in the workspace's settings and set LEPTON_AUTH_TOKEN, or save it in the block",
            retryable=False,
        )

    # -- jobs ----------------------------------------------------------------------------------------------------------

    def jobs(self, mode: str = ALIVE, part: str = "", label: str = OURS) -> list[LeptonRow]:
        """All our jobs whose name holds `part` and that carry `label`, page by page, however the server counts."""
        params = {"job_query_mode": mode, "query": label, "page_size": PAGE} | ({"q": part} if part else {})
        found: dict[str, LeptonRow] = {}
        for page in range(1, MOST_PAGES + 1):
            listed = self._patiently(lambda: self._page(page=page, **params))  # noqa: B023 - called at once
            fresh = {row.id: row for row in listed if row.id not in found}
            found |= fresh
            if not fresh or len(listed) < FEW:  # the end, or a server that gives out one page for ever
                break
        return [row for row in found.values() if OURS in ((row.raw.get("metadata") or {}).get("labels") or {})]

    def _page(self, **params: Any) -> list[LeptonRow]:
        """One page. What is no list must not pass for an empty one: a job that is not listed may be made again."""
        found = rows(self._ask("get", "/jobs", params=params))
        if found is None:
            raise _Doubt(self._lost("its answer is no list of jobs"), "check the API address of the workspace")
        return found

    def job(self, id: str) -> LeptonRow | None:
        """One job, archived ones too; None when the workspace has none of that id."""
        return self._or_none(lambda: LeptonRow.read(self.get(f"/jobs/{id}", job_query_mode=EVERYTHING)))

    def about(self, id: str, what: str) -> Any:
        """What the client has no call for, or shortens: replicas, events, failure-analysis; None if there is none."""
        return self._or_none(lambda: self.get(f"/jobs/{id}/{what}", job_query_mode=EVERYTHING))

    def stop(self, id: str) -> None:
        """Ask for the end of a job; what is not there needs none."""
        self._or_none(lambda: self.change("patch", f"/jobs/{id}", json={"spec": {"stopped": True}}))

    @staticmethod
    def _or_none(ask: Callable[[], T]) -> T | None:
        try:
            return ask()
        except NotTaken as error:
            if error.status != NOT_FOUND:
                raise
            return None

    # -- secrets -------------------------------------------------------------------------------------------------------

    def keep_secrets(self, values: Mapping[str, str]) -> None:
        """Keep values in the workspace under these names, for their owner alone; a tag says since when."""
        own = {"visibility": "private", "tags": [f"{SINCE}{int(time.time())}"]}
        items = [{"name": name, "value": value, **own} for name, value in values.items()]
        if items:
            self.change("post", "/usersecrets", json=items)

    def forget_secret(self, name: str) -> None:
        """Remove one; it may be gone already."""
        self._or_none(lambda: self.change("delete", f"/usersecrets/{name}"))

    def secrets(self) -> dict[str, float]:
        """The names of all that are kept there, with how many seconds ours are old; others are of no age."""
        listed = [one for one in self.get("/usersecrets") or () if isinstance(one, dict) and "name" in one]
        return {str(one["name"]): _age(one.get("tags")) for one in listed}

    # -- logs ----------------------------------------------------------------------------------------------------------

    def lines(self, id: str, start: int, end: int, limit: int = LINES, backward: bool = False) -> list[LogEntry]:
        """Lines that were collected in [start, end), in nanoseconds, in order; with `backward` the last ones."""
        params = {"start": max(start, 1), "end": end, "timestamps": True, "limit": limit, "job": id, "q": ""}
        direction = "backward" if backward else "forward"
        ask = self._or_none(lambda: self.get("/logs", job_query_mode=EVERYTHING, direction=direction, **params))
        streams = ((ask or {}).get("data") or {}).get("result") or [] if isinstance(ask, dict) else []
        found = [
            LogEntry(int(moment), f"{line}\n".encode())
            for stream in streams
            for moment, line in stream.get("values") or ()
        ]
        return sorted(found, key=lambda entry: entry.moment)

    def lines_from(self, id: str, start: int, end: int) -> Iterator[LogEntry]:
        """As `lines`, page by page for as long as they are taken. A page may end between lines of one moment."""
        while True:
            page = self.lines(id, start, end)
            whole = page if len(page) < LINES else [entry for entry in page if entry.moment < page[-1].moment]
            yield from whole or page
            if len(page) < LINES:
                return
            start = page[-1].moment if whole else page[-1].moment + 1

    def live_text(self, id: str, replica: str, seconds: float, most: int = 1 << 20) -> str:
        """What a worker has printed so far, from its live stream, which goes on for as long as the worker does."""
        import requests

        decoder, text, deadline = codecs.getincrementaldecoder("utf-8")("replace"), "", time.monotonic() + seconds
        try:
            path = f"/jobs/{id}/replicas/{replica}/log"
            with self.client._get(path, stream=True, timeout=(CONNECT_SECONDS, seconds)) as answer:
                if answer.status_code >= 400:
                    return ""
                for chunk in answer.iter_content(chunk_size=None):
                    text = (text + decoder.decode(chunk))[-most:]
                    if time.monotonic() > deadline:
                        break
        except requests.RequestException:  # silence after the last line that there is
            pass
        return text


class _Doubt(Unreachable):
    """An answer that says nothing; `wait` is how long the server wants to be left alone."""

    def __init__(self, cause: str, remedy: str, wait: float = 0.0) -> None:
        super().__init__(cause, remedy)
        self.wait = wait


class NotNow(_Doubt):
    """The service has not taken the request, for there were too many: what it asked for was surely not done."""


def _wait(headers: Mapping[str, str]) -> float:
    try:
        return max(float(headers.get("Retry-After") or 0), 0.0)
    except ValueError:  # a date, which servers of APIs seldom send
        return 0.0


def _said(answer: Any) -> str:
    """Why Lepton says no, in its own words."""
    try:
        told = answer.json()
    except ValueError:
        told = None
    words = told.get("message") if isinstance(told, dict) else None
    return " ".join(str(words or answer.text).split())[:300] or f"it answered {answer.status_code}"


@contextmanager
def _quiet() -> Iterator[None]:
    """The client uses what its own libraries advise against, and says so on every job."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _made(settings: LeptonSettings, url: str, token: str) -> Any:
    """A client for exactly this workspace: nothing of a login of the lep command gets in."""
    kind = _client_class()
    client = kind(settings.workspace_id, token, url, settings.workspace_origin_url)
    client._timeout = READ_SECONDS
    return client


def _client_class() -> Any:
    """The class, imported with a cache folder of our own, because the import itself reads one."""
    if "leptonai" in sys.modules:
        from leptonai.api.v2.client import APIClient  # type: ignore[import-untyped, unused-ignore]

        return APIClient
    before = os.environ.get("LEPTON_CACHE_DIR")
    with tempfile.TemporaryDirectory(prefix="tao-lepton-") as folder, _quiet():
        os.environ["LEPTON_CACHE_DIR"] = folder
        try:
            from leptonai.api.v2.client import APIClient
        except ModuleNotFoundError as error:
            cause = f"the platform lepton needs the package {error.name}"
            raise MissingDependency(cause, "pip install 'prefect-tao[lepton]'") from None
        finally:
            os.environ.pop("LEPTON_CACHE_DIR")
            if before is not None:
                os.environ["LEPTON_CACHE_DIR"] = before
    return APIClient


def check_workspace(settings: LeptonSettings) -> None:
    """Raises InvalidInput for an id that has more in it, such as the token, which must not get into any message."""
    if "/" in settings.workspace_id or ":" in settings.workspace_id:
        raise InvalidInput(
            f"{settings.workspace_id.partition(':')[0]!r} is followed by what is not part of a workspace id",
            "give the id alone, and the token as LEPTON_AUTH_TOKEN",
        )


def _age(tags: Any) -> float:
    since = [str(tag).removeprefix(SINCE) for tag in tags or () if str(tag).startswith(SINCE)]
    return time.time() - int(since[0]) if since and since[0].isdigit() else 0.0
