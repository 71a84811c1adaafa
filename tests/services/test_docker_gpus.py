"""GPUs in containers: free ones are chosen, never shared, and what is in the way is told before the launch."""

from __future__ import annotations

import os
from pathlib import Path
from secrets import token_hex
from typing import Any

import pytest
from docker_engine import GPU, NVIDIA_SMI, PYTHON, Engine
from docker_images import image_archive
from docker_proxy import EngineProxy
from docker_tools import Opener, found, gpu_image, idle_image, make_gpu_image, opened, request, says, start, until
from opened_platforms import process_at

from prefect_tao.jobs.errors import SubmitFailed
from prefect_tao.jobs.finding import Level, blocking
from prefect_tao.jobs.state import JobState
from prefect_tao.platforms import doubt
from prefect_tao.platforms.container_jobs import wanted_gpus

__all__ = ["gpu_image", "idle_image", "opened"]
pytestmark = pytest.mark.xdist_group("docker")


async def test_a_job_gets_the_ids_of_free_gpus(opened: Opener, proxy: EngineProxy, gpu_image: str) -> None:
    platform = opened()
    handle = await start(platform, "echo got $NVIDIA_VISIBLE_DEVICES", image=gpu_image, resources={"gpus": 1})
    assert (await until(platform, handle)).state is JobState.COMPLETE
    asked = proxy.matching("POST", "create.name=tao-job")[-1].data
    assert asked["HostConfig"]["DeviceRequests"] == [{"DeviceIDs": ["1"], "Capabilities": [["gpu"]]}]
    assert "got 1\n" in (await platform.logs(handle)).text


async def test_two_jobs_never_have_one_gpu(opened: Opener, proxy: EngineProxy, gpu_image: str) -> None:
    fields: dict[str, Any] = {"image": gpu_image, "resources": {"gpus": 1}}
    platform = opened(gpu_ids=["1"])
    first = await start(platform, "echo begun; sleep 300", **fields)
    await says(platform, first, "begun")
    second = await start(opened(gpu_ids=["1"]), "echo begun", **fields)
    waiting = await until(platform, second, JobState.PENDING)
    assert waiting.reason == "waiting for GPU 1"
    third = await start(opened(gpu_ids=["GPU-bbbb"]), "echo begun", **fields)
    await platform.observe([first, second, third])
    before = len(proxy.requests)
    seen = await platform.observe([first, second, third])
    assert [one.state for one in seen.values()] == [JobState.RUNNING, JobState.PENDING, JobState.PENDING]
    assert await platform.in_flight() == 3
    assert [asked.path.partition("?")[0] for asked in proxy.requests[before:]] == ["/containers/json"] * 2
    (told,) = found(await platform.probe(request(**fields)), "gpus")
    assert told[0] is Level.WARN
    assert "will wait" in told[1]
    await platform.cancel([first], timeout=20)
    assert (await until(platform, second)).state is JobState.COMPLETE
    assert (await until(platform, third)).state is JobState.COMPLETE
    assert await platform.in_flight() == 0


async def test_a_container_and_a_process_never_have_one_gpu(
    opened: Opener, proxy: EngineProxy, idle_image: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    smi = tmp_path / "nvidia-smi"
    smi.write_text(
        "#!/bin/sh\necho 'GPU 0: NVIDIA A100 (UUID: GPU-aaaa)'; echo 'GPU 1: NVIDIA A100 (UUID: GPU-bbbb)'\n"
    )
    smi.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    wants, fields = {"gpus": 1}, {"image": idle_image, "resources": {"gpus": 1}}
    machine = process_at(tmp_path / "jobs", gpu_ids=["GPU-bbbb"])
    platform = opened(gpu_ids=["1"])
    process = await start(machine, "echo begun; sleep 300", image=None, resources=wants)
    await says(machine, process, "begun")
    container = await start(platform, "echo begun; sleep 300", **fields)
    assert (await until(platform, container, JobState.PENDING)).reason == "waiting for GPU 1"
    other = await start(opened(), "echo begun", **fields)
    assert (await until(platform, other)).state is JobState.COMPLETE
    asked = proxy.matching("POST", "create.name=tao-job")[-1].data
    assert asked["HostConfig"]["DeviceRequests"][0]["DeviceIDs"] == ["0"], "the one that nobody has locked"
    await machine.cancel([process], timeout=20)
    await says(platform, container, "begun")
    again = await start(machine, "echo begun", image=None, resources=wants)
    assert (await until(machine, again, JobState.PENDING)).reason == "waiting for a free GPU"
    await platform.cancel([container], timeout=20)
    assert (await until(machine, again)).state is JobState.COMPLETE


async def test_jobs_without_gpus_see_none_and_minus_one_is_all(
    opened: Opener, proxy: EngineProxy, idle_image: str
) -> None:
    platform, greedy = opened(), opened(gpus=-1)
    none = await start(platform, "echo got $NVIDIA_VISIBLE_DEVICES")
    every = await start(greedy, image=idle_image)
    zero = await start(greedy, "echo got $NVIDIA_VISIBLE_DEVICES", resources={"gpus": 0})
    for handle in (none, every, zero):
        await until(platform, handle)
    assert "got void\n" in (await platform.logs(none)).text
    assert "got void\n" in (await platform.logs(zero)).text
    again = await platform.request_of(every)
    assert again
    assert wanted_gpus(again, greedy.options) == -1, "also for the next attempt, by what is kept of the request"
    asked = [seen.data["HostConfig"] for seen in proxy.matching("POST", "create.name=tao-job")]
    assert "DeviceRequests" not in asked[0]
    assert "DeviceRequests" not in asked[2]
    assert asked[1]["DeviceRequests"] == [{"DeviceIDs": ["0", "1"], "Capabilities": [["gpu"]]}]


async def test_a_job_may_ask_for_all_gpus_by_itself(opened: Opener, proxy: EngineProxy, idle_image: str) -> None:
    platform = opened()
    assert await platform.all_gpus(idle_image) == 2
    assert await opened(gpu_ids=["1"]).all_gpus() == 1
    wanted = request(image=idle_image, resources={"gpus": -1})
    assert "--gpus all" in platform.render(wanted, token_hex(8), 1).text
    (told,) = found(await platform.probe(wanted), "gpus")
    assert told[1].startswith("gpus: 0 (NVIDIA A100), 1 (NVIDIA A100) chosen")
    handle = await start(platform, image=idle_image, resources={"gpus": -1})
    assert (await until(platform, handle)).state is JobState.COMPLETE
    asked = proxy.matching("POST", "create.name=tao-job")[-1].data["HostConfig"]
    assert asked["DeviceRequests"] == [{"DeviceIDs": ["0", "1"], "Capabilities": [["gpu"]]}]


async def test_more_gpus_than_there_are_fail_the_probe_and_the_launch(opened: Opener, gpu_image: str) -> None:
    platform, wanted = opened(), request(image=GPU, resources={"gpus": 3})
    (told,) = found(blocking(await platform.probe(wanted)), "gpus")
    assert "3 were asked for, and the engine's host has 2" in told[1]
    with pytest.raises(SubmitFailed, match="3 were asked for"):
        await platform.submit(platform.render(wanted, token_hex(8), 1), {})


async def test_the_probe_names_the_chosen_gpus_and_what_the_model_is_not_built_for(
    opened: Opener, gpu_image: str
) -> None:
    platform = opened()
    (chosen,) = found(await platform.probe(request(image=gpu_image, resources={"gpus": 1})), "gpus")
    assert chosen == (Level.OK, "gpus: 1 (NVIDIA A100) chosen, driver 580.82")
    for wanted in (2, -1):
        asked = request(image=gpu_image, resources={"gpus": wanted})
        (busy,) = found(await platform.probe(asked), "gpus")
        assert busy[0] is Level.FAIL
        assert "GPU 0 is in use by process 4711 (python3) (40000 MiB used)" in busy[1]
        with pytest.raises(SubmitFailed, match="process 4711"):
            await platform.submit(platform.render(asked, token_hex(8), 1), {})
    versions = await platform.host_versions()
    assert versions["container_toolkit"] == ""


async def test_only_the_chosen_gpus_are_judged_and_one_that_fails_is_told(opened: Opener, engine: Engine) -> None:
    make_gpu_image(engine, "tao-test:mixed", NVIDIA_SMI.replace("40000, 8.0", "40000, 7.5"))
    make_gpu_image(engine, "tao-test:broken", "#!/bin/sh\necho no driver; exit 9\n")
    shape, model = {"resources": {"gpus": 1}}, "cosmos-reason"
    told = found(await opened().probe(request(image="tao-test:mixed", model=model, **shape)), "gpus")
    assert told == [(Level.OK, "gpus: 1 (NVIDIA A100) chosen, driver 580.82")]
    ((level, message),) = found(await opened().probe(request(image="tao-test:broken", **shape)), "gpus")
    assert (level, "nvidia-smi fails there with exit code 9: no driver" in message) == (Level.FAIL, True)
    for name in ("mixed", "broken"):
        engine.client.remove_image(f"tao-test:{name}")


async def test_gpus_are_seen_where_the_smallest_image_has_not_what_it_takes(
    opened: Opener, engine: Engine, gpu_image: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doubt, "CHECK_SECONDS", 0.0)
    assert list(engine.client.load_image(image_archive("tao-test:bare", "amd64", {"hello": b"x"})))
    assert await opened().host_versions() == {"driver": "580.82", "cuda": "13.0", "container_toolkit": ""}
    for image in (PYTHON, "tao-test:bare", "127.0.0.1:1/team/none:1"):
        (told,) = found(await opened().probe(request(image=image, resources={"gpus": 1})), "gpus")
        assert told == (Level.OK, "gpus: 1 (NVIDIA A100) chosen, driver 580.82")
    engine.client.remove_image("tao-test:bare")
