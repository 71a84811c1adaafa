"""Where in a workspace a job runs follows from what is offered; what is not is told with the nearest that is."""

from __future__ import annotations

from typing import Any

import pytest

from prefect_tao.jobs.errors import InvalidInput
from prefect_tao.platforms.lepton.client import LeptonWorkspace
from prefect_tao.platforms.lepton.placement import (
    NodeGroup,
    OfferedShape,
    job_mounts,
    job_shape,
    may_mount,
    node_group,
    preferred_volume,
)
from prefect_tao.platforms.lepton.settings import LeptonSettings

SHAPES = [
    OfferedShape("cpu.small", cpus=1),
    OfferedShape("cpu.large", cpus=16),
    OfferedShape("gpu.a100", 1, cpus=12),
    OfferedShape("gpu.h100-sxm", 1, cpus=24),
    OfferedShape("gpu.8xh100-sxm", 8, cpus=192),
]


def settings(**given: Any) -> LeptonSettings:
    return LeptonSettings(workspace_id="ws1", **given)


def group(*volumes: str) -> NodeGroup:
    listed = [{"from": "local" if name == "disk" else "nfs", "name": name, "size_in_gb": 1} for name in volumes]
    raw = {"metadata": {"id": "ng-1", "name": "h100"}, "spec": {"volumes": listed}, "status": {"ready_nodes": 2}}
    return NodeGroup.read(raw)


@pytest.mark.parametrize(
    ("gpus", "given", "shape"),
    [
        (1, {}, "gpu.a100"),
        (8, {}, "gpu.8xh100-sxm"),
        (-1, {}, "gpu.8xh100-sxm"),
        (0, {}, "cpu.large"),
        (0, {"cpu_shapes": ["cpu.none"]}, "cpu.small"),
        (1, {"resource_shape": "gpu.h100-sxm"}, "gpu.h100-sxm"),
    ],
)
def test_the_shape_follows_from_the_number_of_gpus(gpus: int, given: dict[str, Any], shape: str) -> None:
    assert job_shape(SHAPES, gpus, settings(**given)) == shape


@pytest.mark.parametrize(
    ("gpus", "given", "advice"),
    [
        (3, {}, "1 or 8 per node"),
        (1, {"resource_shape": "gpu.8xh100"}, "did you mean gpu.8xh100-sxm?"),
    ],
)
def test_a_shape_that_is_not_offered_names_the_nearest(gpus: int, given: dict[str, Any], advice: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        job_shape(SHAPES, gpus, settings(**given))
    assert advice in refused.value.remedy


def test_a_node_group_is_found_by_name_or_id_and_the_only_one_by_itself() -> None:
    one, two = group(), NodeGroup("ng-2", "a100")
    assert node_group([one, two], "h100") is node_group([one, two], "ng-1") is node_group([one], None) is one
    assert node_group([], None) is None
    with pytest.raises(InvalidInput, match="several"):
        node_group([one, two], None)
    with pytest.raises(InvalidInput) as refused:
        node_group([one, two], "h10")
    assert "did you mean h100?" in refused.value.remedy


def test_lustre_is_taken_before_filestore_and_that_before_the_first() -> None:
    assert preferred_volume(group("disk", "my-filestore", "team-Lustre").volumes)["name"] == "team-Lustre"
    assert preferred_volume(group("disk", "my-filestore").volumes)["name"] == "my-filestore"
    assert preferred_volume(group("disk", "other").volumes)["name"] == "disk"


def test_storage_is_mounted_where_a_path_needs_it() -> None:
    (found,) = job_mounts(["/mnt/lustre/me"], group("disk", "lustre"), settings())
    assert found == {"from": "node-nfs:lustre", "path": "/", "mount_path": "/mnt/lustre"}
    assert job_mounts([], group("lustre"), settings()) == []
    (named,) = job_mounts([], group("disk", "lustre"), settings(mounts=["disk:/scratch:/fast"]))
    assert named == {"from": "node-local", "path": "/scratch", "mount_path": "/fast"}


@pytest.mark.parametrize(
    ("paths", "volumes", "mounts", "words"),
    [
        (["/data/x"], ["lustre"], [], "no storage that the job mounts"),
        (["/data/x"], [], [], "has no storage to mount"),
        ([], ["lustre"], ["lustr:/a:/b"], "no volume 'lustr'"),
    ],
)
def test_a_path_that_nothing_holds_is_refused(
    paths: list[str], volumes: list[str], mounts: list[str], words: str
) -> None:
    with pytest.raises(InvalidInput, match=words) as refused:
        job_mounts(paths, group(*volumes), settings(mounts=mounts))
    assert refused.value.remedy


@pytest.mark.parametrize(
    ("rules", "may"),
    [
        (None, True),
        ([], True),
        ([{"path_prefix": "/team", "allowed_users": ["me"]}], True),
        ([{"path_prefix": "/team", "allowed_users": ["you"]}], False),
        ([{"path_prefix": "/team", "allowed_users": []}], True),
        ([{"path_prefix": "/tea", "allowed_users": ["me"]}], False),
    ],
)
def test_permissions_say_who_may_mount_what(rules: Any, may: bool) -> None:
    assert may_mount(rules, "/team/x", "me") is may


def test_a_token_beside_the_workspace_id_is_refused_and_never_shown() -> None:
    with pytest.raises(InvalidInput) as refused:
        LeptonWorkspace(LeptonSettings(workspace_id="ws1:s3cr3t"))
    assert "ws1" in refused.value.cause
    assert "LEPTON_AUTH_TOKEN" in refused.value.remedy
    assert "s3cr3t" not in f"{refused.value}{refused.value.remedy}"
