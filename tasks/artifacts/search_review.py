"""The review of a search, before its first trial: how it goes about, what it varies, and what it may spend."""

from __future__ import annotations

from prefect_tao.preflight.plans.search_words import review_lines
from prefect_tao.preflight.plans.searches import PlannedSearch
from prefect_tao.tasks.artifacts.pages import page_key, publish_page


async def publish_search_review(search: PlannedSearch, target: str, key: str) -> None:
    """Put the review into Prefect before the first trial."""
    title = f"{search.title} on {target}"
    page = "\n".join([f"## Review of the search: {title}", "", "~~~~", *review_lines(search), "~~~~"])
    await publish_page(page_key("search", title, key), page, f"Review of the search: {title}")
