"""The pure parts of the Docker driver: which engine, what a container is asked to be, log cursors, GPU choice."""

from __future__ import annotations

import base64
import fcntl
import hashlib
import json
import os
import struct
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest
from opened_platforms import docker_at

from prefect_tao.jobs.errors import InvalidInput, MissingDependency
from prefect_tao.jobs.finding import Level
from prefect_tao.jobs.handle import JobHandle
from prefect_tao.jobs.request import JobRequest
from prefect_tao.jobs.state import JobState
from prefect_tao.platforms import gpu_locks, gpus, open_platform
from prefect_tao.platforms import stamped_logs as logs
from prefect_tao.platforms.docker import devices, endpoint, probes, pulling, submit
from prefect_tao.platforms.docker.client import Engine, log_entries
from prefect_tao.platforms.docker.driver import DockerPlatform
from prefect_tao.platforms.docker.observe import ContainerObserver, Listed
from prefect_tao.platforms.docker.render import create_body, host_path, locks, render, results_of
from prefect_tao.platforms.docker.settings import DockerSettings
from prefect_tao.platforms.doubt import Refused
from prefect_tao.platforms.ssh.destination import Destination

KEY = "0123456789abcdef"
SMI = """0, GPU-a, NVIDIA A100, 81920, 40000, 8.0, 580.82
1, GPU-b, NVIDIA A100, 81920, 4, 8.0, 580.82
2, GPU-c, NVIDIA A100, 81920, [N/A], 9.0, 580.82
==
GPU-a, 4711
==
| NVIDIA-SMI 580.82 Driver Version: 580.82 CUDA Version: 13.0 |
"""
TEGRA = {"KernelVersion": "5.15.148-tegra", "Runtimes": {"nvidia": {}}}


# -- which engine ------------------------------------------------------------------------------------------------------


def test_an_engine_is_found_as_the_docker_command_finds_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("DOCKER_HOST", "DOCKER_CONTEXT", "DOCKER_CERT_PATH", "DOCKER_TLS_VERIFY", "XDG_RUNTIME_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    assert endpoint.resolve().url == "unix:///var/run/docker.sock"
    monkeypatch.setenv("DOCKER_HOST", "ssh://me@box")
    assert endpoint.resolve().url == "ssh://me@box"
    assert endpoint.resolve("tcp://other:2375").url == "tcp://other:2375"
    monkeypatch.setenv("DOCKER_CERT_PATH", str(tmp_path))
    monkeypatch.setenv("DOCKER_TLS_VERIFY", "1")
    assert endpoint.resolve("tcp://other:2376").certs == tmp_path
    assert endpoint.resolve("ssh://me@box").certs is None
    monkeypatch.delenv("DOCKER_CERT_PATH")
    assert endpoint.resolve("tcp://other:2376").certs == tmp_path, "as the docker command: beside its settings"


@pytest.mark.parametrize("host", ["/var/run/docker.sock", "box", "npipe://x", "://x"])
def test_what_names_no_engine_is_bad_input(host: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="no Docker engine"):
        endpoint.resolve(host)
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    place = tmp_path / "contexts/meta" / hashlib.sha256(b"desk").hexdigest()
    place.mkdir(parents=True)
    (place / "meta.json").write_text(json.dumps({"Endpoints": {"docker": {"Host": host}}}))
    with pytest.raises(InvalidInput, match="no Docker engine"):
        endpoint.resolve(context="desk")


def opened(given: dict[str, Any]) -> DockerPlatform:
    platform = open_platform("local-docker", given)
    assert isinstance(platform, DockerPlatform)
    return platform


def test_settings_by_variable_count_and_wrong_ones_are_bad_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_AUTO_REMOVE", "True")
    monkeypatch.setenv("DOCKER_PULL_POLICY", "always")
    platform = opened({"host": "unix:///nowhere"})
    assert (platform.options.auto_remove, platform.options.pull_policy) == (True, "always")
    assert opened({"host": "unix:///nowhere", "auto_remove": False}).options.auto_remove is False
    with pytest.raises(InvalidInput, match="pull_policy: Input should be 'missing', 'always' or 'never'"):
        opened({"host": "unix:///nowhere", "pull_policy": "sometimes"})
    with pytest.raises(InvalidInput, match="netwrok: Extra inputs are not permitted"):
        opened({"netwrok": "none"})


def test_without_the_docker_package_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name == "docker" or name.startswith("docker.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "docker", None)
    with pytest.raises(MissingDependency, match="need the package docker") as told:
        pulling._header("box:5000/x:1", {})
    assert "prefect-tao[docker]" in told.value.remedy


@pytest.mark.filterwarnings("ignore:docker-credential")
def test_logins_whose_keeper_is_missing_count_as_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"credsStore": "no-such-keeper"}))
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    header = pulling._header("box:5000/x:1", {})
    assert base64.urlsafe_b64decode(header["X-Registry-Auth"]) == b"{}"


def test_a_destination_takes_user_and_port_only_where_they_are_given() -> None:
    plain, whole = Destination.parse("ssh://gpu-box"), Destination.parse("ssh://me@gpu-box:2222")
    assert (plain.host, plain.user, plain.port, plain.options()) == ("gpu-box", None, None, [])
    assert whole.options() == ["-l", "me", "-p", "2222"]


# -- the container -----------------------------------------------------------------------------------------------------


def body(settings: DockerSettings | None = None, **fields: Any) -> dict[str, Any]:
    request = JobRequest.build(**{"command": "true", "image": "team/net:1", **fields})
    return create_body(request, KEY, 1, settings or DockerSettings(results_root="/data/results"))


def test_results_are_mounted_at_their_own_path_and_inputs_read_only() -> None:
    inputs = {"/a": "/data/in/train", "/b": "file:///data/results/old", "/c": "s3://bucket/x", "/d": "/data/*/img"}
    mounts = {mount["Target"]: mount for mount in body(inputs=inputs)["HostConfig"]["Mounts"]}
    assert {target: mount["ReadOnly"] for target, mount in mounts.items()} == {"/data/results": False, "/data": True}
    assert host_path("/data/x/../y") == "/data/y"
    assert host_path("relative/path") is None


def test_outputs_at_a_path_of_their_own_are_mounted_to_be_written() -> None:
    specs = {"a": "/data/exp1", "b": "file:///data/onnx/net.onnx", "c": "/data/results/x", "d": "s3://b/x", "e": ""}
    rules = {key: {"type": "file" if key == "b" else "folder"} for key in specs}
    mounts = body(specs=specs, outputs=rules)["HostConfig"]["Mounts"]
    assert [(mount["Target"], mount["ReadOnly"]) for mount in mounts] == [
        ("/data/results", False),
        ("/data/exp1", False),
        ("/data/onnx", False),
    ]
    bucket = body(DockerSettings(s3_bucket_name="models"), specs=specs, outputs=rules)
    assert bucket["HostConfig"]["Mounts"] == [], "they are carried to the bucket"


@pytest.mark.parametrize(("native", "state"), [("restarting", "Running"), ("paused", "Paused"), ("running", "Running")])
def test_what_docker_calls_a_container_that_goes_on_is_understood(native: str, state: str) -> None:
    looks = ContainerObserver(Engine(endpoint.Endpoint("unix:///nowhere")), "local-docker")
    handle, listed = JobHandle(target="local-docker", key=KEY, attempt=1), Listed("id", "name", native, {}, 1)
    seen = looks._seen(handle, listed, list, ())
    assert seen
    assert (seen.state, seen.native_state) == (JobState(state), native)
    assert [Listed("id", "name", over, {}, 1).is_over for over in ("dead", "exited", native)] == [True, True, False]


def test_control_variables_stay_outside_and_shapes_become_limits() -> None:
    made = body(resources={"cpus": 2, "memory": "1G", "shm": "64M"}, env={"COLOR": "green"})
    names = {pair.partition("=")[0] for pair in made["Env"]}
    assert {"COLOR", "TAO_JOB_ID", "TAO_RESULTS_ROOT", "NVIDIA_VISIBLE_DEVICES"} <= names
    assert not names & {"DOCKER_HOST", "DOCKER_NETWORK", "BACKEND", "HOST_PLATFORM"}
    host = made["HostConfig"]
    assert (host["NanoCpus"], host["Memory"], host["ShmSize"]) == (2 * 10**9, 1024**3, 64 * 1024**2)
    assert host["Tmpfs"] == {}
    assert body()["HostConfig"]["Tmpfs"] == {"/dev/shm": ""}


def test_without_a_folder_results_go_to_the_bucket_or_to_a_volume() -> None:
    bucket = DockerSettings(s3_bucket_name="models", s3_endpoint_url="http://store:9000")
    assert results_of(KEY, bucket) == f"s3://models/results/{KEY}"
    assert "S3_BUCKET_NAME=models" in body(bucket)["Env"]
    assert not any(pair.startswith("TAO_RESULTS_ROOT") for pair in body(bucket)["Env"])
    assert results_of(KEY, DockerSettings()) == f"volume://tao-results/{KEY}"
    assert docker_at("local-docker", s3_bucket_name="s3://models/").options.s3_bucket_name == "models"
    assert body(DockerSettings())["HostConfig"]["Mounts"][0]["Type"] == "volume"


def test_the_rendered_text_is_a_docker_command_without_secrets() -> None:
    request = JobRequest.build(command="train", image="team/net:1", secrets=["HF_TOKEN"], resources={"gpus": 2})
    text = render(request, KEY, 1, DockerSettings(), "local-docker").text
    assert f"--name tao-job-{KEY}-1" in text
    assert "--gpus 2" in text
    assert "# secrets by name: HF_TOKEN" in text


# -- GPUs --------------------------------------------------------------------------------------------------------------


def test_nvidia_smi_is_understood() -> None:
    seen = gpus.parse(SMI)
    assert [(gpu.number, gpu.is_busy) for gpu in seen.gpus] == [("0", True), ("1", False), ("2", False)]
    assert (seen.cuda, seen.gpus[0].driver, seen.gpus[2].used_mib) == ("13.0", "580.82", 0)


@pytest.mark.parametrize(
    ("wanted", "reserved", "chosen"),
    [(1, [], ["1"]), (2, [], ["1", "2"]), (1, ["1"], ["2"]), (-1, ["0"], ["0", "1", "2"]), (3, ["0"], ["0", "1", "2"])],
)
def test_gpus_that_others_compute_on_are_not_handed_out(wanted: int, reserved: list[str], chosen: list[str]) -> None:
    seen = gpus.parse(SMI)
    ids = gpus.candidates(seen, None)
    in_use = gpus.busy(ids, reserved, seen)
    assert gpus.shortage(wanted, ids, in_use) == ""
    assert gpus.choose(wanted, submit.without(ids, in_use), reserved) == chosen


@pytest.mark.parametrize("wanted", [3, -1])
def test_too_few_free_gpus_are_told_with_who_uses_them(wanted: int) -> None:
    seen = gpus.parse(SMI.replace("GPU-a, 4711", "GPU-a, 4711, /usr/bin/python3"))
    ids = gpus.candidates(seen, None)
    words = gpus.shortage(wanted, ids, gpus.busy(ids, ["1"], seen))
    assert "2 of 3 can be had: GPU 0 is in use by process 4711 (/usr/bin/python3) (40000 MiB used)" in words


def test_a_gpu_with_a_display_can_be_had_by_its_name() -> None:
    seen = gpus.parse(SMI.replace("GPU-a, 4711\n", ""))
    assert [gpu.number for gpu in gpus.busy(["0"], [], seen)] == ["0"]
    assert gpus.busy(["0"], [], seen, named=True) == []
    assert gpus.busy(["0"], [], gpus.parse(SMI), named=True) != []


def test_a_gpu_that_the_model_is_not_built_for_is_told_with_those_it_is_built_for() -> None:
    old = gpus.parse(SMI.replace("8.0", "7.5"))
    found = probes.Findings("local-docker")
    probes._architecture(found, JobRequest.build(command="x", image="x", model="cosmos-reason"), old.gpus[:2])
    assert [finding.level for finding in found] == [Level.FAIL, Level.FAIL]
    assert "GPU 0 (NVIDIA A100) is sm_75, and cosmos-reason is built for sm_80, sm_90" in found[0].message
    assert found[0].remedy


def test_allowed_gpus_may_be_named_by_uuid() -> None:
    assert gpus.candidates(gpus.parse(SMI), ["GPU-c", "0"]) == ["2", "0"]
    assert gpus.candidates(None, ["0"]) == ["0"]


def test_a_jetson_gets_its_gpu_through_the_runtime() -> None:
    made = body(resources={"gpus": 1})
    devices.give(made, 1, ["0"], TEGRA, "/locks")
    assert made["HostConfig"]["Runtime"] == "nvidia"
    assert "DeviceRequests" not in made["HostConfig"]
    assert {"NVIDIA_VISIBLE_DEVICES=0", "NVIDIA_DRIVER_CAPABILITIES=all"} <= set(made["Env"])


def test_unknown_gpus_are_asked_for_by_number_and_all_of_them_locked() -> None:
    made = body(resources={"gpus": 2})
    devices.give(made, 2, [], {}, "/locks")
    assert made["HostConfig"]["DeviceRequests"] == [{"Count": 2, "Capabilities": [["gpu"]]}]
    assert made["HostConfig"]["Binds"] == ["/locks:/prefect-tao-gpus"]
    assert locks(made["Labels"]) == ["all"]


def test_a_gpu_is_locked_by_both_its_names() -> None:
    made = body(resources={"gpus": 1})
    devices.give(made, 1, ["1"], {}, "/locks", gpus.parse(SMI))
    assert locks(made["Labels"]) == ["1", "GPU-b"]


def is_free(path: Path, how: int = fcntl.LOCK_EX) -> bool:
    with path.open("w") as file:
        try:
            fcntl.flock(file, how | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True


def test_who_has_some_gpus_keeps_off_only_those_who_want_the_same_or_all(tmp_path: Path) -> None:
    some = gpu_locks.wait_for_names(str(tmp_path), ["1", "GPU-b"])
    assert [is_free(tmp_path / name) for name in ("0", "1", "GPU-b", "all")] == [True, False, False, False]
    assert is_free(tmp_path / "all", fcntl.LOCK_SH)
    for lock in some:
        os.close(lock)
    gpu_locks.wait_for_names(str(tmp_path), ["all"])
    assert not is_free(tmp_path / "all", fcntl.LOCK_SH)


def test_processes_and_containers_meet_at_the_same_locks(tmp_path: Path) -> None:
    folder = str(tmp_path)
    process = gpu_locks.take({"0": ("GPU-a",), "1": ("GPU-b",)}, 1, folder)
    assert process is not None
    assert list(process) == ["0"]
    assert not is_free(tmp_path / "GPU-a"), "a container knows the GPU by this name, maybe"
    assert gpu_locks.taken({"0": (), "1": ()}, folder) == ["0"]
    assert gpu_locks.taken({"GPU-a": (), "GPU-b": ()}, folder) == ["GPU-a"]
    assert not is_free(tmp_path / "all"), "nor can anybody have all GPUs for itself"
    container = gpu_locks.wait_for_names(folder, ["1", "GPU-b"])
    assert gpu_locks.take({"0": (), "1": ()}, 1, folder) is None
    assert gpu_locks.take({"GPU-b": ()}, 1, folder) is None
    for lock in (*container, *process["0"]):
        os.close(lock)
    gpu_locks.wait_for_names(folder, ["all"])
    assert gpu_locks.take({"0": ()}, 1, folder) is None


def test_the_gpus_of_this_machine_have_all_their_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = tmp_path / "nvidia-smi"
    fake.write_text("#!/bin/sh\necho 'GPU 0: NVIDIA A100 (UUID: GPU-a)'; echo 'GPU 1: NVIDIA A100 (UUID: GPU-b)'\n")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    assert gpus.inventory() == {"0": ("GPU-a",), "1": ("GPU-b",)}
    assert gpus.inventory(["GPU-b", "7"]) == {"GPU-b": ("1",), "7": ()}
    monkeypatch.setenv("PREFECT_TAO_GPUS", "1")
    assert gpus.inventory() == {"1": ("GPU-b",)}


def test_what_the_engine_says_about_gpus_is_explained() -> None:
    told = submit._explained("x", Refused(500, 'could not select device driver "" with capabilities: [[gpu]]'))
    assert "cannot give GPUs" in told.cause
    assert "container toolkit" in told.remedy


# -- images ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("image", "registry"),
    [
        ("ubuntu", "docker.io"),
        ("team/net:1", "docker.io"),
        ("nvcr.io/nvidia/x:1", "nvcr.io"),
        ("box:5000/x", "box:5000"),
    ],
)
def test_the_registry_of_an_image_is_known(image: str, registry: str) -> None:
    assert pulling.registry_of(image) == registry


def test_an_ngc_key_opens_ngc_and_nothing_else() -> None:
    login = pulling.login_for("nvcr.io/nvidia/x:1", {"NGC_KEY": "key"})
    assert login == {"username": "$oauthtoken", "password": "key", "serveraddress": "nvcr.io"}
    assert pulling.login_for("box:5000/x:1", {"NGC_KEY": "key"}) is None
    own = {"DOCKER_USERNAME": "me", "DOCKER_PASSWORD": "pw", "DOCKER_REGISTRY": "https://box:5000/v2"}
    assert pulling.login_for("box:5000/x:1", own) == {"username": "me", "password": "pw", "serveraddress": "box:5000"}
    assert pulling.login_for("ubuntu", own) is None


def test_a_password_goes_to_its_own_registry_and_nowhere_else() -> None:
    alone = {"DOCKER_USERNAME": "me", "DOCKER_PASSWORD": "pw"}
    assert pulling.login_for("evil.example/x:1", alone) is None
    assert pulling.login_for("nvcr.io/nvidia/x:1", alone) is None
    hub = {"username": "me", "password": "pw", "serveraddress": "docker.io"}
    assert pulling.login_for("team/net:1", alone) == hub
    assert pulling.login_for("team/net:1", {**alone, "DOCKER_REGISTRY": "https://index.docker.io/v1/"}) == hub
    both = pulling.login_for("nvcr.io/nvidia/x:1", {**alone, "NGC_KEY": "key"})
    assert both == {"username": "$oauthtoken", "password": "key", "serveraddress": "nvcr.io"}


# -- logs --------------------------------------------------------------------------------------------------------------


def answer(*lines: tuple[int, bytes]) -> Any:
    """An answer of the engine: a frame per line, with its moment."""
    frames = b""
    for nanoseconds, data in lines:
        stamped = f"2026-01-02T03:04:{nanoseconds // 10**9:02}.{nanoseconds % 10**9:09}Z ".encode() + data
        frames += struct.pack(">BxxxL", 1, len(stamped)) + stamped
    return httpx.Response(200, content=frames)


def test_a_late_line_of_the_other_stream_is_neither_lost_nor_doubled() -> None:
    first = logs.after(log_entries(answer((1000, b"a\n"), (3000, b"c\n"))), logs.Cursor())
    assert first.text == "a\nc\n"
    late = answer((1000, b"a\n"), (3000, b"c\n"), (2000, b"b\n"))
    second = logs.after(log_entries(late), logs.Cursor.parse(first.cursor))
    assert second.text == "b\n"
    assert logs.after(log_entries(late), logs.Cursor.parse(second.cursor)).text == ""


def test_a_log_whose_beginning_was_thrown_away_goes_on_with_what_is_new() -> None:
    first = logs.after(log_entries(answer((1, b"a\n"), (2, b"b\n"), (3, b"c\n"))), logs.Cursor())
    rotated = answer((3, b"c\n"), (4, b"d\n"), (5, b"e\n"))
    assert logs.after(log_entries(rotated), logs.Cursor.parse(first.cursor)).text == "d\ne\n"


def test_a_piece_that_ends_inside_a_character_waits_for_its_rest() -> None:
    whole = "🙂".encode()
    first = logs.after(log_entries(answer((1, b"a\n"), (2, whole[:2]))), logs.Cursor())
    assert first.text == "a\n"
    more = answer((1, b"a\n"), (2, whole[:2]), (3, whole[2:] + b"\n"))
    assert logs.after(log_entries(more), logs.Cursor.parse(first.cursor)).text == "🙂\n"


def test_a_cursor_of_another_kind_starts_from_the_beginning() -> None:
    assert logs.Cursor.parse("12345") == logs.Cursor()
    assert json.loads(json.dumps(str(logs.Cursor(1, 2, 3)))) == "1:2:3"
