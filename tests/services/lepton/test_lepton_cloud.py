"""The stand-in of Lepton answers the real client and the real lep command, and refuses what the service refuses."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from lepton_api import LeptonFault, LeptonServer, lepton_server

KEY = "0123456789abcdef"
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LeptonServer]:
    monkeypatch.setenv("LEPTON_CACHE_DIR", str(tmp_path / "cache"))
    with lepton_server(tmp_path, gpus=1) as running:
        yield running


@pytest.fixture
def client(server: LeptonServer) -> Any:
    from leptonai.api.v2.client import APIClient

    return APIClient("ws1", server.cloud.token, server.url)


def job(command: str, name: str = "train-a", **spec: Any) -> Any:
    from leptonai.api.v2.types.job import LeptonJob

    container = {"image": "any", "command": ["/bin/sh", "-c", command]}
    given = {"resource_shape": "cpu.small", "container": container, **spec}
    return LeptonJob(metadata={"id": name, "labels": {"run": "r1"}}, spec=given)


def until(ask: Callable[[], Any], seconds: float = 20.0) -> Any:
    deadline = time.monotonic() + seconds
    while not (found := ask()):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return found


def state(client: Any, id: str) -> str:
    return str(client.job.get(id).status.state.value)


def test_two_jobs_may_have_one_name_and_each_has_an_id_of_its_own(client: Any) -> None:
    first, second = client.job.create(job("true")), client.job.create(job("true"))
    assert first.metadata.name == second.metadata.name == "train-a"
    assert first.metadata.id_ != second.metadata.id_
    assert {one.metadata.id_ for one in client.job.list_all(q="train-a")} == {first.metadata.id_, second.metadata.id_}


def test_a_job_is_a_process_that_knows_its_place(client: Any) -> None:
    made = client.job.create(job("echo $LEPTON_JOB_WORKER_INDEX of $LEPTON_JOB_TOTAL_WORKERS; exit 3", parallelism=2))
    until(lambda: state(client, made.metadata.id_) == "Failed")
    now = time.time_ns()
    found = client.log.get_log(name_or_job=made.metadata.id_, start=str(now - 10**11), end=str(now))
    lines = [line for stream in found["data"]["result"] for _, line in stream["values"]]
    assert sorted(lines) == ["0 of 2", "1 of 2"]
    assert len(client.job.get_replicas(made.metadata.id_)) == 2


def test_a_stopped_job_ends_with_all_that_it_has_started(client: Any) -> None:
    made = client.job.create(job("setsid sleep 311 & trap '' TERM; echo begun; while :; do sleep 0.1; done"))
    (replica,) = client.job.get_replicas(made.metadata.id_)
    assert "begun" in next(client.job.get_log(made.metadata.id_, replica))
    client.job.update(made.metadata.id_, {"spec": {"stopped": True}})
    until(lambda: state(client, made.metadata.id_) == "Stopped")
    assert subprocess.run(["pgrep", "-f", "^sleep 311$"], capture_output=True).stdout == b""


def test_what_waits_for_gpus_starts_when_they_are_free(server: LeptonServer, client: Any) -> None:
    first = client.job.create(job("sleep 60", resource_shape="gpu.h100-sxm"))
    second = client.job.create(job("true", resource_shape="gpu.h100-sxm"))
    assert (state(client, first.metadata.id_), state(client, second.metadata.id_)) == ("Running", "Queueing")
    client.job.delete(first.metadata.id_)
    until(lambda: state(client, second.metadata.id_) == "Completed")
    assert state(client, first.metadata.id_) == "Deleted"
    assert [one.metadata.id_ for one in client.job.list_all()] == [second.metadata.id_]


def test_a_list_in_pages_ends_with_an_empty_one(server: LeptonServer, client: Any) -> None:
    server.cloud.most_rows = 2
    for _ in range(3):
        client.job.create(job("true"))
    assert len(client.job.list_all()) == 3
    assert len(server.asked("GET /jobs")) == 3


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"resource_shape": "gpu.nothing"}, "gpu.nothing"),
        ({"affinity": {"allowed_dedicated_node_groups": ["h100-pool"]}}, "node group"),
        ({"mounts": [{"from": "node-nfs:nowhere", "path": "/", "mount_path": "/data"}]}, "node-nfs:nowhere"),
        ({"envs": [{"name": "A", "value_from": {"secret_name_ref": "none"}}]}, "secret none"),
        ({"image_pull_secrets": ["none"]}, "pull secret none"),
    ],
)
def test_what_the_service_refuses_is_refused(client: Any, spec: dict[str, Any], words: str) -> None:
    with pytest.raises(RuntimeError, match=words):
        client.job.create(job("true", **spec))
    assert client.job.list_all() == []


def test_a_wrong_token_and_another_workspace_are_refused(server: LeptonServer) -> None:
    from leptonai.api.v2.client import APIClient
    from leptonai.api.v2.utils import WorkspaceNotFoundError, WorkspaceUnauthorizedError

    with pytest.raises(WorkspaceUnauthorizedError):
        APIClient("ws1", "wrong-token", server.url).info()
    with pytest.raises(WorkspaceNotFoundError):
        APIClient("ws2", server.cloud.token, server.url.replace("ws1", "ws2")).info()


def test_a_lost_reply_leaves_a_job_and_a_lost_request_does_not(server: LeptonServer, client: Any) -> None:
    server.hinder("POST /jobs", LeptonFault(lost="reply"))
    server.hinder("POST /jobs", LeptonFault(lost="request"))
    for left in (1, 1):
        with pytest.raises(Exception, match=r"RemoteDisconnected|Connection"):
            client.job.create(job("true"))
        assert len(server.cloud.jobs) == left


@pytest.mark.long
def test_the_lep_command_works_with_it(server: LeptonServer, client: Any) -> None:
    made = client.job.create(job("sleep 60", name="shown-by-lep"))
    own = {
        "LEPTON_WORKSPACE_ID": "ws1",
        "LEPTON_WORKSPACE_TOKEN": server.cloud.token,
        "LEPTON_WORKSPACE_URL": server.url,
    }
    lep = str(Path(sys.executable).with_name("lep"))

    def run(*words: str) -> str:
        done = subprocess.run(
            [lep, *words], env={**os.environ, **own, "COLUMNS": "200"}, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    assert "shown-by-lep" in run("job", "list")
    run("job", "stop", "--id", made.metadata.id_)
    until(lambda: state(client, made.metadata.id_) == "Stopped")
