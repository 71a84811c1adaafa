"""Image versions: dotted keys such as `tao_toolkit.pyt` stand for a full image reference, kept in one place."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from prefect_tao.catalog.yaml_files import CatalogError

IMAGES_FILE = "images.yaml"


def is_image_key(text: str) -> bool:
    """Whether `text` is a dotted key. A reference always has a slash or a colon, a key never."""
    return not any(mark in text for mark in "/:")


def resolve_image_key(images: Mapping[str, Any], key: str, file: str | Path = IMAGES_FILE) -> str:
    """The image reference behind `key`; a value may be a key itself, and a reference stands for itself.

    Raises CatalogError for a key that is missing, empty, a group of keys, or part of a circle.
    """
    seen: list[str] = []
    while is_image_key(key):
        key = key.removeprefix("images.")
        if key in seen:
            raise CatalogError(file, seen[0], f"image version keys run in a circle: {' -> '.join([*seen, key])}")
        seen.append(key)
        key = _value(images, key, file)
    return key


def image_keys(images: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """Every dotted key that has a value."""
    for name, value in images.items():
        if isinstance(value, Mapping):
            yield from image_keys(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}"


def _value(images: Mapping[str, Any], key: str, file: str | Path) -> str:
    found: Any = images
    for part in key.split("."):
        found = found.get(part) if isinstance(found, Mapping) else None
    if found is None:
        known = ", ".join(image_keys(images)) or "none"
        raise CatalogError(file, key, f"there is no such image version key; known are {known}")
    if not isinstance(found, str) or not found.strip():
        raise CatalogError(file, key, f"an image reference or another key is expected, not {found!r}")
    return found
