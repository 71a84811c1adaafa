"""What `doctor` tells: all parts when all is well, and the remedy of what is broken."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

from prefect_tao.cli import doctor
from prefect_tao.platforms.registry import registered


def told(*words: str, **env: str) -> tuple[int, dict[str, list[dict[str, Any]]]]:
    done = subprocess.run(
        [sys.executable, "-m", "prefect_tao.cli", "doctor", "--json", *words],
        env={**os.environ, "PREFECT_API_URL": "", **env},
        capture_output=True,
        text=True,
        timeout=90,
    )
    assert "Traceback" not in done.stderr
    answer = json.loads(done.stdout)
    assert answer["ok"] == (done.returncode == 0)
    return done.returncode, answer["checks"]


def broken(checks: dict[str, list[dict[str, Any]]]) -> list[dict[str, Any]]:
    return [finding for findings in checks.values() for finding in findings if finding["level"] in ("fail", "unknown")]


def test_a_sound_machine_has_all_parts_and_is_left_alone(home: Path, tmp_path: Path) -> None:
    code, checks = told(HOME=str(tmp_path), PREFECT_TAO_GPUS="0,1")
    assert code == 0, broken(checks)
    assert list(checks) == ["versions", "prefect", "folders", "gpus", "catalog", "drivers", "target"]
    names = [finding["subject"] for finding in checks["versions"]]
    assert {"python", "prefect-tao", "prefect", "fastapi"} <= set(names)
    assert checks["gpus"][0]["message"] == "2 GPUs seen: 0, 1"
    assert "from packaged" in checks["catalog"][0]["message"]
    assert any("GiB free" in finding["message"] for finding in checks["folders"])
    assert not home.exists()


def test_what_is_broken_is_told_with_its_remedy_all_at_once(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    overlay = tmp_path / "overlay"
    overlay.mkdir()
    (overlay / "platforms.yaml").write_text("platforms: {process: {titel: x}}\n")
    code, checks = told(
        "--target",
        "process/none",
        HOME=str(tmp_path),
        PREFECT_API_URL="http://127.0.0.1:9/api",
        PREFECT_CLIENT_MAX_RETRIES="0",
        PREFECT_TAO_HOME=str(tmp_path / "file" / "home"),
        PREFECT_TAO_CATALOG=str(overlay),
        PREFECT_TAO_GPUS="",
    )
    assert code == 1
    faults = broken(checks)
    assert all(finding["remedy"] for finding in faults)
    assert "http://127.0.0.1:9/api does not answer" in checks["prefect"][0]["message"]
    assert "http://127.0.0.1:9/api does not answer" in checks["target"][0]["message"]
    assert "cannot be written" in checks["folders"][0]["message"]
    assert str(overlay) in checks["catalog"][0]["message"]
    assert checks["gpus"][0]["level"] == "warn"


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("brev/lab", "the driver for brev is not there yet"),
        ("slrm", "there is no platform 'slrm'"),
        ("process/", "is not a target"),
    ],
)
def test_a_target_that_cannot_be_probed(target: str, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(registered(), "brev", replace(registered()["brev"], driver=None))
    (finding,) = doctor._target(target)
    assert finding.blocks
    assert message in finding.message
    assert finding.remedy


def test_versions_are_held_against_their_bounds() -> None:
    finding = doctor._bounded(Requirement("fastapi>=0.139,<0.151"), "0.155.0", "pip install it")
    assert finding.blocks
    assert "fastapi 0.155.0 is there" in finding.message
    assert doctor._installed(Requirement("no-such-package-at-all>1")).blocks


def test_little_room_warns_and_none_fails(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for free, level in ((5 * 10**8, "fail"), (5 * 10**9, "warn"), (5 * 10**10, "ok")):
        usage = type("Usage", (), {"free": free})
        monkeypatch.setattr(doctor.shutil, "disk_usage", lambda path, usage=usage: usage)
        assert doctor._room(tmp_path).level == level
