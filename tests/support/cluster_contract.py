"""What the contract needs besides of jobs on a cluster, be it the stand-in or a real one that a kubeconfig leads to."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

from prefect_tao.jobs.handle import JobHandle
from prefect_tao.jobs.platform import Platform
from prefect_tao.jobs.state import JobState
from prefect_tao.jobs.verdict import Category
from prefect_tao.platforms.kubernetes.driver import KubernetesPlatform
from prefect_tao.testing.contract import LONG, PlatformContract, new_key

# The first node waits for the second at its own name, which the cluster's DNS may know only after a while.
MEET = """
import os, socket, time
rank, there = int(os.environ["NODE_RANK"]), (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
for _ in range(1200):
    try:
        if rank == 0:
            other = socket.create_server(there).accept()[0]
            print("met by", other.recv(9).decode(), "of", os.environ["WORLD_SIZE"], flush=True)
        else:
            socket.create_connection(there).sendall(b"rank %d" % rank)
        break
    except OSError:
        time.sleep(0.1)
"""


class ClusterContract(PlatformContract):
    """Asks the cluster itself only through its API."""

    @abstractmethod
    def plain(self, **settings: Any) -> KubernetesPlatform:
        """A driver with these settings, for jobs whose results end with their Pods."""

    async def pod_of(self, platform: KubernetesPlatform, handle: JobHandle) -> str:
        [pod] = await platform.api.listed("pods", f"job-name={handle.name}")
        return str(pod["metadata"]["name"])

    async def test_gates_let_a_job_pass_and_leave_nothing(self, platform: Platform) -> None:
        before = self.written(platform).keys()
        found = await platform.probe(self.request(LONG, secrets=["TOKEN"]))
        assert [one.message for one in found if one.blocks] == []
        assert self.written(platform).keys() - before == set()

    async def test_pods_of_one_job_meet_by_the_name_of_the_first(self, platform: Platform) -> None:
        platform = self.plain()
        asked = {"resources": {"gpus": 0, "nodes": 2}, "env": {"MASTER_PORT": "29517"}}
        handle = await self.start(platform, f"python3 -c '{MEET}'", **asked)
        assert (await self.end(platform, handle)).state is JobState.COMPLETE
        assert "[0] met by rank 1 of 2\n" in (await platform.logs(handle)).text
        assert [one.state for one in await platform.replicas(handle)] == ["Succeeded", "Succeeded"]

    async def test_a_pod_that_is_evicted_is_preempted_and_one_that_is_deleted_is_canceled(
        self, platform: Platform
    ) -> None:
        platform = self.plain()
        evicted, deleted = [await self.start(platform, LONG) for _ in range(2)]
        for handle in (evicted, deleted):
            await self.says(platform, handle, "begun")
        name = await self.pod_of(platform, evicted)
        eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}}
        await platform.api.ask("POST", platform.api.path("pods", name, "eviction"), eviction)
        await platform.api.delete("pods", await self.pod_of(platform, deleted))
        assert (await self.end(platform, evicted)).state is JobState.ERROR
        assert (await platform.diagnose(evicted)).category is Category.PREEMPTED
        assert (await self.end(platform, deleted)).state is JobState.CANCELED

    async def test_an_image_whose_user_is_not_root_reads_its_secrets(self, platform: Platform) -> None:
        platform = self.plain(run_as_user=12345, fs_group=23456)
        asked = self.request('id -u; test -n "$TOKEN" && echo told', secrets=["TOKEN"])
        handle = await platform.submit(platform.render(asked, new_key(), 1), {"TOKEN": "s3cret"})
        over = await self.end(platform, handle)
        assert over.state is JobState.COMPLETE, (await platform.logs(handle)).text
        assert "12345\ntold\n" in (await platform.logs(handle)).text

    async def test_an_image_without_a_valid_name_ends_the_job_after_a_while_and_leaves_no_pod(
        self, platform: Platform
    ) -> None:
        platform = self.plain(image_patience=1)
        asked = self.request(LONG).model_copy(update={"image": "registry.example/No/Such:1"})
        handle = await platform.submit(platform.render(asked, new_key(), 1), {})
        over = await self.end(platform, handle)
        assert (over.state, over.native_state) == (JobState.ERROR, "InvalidImageName")
        verdict = await platform.diagnose(handle)
        assert (verdict.category, verdict.retryable) == (Category.IMAGE, False)
        assert await platform.api.listed("pods", f"job-name={handle.name}") == []
