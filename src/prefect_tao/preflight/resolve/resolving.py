"""What an ask resolves to, by the catalog in use."""

from __future__ import annotations

from prefect_tao.catalog.loading import CatalogError, load_catalog
from prefect_tao.catalog.lookup import find_platform, nearest_platforms
from prefect_tao.catalog.nouns import Catalog
from prefect_tao.jobs.errors import InvalidInput
from prefect_tao.jobs.target import Target
from prefect_tao.preflight.resolve.ask import Ask, Resolved
from prefect_tao.preflight.resolve.command_launch import plain_launch
from prefect_tao.preflight.resolve.model_launch import resolve
from prefect_tao.preflight.resolve.policy import automl_finding
from prefect_tao.preflight.resolve.translating import Parameters, ask_from, request_from


def open_catalog(skill_bank: str | None = None) -> Catalog:
    """The catalog; a fault in it is bad input, reported with file, key and reason. Raises InvalidInput."""
    try:
        return load_catalog(skill_bank=skill_bank)
    except CatalogError as error:
        raise _unusable(error) from None


def named_platform(catalog: Catalog, text: str) -> str:
    """The platform that `text` names. Raises InvalidInput with the nearest names."""
    found = find_platform(catalog, text)
    if found is None:
        near = nearest_platforms(catalog, text)
        hint = f"did you mean {near[0]}? " if near else ""
        raise InvalidInput(f"there is no platform {text!r}", f"{hint}known platforms: {', '.join(catalog.platforms)}")
    return found


def _unusable(error: CatalogError) -> InvalidInput:
    if len(error.faults) == 1:
        return InvalidInput(str(error), f"correct {error.fault.file}, or leave that catalog out")
    lines = [f"{len(error.faults)} faults in the catalog:", *(f"  - {fault}" for fault in error.faults)]
    return InvalidInput("\n".join(lines), "correct them, or leave that catalog out")


def resolve_ask(ask: Ask, catalog: Catalog | None = None) -> Resolved:
    """What the ask resolves to, with the AutoML choice among its findings. Raises InvalidInput for unknown names."""
    catalog = catalog or open_catalog()
    resolved = resolve(catalog, ask)
    finding = automl_finding(catalog, resolved, ask.given)
    return resolved.model_copy(update={"findings": (*resolved.findings, finding)}) if finding else resolved


def resolve_given(given: Parameters, catalog: Catalog) -> Resolved:
    """What the parameters of a launch resolve to: a plain command, or an action of the catalog. Raises InvalidInput."""
    if given["command"] is None:
        return resolve_ask(ask_from(given), catalog)
    return plain_launch(request_from(given), named_platform(catalog, Target.parse(given["target"]).platform), catalog)


def runs_image(resolved: Resolved) -> bool:
    """Whether the launch would run in a container image that a person has to confirm. Raises InvalidInput."""
    entry = open_catalog().platforms.get(resolved.platform)
    return resolved.image is not None and entry is not None and entry.containers


def with_image(resolved: Resolved, image: str) -> Resolved:
    """The launch in another image, which a person chose."""
    request = resolved.request and resolved.request.model_copy(update={"image": image})
    return resolved.model_copy(update={"image": image, "image_source": "chosen by a person", "request": request})
