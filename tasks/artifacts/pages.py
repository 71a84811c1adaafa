"""Artifacts that people look at. A server that is slow or away must neither disturb a job nor fail it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from collections.abc import AsyncIterator
from typing import Any
from uuid import UUID

from prefect.artifacts import acreate_markdown_artifact, acreate_table_artifact
from prefect.client.orchestration import get_client
from prefect.client.schemas.actions import ArtifactUpdate
from prefect.context import TaskRunContext

PUBLISH_SECONDS = 30.0
DRAW_SECONDS = 10.0  # how often a page is drawn anew at most
TITLE_LENGTH = 60
SHORT = 6  # as many characters of a key tell the pages of one title apart


@contextlib.asynccontextmanager
async def quietly(seconds: float = PUBLISH_SECONDS) -> AsyncIterator[None]:
    """What fails within the block, or takes longer, is left undone."""
    with contextlib.suppress(Exception):
        async with asyncio.timeout(seconds):
            yield


def page_key(kind: str, title: str, key: str) -> str:
    """What Prefect knows a page by, and shows as its title: review-dino-train-on-slurm-polar-0a1b2c."""
    words = re.sub(r"[^a-z0-9]+", "-", title.lower())[:TITLE_LENGTH].strip("-")
    return "-".join(word for word in (kind, words, key[:SHORT]) if word)


async def publish_page(key: str, markdown: str, description: str | None = None) -> None:
    """Leave a page that says its piece once."""
    async with quietly():
        await acreate_markdown_artifact(markdown=markdown, key=key, description=description)


class LivePage:
    """A page that is drawn anew: one artifact, because another one of its key would be another card in the UI."""

    def __init__(self, key: str) -> None:
        self.key = key
        self.artifact: UUID | None = None
        self._drawing = asyncio.Lock()

    async def show(self, content: str | list[dict[str, Any]], description: str) -> None:
        """Show Markdown, or rows as a table."""
        async with quietly(), self._drawing:
            if self.artifact is not None:
                data = content if isinstance(content, str) else json.dumps(content)
                async with get_client() as client:
                    await client.update_artifact(self.artifact, ArtifactUpdate(data=data, description=description))
            elif isinstance(content, str):
                self.artifact = await acreate_markdown_artifact(markdown=content, key=self.key, description=description)
            else:
                self.artifact = await acreate_table_artifact(table=content, key=self.key, description=description)


# By the key of a job: its page and its task, as far as this process has made them.
_pages: dict[str, UUID] = {}
_tasks: dict[str, UUID] = {}


def note_task(key: str) -> None:
    """Remember the current task as the one of the job, so that other pages can point to its log."""
    if context := TaskRunContext.get():
        _tasks[key] = context.task_run.id


def note_page(key: str, artifact: UUID) -> None:
    """Remember the page of the job, so that other pages can point to it."""
    _pages[key] = artifact


def links(key: str) -> str:
    """Links to the page and the log of a job, for a page of Prefect's; relative, because its two UIs have two roots."""
    page = f"[page]({_pages[key]})" if key in _pages else ""
    return ", ".join(link for link in (page, log_link(key)) if link)


def log_link(key: str) -> str:
    """The link to the log of a job's task alone, for the job's own page."""
    return f"[log](../../runs/task-run/{_tasks[key]})" if key in _tasks else ""
