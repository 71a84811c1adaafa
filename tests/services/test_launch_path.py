"""One launch on a saved block, from the command line to its end: nothing on its way is done twice."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from prefect_tools import Api

# Those who share the one server run one after the other.
pytestmark = pytest.mark.xdist_group("prefect-server")

# The real parts, each with a count of its calls.
COUNTED = """
import collections, json, sys
from prefect_tao.settings import prepare_prefect
prepare_prefect()
from prefect.blocks.core import Block
from prefect_tao.blocks import TaoProcess
from prefect_tao.cli import app
from prefect_tao.platforms.process.driver import ProcessPlatform
from prefect_tao.preflight.resolve import resolving

calls = collections.Counter()
block, root, *words = sys.argv[1:]
TaoProcess(root=root, max_jobs=3).save(block)

def count(owner, name):
    real = getattr(owner, name)
    def counted(*args, **kwargs):
        calls[name] += 1
        return real(*args, **kwargs)
    setattr(owner, name, counted)

count(resolving, "resolve")
count(ProcessPlatform, "render")
count(ProcessPlatform, "find")
load = Block.aload.__func__
def counted_load(kind, name, *args, **kwargs):
    calls["load"] += name in (block, f"tao-process/{block}")
    return load(kind, name, *args, **kwargs)
Block.aload = classmethod(counted_load)
for target in (f"process/{block}", "process"):
    calls.clear()
    app(["run", "--target", target, *words], standalone_mode=False)
    print(json.dumps(calls))
"""


def test_resolve_load_render_and_look_up_happen_once(server: Any, api: Api, home: Path, tmp_path: Path) -> None:
    words = ["--model", "tiny", "--action", "train", "--set", "num_epochs=1", "--automl-policy", "off"]
    env = {**os.environ, **server.env, "PREFECT_TAO_HOME": str(home), "PREFECT_API_URL": server.api}
    block = f"once-{uuid4().hex[:8]}"
    done = subprocess.run(
        [sys.executable, "-c", COUNTED, block, str(tmp_path / "jobs"), *words],
        env=env,
        capture_output=True,
        text=True,
        timeout=170,
    )
    assert done.returncode == 0, done.stderr
    assert api.newest_run("run")["state"]["type"] == "COMPLETED"
    with_block, without = map(json.loads, done.stdout.splitlines())
    assert with_block == {"resolve": 1, "load": 1, "render": 1, "find": 1}
    # Once by the command, to refuse what is wrong before Prefect is started, and once by the flow.
    assert without == {"resolve": 2, "render": 2, "find": 1}
