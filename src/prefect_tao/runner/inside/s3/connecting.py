"""Finds the way to S3 that this image has."""

from __future__ import annotations

import shutil

from ..packages import package
from .awscli import CliStore
from .boto import BotoStore
from .errors import StorageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Union

    Store = Union[BotoStore, CliStore]


def connect(env: Mapping[str, str], tell: Callable[[str], None] = lambda text: None) -> Store:
    """The store, through whatever is there. Raises StorageError when nothing is."""
    boto3, aws = package("boto3"), shutil.which("aws")
    if not boto3 and not aws:
        raise StorageError("s3:// needs boto3 or the aws command in the image, and it has neither; install one there")
    made: Store = BotoStore(boto3, env) if boto3 else CliStore(str(aws), env)
    made.tell = tell
    return made
