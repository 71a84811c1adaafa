"""The board of a search in its own page, unseen: commands on any machine that reach the server know how it stands."""

from __future__ import annotations

import base64
import re
import zlib

from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import ArtifactFilter
from prefect.client.schemas.sorting import ArtifactSort

from prefect_tao.jobs.naming import job_key
from prefect_tao.jobs.search_board import STEP
from prefect_tao.jobs.search_outcome import SearchOutcome
from prefect_tao.tasks.artifacts.pages import SHORT

KIND = "leaderboard"
MOST = 200  # pages of sweeps and searches that are looked through, newest first
# A definition of a link that nothing links to: no renderer of Markdown shows it.
_HIDDEN = re.compile(r"^\[search\]: data:([A-Za-z0-9+/=]+)$", re.MULTILINE)


def hidden(outcome: SearchOutcome) -> str:
    """The board as a line of Markdown that is not shown."""
    return f"[search]: data:{base64.b64encode(zlib.compress(outcome.model_dump_json().encode())).decode()}"


def read_hidden(page: str) -> SearchOutcome | None:
    """The board that a page holds; None for a page without one, and for one of another version."""
    found = _HIDDEN.search(page)
    try:
        return SearchOutcome.model_validate_json(zlib.decompress(base64.b64decode(found[1]))) if found else None
    except (ValueError, zlib.error):
        return None


async def board_in_prefect(key: str | None) -> SearchOutcome | None:
    """The board of the search with this run key or flow run, or of the newest one, as the server has it."""
    pattern = f"{KIND}-%-{job_key(key, STEP)[:SHORT]}" if key else f"{KIND}-%"
    by_key = await _boards(pattern)
    if by_key or key is None:
        return by_key[0] if by_key else None
    return next((one for one in await _boards(f"{KIND}-%") if one.flow_run_id == key), None)


async def _boards(pattern: str) -> list[SearchOutcome]:
    """The boards in pages whose keys are like this, newest first."""
    wanted = ArtifactFilter.model_validate({"key": {"like_": pattern}})
    async with get_client() as client:
        pages = await client.read_artifacts(artifact_filter=wanted, sort=ArtifactSort.UPDATED_DESC, limit=MOST)
    found = [read_hidden(page.data) for page in pages if isinstance(page.data, str)]
    return [one for one in found if one is not None]
