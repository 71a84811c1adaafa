"""The kinds of locations: paths, and storage of which each kind has a module of its own."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

LOCAL_SCHEMES = ("file", "lustre", "slurm")
# What people set, and what the tools that need it look for.
ALIASES = {
    "ACCESS_KEY": "AWS_ACCESS_KEY_ID",
    "SECRET_KEY": "AWS_SECRET_ACCESS_KEY",
    "S3_ENDPOINT_URL": "AWS_ENDPOINT_URL",
    "CLOUD_REGION": "AWS_REGION",
    "NGC_KEY": "NGC_CLI_API_KEY",
}
BUCKET_SCHEME = "s3"  # of the bucket that S3_BUCKET_NAME names
REGISTERED: dict[str, Any] = {}  # those that come from elsewhere; in a job they lie among ours


def scheme_of(uri: str) -> str:
    """`s3` of s3://..., nothing of a plain path."""
    scheme, marker, _ = uri.partition("://")
    return scheme if marker else ""


def is_local(uri: str) -> bool:
    """Whether `uri` is a path where it is read."""
    scheme = scheme_of(uri)
    return not scheme or scheme in LOCAL_SCHEMES


def is_location(text: str) -> bool:
    """Whether `text` can only be a location: in a list there may be words too."""
    return "://" in text or text.startswith(("/", "./", "../", "~/"))


def local_path(uri: str) -> str:
    """The path that `uri` means where it is read: file:///x, slurm://x and /x are all /x; what is elsewhere stays."""
    scheme, marker, rest = uri.partition("://")
    return "/" + rest.lstrip("/") if marker and scheme in LOCAL_SCHEMES else uri


def find_scheme(name: str) -> Any:
    """The storage scheme `name`, or None when there is none. Its module is loaded when it is first asked for."""
    if name in REGISTERED:
        return REGISTERED[name].SCHEME
    if not name.isidentifier():
        return None
    from importlib import import_module

    module = "%s.stores.%s" % (__package__, name)
    try:
        return getattr(import_module(module), "SCHEME", None)
    except ModuleNotFoundError as error:
        if error.name != module:
            raise
        return None


def bucket_name(text: str) -> str:
    """The bucket as a person names it: mine, s3://mine or s3://mine/."""
    return text.strip(" /").rpartition("://")[2]


def bucket_uri(text: str) -> str:
    """The location that S3_BUCKET_NAME means."""
    return "%s://%s" % (BUCKET_SCHEME, bucket_name(text))


def bucket_results(text: str, key: str) -> str:
    """Where a job of this key keeps its results in such a bucket."""
    return "%s/results/%s" % (bucket_uri(text), key)
