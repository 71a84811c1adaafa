"""Artifacts that people look at. A server that is slow or away must neither disturb a job nor fail it."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any
from uuid import UUID

from prefect.artifacts import acreate_markdown_artifact, acreate_table_artifact
from prefect.client.orchestration import get_client
from prefect.client.schemas.actions import ArtifactUpdate

PUBLISH_SECONDS = 30.0


@contextlib.asynccontextmanager
async def quietly(seconds: float = PUBLISH_SECONDS) -> AsyncIterator[None]:
    """What fails within the block, or takes longer, is left undone."""
    with contextlib.suppress(Exception):
        async with asyncio.timeout(seconds):
            yield


async def publish_page(key: str, markdown: str, description: str | None = None) -> None:
    """Leave a page that says its piece once."""
    async with quietly():
        await acreate_markdown_artifact(markdown=markdown, key=key, description=description)


class LivePage:
    """A page that is drawn anew: one artifact, because another one of its key would be another card in the UI."""

    def __init__(self, key: str) -> None:
        self.key = key
        self._artifact: UUID | None = None
        self._drawing = asyncio.Lock()

    async def show(self, content: str | list[dict[str, Any]], description: str) -> None:
        """Show Markdown, or rows as a table."""
        async with quietly(), self._drawing:
            if self._artifact is not None:
                data = content if isinstance(content, str) else json.dumps(content)
                async with get_client() as client:
                    await client.update_artifact(self._artifact, ArtifactUpdate(data=data, description=description))
            elif isinstance(content, str):
                self._artifact = await acreate_markdown_artifact(
                    markdown=content, key=self.key, description=description
                )
            else:
                self._artifact = await acreate_table_artifact(table=content, key=self.key, description=description)
