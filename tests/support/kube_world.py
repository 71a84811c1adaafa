"""The stand-in cluster as a world for the fault machine: each launcher is a user of its own, whose line can be bad."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import deque
from pathlib import Path
from secrets import token_hex
from typing import Any

from kube_cluster import IMAGE, KubeCluster
from kube_store import CONFIG_MAPS, JOBS, PODS, SECRETS, ApiError
from opened_platforms import kubernetes_at

from prefect_tao.jobs.handle import JobHandle
from prefect_tao.jobs.state import JobState
from prefect_tao.platforms.kubernetes.driver import KubernetesPlatform
from prefect_tao.platforms.kubernetes.render import RESUMED
from prefect_tao.testing.noted_world import TOLD, NotedWorld
from prefect_tao.testing.world import Client, Event

FAULTS = ("none", "lost before", "lost after", "503 before", "502 after", "too many requests")
_numbers = itertools.count()


class KubeWorld(NotedWorld):
    """Jobs of the cluster, with their results below `folder`."""

    faults = FAULTS
    events = frozenset({*TOLD, Event.STOPPED, Event.TAKEN_AWAY, Event.FORGOTTEN})
    pauses = (0.0, 0.02, 0.1, 0.3, 0.6)
    settle_seconds = 90.0

    def __init__(self, kube: KubeCluster, folder: Path) -> None:
        self.root = folder / token_hex(4)
        super().__init__(self.root / "notes", image=IMAGE)
        self.kube = kube
        self.opened: list[tuple[KubernetesPlatform, deque[str]]] = []
        self.taken: set[str] = set()

    def client(self) -> Client:
        token = f"launcher-{next(_numbers)}"
        self.kube.add_user(token, lambda verb, resource: True)
        spoilt: deque[str] = deque()
        is_dead = False

        def line(method: str, path: str) -> Any:
            fault = "lost before" if is_dead else spoilt.popleft() if spoilt else "none"
            if fault == "503 before":
                return ApiError(503, "ServiceUnavailable", "the server is currently unable to handle the request")
            return ApiError(429, "", "Too many requests") if fault == "too many requests" else fault

        def cut() -> None:
            nonlocal is_dead
            is_dead = True

        self.kube.api.lines[token] = line
        platform = kubernetes_at(
            kubeconfig=str(self.kube.kubeconfig(token)),
            results_root=str(self.root),
            mounts=[f"host://{self.root}:{self.root}"],
            gpus=0,
            poll_seconds=0.1,
        )
        self.opened.append((platform, spoilt))
        return Client(platform, spoilt.append, cut)

    # -- what happens --------------------------------------------------------------------------------------------------

    async def happens(self, event: Event, key: str) -> None:
        if event is Event.FORGOTTEN:
            for job in self._over():
                if "ttlSecondsAfterFinished" in job["spec"]:
                    self.kube.store.delete(JOBS, job, "Foreground")
        elif event in (Event.STOPPED, Event.TAKEN_AWAY):
            await asyncio.to_thread(self._end_pods, event, key)
        else:
            await super().happens(event, key)

    def _end_pods(self, event: Event, key: str) -> None:
        for pod in self.kube.pods():
            name = pod["metadata"]["labels"].get("job-name", "")
            if name not in self.live(key) or not any(run.startswith(f"{name}.") for run in self.runs()):
                continue
            if event is Event.STOPPED:
                self.stopped_at[name] = time.time()
                self.kube.store.delete(PODS, pod)
            else:
                self.taken.add(name)
                self.kube.evict(pod)

    def set_away(self, away: bool) -> None:
        self.kube.api.is_away = away

    def let_end(self) -> None:
        for _, spoilt in self.opened:
            spoilt.clear()
        super().let_end()

    # -- the truth -----------------------------------------------------------------------------------------------------

    def _over(self) -> list[dict[str, Any]]:
        ends = ("Complete", "Failed")
        return [
            job for job in self.kube.jobs() if any(one["type"] in ends for one in job["status"].get("conditions", ()))
        ]

    def living(self) -> list[str]:
        over = {job["metadata"]["name"] for job in self._over()}
        return [job["metadata"]["name"] for job in self.kube.jobs() if job["metadata"]["name"] not in over]

    def was_asked_to_end(self, name: str) -> bool:
        note = self.kube.store.find(CONFIG_MAPS, "default", name)
        return bool(note) and '"Canceled"' in (note or {})["data"]["end"]

    def ends(self, handle: JobHandle) -> set[JobState]:
        found = super().ends(handle)
        if not found and self.was_asked_to_end(handle.name) and not self.has_begun(handle):
            return {JobState.CANCELED}  # a late launcher has made its Job again, which nothing can start any more
        return found | {JobState.ERROR} if handle.name in self.taken and found else found

    def has_begun(self, handle: JobHandle) -> bool:
        own = [job for job in self.kube.jobs() if job["metadata"]["name"] == handle.name]
        return all(RESUMED in job["metadata"]["annotations"] for job in own)

    def secrets_left(self) -> list[str]:
        return [one["metadata"]["name"] for one in self.kube.store.all(SECRETS) if one.get("data")]

    def new_loop(self) -> asyncio.AbstractEventLoop:
        self.loop = super().new_loop()
        return self.loop

    def close(self) -> None:
        for platform, _ in self.opened:
            self.loop.run_until_complete(platform.close())
        self.kube.api.lines.clear()
        self.kube.clear()
