"""Credentials of the blocks that a block names, loaded when they are used: their packages are not needed before."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from prefect.blocks.core import Block, UnknownBlockType
from prefect.types import SecretDict
from pydantic import SecretStr, TypeAdapter

from prefect_tao.blocks.tao_block import TaoBlock

_S3 = {"CLOUD_REGION": "region_name", "S3_ENDPOINT_URL": "aws_client_parameters.endpoint_url"}
# Type slug -> {variable: where in the block its value is}
OTHERS: Mapping[str, Mapping[str, str]] = {
    "aws-credentials": {
        "ACCESS_KEY": "aws_access_key_id",
        "SECRET_KEY": "aws_secret_access_key",
        "AWS_SESSION_TOKEN": "aws_session_token",
        **_S3,
    },
    "minio-credentials": {"ACCESS_KEY": "minio_root_user", "SECRET_KEY": "minio_root_password", **_S3},
    "docker-registry-credentials": {
        "DOCKER_REGISTRY": "registry_url",
        "DOCKER_USERNAME": "username",
        "DOCKER_PASSWORD": "password",
    },
    # The text of a kubeconfig, which is not a path and so does not go by the name KUBECONFIG.
    "kubernetes-cluster-config": {"KUBECONFIG_TEXT": "config", "TAO_K8S_CONTEXT": "context_name"},
}


async def load_credentials(block: TaoBlock) -> dict[str, str]:
    """The credentials of `block` and of those it names; its own win. Never log or store the result.

    Raises ValueError when a named block is not saved, not of a type that is of use, or needs a package.
    """
    found: dict[str, str] = {}
    for name in block.named().values():
        found |= variables_of(await _load(name), name)
    return {**found, **block.credentials()}


def variables_of(block: Block | TaoBlock, name: str) -> dict[str, str]:
    """What the loaded block `name` holds, by variable. Raises ValueError for a type that is of no use here."""
    if isinstance(block, TaoBlock):
        return block.credentials()
    places = OTHERS.get(block.get_block_type_slug())
    if places is None:
        raise ValueError(f"the block {name} is of no use here: name one of {', '.join(OTHERS)}")
    texts = {variable: _text(_at(block, place)) for variable, place in places.items()}
    return {variable: text for variable, text in texts.items() if text}


async def _load(name: str) -> Block:
    slug = name.partition("/")[0]
    try:
        return await Block.aload(name)
    except UnknownBlockType:
        raise ValueError(f"the block {name} needs a package: install the one that defines {slug}") from None
    except ValueError:
        raise ValueError(f"there is no saved block {name}: save it in the Prefect UI under Blocks") from None


def _at(block: Block, place: str) -> Any:
    found: Any = block
    for step in place.split("."):
        found = getattr(found, step, None)
    return found


def _text(value: Any) -> str:
    if isinstance(value, SecretStr | SecretDict):
        value = value.get_secret_value()
    if isinstance(value, dict):
        return TypeAdapter(dict[str, Any]).dump_json(value).decode()
    return "" if value is None else str(value)
