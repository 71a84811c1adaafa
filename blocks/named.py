"""Credentials of the blocks that a block names, read when they are used.

Blocks of other packages are read as the server holds them: to import prefect-kubernetes alone takes seconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from prefect.blocks.core import Block, UnknownBlockType
from prefect.client.orchestration import get_client
from prefect.exceptions import ObjectNotFound
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
    "kubernetes-credentials": {
        "KUBECONFIG_TEXT": "cluster_config.config",
        "TAO_K8S_CONTEXT": "cluster_config.context_name",
    },
}


async def load_credentials(block: TaoBlock) -> dict[str, str]:
    """The credentials of `block` and of those it names; its own win. Never log or store the result.

    Raises ValueError when a named block is not saved, not of a type that is of use, or needs a package.
    """
    found: dict[str, str] = {}
    for name in block.named().values():
        is_other = name.partition("/")[0] in OTHERS
        found |= variables_of(await _saved(name), name) if is_other else await _own(name)
    return {**found, **block.credentials()}


def variables_of(values: Mapping[str, Any], name: str) -> dict[str, str]:
    """What the saved values of the block `name` of another package give, by variable."""
    places = OTHERS[name.partition("/")[0]]
    texts = {variable: _text(_at(values, place)) for variable, place in places.items()}
    return {variable: text for variable, text in texts.items() if text}


async def _saved(name: str) -> dict[str, Any]:
    slug, _, own = name.partition("/")
    try:
        async with get_client() as client:
            return (await client.read_block_document_by_name(own, slug, include_secrets=True)).data
    except ObjectNotFound:
        raise ValueError(_not_saved(name)) from None


async def _own(name: str) -> dict[str, str]:
    block = await _load(name)
    if not isinstance(block, TaoBlock):
        raise ValueError(f"the block {name} is of no use here: name one of {', '.join(OTHERS)}")
    return block.credentials()


async def _load(name: str) -> Block | TaoBlock:
    slug = name.partition("/")[0]
    try:
        return await Block.aload(name)
    except UnknownBlockType:
        raise ValueError(f"the block {name} needs a package: install the one that defines {slug}") from None
    except ValueError:
        raise ValueError(_not_saved(name)) from None


def _not_saved(name: str) -> str:
    return f"there is no saved block {name}: save it in the Prefect UI under Blocks"


def _at(values: Mapping[str, Any], place: str) -> Any:
    found: Any = values
    for step in place.split("."):
        found = found.get(step) if isinstance(found, Mapping) else None
    return found


def _text(value: Any) -> str:
    if isinstance(value, SecretStr | SecretDict):
        value = value.get_secret_value()
    if isinstance(value, dict):
        return TypeAdapter(dict[str, Any]).dump_json(value).decode()
    return "" if value is None else str(value)
