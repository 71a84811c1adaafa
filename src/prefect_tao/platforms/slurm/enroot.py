"""Image references as Pyxis and Enroot write them, and where a converted image is kept."""

from __future__ import annotations

import hashlib
import re

_SCHEME = "docker://"


def is_file(image: str) -> bool:
    """Whether the image is a squashfs file on the cluster already."""
    return image.startswith(("/", "./")) or image.endswith(".sqsh")


def pyxis(image: str) -> str:
    """`image` as srun's --container-image takes it: registry#path:tag, or a file.

    The first part of a reference is a registry only when it looks like a host; pytorch/pytorch is an organization.
    """
    image = image.removeprefix(_SCHEME)
    if is_file(image) or "#" in image:
        return image
    first, slash, rest = image.partition("/")
    if slash and ("." in first or ":" in first or first == "localhost"):
        return f"{first}#{rest}"
    return image


def enroot(image: str) -> str:
    """`image` as enroot import takes it."""
    return _SCHEME + pyxis(image)


def cached_name(image: str) -> str:
    """The file name of the converted image: readable, and different for every two references."""
    reference = pyxis(image)
    readable = re.sub(r"[^A-Za-z0-9._-]+", "_", reference)[-80:].strip("._")
    return f"{readable}-{hashlib.sha256(reference.encode()).hexdigest()[:12]}.sqsh"


def conversion_name(image: str) -> str:
    """The job name of the conversion: one at a time bears it."""
    return f"tao-image-{hashlib.sha256(pyxis(image).encode()).hexdigest()[:16]}"


def is_latest(image: str) -> bool:
    """Whether the reference may mean another image tomorrow."""
    path = pyxis(image).rpartition("/")[2]
    return not is_file(image) and "@" not in path and (":" not in path or path.endswith(":latest"))


def is_private(image: str) -> bool:
    """Whether Enroot may need credentials of its own for it: images of NVIDIA's registry that are not public."""
    reference = pyxis(image)
    return not is_file(image) and reference.startswith("nvcr.io#") and not reference.startswith("nvcr.io#nvidia/")
