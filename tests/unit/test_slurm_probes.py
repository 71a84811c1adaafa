"""What the answers of a login node mean for a launch."""

from __future__ import annotations

import pytest
from opened_platforms import slurm_at

from prefect_tao.jobs.finding import Finding, Level
from prefect_tao.jobs.request import JobRequest
from prefect_tao.platforms.slurm import probes
from prefect_tao.platforms.slurm.questions import Answer

PLATFORM = slurm_at(partition="short", results_root="/lustre/me")


def partition_findings(*said: tuple[str, str], time_limit: str = "10m") -> list[Finding]:
    request = JobRequest.build(command="true", resources={"time_limit": time_limit})
    return list(probes._partitions(PLATFORM, request, probes._answers(Answer(said))))


@pytest.mark.parametrize(
    ("longest", "asked", "remedy"),
    [("00:10:00", "10m", "--time-limit 9m"), ("04:00:00", "12h", "--time-limit 4h"), ("00:30:00", "1h", "30m")],
)
def test_the_time_that_a_remedy_names_would_fit(longest: str, asked: str, remedy: str) -> None:
    row = ("partition", f"PartitionName=short State=UP MaxTime={longest}")
    (found,) = partition_findings(row, time_limit=asked)
    assert (found.level, found.subject) == (Level.FAIL, "time_limit")
    assert remedy in found.remedy
    shorter = found.remedy.split("--time-limit ")[1].split(",")[0]
    assert [again.level for again in partition_findings(row, time_limit=shorter)] == [Level.OK]


def test_a_silent_controller_is_unknown_and_a_missing_partition_is_not() -> None:
    (unknown,) = partition_findings(("silent", "Unable to contact slurm controller"), ("silent", "once more"))
    assert unknown.level is Level.UNKNOWN
    assert "Unable to contact" in unknown.message
    (missing,) = partition_findings(("nopartition", "short"))
    assert missing.level is Level.FAIL


@pytest.mark.parametrize(
    ("image", "said", "words"),
    [
        ("/lustre/none.sqsh", [("noimage", "/lustre/none.sqsh")], "/lustre/none.sqsh is not there"),
        ("net.sqsh", [("noimage", "net.sqsh")], "net.sqsh is a relative path"),
        ("/lustre/there.sqsh", [], ""),
    ],
)
def test_an_image_file_that_is_not_there_is_found(image: str, said: list[tuple[str, str]], words: str) -> None:
    request = JobRequest.build(command="true", image=image)
    found = list(probes._image(PLATFORM, request, probes._answers(Answer(said))))
    assert [finding.level for finding in found] == ([Level.FAIL] if words else [])
    assert all(words in finding.message for finding in found)
