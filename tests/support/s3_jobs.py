"""Jobs that reach a real S3 server through a proxy that can misbehave, with boto3 or with the aws command alone."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from http_faults import Faults
from runner_tools import Bucket, Ended, Job, Runner, without_boto3
from s3_server import aws_alone

from prefect_tao.runner.entrypoint import Entrypoint, build_entrypoint

MIB = 1 << 20


@dataclass
class S3Jobs:
    """A place for jobs, their bucket, and the proxy between the two."""

    runner: Runner
    bucket: Bucket
    faults: Faults

    def use_aws(self) -> None:
        """From here on the image has no boto3, only the aws command."""
        self.runner.python = without_boto3(self.runner.folder / "lean")
        self.runner.env["PATH"] = f"{aws_alone(self.runner.folder / 'aws')}:/usr/bin:/bin"

    def fetch(self, uri: Any, rule: dict[str, Any] | None = None, **env: str | None) -> Ended:
        """A job whose spec has `uri` at data, which is a declared input."""
        return self.start_fetch(uri, rule, **env).end()

    def start_fetch(self, uri: Any, rule: dict[str, Any] | None = None, **env: str | None) -> Job:
        entrypoint = build_entrypoint("test -f {config_path}", specs={"data": uri}, inputs={"data": rule or {}})
        return self.runner.start(entrypoint, **{**self.bucket.env, **env})

    def run(self, entrypoint: Entrypoint, **env: str | None) -> Ended:
        """A job that keeps its results in the bucket."""
        return self.start(entrypoint, **env).end()

    def start(self, entrypoint: Entrypoint, **env: str | None) -> Job:
        return self.runner.start(entrypoint, **{**self.bucket.only, **env})

    @property
    def data(self) -> Path:
        """What the command's spec had at data."""
        return Path(yaml.safe_load(self.runner.spec())["data"])

    def content(self) -> dict[str, bytes]:
        """The files of the fetched folder."""
        return {str(path.relative_to(self.data)): path.read_bytes() for path in self.data.rglob("*") if path.is_file()}

    @property
    def leftovers(self) -> list[Path]:
        """Parts and temporary files in the job's place."""
        return [path for path in self.runner.work.rglob("*") if ".part" in path.name or path.name.startswith(".")]


def refused(ended: Ended, *words: str) -> None:
    """The runner itself failed, in its phase inputs, and said why."""
    assert ended.code == 125, ended.log
    assert ended.marker["phase"] == "inputs"
    for word in words:
        assert word in ended.marker["error"], ended.marker["error"]
