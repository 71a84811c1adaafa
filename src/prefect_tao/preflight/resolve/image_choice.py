"""Which image an action runs in, and who said so. What cannot be resolved is a finding, never a guess."""

from __future__ import annotations

import re
from typing import NamedTuple

from prefect_tao.catalog.image_versions import resolve_image_key
from prefect_tao.catalog.nouns import ActionEntry, Catalog, ModelEntry
from prefect_tao.jobs.finding import IMAGE, Finding
from prefect_tao.preflight.resolve.problems import fail, shown

_PART = r"[a-z0-9]+(?:(?:\.|_{1,2}|-+)[a-z0-9]+)*"
_HOST = r"[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?(?::[0-9]{1,5})?"
_REFERENCE = re.compile(
    rf"(?:docker://(?:[\w$.-]+@)?)?(?:{_HOST}[/#])?{_PART}(?:/{_PART})*"
    r"(?::\w[\w.-]{0,127})?(?:@[a-z0-9]+(?:[.+_-][a-z0-9]+)*:[0-9a-fA-F]{32,})?"
)
_FILE = re.compile(r"[^\s:#@]+\.sqsh|\.?/[^\s:#@]+")
GOOD_REFERENCE = "--image nvcr.io/nvidia/tao/tao-toolkit:7.1.0-pyt"


class ChosenImage(NamedTuple):
    """An image and where it came from; without an image the findings say why, if one is needed."""

    image: str | None
    source: str
    findings: tuple[Finding, ...] = ()


def is_image_reference(text: str) -> bool:
    """Whether `text` has the form of an image: registry, port, tag, digest, `registry#image:tag`, or a file."""
    return bool(_REFERENCE.fullmatch(text) or _FILE.fullmatch(text))


def choose_image(
    catalog: Catalog, model: tuple[str, ModelEntry], action: tuple[str, ActionEntry], override: str | None, needed: bool
) -> ChosenImage:
    """The image for an action of a model; `needed` where the platform runs containers."""
    if override is not None:
        return given_image(override)
    for source, declared in _declared(model, action):
        return _resolved(catalog, source, declared)
    if not needed:
        return ChosenImage(None, "none declared, none needed")
    problem = fail(
        "image",
        f"image: the catalog names no image for {model[0]} {action[0]}, and this platform runs containers",
        f"name one, for example {GOOD_REFERENCE}",
        IMAGE,
    )
    return ChosenImage(None, "none declared", (problem,))


def _declared(model: tuple[str, ModelEntry], action: tuple[str, ActionEntry]) -> list[tuple[str, str]]:
    places = [
        (f"{model[0]}.actions.{action[0]}.container_image", action[1].container_image),
        (f"{model[0]}.actions.{action[0]}.image", action[1].image),
        (f"{model[0]}.container_image", model[1].container_image),
        (f"{model[0]}.image", model[1].image),
    ]
    return [(source, declared) for source, declared in places if declared is not None]


def given_image(override: str) -> ChosenImage:
    """The image that a person named."""
    image = override.strip()
    if is_image_reference(image):
        return ChosenImage(image, "the launch")
    expected = "is empty" if not image else f"{shown(override)} is not an image reference"
    problem = fail(
        "image",
        f"image: {expected}; expected registry/name:tag, name@sha256:..., registry#name:tag or a .sqsh file",
        f"write for example {GOOD_REFERENCE}, or leave the option out to use the catalog's image",
        IMAGE,
    )
    return ChosenImage(None, "the launch", (problem,))


def _resolved(catalog: Catalog, source: str, declared: str) -> ChosenImage:
    if "/" in declared or ":" in declared:
        image, origin = declared, source
    else:
        origin = f"{source} = {declared}"
        try:
            image = resolve_image_key(catalog.images, declared)
        except ValueError as error:
            return ChosenImage(None, origin, (_unresolved(source, declared, str(error)),))
    if is_image_reference(image):
        return ChosenImage(image, origin)
    return ChosenImage(None, origin, (_unresolved(source, declared, f"{shown(image)} is not an image reference"),))


def _unresolved(source: str, declared: str, reason: str) -> Finding:
    return fail(
        "image",
        f"image: {source} is {shown(declared)}, which cannot be resolved: {reason}",
        f"correct the catalog's image versions, or name the image: {GOOD_REFERENCE}",
        IMAGE,
    )
