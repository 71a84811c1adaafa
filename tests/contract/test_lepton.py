"""The Lepton driver keeps the contract, on the stand-in of a workspace and with its results in a real S3 bucket."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from lepton_api import LeptonServer, lepton_server
from lepton_cloud import LeptonCloud
from opened_platforms import lepton_at
from runner_tools import Bucket
from s3_server import S3Server

from prefect_tao.jobs.platform import Platform
from prefect_tao.jobs.request import JobRequest
from prefect_tao.jobs.state import JobState
from prefect_tao.platforms.lepton.driver import LeptonPlatform
from prefect_tao.testing.contract import LONG, SharedResultsContract
from prefect_tao.testing.this_machine import OnThisMachine

pytestmark = pytest.mark.xdist_group("lepton")
# Keys of the S3 server of the tests, which every worker may know.
ENV = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_EC2_METADATA_DISABLED": "true"}


class TestLepton(OnThisMachine, SharedResultsContract):
    end_seconds = 60.0
    cancel_seconds = 10.0
    many = 8
    names_are_unique = False

    @pytest.fixture
    def platform(self, tmp_path: Path, s3_server: S3Server) -> Iterator[Platform]:
        with lepton_server(tmp_path) as self.server:
            self.folder, self.bucket = tmp_path, Bucket(s3_server.endpoint)
            self.opened: list[LeptonPlatform] = []
            yield self.another()
            for platform in self.opened:
                platform._pool.shutdown(wait=False)

    def another(self, platform: Platform | None = None) -> Platform:
        storage = {"s3_bucket_name": self.bucket.name, "s3_endpoint_url": self.bucket.env["AWS_ENDPOINT_URL"]}
        self.opened.append(lepton_at(self.server, env=ENV, poll_seconds=0.1, **storage))
        return self.opened[-1]

    @contextmanager
    def elsewhere(self, platform: Platform) -> Iterator[Platform]:
        """Another workspace with the same bucket."""
        storage = {"s3_bucket_name": self.bucket.name, "s3_endpoint_url": self.bucket.env["AWS_ENDPOINT_URL"]}
        cloud = LeptonCloud(self.folder / "far", 0, 1.0)
        cloud.id = "far"
        with LeptonServer(cloud) as server:
            self.opened.append(lepton_at(server, "lepton/far", env=ENV, poll_seconds=0.1, **storage))
            yield self.opened[-1]

    def request(self, command: str, **fields: object) -> JobRequest:
        return super().request(command, **{"image": "any/image:1", **fields})

    def written(self, platform: Platform) -> dict[str, bytes]:
        """The bucket, and all that the workspace keeps."""
        found = {key: self.bucket.get(key) for key in self.bucket.keys("")}
        cloud = self.server.cloud
        found |= {f"secret {name}": repr(one).encode() for name, one in cloud.secrets.items()}
        found |= {f"pull secret {name}": repr(one).encode() for name, one in cloud.pull_secrets.items()}
        for id, job in cloud.jobs.items():
            found[f"job {id}"] = json.dumps(cloud.shown(job)).encode()
            found[f"log {id}"] = b"".join(bytes(worker.log.whole) for worker in job.workers)
        return found

    def waiting_request(self, platform: Platform) -> JobRequest:
        return self.request(LONG, resources={"gpus": 1}, secrets=["TOKEN"])

    @contextmanager
    def outage(self, platform: Platform) -> Iterator[None]:
        self.server.is_away = True
        yield
        self.server.is_away = False

    # Lepton collects a line when it is whole, so its log never ends inside one.
    async def test_the_tail_is_the_last_lines_and_its_cursor_goes_on(self, platform: Platform, tmp_path: Path) -> None:
        go = tmp_path / "go"
        handle = await self.start(
            platform,
            "seq 1 5000; printf 'half \\360\\237'; sleep 0.6; printf '\\231\\202\\n'; "
            f"until [ -e {go} ]; do sleep 0.1; done; echo on",
        )
        await self.says(platform, handle, "half")
        tail = await platform.logs(handle, tail=3)
        assert tail.text == "4999\n5000\nhalf 🙂\n"
        go.touch()
        assert (await self.end(platform, handle)).state is JobState.COMPLETE
        assert (await platform.logs(handle, since=tail.cursor)).text.startswith("on\n")
        assert (await platform.logs(handle, tail=0)).text == ""
