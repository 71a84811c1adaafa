"""A job's data in from S3 and out again: the runner beside boto3's own transfers, the aws command and nvidia-tao-sdk.

Each moves the same objects down and up, in a process for each, through a network that adds a delay to each request.
That takes about five minutes, much of it the peer's; `BENCH_DATA=2000,500` moves 2,000 small objects and large ones of
500 MB instead, `BENCH_PEER=0` leaves nvidia-tao-sdk out. `python -m benchmarks.data_path` measures this alone.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.measure import PEER, ROOT, Row, peer_python, say, times
from benchmarks.slow_network import slow_network
from prefect_tao.runner.entrypoint import build_entrypoint

sys.path.insert(0, str(ROOT / "tests" / "support"))

DELAY = 0.03
GOALS = {
    # Downloads in our own pieces have to earn their lines, beside being taken up where they broke off. Uploads need not
    # be faster: they are ours because a file that is written to while it is sent must never get its name.
    "boto3 s3transfer": "down at least 1.2x, up at least 0.9x",
    "aws s3 cp --recursive": "at least 0.9x",
}
PATIENCE = 200.0  # with the peer; that it takes longer is enough to know
SMALL_BYTES = 20_000
LARGE_COUNT = 2
BUCKET = "bench"
PEER_PATH = """
import sys
from tao_sdk.script_runner import download_folder, upload_results
source, folder, target = sys.argv[1:]
download_folder(source, folder)
upload_results(folder, target)
"""
# As good as boto3's transfers get: as many at once as ours, and the sizes of a listing instead of a request for each.
BOTO3_PATH = """
import os, sys, boto3
from boto3.s3.transfer import TransferConfig, create_transfer_manager
way, bucket, prefix, folder = sys.argv[1:]
client = boto3.client("s3", config=boto3.session.Config(max_pool_connections=32))
manager = create_transfer_manager(client, TransferConfig(max_concurrency=16))
class Size:
    def __init__(self, size): self.size = size
    def on_queued(self, future, **_): future.meta.provide_transfer_size(self.size)
waiting = []
if way == "down":
    for page in client.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix):
        for item in page.get("Contents", ()):
            path = os.path.join(folder, item["Key"][len(prefix):])
            os.makedirs(os.path.dirname(path), exist_ok=True)
            waiting.append(manager.download(bucket, item["Key"], path, subscribers=[Size(item["Size"])]))
else:
    for base, _, names in os.walk(folder):
        for name in names:
            path = os.path.join(base, name)
            waiting.append(manager.upload(path, bucket, prefix + os.path.relpath(path, folder)))
for future in waiting:
    future.result()
manager.shutdown()
"""


@dataclass(frozen=True)
class Load:
    """What is moved."""

    objects: int
    large_mb: int

    @classmethod
    def asked(cls) -> Load:
        return cls(*map(int, os.environ.get("BENCH_DATA", "800,200").split(",")))

    def __str__(self) -> str:
        return f"{self.objects} objects of {SMALL_BYTES // 1000} kB and {LARGE_COUNT} of {self.large_mb} MB"

    @property
    def size(self) -> int:
        return self.objects * SMALL_BYTES + LARGE_COUNT * self.large_mb * 1_000_000


class TooLong(Exception):
    """It has taken more time than we have."""


@dataclass(frozen=True)
class Taken:
    """What one way has taken."""

    down: float
    up: float
    peak_mb: float

    @property
    def seconds(self) -> float:
        return self.down + self.up


@dataclass(frozen=True)
class Ran:
    """What one process has taken."""

    seconds: float
    peak_mb: float


def both(down: Ran, up: Ran) -> Taken:
    return Taken(down.seconds, up.seconds, max(down.peak_mb, up.peak_mb))


def client(port: int) -> Any:
    import boto3  # type: ignore[import-untyped]

    return boto3.client("s3", endpoint_url=f"http://127.0.0.1:{port}", region_name="us-east-1", **KEYS)


KEYS = {"aws_access_key_id": "x", "aws_secret_access_key": "x"}


def fill(s3: Any, load: Load, folder: Path) -> None:
    """Put the objects there."""
    s3.create_bucket(Bucket=BUCKET)
    for index in range(load.objects):
        s3.put_object(Bucket=BUCKET, Key=f"data/{index % 20}/{index}.jpg", Body=os.urandom(SMALL_BYTES))
    large = folder / "large"
    large.write_bytes(os.urandom(1_000_000) * load.large_mb)
    for index in range(LARGE_COUNT):
        s3.upload_file(str(large), BUCKET, f"data/large-{index}.bin")
    large.unlink()


def environment(port: int) -> dict[str, str]:
    return {
        "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin",
        "HOME": os.environ.get("HOME", "/"),
        "AWS_ACCESS_KEY_ID": "x",
        "AWS_SECRET_ACCESS_KEY": "x",
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
    }


def run(words: list[str], env: dict[str, str], limit: float = float("inf")) -> Ran:
    """Run to the end; raises when it ends badly, or not within `limit` seconds."""
    began, peak = time.perf_counter(), 0.0
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(words, env=env, stdout=log, stderr=subprocess.STDOUT)
        while process.poll() is None:
            # What wait4 tells would be the memory of this process, from which the other one was forked.
            peak = max(peak, high_water(process.pid))
            if time.perf_counter() - began > limit:
                process.kill()
                process.wait()
                raise TooLong
            time.sleep(0.1)
        if process.returncode:
            log.seek(0)
            raise RuntimeError(f"{words[0]} ended with {process.returncode}: {log.read()[-2000:].decode()}")
    return Ran(time.perf_counter() - began, peak)


def high_water(pid: int) -> float:
    """The most memory that a process has had so far, in MB."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0.0
    return next((int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM")), 0.0)


def ours(env: dict[str, str], folder: Path, name: str) -> Taken:
    """The runner: one job that has inputs, then one that has outputs."""
    data = folder / "in"
    env = {**env, "S3_BUCKET_NAME": BUCKET, "TAO_JOB_ID": name, "TAO_WORK_DIR": str(folder / "work")}

    def job(**moves: Any) -> Ran:
        for file, content in build_entrypoint("true", **moves).files.items():
            (folder / file).parent.mkdir(parents=True, exist_ok=True)
            (folder / file).write_bytes(content)
        return run([sys.executable, str(folder / "runner.py"), str(folder / "plan.json")], env)

    return both(job(inputs={str(data): f"s3://{BUCKET}/data/"}), job(outputs=[str(data)]))


def boto3_transfers(env: dict[str, str], folder: Path, name: str) -> Taken:
    words, data = [sys.executable, "-c", BOTO3_PATH], str(folder / "in")
    down = run([*words, "down", BUCKET, "data/", data], env)
    return both(down, run([*words, "up", BUCKET, f"results/{name}/", data], env))


def peers(python: Path) -> Callable[[dict[str, str], Path, str], Taken]:
    def move(env: dict[str, str], folder: Path, name: str) -> Taken:
        source, target = f"s3://{BUCKET}/data", f"s3://{BUCKET}/results/{name}"
        ran = run([str(python), "-c", PEER_PATH, source, str(folder / "in"), target], env, PATIENCE)
        return Taken(ran.seconds, 0.0, ran.peak_mb)

    return move


def aws(env: dict[str, str], folder: Path, name: str) -> Taken:
    """The aws command, once down and once up."""
    copy = [str(Path(sys.executable).with_name("aws")), "s3", "cp", "--recursive", "--only-show-errors"]
    down = run([*copy, f"s3://{BUCKET}/data", str(folder / "in")], env)
    up = run([*copy, str(folder / "in"), f"s3://{BUCKET}/results/{name}"], env)
    return both(down, up)


def moved(s3: Any, title: str, way: Callable[[dict[str, str], Path, str], Taken], port: int, load: Load) -> Taken:
    """One way's time; what it left is checked and removed."""
    say(f"  {title}")
    name, folder = uuid.uuid4().hex, Path(tempfile.mkdtemp(prefix="tao-bench-"))
    try:
        taken = way(environment(port), folder, name)
    finally:
        shutil.rmtree(folder)
    pages = s3.get_paginator("list_objects_v2").paginate(Bucket=BUCKET, Prefix=f"results/{name}/")
    there = [item for page in pages for item in page.get("Contents", ()) if "/attempts/" not in item["Key"]]
    if (len(there), sum(item["Size"] for item in there)) != (load.objects + LARGE_COUNT, load.size):
        raise RuntimeError(f"{len(there)} objects have arrived instead of {load.objects + LARGE_COUNT}")
    for item in there:
        s3.delete_object(Bucket=BUCKET, Key=item["Key"])
    return taken


def peer_or_reason() -> tuple[Path | None, str]:
    try:
        python = peer_python()
        needs = ["fsspec>=2024.6.0", "s3fs>=2024.6.0", "pandas", "toml", "pyyaml", "huggingface_hub"]
        uv = str(Path(sys.executable).with_name("uv"))
        subprocess.run([uv, "pip", "install", "--quiet", "--python", str(python), *needs], check=True)
    except (subprocess.CalledProcessError, OSError) as error:
        return None, f"{PEER} cannot be installed here: {error}"
    return python, ""


def measure() -> list[Row]:
    from s3_server import S3Server

    load = Load.asked()
    python, reason = (None, "not asked") if os.environ.get("BENCH_PEER") == "0" else peer_or_reason()
    ways = {"prefect-tao": ours, "boto3 s3transfer": boto3_transfers, "aws s3 cp --recursive": aws}
    with tempfile.TemporaryDirectory() as scratch, S3Server() as server, slow_network(server.port, DELAY) as slow:
        s3 = client(server.port)
        fill(s3, load, Path(scratch))
        late = {name: moved(s3, name, way, slow, load) for name, way in ways.items()}
        bare = {name: moved(s3, f"{name}, no delay", way, server.port, load) for name, way in ways.items()}
        peer = peer_seconds(s3, python, slow, load) if python else None
    rows = table(f"{load}, {DELAY * 1000:.0f} ms a request", late)
    if peer:
        more, mine = "more than " if peer == PATIENCE else "", late["prefect-tao"].seconds
        taken = f"{more}{times(peer, mine)} our time"
        rows += [Row(f"{PEER}, script_runner", f"{more}{peer:.1f} s", taken, "at least 4x")]
    else:
        rows += [Row(PEER, reason)]
    rows += table("without delay", bare)
    peak = max(taken["prefect-tao"].peak_mb for taken in (late, bare))
    return [*rows, Row("peak memory of the runner", f"{peak:.0f} MB", "", "below 200 MB")]


def table(title: str, taken: dict[str, Taken]) -> list[Row]:
    """One row for each way, down and up apart: our own part logic has to earn its lines in each."""
    mine, rows = taken["prefect-tao"], []
    for name, one in taken.items():
        shown = f"{one.seconds:.1f} s ({one.down:.1f} down, {one.up:.1f} up)"
        ratio = f"{times(one.seconds, mine.seconds)} our time"
        ratio += f" ({times(one.down, mine.down)} down, {times(one.up, mine.up)} up)"
        rows.append(Row(f"{title}: {name}", shown, "1x" if one is mine else ratio, GOALS.get(name, "")))
    return rows


def peer_seconds(s3: Any, python: Path, port: int, load: Load) -> float:
    """What the peer takes, or PATIENCE when it takes longer."""
    try:
        return moved(s3, PEER, peers(python), port, load).seconds
    except TooLong:
        return PATIENCE


def main() -> None:
    sys.stdout.write(json.dumps([row._asdict() for row in measure()], indent=2) + "\n")


if __name__ == "__main__":
    main()
