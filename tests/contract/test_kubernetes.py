"""The Kubernetes driver keeps the contract, on the stand-in cluster whose Pods are processes of this machine."""

from __future__ import annotations

import asyncio
import copy
import json
import os
import re
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import boto3  # type: ignore[import-untyped]
import pytest
from cluster_contract import ClusterContract
from container_contracts import LinesAreWhole
from kube_cluster import IMAGE, ApiError, KubeCluster
from kube_store import JOBS
from opened_platforms import KEYS, kubernetes_at
from runner_tools import Bucket
from s3_server import S3Server

from prefect_tao.jobs.errors import CancelUnconfirmed
from prefect_tao.jobs.handle import JobHandle
from prefect_tao.jobs.launching import launch
from prefect_tao.jobs.platform import Platform
from prefect_tao.jobs.request import JobRequest
from prefect_tao.jobs.state import EndedBy, JobState
from prefect_tao.platforms.kubernetes import render
from prefect_tao.platforms.kubernetes.client import ClusterApi
from prefect_tao.platforms.kubernetes.driver import KubernetesPlatform
from prefect_tao.testing.contract import COUNTED, LONG, SHORT, PlatformContract, SharedResultsContract, new_key
from prefect_tao.testing.this_machine import OnThisMachine

pytestmark = pytest.mark.xdist_group("kubernetes")
# What jobs need for S3: the package of this machine, and keys that every worker of the tests may know.
PACKAGES = str(Path(boto3.__file__).parents[1])
S3_KEYS = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_EC2_METADATA_DISABLED": "true"}


class TestKubernetes(OnThisMachine, LinesAreWhole, ClusterContract):
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

    def another(self, platform: Platform | None = None, **settings: str) -> Platform:
        opened = kubernetes_at(
            **settings,
            kubeconfig=str(self.kube.kubeconfig()),
            results_root=str(self.results),
            mounts=[f"host://{self.results}:{self.results}"],
            gpus=0,
            helper_image=IMAGE,
        )
        self.opened.append(opened)
        return opened

    def plain(self, **settings: Any) -> KubernetesPlatform:
        self.opened.append(kubernetes_at(**settings, kubeconfig=str(self.kube.kubeconfig()), gpus=0))
        return self.opened[-1]

    @contextmanager
    def elsewhere(self, platform: Platform) -> Iterator[Platform]:
        """Another namespace, whose volume is the same folder."""
        with suppress(ApiError):  # it is there from an earlier test
            self.kube.add_namespace("far")
        yield self.another(namespace="far")

    async def test_a_job_of_another_site_is_left_alone_and_is_no_evidence(self, platform: Platform) -> None:
        """Records on volumes are not read from here; the runner sees them, and leaves the name alone."""
        request = self.request(LONG)
        job = (await launch(platform, request, new_key(), {})).handle
        await self.says(platform, job, "begun")
        with self.elsewhere(platform) as other:
            assert await other.observe([job]) == {}
            with pytest.raises(CancelUnconfirmed, match=re.escape(job.site)):
                await other.cancel([job], timeout=self.cancel_seconds)
            second = (await launch(other, request, job.key, {})).handle
            assert (await self.end(other, second)).state is JobState.ERROR
            verdict = await other.diagnose(second)
            assert job.site in verdict.cause
            assert not verdict.retryable
        assert (await self.seen(platform, job)).state is JobState.RUNNING

    # Where no record of another site is read, there is none to let go.
    test_a_job_whose_site_is_gone_can_be_let_go_and_that_is_recorded = None

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


@pytest.mark.long
class TestKubernetesWithResultsInS3(TestKubernetes, SharedResultsContract):
    """The same promises where the records of jobs are in a bucket, which other sites see too."""

    @pytest.fixture
    async def platform(self, kube: KubeCluster, tmp_path: Path, s3_server: S3Server) -> AsyncIterator[Platform]:
        self.kube, self.results, self.bucket = kube, tmp_path, Bucket(s3_server.endpoint)
        self.opened = []
        yield self.another()
        kube.api.is_away = False
        for platform in self.opened:
            await platform.close()

    def another(self, platform: Platform | None = None, **settings: str) -> Platform:
        opened = kubernetes_at(
            **settings,
            kubeconfig=str(self.kube.kubeconfig()),
            s3_bucket_name=self.bucket.name,
            s3_endpoint_url=self.bucket.env["AWS_ENDPOINT_URL"],
            env={"PYTHONPATH": PACKAGES, **S3_KEYS},
            gpus=0,
        )
        opened.take_credentials(KEYS)
        self.opened.append(opened)
        return opened

    def written(self, platform: Platform) -> dict[str, bytes]:
        return {**super().written(platform), **{key: self.bucket.get(key) for key in self.bucket.keys("")}}

    test_a_job_of_another_site_is_left_alone_and_is_no_evidence = (
        PlatformContract.test_a_job_of_another_site_is_left_alone_and_is_no_evidence
    )
    test_a_job_whose_site_is_gone_can_be_let_go_and_that_is_recorded = (  # type: ignore[assignment]
        PlatformContract.test_a_job_whose_site_is_gone_can_be_let_go_and_that_is_recorded
    )

    async def test_the_tail_is_the_last_lines_and_its_cursor_goes_on(self, platform: Platform) -> None:
        handle = await self.start(platform, "seq 1 5000; sleep 2; echo on")
        await self.says(platform, handle, "5000")
        tail = await platform.logs(handle, tail=2)
        assert tail.text == "4999\n5000\n"
        await self.end(platform, handle)
        assert (await platform.logs(handle, since=tail.cursor)).text.startswith("on\n")

    async def test_a_job_that_the_cluster_forgets_is_known_by_its_record(self, platform: Platform) -> None:
        """It may be forgotten from the start, because its end is in the bucket."""
        handle = await self.start(platform, COUNTED)
        [job] = self.kube.jobs()
        assert job["spec"]["ttlSecondsAfterFinished"] == 3600
        end = await self.end(platform, handle)
        self.kube.store.delete(JOBS, job, "Foreground")
        other = self.another()
        assert (await other.find([handle.key]))[handle.key] == [handle]
        again = await self.end(other, handle)
        assert (again.state, again.exit_code) == (end.state, end.exit_code) == (JobState.COMPLETE, 0)
        assert await self.runs(other, handle) == 1


REAL = os.environ.get("PREFECT_TAO_TEST_KUBECONFIG")


class _AwayApi(ClusterApi):
    """A cluster's API that a test can cut off: then its address is one where nothing listens."""

    is_away = False

    async def _connection(self) -> Any:
        found = await super()._connection()
        if not _AwayApi.is_away:
            return found
        nowhere = copy.copy(found)
        nowhere.configuration = copy.copy(found.configuration)
        nowhere.configuration.host = "https://127.0.0.1:9"
        return nowhere


class OnRealCluster(ClusterContract):
    """The same promises on a cluster that a kubeconfig leads to; `make test-kubernetes` runs them."""

    start_seconds = 300.0
    end_seconds = 300.0
    cancel_seconds = 120.0
    many = 10

    @pytest.fixture
    async def platform(self) -> AsyncIterator[Platform]:
        self.opened: list[KubernetesPlatform] = []
        platform = self.another()
        yield platform
        _AwayApi.is_away = False
        cleaner = self.opened[0]
        await cleaner.cancel(await cleaner.jobs(), timeout=self.cancel_seconds)
        for plural in ("jobs", "configmaps"):
            for one in await cleaner.api.listed(plural, render.KEY):
                meta = one["metadata"]
                await cleaner.api.delete(plural, meta["name"], meta["uid"], propagationPolicy="Background")
        for opened in self.opened:
            await opened.close()

    def another(self, platform: Platform | None = None) -> KubernetesPlatform:
        return self.plain()

    def plain(self, **settings: Any) -> KubernetesPlatform:
        namespace = os.environ.get("PREFECT_TAO_TEST_NAMESPACE") or "default"
        opened = kubernetes_at(**settings, kubeconfig=REAL, namespace=namespace, gpus=0)
        api = _AwayApi(opened.options)
        opened.api = opened.launcher.api = opened.volumes.api = opened.forgotten.api = opened.told.api = api
        self.opened.append(opened)
        return opened

    def request(self, command: str, **fields: object) -> JobRequest:
        image = os.environ.get("PREFECT_TAO_TEST_IMAGE") or "python:3.12"
        return super().request(command, **{"image": image, **fields})

    def written(self, platform: Platform) -> dict[str, bytes]:
        async def ask() -> dict[str, bytes]:
            api = self.another().api
            kinds = ("jobs", "pods", "secrets", "configmaps", "services")
            found = {kind: await api.listed(kind, render.KEY) for kind in kinds}
            await api.close()
            return {f"{kind}/{one['metadata']['name']}": repr(one).encode() for kind in kinds for one in found[kind]}

        with ThreadPoolExecutor(1) as pool:
            return pool.submit(asyncio.run, ask()).result()

    def waiting_request(self, platform: Platform) -> JobRequest:
        return self.request(LONG, resources={"gpus": 4096}, secrets=["TOKEN"])

    @contextmanager
    def outage(self, platform: Platform) -> Iterator[None]:
        _AwayApi.is_away = True
        yield
        _AwayApi.is_away = False

    @contextmanager
    def elsewhere(self, platform: Platform) -> Iterator[Platform]:
        """A namespace that need not be there is another site all the same; nothing is asked of it."""
        other = self.another()
        other._site = "Kubernetes cluster far, namespace far"
        yield other

    # Results of this suite end with their Pods, so no other site sees any.
    test_a_job_of_another_site_is_left_alone_and_is_no_evidence = None
    test_a_job_whose_site_is_gone_can_be_let_go_and_that_is_recorded = None

    async def runs(self, platform: Platform, handle: JobHandle) -> int:
        """By what the command printed: results of this suite end with their Pods."""
        return (await platform.logs(handle)).text.count("/run-")

    async def test_a_job_runs_to_its_end_and_leaves_its_results(self, platform: Platform) -> None:
        handle = await self.start(platform, f"{SHORT}; {COUNTED}")
        end = await self.end(platform, handle)
        assert (end.state, end.exit_code, end.ended_by) == (JobState.COMPLETE, 0, EndedBy.NONE)
        assert await self.runs(platform, handle) == 1
        assert "hello\ndone\n" in (await platform.logs(handle)).text

    async def test_the_tail_is_the_last_lines_and_its_cursor_goes_on(self, platform: Platform) -> None:
        handle = await self.start(platform, "seq 1 5000; sleep 5; echo on")
        await self.says(platform, handle, "5000")
        tail = await platform.logs(handle, tail=2)
        assert tail.text == "4999\n5000\n"
        await self.end(platform, handle)
        assert (await platform.logs(handle, since=tail.cursor)).text == "on\n"


if REAL:

    class TestRealKubernetes(OnRealCluster):
        """Made only where a cluster is named."""
