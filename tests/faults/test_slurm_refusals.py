"""What cannot run says why and what to do, in one of our errors, and leaves nothing on the cluster."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from slurm_cluster import Cluster
from slurm_faults import left_over, new_key, open_platform, queued, start

from prefect_tao.jobs.errors import SubmitFailed, Unreachable
from prefect_tao.jobs.finding import Finding, Level
from prefect_tao.jobs.request import JobRequest
from prefect_tao.platforms.slurm.driver import SlurmPlatform

pytestmark = pytest.mark.xdist_group("slurm")


def nothing_left(cluster: Cluster, platform: SlurmPlatform) -> None:
    """Neither a job nor a folder of one."""
    jobs = Path(platform.place.jobs)
    assert queued(cluster) == []
    assert left_over(platform) == []
    assert not jobs.exists() or list(jobs.iterdir()) == []


async def failures(platform: SlurmPlatform, **fields: Any) -> list[Finding]:
    """What a probe says against this job."""
    findings = await platform.probe(JobRequest.build(**{"command": "true", **fields}))
    await platform.close()
    return [finding for finding in findings if finding.level in (Level.FAIL, Level.UNKNOWN)]


# -- what SLURM refuses ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "resources", "cause", "remedy"),
    [
        ({"partition": "nope"}, {}, "partition", "SLURM_PARTITION"),
        ({"account": "others"}, {}, "account", "SLURM_ACCOUNT"),
        ({"max_gpus_per_node": 64}, {"gpus": 9}, "node configuration", "fewer GPUs"),
        ({}, {"time_limit": "12h"}, "time limit", "less time"),
        ({}, {"memory": "900T"}, "emory", "less"),
    ],
    ids=["partition", "account", "gpus", "time", "memory"],
)
async def test_what_slurm_refuses_is_told_and_leaves_nothing(
    cluster: Cluster, settings: dict[str, Any], resources: dict[str, Any], cause: str, remedy: str
) -> None:
    platform = open_platform(cluster, **settings)
    with pytest.raises(SubmitFailed) as refused:
        await start(platform, "true", resources=resources)
    assert cause in refused.value.cause
    assert remedy in refused.value.remedy
    nothing_left(cluster, platform)
    found = await failures(platform, resources=resources)
    assert found
    assert all(finding.remedy for finding in found)
    nothing_left(cluster, platform)


async def test_twelve_hours_on_a_partition_of_four_are_found_before_the_launch(cluster: Cluster) -> None:
    found = await failures(open_platform(cluster), resources={"time_limit": "12h"})
    assert any(finding.subject == "time_limit" and "4h" in finding.remedy for finding in found)


async def test_a_good_job_has_nothing_against_it(cluster: Cluster) -> None:
    platform = open_platform(cluster)
    assert await failures(platform, resources={"gpus": 8, "time_limit": "4h"}) == []
    nothing_left(cluster, platform)
    assert not Path(platform.place.base).exists()


# -- the base folder ---------------------------------------------------------------------------------------------------


@pytest.fixture
def full(cluster: Cluster) -> Iterator[Path]:
    """A file system that has room for folders and no more."""
    place = cluster.base / "full"
    place.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=128k,mode=777", "tmpfs", str(place)])
    if mounted.returncode:
        place.rmdir()
        pytest.skip("a small file system cannot be mounted here: run as root, where mounting is allowed")
    yield place
    subprocess.run(["umount", str(place)], check=True)
    place.rmdir()


async def test_a_full_file_system_refuses_the_job_and_keeps_nothing(cluster: Cluster, full: Path) -> None:
    platform = open_platform(cluster, results_root=str(full / "base"))
    with pytest.raises(SubmitFailed) as refused:
        await start(platform, "true", specs={"filler": os.urandom(200_000).hex()})
    assert "space" in refused.value.remedy
    nothing_left(cluster, platform)
    await platform.close()


async def test_a_file_system_that_fills_while_files_are_unpacked_refuses_too(cluster: Cluster, full: Path) -> None:
    platform = open_platform(cluster, results_root=str(full / "base"))
    # Small enough packed, too big unpacked.
    with pytest.raises(SubmitFailed) as refused:
        await start(platform, "true", specs={"filler": "x" * 200_000})
    assert "space" in refused.value.remedy
    nothing_left(cluster, platform)
    await platform.close()


async def test_a_base_folder_that_is_closed_is_told(cluster: Cluster) -> None:
    closed = cluster.shared / f"closed-{new_key()}"
    cluster.run(f"mkdir {closed} && chmod 000 {closed}", check=True)
    platform = open_platform(cluster, results_root=str(closed))
    with pytest.raises(SubmitFailed) as refused:
        await start(platform, "true")
    assert str(closed) in refused.value.cause
    assert "rights" in refused.value.remedy
    # Who cannot look must not say that there is nothing; and no waiting opens the folder.
    with pytest.raises(Unreachable, match="is closed to you") as told:
        await platform.find([new_key()])
    assert not told.value.retryable
    found = await failures(platform)
    assert [finding.subject for finding in found] == ["results folder"]
    cluster.run(f"chmod 700 {closed}", check=True)
    nothing_left(cluster, platform)


async def test_a_base_folder_of_somebody_else_is_told(cluster: Cluster) -> None:
    platform = open_platform(cluster, results_root="/root/tao")
    with pytest.raises(SubmitFailed):
        await start(platform, "true")
    with pytest.raises(Unreachable, match="/root is closed to you") as told:
        await platform.find([new_key()])
    assert not told.value.retryable
    assert [finding.subject for finding in await failures(platform)] == ["results folder"]


async def test_a_file_system_that_is_not_mounted_is_waited_for(cluster: Cluster) -> None:
    empty = Path(tempfile.mkdtemp(prefix="tao-not-mounted-"))  # only root may write it, and nothing is in it
    empty.chmod(0o755)
    try:
        platform = open_platform(cluster, results_root=f"{empty}/me/results")
        with pytest.raises(Unreachable, match="cannot be entered") as told:
            await platform.find([new_key()])
        assert told.value.retryable
    finally:
        empty.rmdir()


# -- logging in --------------------------------------------------------------------------------------------------------


async def refused_login(cluster: Cluster, **settings: Any) -> Unreachable:
    platform = open_platform(cluster, **settings)
    with pytest.raises(Unreachable) as refused:
        await start(platform, "true")
    assert refused.value.remedy
    nothing_left(cluster, platform)
    assert await failures(platform)
    return refused.value


async def test_an_unknown_host_key_is_not_accepted(cluster: Cluster, tmp_path: Path) -> None:
    nobody = tmp_path / "known_hosts"
    nobody.touch()
    refused = await refused_login(cluster, known_hosts=str(nobody))
    assert "host key is not known" in refused.cause
    assert "ssh-keyscan" in refused.remedy


async def test_a_changed_host_key_is_not_accepted(cluster: Cluster, tmp_path: Path) -> None:
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(tmp_path / "other")], check=True)
    kind, key, *_ = (tmp_path / "other.pub").read_text().split()
    changed = tmp_path / "known_hosts"
    changed.write_text(f"[{cluster.host}]:{cluster.ssh_port} {kind} {key}\n")
    refused = await refused_login(cluster, known_hosts=str(changed))
    assert "in between" in refused.cause


async def test_a_key_that_is_not_accepted_or_a_user_that_is_none_is_told(cluster: Cluster, tmp_path: Path) -> None:
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(tmp_path / "other")], check=True)
    for settings in ({"ssh_key_path": str(tmp_path / "other")}, {"user": "nobody-here"}):
        refused = await refused_login(cluster, **settings)
        assert "login was refused" in refused.cause
        assert "SSH_KEY_PATH" in refused.remedy


async def test_a_key_file_that_is_missing_locked_or_open_to_others_is_told(cluster: Cluster, tmp_path: Path) -> None:
    missing = await refused_login(cluster, ssh_key_path=str(tmp_path / "none"))
    assert "none" in missing.remedy
    locked = tmp_path / "locked"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "a phrase", "-f", str(locked)], check=True)
    assert "passphrase" in (await refused_login(cluster, ssh_key_path=str(locked))).cause
    opened = tmp_path / "opened"
    opened.write_bytes(cluster.key_path.read_bytes())
    opened.chmod(0o644)
    found = await failures(open_platform(cluster, ssh_key_path=str(opened)))
    assert [finding.remedy for finding in found] == [f"chmod 600 {opened}"]


async def test_a_port_where_nobody_listens_is_told(cluster: Cluster) -> None:
    refused = await refused_login(cluster, ssh_port=1)
    assert "refused" in refused.cause
