"""From loose words, as a form, a script or the command line give them, to an ask and what it resolves to."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from prefect_tao.catalog.loading import CatalogError, load_catalog
from prefect_tao.catalog.nouns import Catalog
from prefect_tao.jobs.errors import InvalidInput
from prefect_tao.jobs.request import invalid_fields
from prefect_tao.preflight.ask import Ask, Resolved
from prefect_tao.preflight.policy import AutoMLPolicy, automl_finding
from prefect_tao.preflight.resolve import resolve
from prefect_tao.runner.program import set_pointer


def open_catalog(skill_bank: str | None = None) -> Catalog:
    """The catalog; a fault in it is bad input, told with file, key and reason. Raises InvalidInput."""
    try:
        return load_catalog(skill_bank=skill_bank)
    except CatalogError as error:
        raise InvalidInput(str(error), f"correct {error.file}, or leave that catalog out") from None


def build_ask(
    model: str | None, action: str | None, roots: Mapping[str, str | Sequence[str] | None], **fields: Any
) -> Ask:
    """A checked ask. Raises InvalidInput for what is missing or has another form."""
    if not model or not action:
        raise InvalidInput(
            "neither a command nor a model with an action was given",
            "give model and action, for example --model dino --action train, or a command after --",
        )
    given = {source: (root,) if isinstance(root, str) else tuple(root) for source, root in roots.items() if root}
    try:
        return Ask(model=model, action=action, roots=given, **fields)
    except ValidationError as error:
        raise invalid_fields(error) from None


def resolve_ask(ask: Ask, policy: AutoMLPolicy, catalog: Catalog | None = None) -> Resolved:
    """What the ask resolves to, with the AutoML choice among its findings. Raises InvalidInput for unknown names."""
    catalog = catalog or open_catalog()
    resolved = resolve(catalog, ask)
    finding = automl_finding(catalog, resolved, policy)
    return resolved.model_copy(update={"findings": (*resolved.findings, finding)}) if finding else resolved


def runs_image(resolved: Resolved) -> bool:
    """Whether the launch would run in a container image that somebody has to say yes to."""
    entry = open_catalog().platforms.get(resolved.platform)
    return resolved.image is not None and entry is not None and entry.containers


def with_overrides(specs: Mapping[str, Any] | None, overrides: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """A command's own spec with single values put in by dotted key. Raises InvalidInput for a bad key."""
    if specs is None and not overrides:
        return None
    spec = copy.deepcopy(dict(specs or {}))
    for key, value in (overrides or {}).items():
        try:
            set_pointer(spec, key, value)
        except ValueError as error:
            raise InvalidInput(str(error), "keys are pointers into the spec, such as train.optim.lr") from None
    return spec
