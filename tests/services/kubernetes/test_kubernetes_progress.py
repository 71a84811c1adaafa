"""How far a job is can be seen while it runs, also where its files are on a volume that only Pods see."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from kube_cluster import KubeCluster
from kube_jobs import Opener, end, start, step_of
from kube_store import JOBS

from prefect_tao.jobs.handle import JobHandle
from prefect_tao.jobs.state import JobState
from prefect_tao.platforms.kubernetes import forgotten, told_progress
from prefect_tao.platforms.kubernetes.driver import KubernetesPlatform
from prefect_tao.testing.contract import until

pytestmark = pytest.mark.xdist_group("kubernetes")
LINE = '{"status": "RUNNING", "epoch": %d, "max_epoch": 10, "kpi": {"mAP": 0.%d}}'
TRAIN = f"""
mkdir -p $TAO_RESULTS_DIR/train
echo '{LINE % (1, 1)}' >> $TAO_RESULTS_DIR/train/status.json
until [ -e $TAO_RESULTS_DIR/go ]; do sleep 0.1; done
echo '{LINE % (2, 2)}' >> $TAO_RESULTS_DIR/train/status.json
"""


@pytest.fixture
def far(kube: KubeCluster, tmp_path: Path) -> dict[str, Any]:
    """Settings for results on a volume that this machine does not have where Pods see it."""
    (tmp_path / "volume").mkdir()
    kube.add_claim("results", tmp_path / "volume")
    return {"results_root": None, "mounts": [], "results_claim": "results", "poll_seconds": 0.1}


async def epoch(platform: KubernetesPlatform, handle: JobHandle) -> int | None:
    seen = (await platform.observe([handle]))[handle]
    return seen.progress.epoch if seen.progress else None


async def test_progress_on_a_far_volume_is_seen_while_the_job_runs_and_after_its_end(
    kube: KubeCluster, opened: Opener, far: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forgotten, "GONE_SECONDS", 0.2)
    platform = opened(**far)
    handle = await start(platform, TRAIN)
    assert await until(lambda: epoch(platform, handle), 30) == 1
    (tmp_path / "volume" / handle.key / "results_dir" / "go").touch()
    over = await end(platform, handle)
    assert over.state is JobState.COMPLETE
    assert over.progress
    assert (over.progress.epoch, over.progress.max_epoch, over.progress.metrics) == (2, 10, {"mAP": 0.2})
    assert [point.epoch for point in over.progress.history] == [1, 2]
    kube.api.requests.clear()
    assert await epoch(opened(**far), handle) == 2
    assert not [path for _, path in kube.api.requests if "/log" in path]  # the Pod's status tells it
    kube.store.delete(JOBS, kube.jobs()[0], "Background")
    assert await until(lambda: epoch(opened(**far), handle), 20) == 2
    assert "POST pods" not in [step_of(*one) for one in kube.api.requests]


async def test_a_look_reads_few_logs_and_each_job_has_its_turn(
    kube: KubeCluster, opened: Opener, far: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(told_progress, "MOST_LOGS", 1)
    platform = opened(**far)
    handles = [await start(platform, TRAIN) for _ in range(2)]

    async def all_known() -> bool:
        kube.api.requests.clear()
        seen = await platform.observe(handles)
        assert sum("/log" in path for _, path in kube.api.requests) <= 1
        return all(one.progress and one.progress.epoch == 1 for one in seen.values())

    await until(all_known, 30)
