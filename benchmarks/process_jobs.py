"""How long a trivial Python script takes from submit until its end is known: bare, ours, and through the peer."""

from __future__ import annotations

import asyncio
import itertools
import subprocess
import tempfile
from pathlib import Path

from benchmarks.measure import Row, in_turn, ms, times
from prefect_tao.jobs.naming import job_key
from prefect_tao.jobs.request import JobRequest
from prefect_tao.platforms import open_platform

ROUNDS = 20
POLL_SECONDS = 0.003
SCRIPT = "import json\nprint(json.dumps({'loss': 0.5}))\n"
PEER = """
import os, sys, tempfile, time
from pathlib import Path
folder = tempfile.mkdtemp()
os.environ["TAO_SDK_STATE_DIR"] = folder
from tao_sdk import VirtualEnvSDK
sdk = VirtualEnvSDK(sys.prefix, work_dir=Path(folder) / "work")
for line in sys.stdin:
    job = sdk.create_python_job(sys.argv[1], specs={}, gpu_count=0)
    while sdk.get_job_status(job.id).status not in ("Complete", "Error", "Canceled"):
        time.sleep(float(sys.argv[2]))
    print(sdk.get_job_status(job.id).status, flush=True)
"""


def measure(peer: Path) -> list[Row]:
    """All three run the same script with the same interpreter, the peer's."""
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "script.py"
        script.write_text(SCRIPT)
        words = [str(peer), "-c", PEER, str(script), str(POLL_SECONDS)]
        sdk = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        loop = asyncio.new_event_loop()
        platform = open_platform("process", {"root": folder})
        numbers = itertools.count()

        def bare() -> None:
            subprocess.run([str(peer), str(script)], stdout=subprocess.DEVNULL, check=True)

        async def job() -> None:
            rendered = platform.render(
                JobRequest.build(command=f"{peer} {script}"), job_key("b", str(next(numbers))), 1
            )
            handle = await platform.submit(rendered, {})
            while not (await platform.observe([handle]))[handle].state.terminal:  # noqa: ASYNC110
                await asyncio.sleep(POLL_SECONDS)

        def ours() -> None:
            loop.run_until_complete(job())

        def theirs() -> None:
            assert sdk.stdin is not None
            assert sdk.stdout is not None
            sdk.stdin.write("go\n")
            sdk.stdin.flush()
            assert sdk.stdout.readline() == "Complete\n"

        found = in_turn({"bare": bare, "ours": ours, "peer": theirs}, ROUNDS)
        loop.close()
        sdk.communicate()
    return [
        Row("bare subprocess", ms(found["bare"]), "1x"),
        Row("prefect-tao, process platform", ms(found["ours"]), times(found["ours"], found["bare"]), "at most 2x bare"),
        Row("nvidia-tao-sdk, VirtualEnvSDK", ms(found["peer"]), times(found["peer"], found["bare"])),
        Row("prefect-tao against nvidia-tao-sdk", "", times(found["ours"], found["peer"])),
    ]
