"""From a target's name to its driver, watcher and block: one of each per target and event loop, shared by all jobs."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any
from weakref import WeakKeyDictionary

from prefect.blocks.core import Block
from prefect.client.orchestration import get_client
from prefect.exceptions import PrefectHTTPStatusError
from pydantic import ValidationError

from prefect_tao.blocks.named import load_credentials
from prefect_tao.blocks.tao_block import TaoBlock
from prefect_tao.catalog.loading import load_catalog
from prefect_tao.catalog.nouns import Catalog
from prefect_tao.jobs.errors import InvalidInput
from prefect_tao.jobs.platform import Platform
from prefect_tao.jobs.target import Target
from prefect_tao.launch.session import Saved, Session, open_session, unsaved
from prefect_tao.platforms import has_driver as knows
from prefect_tao.platforms.fields import LimitedFields
from prefect_tao.platforms.registry import registered
from prefect_tao.preflight.resolve.resolving import named_platform, open_catalog
from prefect_tao.tasks.targets.admission import Room

SHOWN_BLOCKS = 8
NOT_FOUND = 404


@dataclass
class Opened(Session):
    """A target in use by Prefect's tasks, and how full it may be."""

    room: Room = field(kw_only=True)


# A watcher belongs to the event loop it was made in; targets are strings, because a retry cannot rebuild a Block.
_opened: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, Opened]] = WeakKeyDictionary()
_saved: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, Saved]] = WeakKeyDictionary()
_opening: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = WeakKeyDictionary()


async def open_target(target: str) -> Opened:
    """The driver and the watcher of `target`. Raises InvalidInput when there is no such platform, driver or block."""
    loop = asyncio.get_running_loop()
    here = _opened.setdefault(loop, {})
    if target not in here:
        async with _opening.setdefault(loop, asyncio.Lock()):  # tasks that come at once share one connection
            if target not in here:
                here[target] = await _open(target)
    return here[target]


async def open_apart(target: str) -> Platform:
    """A driver of the caller's own, which the caller closes. Raises InvalidInput as `open_target` does."""
    return (await _open(target)).platform


async def _open(target: str) -> Opened:
    saved = await saved_for(target)
    session = open_session(canonical(target), saved)
    room = Room(session.platform, saved.max_jobs, saved.submits_per_second)
    return Opened(session.platform, session.watcher, session.supplied, room=room)


async def saved_for(target: str) -> Saved:
    """What the block of `target` says, loaded once in an event loop. Raises InvalidInput when it is not saved."""
    here = _saved.setdefault(asyncio.get_running_loop(), {})
    if target not in here:
        here[target] = await _load(target)
    return here[target]


async def _load(target: str) -> Saved:
    block = await load_block(target)
    if block is None:
        return unsaved(canonical(target).platform)
    try:
        credentials = await load_credentials(block)
    except (ValueError, RuntimeError) as error:
        raise InvalidInput(str(error), "correct the block in the Prefect UI under Blocks") from None
    fields: object = block
    if not isinstance(fields, LimitedFields):
        return Saved(block.settings(), block.shape(), credentials)
    limits = (fields.max_jobs, fields.submits_per_second, fields.gpu_hour_price)
    return Saved(block.settings(), block.shape(), credentials, *limits)


def canonical(target: str) -> Target:
    """The target with its platform's own name in place of an alias. Raises InvalidInput for an unknown one."""
    parsed = Target.parse(target)
    if knows(parsed.platform):
        return parsed
    return parsed._replace(platform=named_platform(load_catalog(), parsed.platform))


def has_driver(target: str) -> bool:
    """Whether there is a driver for the target's platform."""
    return knows(canonical(target).platform)


async def load_block(target: str) -> TaoBlock | None:
    """The saved block of `target`, or None for a target without one. Raises InvalidInput when it is not saved."""
    parsed = canonical(target)
    if parsed.block is None:
        return None
    entry = load_catalog().platforms.get(parsed.platform)
    kind = entry.block if entry else f"tao-{parsed.platform}"
    try:
        if parsed.platform in registered():
            # Without its class Prefect imports all collections that are installed, which takes seconds.
            block: object = await registered()[parsed.platform].load_block().aload(parsed.block)
        else:
            block = await Block.aload(f"{kind}/{parsed.block}")
    except ValueError:
        saves = f"prefect-tao setup {parsed.platform} --name {parsed.block} saves it"
        raise InvalidInput(
            f"there is no saved block for the target {target}",
            f"{await _saved_instead(kind, parsed)}{saves}; or save a {kind} block named {parsed.block} in the Prefect "
            "UI under Blocks",
        ) from None
    except RuntimeError as error:  # Prefect's word for a block that does not fit its type
        raise InvalidInput(
            f"the saved block for the target {target} does not fit this version{_unfit(error.__cause__)}",
            f"save it again: open {parsed.block} in the Prefect UI under Blocks, or run prefect-tao setup",
        ) from None
    assert isinstance(block, TaoBlock)  # noqa: S101 - the slug is of a platform's block
    return block


async def saved_blocks(kind: str) -> list[str]:
    """The names of all saved blocks of a type, which the server may not know yet."""
    async with get_client() as client:
        try:
            documents = await client.read_block_documents_by_type(kind)
        except PrefectHTTPStatusError as error:
            if error.response.status_code != NOT_FOUND:
                raise
            return []
    return sorted(document.name for document in documents if document.name)


async def saved_targets() -> list[str]:
    """The targets of all saved blocks of platforms that jobs can be launched on."""
    platforms: dict[Any, list[str]] = {}
    for platform, info in registered().items():
        if info.driver:
            platforms.setdefault(info.load_block(), []).append(platform)
    found = []
    for kind, names in platforms.items():
        for name in await saved_blocks(kind.get_block_type_slug()):
            found += [f"{own}/{name}" for own in (names if len(names) == 1 else await _meant(kind, name, names))]
    return found


async def _meant(kind: Any, name: str, platforms: list[str]) -> list[str]:
    """Of the platforms that share a type of block, the one that this block is for; all where it does not tell."""
    try:
        return [(await kind.aload(name)).platform_among(platforms)]
    except (RuntimeError, ValueError):  # a block that does not fit its type any more
        return platforms


async def _saved_instead(kind: str, wanted: Target) -> str:
    """Which blocks of that kind there are, the one that was probably meant first."""
    saved = await saved_blocks(kind)
    if near := get_close_matches(wanted.block or "", saved, n=1):
        return f"did you mean {wanted.platform}/{near[0]}? else "
    return f"saved are {', '.join(saved[:SHOWN_BLOCKS])}; " if saved else ""


def _unfit(error: BaseException | None) -> str:
    """Which fields are wrong, and why; never with their values, which may be secret."""
    if not isinstance(error, ValidationError):
        return ""
    wrong = error.errors(include_url=False, include_input=False, include_context=False)
    return ": " + "; ".join(f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in wrong)


async def catalog_of(target: str) -> Catalog:
    """The catalog with what the target's block says of its platform in place of the usual. Raises InvalidInput."""
    catalog, platform = open_catalog(), canonical(target).platform
    with contextlib.suppress(InvalidInput):  # a block that is not saved is reported by the gates
        return (await saved_for(target)).catalog(catalog, platform)
    return catalog


async def supplied_credentials(target: str) -> dict[str, str]:
    """What is supplied for `target`, of the names that the catalog knows; the block wins over the environment."""
    return (await saved_for(target)).supplied
