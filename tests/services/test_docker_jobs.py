"""What only a Docker engine can show: states, ends, users, volumes, and what probes find."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from secrets import token_hex
from typing import Any
from urllib.parse import parse_qs

import pytest
from docker_engine import PYTHON, TOOLS, Engine
from docker_proxy import EngineProxy
from docker_tools import Opener, found, gpu_image, opened, request, says, start, until
from opened_platforms import docker_at

from prefect_tao.jobs.errors import InvalidInput, SubmitFailed, Unreachable
from prefect_tao.jobs.finding import Level, blocking
from prefect_tao.jobs.handle import JobHandle
from prefect_tao.jobs.launching import launch
from prefect_tao.jobs.state import EndedBy, JobState
from prefect_tao.jobs.verdict import Category
from prefect_tao.platforms import doubt
from prefect_tao.platforms.docker import observe
from prefect_tao.platforms.docker.driver import DockerPlatform

__all__ = ["gpu_image", "opened"]
pytestmark = pytest.mark.xdist_group("docker")
LOOK_APART = """
import asyncio, os, sys
from prefect_tao.platforms import open_platform
platform = open_platform("local-docker/test", {"host": sys.argv[1]})
print(os.path.exists(sys.argv[2]), asyncio.run(platform.check_path(sys.argv[2])))
"""
# -- states ------------------------------------------------------------------------------------------------------------


def abandon(platform: DockerPlatform, engine: Engine, count: int) -> list[JobHandle]:
    """Containers whose launcher died before it could start them."""
    handles = []
    Path(str(platform.options.results_root)).mkdir(exist_ok=True)
    for _ in range(count):
        key = token_hex(8)
        body = json.loads(platform.render(request(), key, 1).files["container.json"])
        made = engine.client.create_container_from_config(body, f"tao-job-{key}-1")["Id"]
        handles.append(JobHandle(target=platform.target, key=key, attempt=1, native_id=made))
    return handles


async def test_a_look_at_many_containers_that_were_not_started_costs_no_more_than_at_a_few(
    opened: Opener, engine: Engine, proxy: EngineProxy
) -> None:
    platform, other = opened(), opened()
    handles = abandon(platform, engine, 13)

    async def cost(look: Callable[[], Awaitable[Any]]) -> int:
        before = len(proxy.requests)
        await look()
        return len(proxy.requests) - before

    for count in (6, 13):
        asked = handles[:count]
        await platform.observe(asked)
        assert await cost(lambda asked=asked: platform.observe(asked)) == 1 + observe.AGAIN
    assert await cost(platform.in_flight) == 1 + observe.AGAIN

    await other.cancel(handles[-1:], timeout=20)
    looks = [(await platform.observe(handles))[handles[-1]].state for _ in range(-(-13 // observe.AGAIN))]
    assert looks[-1] is JobState.CANCELED, "whom another one cancelled is noticed when its turn comes"
    own = handles[5]
    seen = await platform.cancel([own], timeout=20)
    assert (seen[own].state, seen[own].ended_by) == (JobState.CANCELED, EndedBy.CANCEL)
    assert (await platform.observe(handles))[own].state is JobState.CANCELED
    assert await platform.in_flight() == 11


async def test_many_that_were_not_started_are_cancelled_together_and_seen_so_in_one_look(
    opened: Opener, engine: Engine, proxy: EngineProxy
) -> None:
    platform = opened()
    handles = abandon(platform, engine, 3 * observe.AGAIN)
    await platform.observe(handles)
    before = len(proxy.matching("GET", "/containers/json"))
    seen = await platform.cancel(handles, timeout=20)
    assert {one.state for one in seen.values()} == {JobState.CANCELED}
    assert len(proxy.matching("GET", "/containers/json")) - before == 1


async def test_a_paused_job_is_paused_and_can_be_cancelled(opened: Opener, engine: Engine) -> None:
    platform = opened()
    handle = await start(platform, "echo begun; sleep 300")
    await says(platform, handle, "begun")
    engine.client.pause(handle.native_id)
    assert (await until(platform, handle, JobState.PAUSED)).native_state == "paused"
    seen = await platform.cancel([handle], timeout=20)
    assert (seen[handle].state, seen[handle].ended_by) == (JobState.CANCELED, EndedBy.CANCEL)


async def test_a_job_that_outgrows_its_memory_says_so(opened: Opener) -> None:
    platform = opened()
    grow = "python3 -c 'b = bytearray(200_000_000); print(len(b))'"
    handle = await start(platform, grow, resources={"memory": "64M"})
    assert (await until(platform, handle)).state is JobState.ERROR
    verdict = await platform.diagnose(handle)
    assert verdict.category is Category.OUT_OF_MEMORY
    assert "memory" in verdict.remedy


async def test_a_container_killed_by_hand_was_cancelled_and_stays_so(opened: Opener, engine: Engine) -> None:
    platform = opened()
    handle = await start(platform, "echo begun; sleep 300")
    await says(platform, handle, "begun")
    engine.client.kill(handle.native_id)
    seen = await until(platform, handle)
    assert (seen.state, seen.exit_code) == (JobState.CANCELED, 137)
    assert "docker kill" in seen.reason
    assert (await platform.diagnose(handle)).category is Category.CANCELED
    # It stands in the container, because the engine forgets its events when it is restarted.
    assert platform.observer.is_asked_to_stop(handle.native_id)


async def test_a_container_whose_process_dies_by_itself_was_not_cancelled(opened: Opener) -> None:
    platform = opened()
    handle = await start(platform, "kill -9 $$")
    seen = await until(platform, handle)
    assert (seen.state, seen.ended_by) == (JobState.ERROR, EndedBy.NONE)


async def test_a_container_removed_by_hand_ended_as_its_marker_or_the_engine_remembers(
    opened: Opener, engine: Engine
) -> None:
    platform = opened()
    done, running = await start(platform, "exit 4"), await start(platform, "echo begun; sleep 300")
    await says(platform, running, "begun")
    await until(opened(), done)
    for handle in (done, running):
        engine.client.remove_container(handle.native_id, force=True)
    seen = await platform.observe([done, running])
    assert (seen[done].state, seen[done].exit_code, seen[done].evidence) == (JobState.ERROR, 4, "exit marker")
    assert (seen[running].state, seen[running].native_state) == (JobState.CANCELED, "removed")
    assert "somebody stopped and removed the container" in seen[running].reason
    assert (await platform.diagnose(running)).category is Category.CANCELED
    assert [handle.attempt for handle in (await platform.find([done.key]))[done.key]] == [1]
    assert (await platform.logs(done)).text == ""


async def test_a_container_of_which_nothing_is_left_is_first_left_out_and_then_gone(
    opened: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    platform = opened()
    site = await platform.site()
    handle = JobHandle(target=platform.target, key=token_hex(8), attempt=1, native_id="0" * 64, site=site)
    assert await platform.observe([handle]) == {}
    monkeypatch.setattr(observe, "GONE_SECONDS", 0.0)
    assert (await platform.observe([handle]))[handle].state is JobState.ERROR


async def test_an_auto_removed_job_is_known_to_be_complete(opened: Opener, engine: Engine) -> None:
    platform = opened(auto_remove=True)
    handle = await start(platform, "sleep 0.3; echo done")
    seen = await until(platform, handle)
    assert (seen.state, seen.exit_code) == (JobState.COMPLETE, 0)
    assert [handle.native_id for handle in (await opened().find([handle.key]))[handle.key]] == [handle.native_id]


async def test_an_attempt_whose_container_is_gone_is_found_beside_older_ones(opened: Opener, engine: Engine) -> None:
    platform, key = opened(), token_hex(8)
    failed = await platform.submit(platform.render(request("exit 1"), key, 1), {})
    await until(platform, failed)
    again = await platform.submit(platform.render(request(), key, 2), {})
    await until(platform, again)
    engine.client.remove_container(again.native_id)
    fresh = opened()
    attempts = (await fresh.find([key, token_hex(8)]))[key]
    assert [(one.attempt, one.native_id) for one in attempts] == [(1, failed.native_id), (2, again.native_id)]
    launched = await launch(fresh, request(), key, {})
    assert (launched.adopted, launched.handle.attempt) == (True, 2)


async def test_another_container_under_the_name_is_neither_read_nor_killed(
    opened: Opener, engine: Engine, proxy: EngineProxy
) -> None:
    platform = opened()
    first, second = await start(platform, "sleep 300"), await start(platform, "sleep 300")
    names = []
    for handle in (first, second):
        labels = engine.client.inspect_container(handle.native_id)["Config"]["Labels"]
        engine.client.remove_container(handle.native_id, force=True)
        names.append(f"tao-job-{handle.key}-1")
        command = ["/bin/sh", "-c", "echo mine; exec sleep 300"]
        labels = labels if handle == first else {}
        engine.client.create_container(PYTHON, command, name=names[-1], labels=labels, network_disabled=True)
        engine.client.start(names[-1])
    seen = await platform.cancel([first, second], timeout=20)
    assert {one.native_state for one in seen.values()} == {"removed"}
    assert (await platform.logs(first)).text == (await platform.logs(second)).text == ""
    unnumbered = second.model_copy(update={"native_id": ""})
    assert (await platform.logs(unnumbered)).text == ""
    await platform.cancel([unnumbered], timeout=20)
    assert {engine.client.inspect_container(name)["State"]["Status"] for name in names} == {"running"}
    moments = [parse_qs(asked.path.partition("?")[2])["until"][0] for asked in proxy.matching("GET", "^/events")]
    assert moments
    assert all(float(moment) <= time.time() for moment in moments), "or the engine waits until then before it answers"


async def test_one_job_that_cannot_be_looked_at_hides_no_other(opened: Opener, tmp_path: Path) -> None:
    platform = opened()
    handle = await start(platform, "sleep 300")
    (tmp_path / "attempts").mkdir()
    (tmp_path / "attempts" / "1.json").write_text('{"ended": 1, "ended_by": "a word of tomorrow"}')
    lost, odd = (
        JobHandle(target=platform.target, key=token_hex(8), attempt=1, results=results)
        for results in (f"/{'x' * 300}", str(tmp_path))
    )
    seen = await platform.observe([lost, odd, handle])
    assert (list(seen), seen[handle].state) == ([handle], JobState.RUNNING)


async def test_an_image_whose_entrypoint_does_not_run_the_job_is_an_error(opened: Opener, engine: Engine) -> None:
    made = engine.client.create_container(PYTHON, "true")["Id"]
    engine.client.commit(made, "tao-test", "idle", changes='ENTRYPOINT ["/bin/true"]')
    engine.client.remove_container(made)
    platform = opened()
    kept, removed = (
        await start(platform, image="tao-test:idle"),
        await start(opened(auto_remove=True), image="tao-test:idle"),
    )
    seen = await until(platform, kept)
    assert (seen.state, seen.exit_code) == (JobState.ERROR, 0)
    assert seen.reason == "the image's entrypoint did not run the job"
    assert (await until(platform, removed)).state is JobState.ERROR


async def test_looks_wait_for_no_pull_and_all_who_wait_for_one_share_its_end(
    opened: Opener, proxy: EngineProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doubt, "DOUBT_SECONDS", 0.0)
    platform = opened()
    with socket.create_server(("127.0.0.1", 0)) as silent:
        image = f"127.0.0.1:{silent.getsockname()[1]}/team/net:1"
        pulls = [asyncio.create_task(start(platform, image=image, resources={"gpus": 1})) for _ in range(8)]
        connection, _ = await asyncio.to_thread(silent.accept)
        with connection:  # the engine asks, and gets no answer
            while len(proxy.matching("GET", "/images/.*/team/net")) <= len(pulls):  # noqa: ASYNC110 - the proxy has no event
                await asyncio.sleep(0.05)
            await asyncio.sleep(1)  # from the answer to the last look until that launch waits as well
            assert await platform.jobs() == []
            assert not any(task.done() for task in pulls)
    assert all(isinstance(end, SubmitFailed) for end in await asyncio.gather(*pulls, return_exceptions=True))
    assert len(proxy.matching("POST", "/images/create")) == 1


async def test_an_image_without_python_is_told_in_the_log(opened: Opener) -> None:
    platform = opened()
    handle = await start(platform, image=TOOLS)
    assert (await until(platform, handle)).exit_code == 127
    assert "the image has no python3" in (await platform.logs(handle)).text


async def test_standard_output_and_error_are_both_in_the_log(opened: Opener) -> None:
    platform = opened()
    handle = await start(platform, "echo out; echo err >&2")
    await until(platform, handle)
    assert sorted((await platform.logs(handle)).text.split()) == ["err", "out"]


async def test_the_request_of_a_job_is_kept_with_it(opened: Opener) -> None:
    platform = opened()
    asked = request("echo {config_path}", specs={"a": "x" * 100_000}, labels={"run": "abc"})
    handle = await platform.submit(platform.render(asked, token_hex(8), 1), {})
    assert await opened().request_of(handle) == asked


# -- asking for a container --------------------------------------------------------------------------------------------


async def test_limits_mounts_and_shared_memory_reach_the_job(opened: Opener, tmp_path: Path) -> None:
    data, extra = tmp_path / "data", tmp_path / "extra"
    data.mkdir()
    extra.mkdir()
    (data / "train.csv").write_text("a,b\n")
    platform = opened(mounts=[f"{extra}:/extra:ro"])
    looks = f"cat {data}/train.csv; df -k /dev/shm | tail -n 1"
    command = f"{looks}; echo c >> {data}/train.csv || touch /extra/x || echo refused"
    handle = await start(
        platform, command, inputs={"/in/train.csv": f"{data}/train.csv"}, resources={"shm": "32M", "cpus": 1}
    )
    assert (await until(platform, handle)).state is JobState.COMPLETE
    log = (await platform.logs(handle)).text
    assert "a,b" in log
    assert "32768" in log
    assert "refused" in log


async def test_outputs_where_the_spec_says_are_kept_on_the_host(opened: Opener, tmp_path: Path) -> None:
    platform, place = opened(), tmp_path / "data" / "exp1"
    asked = {
        "specs": {"results_dir": str(place), "onnx": f"{tmp_path}/data/onnx/net.onnx"},
        "outputs": {"results_dir": {"type": "folder"}, "onnx": {"type": "file"}},
    }
    handle = await start(
        platform, f'echo kept > "$TAO_RESULTS_DIR/model.pth"; echo net > {tmp_path}/data/onnx/net.onnx', **asked
    )
    assert (await until(platform, handle)).state is JobState.COMPLETE
    assert (place / "model.pth").read_text() == "kept\n"
    assert (tmp_path / "data/onnx/net.onnx").read_text() == "net\n"
    (tmp_path / "file").touch()
    asked["specs"]["results_dir"] = f"{tmp_path}/file/exp1"
    (told,) = found(blocking(await platform.probe(request(**asked))), "results")
    assert f"{tmp_path}/file/exp1 cannot be written" in told[1]


async def test_shared_memory_that_is_too_small_is_a_verdict(opened: Opener) -> None:
    platform = opened()
    grow = "f = open('/dev/shm/x', 'w+b'); f.truncate(1 << 23); mmap.mmap(f.fileno(), 1 << 23)[:] = bytes(1 << 23)"
    handle = await start(platform, f'python3 -c "import mmap; {grow}"', resources={"shm": "1M"})
    assert (await until(platform, handle)).state is JobState.ERROR
    verdict = await platform.diagnose(handle)
    assert "shared memory" in verdict.cause
    assert "shm" in verdict.remedy


async def test_the_default_network_is_made_when_it_is_missing(opened: Opener, engine: Engine) -> None:
    platform = opened(network=None)
    assert found(await platform.probe(), "network") == [
        (Level.OK, "network: tao_default is not there yet; the launch makes it")
    ]
    assert engine.client.networks(names=["tao_default"]) == []
    handle = await start(platform)
    assert (await until(platform, handle)).state is JobState.COMPLETE
    assert list(engine.client.inspect_container(handle.native_id)["NetworkSettings"]["Networks"]) == ["tao_default"]
    engine.client.remove_container(handle.native_id)
    engine.client.remove_network("tao_default")


async def test_results_belong_to_the_user_who_launched(opened: Opener, tmp_path: Path) -> None:
    root = tmp_path / "results"
    root.mkdir()
    os.chown(root, 1234, 1234)
    for folder in (tmp_path, *tmp_path.parents[:2]):
        folder.chmod(0o755)
    platform = opened(user="1234:1234")
    handle = await start(platform, 'id -u; echo "$HOME $USER"; touch "$HOME/x"; echo kept > $TAO_RESULTS_DIR/model.pth')
    assert (await until(platform, handle)).state is JobState.COMPLETE
    assert "1234\n/prefect-tao/home tao" in (await platform.logs(handle)).text
    assert {path.stat().st_uid for path in (root / handle.key).rglob("*")} == {1234}


async def test_secrets_reach_a_job_that_runs_as_another_user(opened: Opener, tmp_path: Path) -> None:
    root = tmp_path / "results"
    root.mkdir()
    os.chown(root, 1234, 1234)
    for folder in (tmp_path, *tmp_path.parents[:2]):
        folder.chmod(0o755)
    platform = opened(user="1234:1234")
    handle = await start(platform, 'test "$TOKEN" = 42', secrets={"TOKEN": "42"})
    assert (await until(platform, handle)).state is JobState.COMPLETE


async def test_a_job_in_an_image_with_its_own_user_gets_its_files_and_secrets(opened: Opener, engine: Engine) -> None:
    made = engine.client.create_container(PYTHON, "true")["Id"]
    engine.client.commit(made, "tao-test", "worker", changes="USER worker")
    engine.client.remove_container(made)
    platform = opened(results_root=None)
    named = await start(opened(results_root=None, user="1234:1234"), "id -u", image="tao-test:worker")
    assert (await until(platform, named)).state is JobState.COMPLETE
    assert "1234\n" in (await platform.logs(named)).text
    handle = await start(platform, 'id -u; test "$TOKEN" = 42', {"TOKEN": "42"}, image="tao-test:worker")
    assert (await until(platform, handle)).state is JobState.COMPLETE
    assert "4321\n" in (await platform.logs(handle)).text


async def test_without_a_results_folder_results_are_in_a_volume(opened: Opener) -> None:
    platform = opened(results_root=None)
    (warning,) = found(await platform.probe(request()), "results")
    assert warning[0] is Level.WARN
    status = '{"status": "RUNNING", "epoch": 3, "max_epoch": 10}'
    command = f"echo kept > $TAO_RESULTS_DIR/model.pth; echo '{status}' > $TAO_RESULTS_DIR/status.json"
    handle = await start(platform, command)
    seen = await until(platform, handle)
    assert seen.state is JobState.COMPLETE
    assert (seen.progress.epoch if seen.progress else None) == 3
    assert handle.results == f"volume://tao-results/{handle.key}"
    assert await platform.check_path(handle.results)
    names = ("model.pth", "status.json")
    assert await platform.list_path(f"{handle.results}/results_dir") == [
        f"{handle.results}/results_dir/{name}" for name in names
    ]
    assert await platform.read_path(f"{handle.results}/results_dir/model.pth", 3) == b"kep"
    assert not await platform.check_path(f"{handle.results}/nothing")


# -- probes ------------------------------------------------------------------------------------------------------------


async def test_probes_leave_nothing_behind(opened: Opener, engine: Engine, tmp_path: Path, gpu_image: str) -> None:
    platform = opened(network=None)
    findings = await platform.probe(request(image=gpu_image, resources={"gpus": 1}))
    assert not blocking(findings)
    assert list(await platform.disk_free()) == [str(tmp_path / "results")]
    stored = opened(results_root=None, s3_bucket_name="models")
    assert list(await stored.disk_free()) == [str(engine.folder / "data")], "there is what a container writes"
    await platform.host_versions()
    assert engine.client.containers(all=True) == []
    assert engine.client.networks(names=["tao_default"]) == []
    assert not (tmp_path / "results").exists()


async def test_what_the_host_lacks_is_found_before_the_launch(opened: Opener, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    platform = opened(results_root=str(file), mounts=["/no/such/place"])
    findings = await platform.probe(request(resources={"cpus": 1000, "memory": "999T", "shm": "500G"}))
    assert {finding.subject for finding in blocking(findings)} == {"results", "mounts", "cpus", "memory"}
    assert all(finding.remedy for finding in blocking(findings))
    assert [level for level, _ in found(findings, "shm")] == [Level.WARN]


async def test_a_missing_input_path_is_told_by_the_engine(opened: Opener, engine: Engine) -> None:
    platform = opened()
    with pytest.raises(SubmitFailed, match="bind source path does not exist: /no/such/data") as told:
        await start(platform, inputs={"/in": "/no/such/data"})
    assert "correct the path" in told.value.remedy
    assert engine.client.containers(all=True) == []


async def test_behind_a_socket_whose_engine_is_elsewhere_paths_are_looked_at_there(
    engine: Engine, tmp_path: Path
) -> None:
    """As in a container that has got the host's socket: other processes and other files than the engine's."""
    (tmp_path / "data").mkdir()
    apart = ["unshare", "--mount", "--pid", "--fork", "--propagation", "private", "/bin/sh", "-c"]
    hide = f'mount -t tmpfs none {tmp_path} && exec "$0" "$@"'
    words = [*apart, hide, sys.executable, "-c", LOOK_APART, engine.host, f"{tmp_path}/data"]
    done = await asyncio.to_thread(subprocess.run, words, capture_output=True, text=True, timeout=60)
    assert done.stdout.split() == ["False", "True"], done.stderr
    platform = docker_at("local-docker/test", host=engine.host)
    assert await asyncio.to_thread(lambda: platform.engine.is_here)
    await platform.close()


async def test_an_engine_elsewhere_is_not_local(engine: Engine) -> None:
    platform = docker_at("remote-docker/test", host=engine.host)
    (told,) = found(blocking(await platform.probe()), "target")
    assert "is on this machine" in told[1]
    await platform.close()


async def test_an_engine_that_is_not_there_is_unreachable_with_a_remedy(tmp_path: Path) -> None:
    platform = docker_at("local-docker", host=f"unix://{tmp_path}/none.sock")
    with pytest.raises(Unreachable, match="no Docker engine answers") as told:
        await platform.probe()
    assert "DOCKER_HOST" in told.value.remedy


async def test_several_nodes_and_a_missing_image_name_are_refused(opened: Opener) -> None:
    platform = opened()
    with pytest.raises(InvalidInput, match="2 nodes"):
        platform.render(request(resources={"nodes": 2}), token_hex(8), 1)
    with pytest.raises(InvalidInput, match="no image"):
        platform.render(request(image=None), token_hex(8), 1)
    with pytest.raises(InvalidInput, match="is no mount"):
        opened(mounts=["relative:/x"])
