"""The Kubernetes driver keeps the contract, on the stand-in cluster whose Pods are processes of this machine."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from kube_cluster import IMAGE, KubeCluster
from opened_platforms import kubernetes_at

from prefect_tao.jobs.platform import Platform
from prefect_tao.jobs.request import JobRequest
from prefect_tao.jobs.state import JobState
from prefect_tao.platforms.kubernetes.driver import KubernetesPlatform
from prefect_tao.testing.contract import LONG, PlatformContract
from prefect_tao.testing.this_machine import OnThisMachine

pytestmark = pytest.mark.xdist_group("kubernetes")


class TestKubernetes(OnThisMachine, PlatformContract):
    end_seconds = 60.0
    cancel_seconds = 10.0
    many = 8

    @pytest.fixture
    async def platform(self, kube: KubeCluster, tmp_path: Path) -> AsyncIterator[Platform]:
        self.kube, self.results = kube, tmp_path / "results"
        self.results.mkdir()
        self.opened: list[KubernetesPlatform] = []
        yield self.another()
        kube.api.is_away = False
        for platform in self.opened:
            await platform.close()

    def another(self, platform: Platform | None = None) -> Platform:
        opened = kubernetes_at(
            kubeconfig=str(self.kube.kubeconfig()),
            results_root=str(self.results),
            mounts=[f"host://{self.results}:{self.results}"],
            gpus=0,
            helper_image=IMAGE,
        )
        self.opened.append(opened)
        return opened

    def request(self, command: str, **fields: object) -> JobRequest:
        return super().request(command, **{"image": IMAGE, **fields})

    def written(self, platform: Platform) -> dict[str, bytes]:
        """The results, and every object of the cluster but the running Pods' events."""
        found = {str(path): path.read_bytes() for path in self.results.rglob("*") if path.is_file()}
        with self.kube.store.changed:
            for (resource, _, name), one in self.kube.store.objects.items():
                found[f"{resource.plural}/{name}"] = json.dumps(one).encode()
        return found

    def waiting_request(self, platform: Platform) -> JobRequest:
        return self.request(LONG, resources={"gpus": 16}, secrets=["TOKEN"])

    @contextmanager
    def outage(self, platform: Platform) -> Iterator[None]:
        self.kube.api.is_away = True
        yield
        self.kube.api.is_away = False

    # A kubelet gives out a line when it is whole, so the log never ends inside one.
    async def test_the_tail_is_the_last_lines_and_its_cursor_goes_on(self, platform: Platform) -> None:
        handle = await self.start(
            platform,
            "seq 1 5000; printf 'half \\360\\237'; sleep 0.6; printf '\\231\\202\\n'; "
            "until [ -e $TAO_RESULTS_DIR/go ]; do sleep 0.1; done; echo on",
        )
        await self.says(platform, handle, "half")
        tail = await platform.logs(handle, tail=3)
        assert tail.text == "4999\n5000\nhalf 🙂\n"
        (self.results / handle.key / "results_dir" / "go").touch()
        assert (await self.end(platform, handle)).state is JobState.COMPLETE
        assert (await platform.logs(handle, since=tail.cursor)).text == "on\n"
        assert (await platform.logs(handle, tail=0)).text == ""
