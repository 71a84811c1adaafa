"""Finds the way to S3 that this image has."""

from __future__ import annotations

import shutil
import sys

from .awscli import CliStore
from .boto import BotoStore
from .errors import StorageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any, Union

    Store = Union[BotoStore, CliStore]


def connect(env: Mapping[str, str], tell: Callable[[str], None] = lambda text: None) -> Store:
    """The store, through whatever is there. Raises StorageError when nothing is."""
    boto3, aws = _boto3(), shutil.which("aws")
    if not boto3 and not aws:
        raise StorageError("s3:// needs boto3 or the aws command in the image, and it has neither; install one there")
    made: Store = BotoStore(boto3, env) if boto3 else CliStore(str(aws), env)
    made.tell = tell
    return made


def _boto3() -> Any:
    from importlib import import_module

    try:
        return import_module("boto3")
    except ImportError:
        if not sys.flags.no_site:
            return None
    import site

    site.main()  # we were started without site-packages, which is quicker; now they are needed
    try:
        return import_module("boto3")
    except ImportError:
        return None
