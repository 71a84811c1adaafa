"""Outputs reach S3 while the command runs and after it; under a final name there is never half a file."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from http_faults import Fault, Request
from runner_tools import KEY, checkpoint, until
from s3_jobs import MIB, S3Jobs

from prefect_tao.runner.entrypoint import build_entrypoint
from prefect_tao.runner.inside import retry, store
from prefect_tao.runner.inside.failures import RunnerError
from prefect_tao.runner.inside.stores.s3 import SCHEME
from prefect_tao.runner.inside.sync import Sync
from prefect_tao.runner.inside.tenure import Tenure

pytestmark = pytest.mark.xdist_group("s3")

PREFIX = f"results/{KEY}/results_dir"


def is_upload(request: Request) -> bool:
    """Whether a request sends a part of the job's results, or a whole file of them."""
    return request.method == "PUT" and "results_dir" in request.path


def copying(folder: Path, more: str = "") -> str:
    return f'cp -r "{folder}/." "$TAO_RESULTS_DIR"/{more}'


def test_many_small_files_and_a_large_one_are_kept_as_they_are(either: S3Jobs) -> None:
    made = either.runner.folder / "made"
    wanted = {f"sub/{index} ü.jpg": b"x" * index for index in range(8)} | {"large.bin": os.urandom(MIB) * 40 + b"end"}
    for name, content in wanted.items():
        (made / name).parent.mkdir(parents=True, exist_ok=True)
        (made / name).write_bytes(content)
    ended = either.run(build_entrypoint(copying(made)))
    assert ended.code == 0, ended.log
    assert {key: either.bucket.get(f"{PREFIX}/{key}") for key in either.bucket.keys(f"{PREFIX}/")} == wanted
    uploads = either.bucket.client.list_multipart_uploads(Bucket=either.bucket.name)
    assert not uploads.get("Uploads")
    headers = {name.lower() for request in either.faults.requests for name in request.headers}
    assert not [name for name in headers if "checksum" in name], "not every store understands them"


def test_a_destination_with_dots_in_it_is_taken_at_its_word(either: S3Jobs) -> None:
    """The aws command is given copies of small files: such a name would put them elsewhere, on this machine too."""
    uri = either.bucket.uri("a/../../../../../../../..") + str(either.runner.folder / "evil")
    script = f"cd {either.runner.folder}/work/outputs/out && touch 1 2 3 4 5 && test -f {{config_path}}"
    ended = either.run(build_entrypoint(script, specs={"out": uri}, outputs={"out": {}}))
    assert ended.code == 0, ended.log
    assert not (either.runner.folder / "evil").exists()
    assert [key for key in either.bucket.keys("") if "evil" in key] == [
        f"{uri.split('/', 3)[3]}/{n}" for n in range(1, 6)
    ]


def test_connections_that_break_and_a_busy_store_do_not_lose_a_file(s3: S3Jobs) -> None:
    made = s3.runner.folder / "made"
    made.mkdir()
    data = os.urandom(MIB) * 20
    (made / "large.bin").write_bytes(data)
    (made / "small.bin").write_bytes(b"small")
    s3.faults.times(3, Fault(status=503, code="SlowDown"), is_upload)
    # The store has done it, but its answer is lost.
    s3.faults.times(1, Fault(cut_after=0), lambda request: request.method == "POST" and "uploadId" in request.path)
    ended = s3.run(build_entrypoint(copying(made)))
    assert ended.code == 0, ended.log
    assert s3.bucket.get(f"{PREFIX}/large.bin") == data
    assert s3.bucket.get(f"{PREFIX}/small.bin") == b"small"


def test_only_what_changed_is_sent_again(either: S3Jobs) -> None:
    go = either.runner.folder / "go"
    command = f'cd "$TAO_RESULTS_DIR"; seq 9 > a; seq 9 > b; until test -f {go}; do sleep 0.1; done; seq 9 >> b'
    job = either.start(build_entrypoint(command, sync_interval=0.3))
    until(lambda: len(either.bucket.keys(f"{PREFIX}/")) == 2, "both files")
    rounds = len(either.faults.requests)
    go.touch()
    assert job.end().code == 0
    sent = [request.path for request in either.faults.requests[rounds:] if is_upload(request)]
    assert [path.rpartition("/")[2].partition("?")[0] for path in sent] == ["b"]
    assert either.bucket.get(f"{PREFIX}/b").count(b"9") == 2


def test_a_checkpoint_that_is_being_written_is_not_sent_before_it_is_whole(either: S3Jobs) -> None:
    source, done = checkpoint(either.runner.folder / "made.pth", 40_000), either.runner.folder / "done"
    write = (
        f'cd "$TAO_RESULTS_DIR"; for i in $(seq 0 39); do '
        f"dd if={source} of=model.pth bs=1024 skip=$i seek=$i count=1 conv=notrunc status=none; sleep 0.1; done; "
        f"until test -f {done}; do sleep 0.1; done"
    )
    job = either.start(build_entrypoint(write, sync_interval=0.35))
    until(lambda: "model.pth" in either.bucket.keys(f"{PREFIX}/"), "the checkpoint")
    assert either.bucket.get(f"{PREFIX}/model.pth") == source.read_bytes()
    done.touch()
    assert job.end().code == 0


@pytest.mark.parametrize("size", [3, 20])
def test_a_file_that_changes_while_it_is_sent_gets_its_name_only_when_it_is_whole(s3: S3Jobs, size: int) -> None:
    """A checkpoint that is written over in place: what was sent of the old one must not stand beside the new."""
    old, new = os.urandom(MIB) * size, os.urandom(MIB) * size
    go, file = s3.runner.folder / "go", s3.runner.work / "outputs" / "results_dir" / "last.ckpt"
    (s3.runner.folder / "old").write_bytes(old)
    seen: list[bytes] = []

    def look() -> None:
        """Whatever is under the final name when a request comes by."""
        if "last.ckpt" in s3.bucket.keys(f"{PREFIX}/"):
            seen.append(s3.bucket.get(f"{PREFIX}/last.ckpt"))

    def write_over() -> None:
        file.write_bytes(new)

    s3.faults.times(1, Fault(before=write_over), lambda request: "last.ckpt" in request.path)
    s3.faults.rules.append(lambda request: Fault(before=look) if is_upload(request) else None)
    command = f'cp {s3.runner.folder}/old "$TAO_RESULTS_DIR/last.ckpt"; until test -f {go}; do sleep 0.1; done'
    job = s3.start(build_entrypoint(command, sync_interval=0.3))
    until(lambda: "last.ckpt" in s3.bucket.keys(f"{PREFIX}/"), "the checkpoint")
    until(lambda: s3.bucket.get(f"{PREFIX}/last.ckpt") == new, "the new content")
    go.touch()
    assert job.end().code == 0
    assert all(content in (old, new) for content in seen)


@pytest.fixture
def impatient(s3: S3Jobs, monkeypatch: pytest.MonkeyPatch) -> Sync:
    """The carrying of one output, here, that tries each file once a round."""
    monkeypatch.setattr(retry, "TRIES", 1)
    monkeypatch.setitem(store._stores, "s3", SCHEME.connect(s3.bucket.env, print))
    (s3.runner.folder / "x").write_text("precious")
    sync = Sync([], (), Tenure(""))
    sync.add(str(s3.runner.folder / "x"), s3.bucket.uri(f"{PREFIX}/x"))
    return sync


def test_a_store_that_is_away_when_the_command_ends_gets_the_outputs_when_it_is_back(
    s3: S3Jobs, impatient: Sync, capfd: pytest.CaptureFixture[str]
) -> None:
    s3.faults.times(7, Fault(status=503, code="ServiceUnavailable"), is_upload)
    impatient.finish(lambda: False)
    assert s3.bucket.get(f"{PREFIX}/x") == b"precious"
    assert "outputs not saved yet" in capfd.readouterr().out


def test_who_is_asked_to_end_does_not_wait_for_a_store_that_is_away(s3: S3Jobs, impatient: Sync) -> None:
    s3.faults.rules.append(lambda request: Fault(status=503, code="ServiceUnavailable"))
    with pytest.raises(RunnerError, match="ServiceUnavailable"):
        impatient.finish(lambda: True)


def test_outputs_that_may_not_be_written_fail_the_job_with_what_to_do(either: S3Jobs) -> None:
    denied = Fault(status=403, code="AccessDenied")
    either.faults.rules.append(lambda request: denied if is_upload(request) else None)
    ended = either.run(build_entrypoint('echo 1 > "$TAO_RESULTS_DIR/x"'))
    assert ended.code == 125
    assert ended.marker["phase"] == "outputs"
    assert "AccessDenied" in ended.marker["error"]
    assert "ACCESS_KEY and SECRET_KEY" in ended.marker["error"]


def test_folders_are_excluded_by_pattern_at_any_depth(either: S3Jobs) -> None:
    out = either.runner.folder / "out"
    names = ("tmp_1/a", "sub/tmp_2/deep/b", "tmp", "cache/c", "sub/cache/d", "keep/x.bin", "keep/y.tmp", "keep/z")
    command = " && ".join(f"mkdir -p $(dirname {out}/{name}) && echo 1 > {out}/{name}" for name in names)
    excludes = ["tmp_*/", "./cache/", "*.tmp", "keep/z"]
    assert either.run(build_entrypoint(command, outputs=[str(out)], upload_excludes=excludes)).code == 0
    assert [key for key in either.bucket.outputs() if key.startswith("out/")] == ["out/keep/x.bin", "out/tmp"]


def test_outputs_whose_names_come_to_the_same_never_meet(s3: S3Jobs) -> None:
    folder = s3.runner.folder
    paths = [
        folder / "a" / "out",
        folder / "b" / "out",
        folder / f"{str(folder / 'b').strip('/').replace('/', '_')}_out",
    ]
    command = " && ".join(f"mkdir -p {path} && echo {path} > {path}/said" for path in paths)
    ended = s3.run(build_entrypoint(command, outputs=[str(path) for path in paths]))
    kept = [s3.bucket.get(f"{uri.partition(s3.bucket.name + '/')[2]}/said") for uri in ended.marker["outputs"].values()]
    assert sorted(kept) == sorted(f"{path}\n".encode() for path in paths)
    specs = {"a b": None, "a_b": None}
    entrypoint = build_entrypoint("true", specs=specs, outputs={"a b": {}, "a_b": {}})
    assert len(set(s3.run(entrypoint).marker["outputs"].values())) == 2
