"""Jobs on the loopback cluster: images, several nodes, what containers see, probes."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from secrets import token_hex

import pytest
from slurm_cluster import Cluster
from slurm_tools import open_cluster, start, until
from ssh_server import new_server

from prefect_tao.jobs.errors import SubmitFailed, Unreachable
from prefect_tao.jobs.finding import Finding, Level
from prefect_tao.jobs.following import follow
from prefect_tao.jobs.launching import launch
from prefect_tao.jobs.request import JobRequest
from prefect_tao.jobs.state import JobState
from prefect_tao.jobs.verdict import Category
from prefect_tao.jobs.watcher import Watcher
from prefect_tao.platforms.slurm import layout
from prefect_tao.platforms.slurm.driver import SlurmPlatform
from prefect_tao.storage.result_files import Results

pytestmark = pytest.mark.xdist_group("slurm")

RENDEZVOUS = """python3 - <<'PY'
import os, socket
rank, world = int(os.environ["NODE_RANK"]), int(os.environ["WORLD_SIZE"])
place = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
if rank == 0:
    server = socket.create_server(place)
    for _ in range(world - 1):
        with server.accept()[0] as peer:
            print("met", peer.recv(64).decode(), flush=True)
else:
    for _ in range(200):
        try:
            with socket.create_connection(place, timeout=5) as link:
                link.sendall(b"rank %d of %d on %s" % (rank, world, os.environ["SLURMD_NODENAME"].encode()))
            break
        except OSError:
            import time; time.sleep(0.05)
PY"""


@pytest.fixture
def platform(cluster: Cluster) -> Iterator[SlurmPlatform]:
    yield open_cluster(cluster, container_mounts=[str(cluster.shared)])
    cluster.run(f"scancel -u {cluster.user}")


async def log_of(platform: SlurmPlatform, command: str, **fields: object) -> str:
    handle = await start(platform, command, **fields)
    seen = await until(platform, handle)
    log = (await platform.logs(handle)).text
    assert seen.state is JobState.COMPLETE, log
    return log


async def test_two_nodes_meet_over_the_network(platform: SlurmPlatform) -> None:
    log = await log_of(platform, RENDEZVOUS, resources={"gpus": 2, "nodes": 2}, env={"MASTER_PORT": "29617"})
    assert "met rank 1 of 2 on node" in log


async def test_every_node_knows_its_place(platform: SlurmPlatform) -> None:
    command = "echo $NODE_RANK $WORLD_SIZE $NNODES $NUM_GPU_PER_NODE $NPROC_PER_NODE $MASTER_PORT $CUDA_VISIBLE_DEVICES"
    handle = await start(platform, command, resources={"gpus": 2, "nodes": 3})
    assert (await until(platform, handle)).state is JobState.COMPLETE
    port = 20000 + int(handle.native_id) % 10000  # its own, because another job may meet on the same node
    log = (await platform.logs(handle)).text
    assert sorted(line for line in log.splitlines() if str(port) in line) == [
        f"{rank} 3 3 2 2 {port} 0,1" for rank in range(3)
    ]


async def test_a_job_on_several_nodes_has_a_replica_on_each(platform: SlurmPlatform) -> None:
    handle = await start(platform, "sleep 60", resources={"nodes": 3})
    await until(platform, handle, JobState.RUNNING)
    replicas = await platform.replicas(handle)
    assert [(len(replica.name), replica.state) for replica in replicas] == [(len("node1"), "RUNNING")] * 3
    assert len({replica.name for replica in replicas}) == 3
    await platform.cancel([handle])


async def test_cosmos_rl_nodes_have_roles(platform: SlurmPlatform) -> None:
    command = "cosmos-rl 2>/dev/null; echo $NODE_RANK $COSMOS_ROLE $COSMOS_CONTROLLER ${COSMOS_CONTROLLER_HOST##*:}"
    log = await log_of(platform, command, resources={"nodes": 3}, env={"NUM_ROLLOUT_NODES": "1"})
    assert sorted(line for line in log.splitlines() if "8082" in line) == [
        "0 policy 1 8082",
        "1 policy 0 8082",
        "2 rollout 0 8082",
    ]


async def test_a_suspended_job_is_paused_and_goes_on(platform: SlurmPlatform, cluster: Cluster) -> None:
    handle = await start(platform, "sleep 2; echo over")
    await until(platform, handle, JobState.RUNNING)
    cluster.admin(f"scontrol suspend {handle.native_id}")
    assert (await until(platform, handle, JobState.PAUSED)).native_state == "SUSPENDED"
    cluster.admin(f"scontrol resume {handle.native_id}")
    assert (await until(platform, handle)).state is JobState.COMPLETE


async def test_nobody_can_read_a_secret_from_slurm(platform: SlurmPlatform, cluster: Cluster) -> None:
    secret = f"hush-{token_hex(8)}"
    request = JobRequest.build(command="echo ${#TOKEN}; sleep 60", secrets=["TOKEN"])
    handle = await platform.submit(platform.render(request, token_hex(8), 1), {"TOKEN": secret})
    await until(platform, handle, JobState.RUNNING)
    id = handle.native_id
    shown = cluster.run(
        f"scontrol -dd show job {id}; scontrol write batch_script {id} -; squeue -j {id} -o %all"
    ).stdout
    shown += cluster.run(f"scontrol listpids; ps axww -o args; sacct -P -j {id} -o all").stdout
    assert handle.name in shown
    assert secret not in shown
    await platform.cancel([handle])


async def test_the_trips_of_a_batch_do_not_grow_with_it(cluster: Cluster) -> None:
    platform = open_cluster(cluster, extra_flags=["--begin=now+1hour"])
    counts = []
    for size in (2, 120):
        jobs = [(platform.render(JobRequest.build(command="true"), token_hex(8), 1), {}) for _ in range(size)]
        before = cluster.ssh_sessions_opened()
        handles = await platform.submit_many(jobs)
        submitted = cluster.ssh_sessions_opened()
        seen = await platform.observe(handles)
        assert {found.state for found in seen.values()} == {JobState.PENDING}
        assert len({handle.native_id for handle in handles}) == len(seen) == size
        counts.append((submitted - before, cluster.ssh_sessions_opened() - submitted))
    assert counts == [(2, 1), (2, 1)]
    over = await platform.cancel(handles)
    assert {found.state for found in over.values()} == {JobState.CANCELED}


async def test_the_whole_way_of_many_jobs_takes_fewer_trips_than_there_are_jobs(cluster: Cluster) -> None:
    platform, request, count = open_cluster(cluster), JobRequest.build(command="true"), 40
    watcher = Watcher(platform)

    async def whole_way() -> JobState:
        launched = await launch(platform, request, token_hex(8), {})
        return (await follow(watcher, request, launched.handle, {})).state

    before = cluster.ssh_sessions_opened()
    assert set(await asyncio.gather(*(whole_way() for _ in range(count)))) == {JobState.COMPLETE}
    assert cluster.ssh_sessions_opened() - before < count / 2


async def test_no_gpus_means_none(platform: SlurmPlatform) -> None:
    assert "gpus=<>" in await log_of(platform, "echo gpus=\\<$CUDA_VISIBLE_DEVICES\\>")


async def test_an_image_is_converted_once_for_all_jobs(platform: SlurmPlatform, cluster: Cluster) -> None:
    before = len(cluster.enroot_calls())
    image = "nvcr.io/nvidia/tao/tao-toolkit:once"
    handles = await asyncio.gather(*(start(platform, "true", image=image) for _ in range(3)))
    for handle in handles:
        assert (await until(platform, handle)).state is JobState.COMPLETE
    await log_of(platform, "true", image=image)
    (call,) = cluster.enroot_calls()[before:]
    assert call.endswith(" docker://nvcr.io#nvidia/tao/tao-toolkit:once")
    used = [record for record in cluster.pyxis_records() if str(record).count(platform.place.base)]
    assert len(used) == 4
    assert all(".sqsh" in str(record) for record in used)
    assert all(f"{cluster.shared}:{cluster.shared}" in str(record) for record in used)


async def test_latest_is_converted_again_only_when_asked(cluster: Cluster) -> None:
    base = open_cluster(cluster).place.base
    before = len(cluster.enroot_calls())
    for again in (False, False, True):
        platform = open_cluster(cluster, base, force_reconvert_latest=again)
        await log_of(platform, "true", image="team/moving:latest")
    assert len(cluster.enroot_calls()) - before == 2


async def test_an_image_that_needs_credentials_says_so(platform: SlurmPlatform) -> None:
    handle = await start(platform, "true", image="no-such-image/private-net:1")
    assert (await until(platform, handle)).state is JobState.ERROR
    verdict = await platform.diagnose(handle)
    assert verdict.category in (Category.CREDENTIALS, Category.IMAGE)
    assert verdict.remedy


async def test_without_conversion_the_image_is_pulled_by_the_job(cluster: Cluster) -> None:
    platform = open_cluster(cluster, use_sqsh=False)
    before = len(cluster.enroot_calls())
    await log_of(platform, "true", image="pytorch/pytorch:2.4")
    assert len(cluster.enroot_calls()) == before
    assert "pytorch/pytorch:2.4" in str(cluster.pyxis_records()[-1])


async def test_the_jobs_own_variables_win_and_control_variables_stay_out(
    platform: SlurmPlatform, cluster: Cluster
) -> None:
    steering = {"BACKEND": "mongo", "DOCKER_HOST": "tcp://elsewhere"}
    shells = {"UID": "4711", "IFS": "x", "folder": "mine"}  # which the shells on the way have uses of their own for
    request = {"env": {"COLOR": "green 'n\nred", "HOME": "/tmp/home", **shells, **steering}}
    site = open_cluster(cluster, platform.place.base, env={"MONGOSECRET": "x", "HOST_PLATFORM": "local"})
    log = await log_of(site, "tr '\\0' '\\n' </proc/$$/environ", **request)
    for name in (*steering, "MONGOSECRET", "HOST_PLATFORM"):
        assert f"{name}=" not in log
    warned = (await findings(site, **request))["env"]
    assert (warned.level, "BACKEND" in warned.message) == (Level.WARN, True)
    assert "COLOR=green 'n\nred\n" in log
    assert "HOME=/tmp/home\n" in log
    assert all(f"\n{name}={value}\n" in log for name, value in shells.items())
    assert f"TAO_API_RESULTS_DIR={platform.place.results}\n" in log
    assert "TAO_SECRETS_FILE" not in log


async def test_a_base_folder_and_options_of_any_characters_reach_slurm_whole(cluster: Cluster) -> None:
    base = f'{cluster.shared}/it\'s my "base" #1 at 100%j'
    platform = open_cluster(cluster, base, extra_flags=['--comment=some "words", and a \\ more #1'])
    handle = await start(platform, "echo done", image="team/odd:1")
    assert (await until(platform, handle)).state is JobState.COMPLETE
    assert "done" in (await platform.logs(handle)).text
    shown = cluster.run(f"scontrol show job {handle.native_id}", check=True).stdout
    assert 'Comment=some "words", and a \\ more #1' in shown
    assert [found.native_id for found in (await platform.find([handle.key]))[handle.key]] == [handle.native_id]


async def test_what_a_person_has_set_for_slurms_commands_does_not_act_on_ours(cluster: Cluster) -> None:
    rc = cluster.home / ".bashrc"
    before = rc.read_text()
    mine = "SBATCH_PARTITION=grizzly SQUEUE_PARTITION=urgent SQUEUE_STATES=PENDING SBATCH_HOLD=1 SACCT_FORMAT=jobid"
    rc.write_text(f"export {mine}\n{before}")
    try:
        platform = open_cluster(cluster)
        handle = await start(platform, "sleep 1; echo $SLURM_JOB_PARTITION")
        assert (await until(platform, handle, JobState.RUNNING)).state is JobState.RUNNING
        assert (await until(platform, handle)).state is JobState.COMPLETE
        assert "polar" in (await platform.logs(handle)).text
    finally:
        rc.write_text(before)


async def test_paths_are_the_clusters_whatever_they_begin_with(platform: SlurmPlatform, cluster: Cluster) -> None:
    cluster.run(f"mkdir -p '{cluster.shared}/data set' && echo '[1]' > '{cluster.shared}/data set/a.json'", check=True)
    folder = f"{cluster.shared}/data set"
    for uri in (folder, f"lustre://{folder}", f"slurm://{folder}", f"file://{folder}"):
        assert await platform.check_path(uri)
        assert await platform.list_path(uri) == [f"{folder}/a.json"]
    assert await platform.read_path(f"lustre://{folder}/a.json", 100) == b"[1]\n"


# -- probes ------------------------------------------------------------------------------------------------------------


async def findings(platform: SlurmPlatform, **fields: object) -> dict[str, Finding]:
    request = JobRequest.build(command="true", **fields)
    return {finding.subject: finding for finding in await platform.probe(request)}


async def test_a_fit_launch_has_no_blocking_finding_and_an_expected_start(platform: SlurmPlatform) -> None:
    found = await findings(platform, image="team/net:1", resources={"gpus": 8, "nodes": 2, "time_limit": "4h"})
    assert not [finding for finding in found.values() if finding.blocks]
    assert "start it at 20" in found["start"].message


@pytest.mark.parametrize(
    ("settings", "fields", "check", "words"),
    [
        ({"partition": "nowhere"}, {}, "partition", "there is no partition nowhere"),
        ({"partition": "a;b$(c)"}, {}, "partition", "there is no partition a;b$(c)"),
        ({"max_time_hours": 24}, {"resources": {"time_limit": "12h"}}, "time_limit", "allows 4 h 00 min"),
        ({}, {"resources": {"cpus": 1000}}, "shape", "SLURM would refuse"),
        ({"account": "others"}, {}, "shape", "SLURM would refuse"),
        ({"results_root": "/proc/prefect-tao"}, {}, "results folder", "cannot be written"),
        ({"container_mounts": ["/no/such"]}, {"image": "team/net:1"}, "container_mounts", "/no/such does not exist"),
    ],
)
async def test_what_cannot_run_is_said_beforehand(
    cluster: Cluster, settings: dict[str, object], fields: dict[str, object], check: str, words: str
) -> None:
    finding = (await findings(open_cluster(cluster, **settings), **fields))[check]
    assert finding.level is Level.FAIL
    assert words in finding.message
    assert finding.remedy


async def test_a_partition_that_does_not_exist_is_told_with_those_that_do(cluster: Cluster) -> None:
    finding = (await findings(open_cluster(cluster, partition="poler")))["partition"]
    assert finding.remedy.startswith("did you mean polar? there are ")


async def test_a_private_image_wants_credentials_of_enroot(platform: SlurmPlatform, cluster: Cluster) -> None:
    found = await findings(platform, image="nvcr.io/ea/private:1")
    assert found["image credentials"].level is Level.WARN
    assert "~/.config/enroot/.credentials" in found["image credentials"].remedy
    cluster.run(
        "mkdir -p ~/.config/enroot && echo 'machine nvcr.io login x password y' > ~/.config/enroot/.credentials"
    )
    try:
        assert (await findings(platform, image="nvcr.io/ea/private:1"))["image credentials"].level is Level.OK
    finally:
        cluster.run("rm -f ~/.config/enroot/.credentials")


async def test_a_public_image_wants_none(platform: SlurmPlatform) -> None:
    assert "image credentials" not in await findings(platform, image="nvcr.io/nvidia/tao/tao-toolkit:1")


async def test_what_is_amiss_beside_the_launch_is_warned_of(cluster: Cluster) -> None:
    platform = open_cluster(cluster, hostnames=["127.0.0.1", "no-such-host.invalid"], sqsh_partition="nowhere")
    found = await findings(platform, image="team/net:1")
    assert (found["login nodes"].level, "no-such-host" in found["login nodes"].message) == (Level.WARN, True)
    assert (found["image conversion"].level, "nowhere" in found["image conversion"].message) == (Level.WARN, True)
    assert not [finding for finding in found.values() if finding.blocks]


async def test_a_conversion_that_cannot_start_is_told_in_the_jobs_log(cluster: Cluster) -> None:
    platform = open_cluster(cluster, sqsh_partition="nowhere")
    log = await log_of(platform, "true", image="team/net:1")
    assert "no conversion was started" in log
    assert "partition" in log


@pytest.mark.parametrize("program", ["scontrol", "sbatch"])
async def test_a_controller_that_is_silent_makes_nothing_known(
    platform: SlurmPlatform, cluster: Cluster, program: str
) -> None:
    cluster.shim(program, "fail:error: Unable to contact slurm controller (connect failure):1")
    try:
        found = await findings(platform)
        assert found["partition"].level in (Level.OK, Level.UNKNOWN)
        levels = {finding.level for finding in await platform.probe(JobRequest.build(command="true"))}
        assert Level.UNKNOWN in levels
        assert Level.FAIL not in levels
    finally:
        cluster.unshim(program)


async def test_a_site_without_pyxis_and_a_partition_that_is_down_are_told(
    platform: SlurmPlatform, clean_cluster: Cluster
) -> None:
    clean_cluster.shim("srun", "fail:usage:0")
    clean_cluster.admin("scontrol update partitionname=polar state=down")
    try:
        found = await findings(platform, image="team/net:1")
    finally:
        clean_cluster.admin("scontrol update partitionname=polar state=up")
        clean_cluster.unshim("srun")
    assert "no Pyxis" in found["containers"].message
    assert "polar is DOWN" in found["partition"].message
    assert found["containers"].blocks
    assert found["partition"].blocks


async def test_a_probe_leaves_nothing_behind(platform: SlurmPlatform, cluster: Cluster) -> None:
    before = cluster.run(f"find {cluster.shared} ~; squeue -h -t all -u {cluster.user} | wc -l").stdout
    await findings(platform, image="team/net:1")
    assert cluster.run(f"find {cluster.shared} ~; squeue -h -t all -u {cluster.user} | wc -l").stdout == before


async def test_a_refused_job_leaves_nothing_on_the_cluster(cluster: Cluster) -> None:
    platform = open_cluster(cluster, partition="nowhere")
    with pytest.raises(SubmitFailed, match="partition"):
        await start(platform, "true")
    assert cluster.run(f"ls -A {platform.place.jobs}").stdout == ""


async def test_a_key_in_an_agent_and_a_key_with_a_passphrase_log_in(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key, plug = tmp_path / "key", tmp_path / "agent"
    key.write_bytes(cluster.key_path.read_bytes())
    key.chmod(0o600)
    subprocess.run(["ssh-keygen", "-q", "-p", "-P", "", "-N", "a phrase", "-f", str(key)], check=True)
    locked = open_cluster(cluster, ssh_key_path=str(key))
    locked.take_credentials({"SSH_KEY_PASSPHRASE": "a phrase"})
    assert await locked.login.connect()
    agent = subprocess.Popen(["ssh-agent", "-D", "-a", str(plug)], stdout=subprocess.DEVNULL)
    try:
        monkeypatch.setenv("SSH_AUTH_SOCK", str(plug))
        monkeypatch.setenv("HOME", str(tmp_path))  # no keys of our own
        for _ in range(100):
            added = subprocess.run(["ssh-add", "-q", str(cluster.key_path)], capture_output=True)
            if added.returncode == 0:
                break
            time.sleep(0.1)
        assert added.returncode == 0, added.stderr
        by_agent = open_cluster(cluster, ssh_key_path=None)
        assert await by_agent.login.connect()
        assert not [each for each in await by_agent.probe() if each.blocks]
        await by_agent.close()
    finally:
        agent.terminate()
        agent.wait()
    await locked.close()


async def test_a_cluster_behind_a_jump_host_is_reached_by_an_alias_of_the_configuration(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = new_server()
    try:
        config = tmp_path / "config"
        config.write_text(
            f"Host gate\n  HostName 127.0.0.1\n  Port {gate.port}\n  User {gate.user}\n"
            f"  IdentityFile {gate.ssh_folder}/id_ed25519\n  UserKnownHostsFile {gate.ssh_folder}/known_hosts\n"
            f"Host my-cluster\n  HostName {cluster.host}\n  Port {cluster.ssh_port}\n  ProxyJump gate\n"
        )
        with open(tmp_path / "known_hosts", "w") as known:
            known.write(cluster.known_hosts.read_text() + (gate.ssh_folder / "known_hosts").read_text())
        program = tmp_path / "bin" / "ssh"
        program.parent.mkdir()
        program.write_text(f'#!/bin/sh\nexec {shutil.which("ssh")} -F {config} "$@"\n')
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
        platform = open_cluster(
            cluster, hostnames=["my-cluster"], ssh_port=None, known_hosts=str(tmp_path / "known_hosts")
        )
        assert [finding for finding in await platform.probe() if finding.subject == "login nodes"] == []
        assert "through the gate" in await log_of(platform, "echo through the gate")
        assert gate.logins == 1
        await platform.close()
    finally:
        gate.remove()


async def test_a_noisy_shell_hinders_no_launch(cluster: Cluster) -> None:
    cluster.run("cp ~/.bashrc ~/.bashrc.kept 2>/dev/null; echo 'echo Welcome to the cluster' > ~/.bashrc", check=True)
    try:
        platform = open_cluster(cluster)
        assert "quiet work" in await log_of(platform, "echo quiet work")
        await platform.close()
    finally:
        cluster.run("rm ~/.bashrc; mv ~/.bashrc.kept ~/.bashrc 2>/dev/null; true", check=True)


async def test_a_submission_whose_reply_is_lost_is_not_repeated_on_another_login_node(
    cluster: Cluster, tmp_path: Path
) -> None:
    keys = cluster.known_hosts.read_text()
    (tmp_path / "known_hosts").write_text(keys + keys.replace("127.0.0.1", "localhost"))
    platform = open_cluster(cluster, hostnames=["127.0.0.1", "localhost"], known_hosts=str(tmp_path / "known_hosts"))
    cluster.shim("sbatch", "lost-reply", times=1)
    try:
        key = token_hex(8)
        with pytest.raises(Unreachable):
            await platform.submit(platform.render(JobRequest.build(command="true"), key, 1), {})
        assert len(cluster.shim_calls("sbatch")) == 1
        (found,) = (await platform.find([key]))[key]
        assert (await until(platform, found)).state is JobState.COMPLETE
    finally:
        cluster.unshim("sbatch")


async def test_a_dead_login_node_is_passed_over_and_not_asked_first_again(cluster: Cluster) -> None:
    platform = open_cluster(cluster, hostnames=["127.0.0.9", "127.0.0.1"])
    assert await platform.login.connect() == "127.0.0.1"
    platform.login.connection("127.0.0.1").close()
    assert platform.login._order()[0] == "127.0.0.1"


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"known_hosts": "/dev/null"}, "host key is not known"),
        ({"user": "nobody"}, "login was refused"),
        ({"ssh_key_path": "/no/such/key"}, "there is no key file"),
    ],
)
async def test_a_login_that_fails_says_what_to_do(cluster: Cluster, settings: dict[str, object], words: str) -> None:
    with pytest.raises(Unreachable, match=words) as failure:
        await open_cluster(cluster, **settings).login.connect()
    assert failure.value.remedy


async def test_a_job_that_rewrites_its_request_and_handle_leads_results_to_nothing_that_it_may_not_read(
    platform: SlurmPlatform, tmp_path: Path
) -> None:
    """The folders of the cluster may be mounted where somebody with more rights asks for results."""
    private = tmp_path / "private"
    private.mkdir(mode=0o700)
    (private / ".env").write_text("a-secret-of-the-person")
    handle = await start(platform, "echo ok >$TAO_RESULTS_DIR/model.pth")
    assert (await until(platform, handle)).state is JobState.COMPLETE
    forged = JobRequest.build(command="true", specs={"out": str(private)}, outputs={"out": {"type": "folder"}})
    folder = Path(platform.place.jobs) / handle.name
    (folder / layout.REQUEST).write_text(forged.model_dump_json())
    kept = json.loads((folder / layout.HANDLE).read_text())
    (folder / layout.HANDLE).write_text(json.dumps({**kept, "digest": forged.digest}) + "\n")
    (found,) = (await platform.find([handle.key]))[handle.key]
    assert found.digest == forged.digest
    results = Results(platform, found)
    files = await results.files()
    await results.download(files, tmp_path / "copies")
    assert [path.name for path in (tmp_path / "copies").rglob("*") if path.is_file()] == ["model.pth"]
