"""What a form can offer: the targets that people have saved, and the models and actions of the catalog."""

from __future__ import annotations

from prefect_tao.catalog.loading import load_catalog
from prefect_tao.tasks.targets.opening import saved_targets


async def choices() -> dict[str, list[str]]:
    """The known values, by the name of the parameter that takes them."""
    catalog = load_catalog()
    actions = dict.fromkeys(action for model in catalog.models.values() for action in model.actions)
    return {
        "target": ["process", *sorted(await saved_targets())],
        "model": sorted(catalog.models),
        "action": list(actions),
    }
