"""A block's limit holds over all runs that use it, however many jobs they want at once."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from secrets import token_hex
from typing import Any

import pytest
from prefect_tools import call, start

pytestmark = pytest.mark.xdist_group("prefect-pages")
TIMED = "import os,time; b=time.time(); time.sleep(0.6); open(os.path.join(os.environ['TAO_RESULTS_DIR'],'t.json'),'w').write('[%f,%f]'%(b,time.time()))"  # noqa: E501


def most_at_once(spans: Sequence[Sequence[float]]) -> int:
    return max(sum(begin <= moment < end for begin, end in spans) for moment, _ in spans)


def test_two_sweeps_share_the_room_of_one_block(server: Any, tmp_path: Path, home: Path) -> None:
    from prefect.settings import PREFECT_API_URL, temporary_settings

    from prefect_tao.blocks import TaoProcess

    name = f"narrow-{token_hex(4)}"
    with temporary_settings({PREFECT_API_URL: server.api}):
        TaoProcess(root=str(tmp_path / "root"), max_jobs=2).save(name)
    given = {
        "command": f'python3 -c "{TIMED}" {{config_path}}',
        "target": f"process/{name}",
        "specs": {},
        "max_concurrent": 4,
    }
    other = start(server, home, "sweep", **given, points=[{"n": number} for number in range(10, 14)])
    found = call(server, "sweep", **given, points=[{"n": number} for number in range(4)])
    assert other.wait(120) == 0
    assert all(point.state.value == "Complete" for point in found.points)
    spans = [json.loads(path.read_text()) for path in (tmp_path / "root" / "results").rglob("t.json")]
    assert len(spans) == 8
    assert most_at_once(spans) <= 2
