"""`setup` saves a platform's block from variables and hidden answers, tries it, and says what is missing instead."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
import urllib.error
from pathlib import Path
from typing import Any

import pytest
from prefect_tools import Api

pytestmark = pytest.mark.xdist_group("prefect-server")
OWN = ("SLURM_", "SSH_", "LEPTON_", "DOCKER_")
SLURM = {"SLURM_USER": "me", "SLURM_HOSTNAME": "login1,login2", "SLURM_PARTITION": "gpu"}


def environment(server: Any, home: Path, **env: str) -> dict[str, str]:
    kept = {name: value for name, value in server.env.items() if not name.startswith(OWN)}
    return {**kept, "HOME": str(home.parent), "PREFECT_TAO_HOME": str(home), **env}


def cli(env: dict[str, str], *words: str) -> subprocess.CompletedProcess[str]:
    words = (sys.executable, "-m", "prefect_tao.cli", *words)
    return subprocess.run(
        words, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120, cwd=env["HOME"]
    )


def saved(api: Api, slug: str, name: str) -> dict[str, Any]:
    """The document of a saved block; secrets are hidden in it."""
    return dict(api.ask("GET", f"/block_types/slug/{slug}/block_documents/name/{name}")["data"])


def test_process_is_saved_from_variables_and_runs(server: Any, api: Api, home: Path, tmp_path: Path) -> None:
    env = environment(server, home, TAO_RESULTS_ROOT=str(tmp_path / "kept"))
    done = cli(env, "setup", "process", "--name", "x", "--from-env")
    assert done.returncode == 0, done.stderr
    assert "saved tao-process/x" in done.stdout
    assert done.stdout.endswith("use it with --target process/x\n")
    assert saved(api, "tao-process", "x")["results_root"] == str(tmp_path / "kept")
    ran = cli({**env, "TAO_RESULTS_ROOT": ""}, "run", "--target", "process/x", "--json", "--", "echo hello")
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout)["results"].startswith(str(tmp_path / "kept"))


def test_the_block_of_a_target_is_loaded_without_all_that_is_installed(server: Any, home: Path) -> None:
    env = environment(server, home)
    assert cli(env, "setup", "process", "--name", "quick").returncode == 0
    code = (
        "import asyncio, sys; from prefect_tao.tasks.targets.opening import load_block;"
        "print(asyncio.run(load_block('process/quick')).get_block_type_slug());"
        "print(sorted({'prefect_aws', 'prefect_docker', 'prefect_kubernetes'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=120)
    assert done.stdout.split("\n")[:2] == ["tao-process", "[]"], done.stderr


def test_setup_again_keeps_what_nothing_else_tells(server: Any, api: Api, home: Path) -> None:
    env = environment(server, home)
    assert cli({**env, "PREFECT_TAO_GPUS": "0,1"}, "setup", "process", "--name", "again").returncode == 0
    done = cli({**env, "TAO_RESULTS_ROOT": str(home / "r")}, "setup", "process", "--name", "again", "--json")
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert (answer["target"], answer["saved"], answer["passed"]) == ("process/again", True, True)
    block = saved(api, "tao-process", "again")
    assert (block["gpu_ids"], block["results_root"]) == ("0, 1", str(home / "r"))


def test_without_variables_all_that_is_missing_is_listed_and_nothing_saved(server: Any, api: Api, home: Path) -> None:
    done = cli(environment(server, home), "setup", "slurm", "--name", "none")
    assert done.returncode == 2
    for name in SLURM:
        assert f"{name} is missing" in done.stderr
    assert "error: nothing was saved; fix 3 problems" in done.stderr
    assert "set the variable SLURM_USER and run this again" in done.stderr
    assert "Traceback" not in done.stderr
    answer = cli(environment(server, home), "setup", "slurm", "--name", "none", "--json")
    assert answer.returncode == 2
    assert len(json.loads(answer.stdout)["missing"]) == len(SLURM)
    with pytest.raises(urllib.error.HTTPError, match="404"):
        saved(api, "tao-slurm", "none")


def test_a_platform_that_does_not_answer_is_saved_all_the_same(
    server: Any, api: Api, home: Path, tmp_path: Path
) -> None:
    (tmp_path / "key").write_text("a key")
    (tmp_path / "key").chmod(0o600)
    given = {**SLURM, "SLURM_HOSTNAME": "127.0.0.1", "SLURM_SSH_PORT": "1", "SSH_KEY_PATH": str(tmp_path / "key")}
    done = cli(environment(server, home, **given), "setup", "slurm", "--name", "c")
    assert done.returncode == 2, done.stderr
    assert "saved tao-slurm/c" in done.stdout
    assert "Connection refused" in done.stdout
    assert done.stdout.endswith("setup slurm --name c\n")
    assert saved(api, "tao-slurm", "c")["hostnames"] == "127.0.0.1"


def test_only_what_is_missing_is_asked_for_and_a_secret_is_not_shown(server: Any, api: Api, home: Path) -> None:
    env = environment(server, home, LEPTON_WORKSPACE_ID="team", LEPTON_WORKSPACE_URL="http://127.0.0.1:1")
    pid, terminal = pty.fork()
    if pid == 0:
        os.execve(sys.executable, [sys.executable, "-m", "prefect_tao.cli", "setup", "lepton", "--name", "typed"], env)
    shown, answered = "", False
    while True:
        try:
            shown += os.read(terminal, 65536).decode()
        except OSError:
            break
        if not answered and "LEPTON_AUTH_TOKEN (not shown): " in shown:
            answered = True
            os.write(terminal, b"hush-hush-hush\n")
    os.close(terminal)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 2, shown
    assert "hush" not in shown
    assert "LEPTON_WORKSPACE_ID" not in shown
    assert "Lepton did not answer for the workspace team" in shown
    block = saved(api, "tao-lepton", "typed")
    assert (block["workspace_id"], "hush" in block["auth_token"]) == ("team", False)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["setup", "slrm"], "there is no platform 'slrm'"),
        (["setup", "process", "--name", "Not A Name"], "is not a target"),
        (["setup", "local-docker"], "run prefect-tao setup remote-docker"),
    ],
)
def test_bad_input_ends_with_2_and_a_remedy(server: Any, home: Path, words: list[str], message: str) -> None:
    done = cli(environment(server, home, DOCKER_HOST="ssh://me@gpu-box"), *words)
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr
