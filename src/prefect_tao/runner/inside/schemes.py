"""The kinds of locations that are no plain path."""

from __future__ import annotations

LOCAL_SCHEMES = ("file", "lustre", "slurm")
TOOL_SCHEMES = ("hf_model", "hf_dataset", "ngc")


def local_path(uri: str) -> str:
    """The path that `uri` means where it is read: file:///x, slurm://x and /x are all /x; what is elsewhere stays."""
    scheme, marker, rest = uri.partition("://")
    return "/" + rest.lstrip("/") if marker and scheme in LOCAL_SCHEMES else uri


def bucket_name(text: str) -> str:
    """The bucket as a person names it: mine, s3://mine or s3://mine/."""
    return text.strip(" /").rpartition("://")[2]
