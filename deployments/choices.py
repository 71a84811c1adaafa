"""What a form can offer: the targets that people have saved, and the models and actions of the catalog."""

from __future__ import annotations

from collections.abc import Sequence

from prefect_tao.blocks import TaoDocker
from prefect_tao.catalog.loading import load_catalog
from prefect_tao.tasks.targets.opening import saved_blocks


async def choices() -> dict[str, list[str]]:
    """The known values, by the name of the parameter that takes them."""
    catalog = load_catalog()
    actions = dict.fromkeys(action for model in catalog.models.values() for action in model.actions)
    return {"target": await saved_targets(), "model": sorted(catalog.models), "action": list(actions)}


async def saved_targets() -> list[str]:
    """`process`, and a target for every saved block of a platform."""
    found = ["process"]
    platforms: dict[str, list[str]] = {}
    for name, entry in load_catalog().platforms.items():
        platforms.setdefault(entry.block, []).append(name)
    for slug, names in sorted(platforms.items()):
        found += [f"{await _platform(names, block)}/{block}" for block in await saved_blocks(slug)]
    return found


async def _platform(names: Sequence[str], block: str) -> str:
    """Of the platforms that share a type of block, the one that this block is for."""
    if len(names) == 1:
        return names[0]
    docker: TaoDocker = await TaoDocker.aload(block)
    return "local-docker" if docker.local else "remote-docker"
