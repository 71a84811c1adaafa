"""How big the runner is inside a command, and how long it takes from its start to the user's command."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.measure import Row, ms, times
from prefect_tao.runner.entrypoint import build_entrypoint, embedded_program

ROUNDS = 15
STAMP = f"{sys.executable} -S -c 'import time; print(time.time())'"
PEER_BYTES = """
from tao_sdk.script_runner import build_entrypoint
print(len(build_entrypoint(command="true")["command"]))
"""


def measure(peer: Path) -> list[Row]:
    ours = len(build_entrypoint("true").script())
    theirs = int(subprocess.run([str(peer), "-c", PEER_BYTES], capture_output=True, text=True, check=True).stdout)
    start = _start_seconds()
    return [
        Row("program, as embedded", f"{len(embedded_program())} bytes", "", "at most 30000 bytes"),
        Row("whole entrypoint of a plain command", f"{ours} bytes", times(ours, theirs) + " of nvidia-tao-sdk's"),
        Row("the same by nvidia-tao-sdk", f"{theirs} bytes", "1x"),
        Row("start of the runner to the user's command", ms(start), "", "at most 200 ms"),
    ]


def _start_seconds() -> float:
    """Median time from the start of the embedded text to the first act of the command, unpacking included."""
    found = []
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "job.sh"
        script.write_text(build_entrypoint(STAMP).script())
        env = {"PATH": "/usr/bin:/bin", "TAO_RESULTS_ROOT": folder, "TAO_JOB_ID": "bench"}
        for _ in range(ROUNDS):
            began = time.time()
            done = subprocess.run(["/bin/bash", str(script)], env=env, capture_output=True, text=True, check=True)
            found.append(float(done.stdout.splitlines()[-1]) - began)
    return sorted(found)[len(found) // 2]
