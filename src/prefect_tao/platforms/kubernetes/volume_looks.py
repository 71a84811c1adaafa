"""Looks at the files of volumes from inside: a small Pod mounts them, prints what is asked for and is removed.

From outside a volume cannot be seen, and a path that a Pod has seen is proven to be mounted.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from secrets import token_hex
from shlex import quote
from typing import Any

from prefect_tao.jobs.clock import now
from prefect_tao.jobs.errors import InvalidInput, Unreachable
from prefect_tao.jobs.platform import Listing
from prefect_tao.platforms.files import STATUS
from prefect_tao.platforms.kubernetes import render
from prefect_tao.platforms.kubernetes.client import ApiRefused, ClusterApi, Manifest
from prefect_tao.platforms.kubernetes.observe import JobFacts, is_over, waiting
from prefect_tao.platforms.kubernetes.pod_volumes import mounts_of, volumes
from prefect_tao.platforms.kubernetes.settings import KubernetesSettings

PROBE = {**render.MANAGED, "prefect-tao/probe": "true"}
NO_FOLDER = 3
PATIENCE = 90.0
# For what others wait for, and what can do without.
SHORT_PATIENCE = 20.0


@dataclass
class VolumeLooks:
    """Asks one question a Pod. Raises Unreachable while none can run."""

    api: ClusterApi
    settings: KubernetesSettings

    def is_mounted(self, path: str) -> bool:
        """Whether the path is on a volume that jobs get; nothing else outlives a Pod."""
        return any(mount.is_above(path) for mount in mounts_of(self.settings))

    async def exists(self, path: str) -> bool:
        """Whether there is something at `path`."""
        return self.is_mounted(path) and (await self._run(f"test -e {quote(path)}"))[0] == 0

    async def entries(self, path: str) -> list[str]:
        """The entries of a folder, folders with a slash at the end. Raises InvalidInput when there is none."""
        quoted = quote(path)
        look = f"cd {quoted} 2>/dev/null || exit {NO_FOLDER}; ls -1Ap"
        code, out = await self._run(look) if self.is_mounted(path) else (NO_FOLDER, b"")
        if code == NO_FOLDER:
            raise InvalidInput(f"{path} is not a folder on the volumes of the jobs", "check the path, and the mounts")
        return [f"{path.rstrip('/')}/{name}" for name in out.decode(errors="replace").splitlines()]

    async def read(self, path: str, limit: int) -> bytes:
        """The first bytes of a file. Raises InvalidInput when there is none."""
        quoted = quote(path)
        look = f"test -f {quoted} || exit {NO_FOLDER}; head -c {limit} {quoted} | base64"
        code, out = await self._run(look) if self.is_mounted(path) else (NO_FOLDER, b"")
        if code:
            raise InvalidInput(f"{path} is not a file there", "name the file itself")
        return base64.b64decode(out)

    async def read_many(self, paths: Sequence[str], limit: int) -> dict[str, bytes]:
        """The first bytes of all files among `paths` that are there, by one Pod that has to come soon."""
        return await self._printed(
            {path: f"test -f {quote(path)} && {{}} && head -c {limit} {quote(path)} | base64" for path in paths}
        )

    async def statuses(self, folders: Sequence[str]) -> dict[str, bytes]:
        """The newest status file below each results folder that has one, by one Pod that has to come soon."""
        newest = 'f=$(ls -t {} 2>/dev/null | head -n 1); test -n "$f" && {{}} && base64 "$f"'
        return await self._printed(
            {one: newest.format(" ".join(f"{quote(one)}/{pattern}" for pattern in STATUS)) for one in folders}
        )

    async def _printed(self, looks: Mapping[str, str]) -> dict[str, bytes]:
        """What each command prints as base64, for those that get as far as their mark, which stands for braces."""
        names = list(looks)
        marked = [look.replace("{}", f"echo :{number}") for number, look in enumerate(looks.values())]
        _, out = await self._run("; ".join([*marked, "true"]), SHORT_PATIENCE)
        found: dict[str, bytes] = {}
        for part in out.decode(errors="replace").split(":")[1:]:
            number, _, text = part.partition("\n")
            found[names[int(number)]] = base64.b64decode(text)
        return found

    async def files(self, path: str, depth: int, limit: int, skip: Collection[str]) -> Listing:
        """All files below a folder by one Pod, those that lie higher first; nothing where there is no folder."""
        pruned = " -o ".join(f"-name {quote(name)}" for name in skip) or "-false"
        tree = f"find . -mindepth 1 -maxdepth {depth} -type d '(' {pruned} ')' -prune -o"
        both = f"{tree} -type d -print | sed 's,$,/,'; {tree} '!' -type d -print"
        look = f"cd {quote(path)} 2>/dev/null || exit {NO_FOLDER}; {{ {both}; }} | awk -F/ '{{print NF, $0}}' | sort -n"
        code, out = await self._run(f"{look} | head -n {limit + 1}") if self.is_mounted(path) else (NO_FOLDER, b"")
        if code == NO_FOLDER:
            return Listing()
        names = [line.partition(" ./")[2] for line in out.decode(errors="replace").splitlines()]
        files = [f"{path.rstrip('/')}/{name}" for name in names[:limit] if not name.endswith("/")]
        is_deeper = any(name.endswith("/") and name.count("/") == depth for name in names)
        return Listing(tuple(files), len(names) <= limit and not is_deeper)

    async def sweep(self) -> None:
        """Remove Pods that looked for launchers which died meanwhile. What cannot be done now is done by the next."""
        with suppress(ApiRefused, Unreachable):
            for pod in await self.api.listed("pods", ",".join(f"{label}={text}" for label, text in PROBE.items())):
                meta = pod["metadata"]
                made = datetime.fromisoformat(meta["creationTimestamp"])
                if is_over(pod) and (now() - made).total_seconds() > 2 * PATIENCE:
                    await self.api.delete("pods", meta["name"], meta["uid"], gracePeriodSeconds=0)

    async def _run(self, command: str, patience: float = PATIENCE) -> tuple[int, bytes]:
        """What a shell command in a Pod with the volumes prints, and how it ends."""
        try:
            pod = await self.api.ask("POST", self.api.path("pods"), self._pod(command))
            try:
                ended = await self._end(pod, patience)
                out = await self.api.text("GET", self.api.path("pods", pod["metadata"]["name"], "log"))
            finally:
                meta = pod["metadata"]
                await self.api.delete("pods", meta["name"], meta["uid"], gracePeriodSeconds=0)
        except ApiRefused as error:
            raise Unreachable(f"no Pod can look at the volumes: {error.said}", "check the rights here") from error
        state = ended["status"]["containerStatuses"][0]["state"]["terminated"]
        return int(state["exitCode"]), out

    async def _end(self, pod: Manifest, patience: float) -> Manifest:
        clock, pause = asyncio.get_running_loop().time, 0.05
        give_up = clock() + patience
        while True:
            now: Manifest | None = await self.api.find("pods", pod["metadata"]["name"])
            if now is None:
                raise Unreachable("somebody removed the Pod that looked at the volumes", "look again")
            if now["status"].get("phase") in ("Succeeded", "Failed") and now["status"].get("containerStatuses"):
                return now
            if clock() > give_up:
                why = waiting(JobFacts(now, [now]))
                raise Unreachable(f"the Pod that looks at the volumes does not start: {why}", "correct what is named")
            await asyncio.sleep(pause)
            pause = min(pause * 1.5, 1.0)

    def _pod(self, command: str) -> dict[str, Any]:
        sources, places = volumes(mounts_of(self.settings))
        container = {
            "name": render.MAIN,
            "image": self.settings.helper_image,
            "command": ["/bin/sh", "-c", command.replace("$", "$$")],
            "volumeMounts": places,
            "resources": {"limits": {"cpu": "100m", "memory": "64Mi"}},
        }
        spec = {
            **render.placement(self.settings),
            "restartPolicy": "Never",
            "activeDeadlineSeconds": int(PATIENCE),
            "terminationGracePeriodSeconds": 0,
            "containers": [container],
            "volumes": sources,
        }
        meta = {"name": f"tao-look-{token_hex(5)}", "namespace": self.api.namespace, "labels": PROBE}
        return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec}
