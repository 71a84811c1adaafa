"""Runs the in-container program as containers do: as a process of its own, with its files and its environment."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
import uuid
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from s3_server import S3Server

from prefect_tao.runner.entrypoint import Entrypoint

KEY = "k3y"
PATIENCE = 60.0


@dataclass(frozen=True)
class Ended:
    """How a run ended, and what it said."""

    code: int
    log: str
    marker: dict[str, Any]


def until(condition: Callable[[], Any], what: str) -> None:
    """Wait for `condition`, and fail by name when it does not come."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, f"waited {PATIENCE:g} s for {what}"
        time.sleep(0.02)


def alive(pid: int) -> bool:
    """Whether a process goes on; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


class Job:
    """A run under way."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path, marker: Callable[[], dict[str, Any]]) -> None:
        self.process = process
        self._log = log
        self.marker = marker

    @property
    def log(self) -> str:
        return self._log.read_text(errors="replace")

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def says(self, text: str) -> None:
        """Wait until the log holds `text`."""
        until(lambda: text in self.log, f"{text!r} in the log")

    def end(self) -> Ended:
        code = self.process.wait()  # without a limit of its own, which would make it look only now and then
        return Ended(code, self.log, self.marker())


def put(entrypoint: Entrypoint, folder: Path) -> None:
    """Place the files of a job as platforms do."""
    for name, content in entrypoint.files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)


class Runner:
    """One job's place: its results on a mount, its work folder, and its attempts."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.root = folder / "mount"
        self.base = self.root / KEY
        self.work = folder / "work"
        self.python = sys.executable
        self.env: dict[str, str | None] = {
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "HOME": str(folder),
            "TAO_JOB_ID": KEY,
            "TAO_RESULTS_ROOT": str(self.root),
            "TAO_WORK_DIR": str(self.work),
        }

    def start(self, entrypoint: Entrypoint, *, script: bool = False, **env: str | None) -> Job:
        """Start the program; `env` is added to the environment, and None takes away."""
        started = self.folder / uuid.uuid4().hex
        started.mkdir(parents=True)
        put(entrypoint, started)
        words = [self.python, str(started / "runner.py"), str(started / "plan.json")]
        if script:
            (started / "job.sh").write_text(entrypoint.script())
            words = ["/bin/bash", str(started / "job.sh")]
        whole = {**self.env, **env}
        log = started / "log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                words,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={name: value for name, value in whole.items() if value is not None},
                cwd=started,
                start_new_session=True,
            )
        attempt = str(whole.get("TAO_ATTEMPT") or 1)
        return Job(process, log, lambda: self.marker(attempt))

    def run(self, entrypoint: Entrypoint, *, script: bool = False, **env: str | None) -> Ended:
        return self.start(entrypoint, script=script, **env).end()

    def marker(self, attempt: str = "1") -> dict[str, Any]:
        """The record of one attempt, wherever this job keeps it."""
        for base in (self.base, self.work):
            path = base / "attempts" / f"{attempt}.json"
            if path.exists():
                return dict(json.loads(path.read_text()))
        return {}

    def spec(self, config_format: str = "yaml") -> str:
        """The text of the spec that the command was given."""
        return (self.work / f"spec.{config_format}").read_text()


def without_boto3(folder: Path) -> str:
    """A Python that has nothing but its standard library."""
    import venv

    venv.create(folder, with_pip=False, symlinks=True)
    return str(folder / "bin" / "python")


def checkpoint(path: Path, size: int = 5000) -> Path:
    """A whole checkpoint, as torch.save writes it: a zip file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", os.urandom(size))
    return path


def cut_short(path: Path) -> Path:
    """A checkpoint whose writer died."""
    data = checkpoint(path).read_bytes()
    path.write_bytes(data[: len(data) // 2])
    return path


class Bucket:
    """A bucket of a real S3 server on this machine, and the environment that leads to it."""

    def __init__(self, endpoint: str, through: str | None = None) -> None:
        """A new bucket at `endpoint`; jobs reach it at `through`, where that is given."""
        import boto3  # type: ignore[import-untyped]

        self.name = f"bucket-{uuid.uuid4().hex[:12]}"
        self.env = {
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_ENDPOINT_URL": through or endpoint,
            "AWS_EC2_METADATA_DISABLED": "true",
        }
        self.client = boto3.client(
            "s3",
            endpoint_url=endpoint,
            region_name="us-east-1",
            aws_access_key_id="test",
            aws_secret_access_key="test",
        )
        self.client.create_bucket(Bucket=self.name)

    @property
    def only(self) -> dict[str, str | None]:
        """The environment of a job that has this bucket for its results, and no mount."""
        return {**self.env, "TAO_RESULTS_ROOT": None, "S3_BUCKET_NAME": self.name}

    def uri(self, key: str) -> str:
        return f"s3://{self.name}/{key}"

    def put(self, key: str, data: bytes) -> str:
        self.client.put_object(Bucket=self.name, Key=key, Body=data)
        return self.uri(key)

    def put_bare(self, key: str, data: bytes) -> str:
        """An object with an ETag and no other checksum, as most stores have them."""
        import boto3
        from botocore.config import Config  # type: ignore[import-untyped]

        config = Config(request_checksum_calculation="when_required")
        keys = {"aws_access_key_id": "test", "aws_secret_access_key": "test", "region_name": "us-east-1"}
        bare = boto3.client("s3", endpoint_url=self.client.meta.endpoint_url, config=config, **keys)
        bare.put_object(Bucket=self.name, Key=key, Body=data)
        return self.uri(key)

    def get(self, key: str) -> bytes:
        return bytes(self.client.get_object(Bucket=self.name, Key=key)["Body"].read())

    def keys(self, prefix: str = "") -> list[str]:
        """What is there below `prefix`, without it."""
        found = self.client.list_objects_v2(Bucket=self.name, Prefix=prefix).get("Contents", ())
        return sorted(item["Key"][len(prefix) :] for item in found)

    def outputs(self) -> list[str]:
        """The kept results of the job, without the records of its attempts."""
        return [key for key in self.keys(f"results/{KEY}/") if not key.startswith("attempts/")]

    def marker(self, attempt: int = 1) -> dict[str, Any]:
        return dict(json.loads(self.get(f"results/{KEY}/attempts/{attempt}.json")))


@cache
def _s3() -> S3Server:
    """One for all tests of this process; it ends with it."""
    return S3Server().__enter__()


def make_bucket() -> Bucket:
    return Bucket(_s3().endpoint)


def old_python() -> str | None:
    """A Python 3.8 of this machine, or None."""
    return python_of("3.8")


def python_of(version: str) -> str | None:
    """A Python of this version on this machine, or None."""
    found = [shutil.which(f"python{version}")]
    if pyenv := shutil.which("pyenv"):
        root = subprocess.run([pyenv, "root"], capture_output=True, text=True).stdout.strip()
        found += [str(path) for path in sorted(Path(root, "versions").glob(f"{version}*/bin/python{version}"))]
    for candidate in found:
        if candidate and subprocess.run([candidate, "--version"], capture_output=True).returncode == 0:
            return candidate
    return None
