"""Blocks through a real Prefect server: saved, listed with masked secrets, loaded anywhere, edited in a form."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest
from prefect.blocks.core import Block
from prefect.settings import PREFECT_API_URL, temporary_settings
from prefect.types import SecretDict
from pydantic import SecretStr

from prefect_tao import blocks
from prefect_tao.blocks import (
    TaoBrev,
    TaoDocker,
    TaoHuggingFaceToken,
    TaoKubernetes,
    TaoLepton,
    TaoNgcKey,
    TaoProcess,
    TaoSlurm,
)
from prefect_tao.blocks.named import load_credentials

# Those who share the one server run one after the other.
pytestmark = pytest.mark.xdist_group("prefect-server")
VALUE = "s3cr3t-value-nobody-may-see"
KEYS: dict[str, Any] = {
    "access_key": f"{VALUE}-access",
    "secret_key": f"{VALUE}-secret",
    "secrets": {"WANDB_API_KEY": f"{VALUE}-wandb"},
}
MADE: list[Any] = [
    TaoProcess(root="/data/tao"),
    TaoSlurm(user="me", hostnames=["login1"], partition="gpu", **KEYS),
    TaoDocker(**KEYS),
    TaoKubernetes(context="lab", **KEYS),
    TaoLepton(workspace_id="ws1", auth_token=SecretStr(VALUE), **KEYS),
    TaoBrev(api_token=SecretStr(VALUE), **KEYS),
    TaoNgcKey(key=SecretStr(VALUE)),
    TaoHuggingFaceToken(token=SecretStr(VALUE)),
]


@pytest.fixture(autouse=True)
def client(server: Any) -> Iterator[None]:
    """This process talks to the session's server."""
    with temporary_settings({PREFECT_API_URL: server.api}):
        yield


def ask(server: Any, method: str, path: str, body: Any = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(f"{server.api}/{path}", data, {"Content-Type": "application/json"}, method=method)
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.loads(answer.read() or b"null")


def documents(server: Any, name: str) -> dict[str, Any]:
    """The saved blocks of that name by type, as whoever lists them sees them."""
    found = ask(server, "POST", "block_documents/filter", {"limit": 200})
    return {document["block_type"]["slug"]: document for document in found if document["name"] == name}


def test_every_block_is_saved_listed_masked_and_loaded_again(server: Any) -> None:
    assert {type(block).__name__ for block in MADE} == set(blocks.__all__)
    for block in MADE:
        block.save("listed")
    listed = documents(server, "listed")
    assert VALUE not in json.dumps(listed)
    assert listed["tao-slurm"]["data"]["user"] == "me"
    assert listed["tao-slurm"]["data"]["secrets"]["WANDB_API_KEY"].startswith("***")
    for block in MADE:
        slug = block.get_block_type_slug()
        loaded: Any = Block.load(f"{slug}/listed")
        assert type(loaded) is type(block)
        assert loaded.credentials() == block.credentials()
        assert loaded.settings() == block.settings()
        kind = listed[slug]["block_type"]
        assert kind["logo_url"] is None  # a browser without internet would show a broken picture
        assert kind["description"]
        assert kind["code_example"]


def test_a_form_sent_back_with_masked_secrets_keeps_them(server: Any) -> None:
    for name, keys in (("with-keys", KEYS), ("without-keys", {})):
        TaoDocker(network="old", **keys).save(name)
        document = documents(server, name)["tao-docker"]
        body = {
            "data": {**document["data"], "network": "new"},
            "block_schema_id": document["block_schema_id"],
            "merge_existing_data": False,
        }
        ask(server, "PATCH", f"block_documents/{document['id']}", body)
        block: Any = Block.load(f"tao-docker/{name}")
        assert block.network == "new"
        assert block.credentials() == TaoDocker(network="new", **keys).credentials()


def test_a_process_that_knows_only_the_api_loads_a_block_by_its_name(server: Any) -> None:
    TaoSlurm(user="me", hostnames=["login1", "login2"], partition="gpu", **KEYS).save("fresh")
    code = (
        "from prefect.blocks.core import Block; import json; block = Block.load('tao-slurm/fresh'); "
        "print(json.dumps([type(block).__name__, block.settings()['hostnames'], block.credentials()['SECRET_KEY']]))"
    )
    env = {"PATH": os.environ["PATH"], "HOME": str(server.home), "PREFECT_API_URL": server.api}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == ["TaoSlurm", ["login1", "login2"], f"{VALUE}-secret"]


def test_named_blocks_are_loaded_when_used_and_own_values_win() -> None:
    aws = pytest.importorskip("prefect_aws", reason="prefect-aws is missing: make setup installs it")
    aws.AwsCredentials(aws_access_key_id="id", aws_secret_access_key="theirs", region_name="eu-1").save("named")
    TaoNgcKey(key=SecretStr(VALUE)).save("named")
    block = TaoDocker(
        aws_credentials="aws-credentials/named",
        ngc_key="tao-ngc-key/named",
        secret_key=SecretStr("own"),
        secrets=SecretDict({"WANDB_API_KEY": "w"}),
    )
    found = asyncio.run(load_credentials(block))
    expected = {"ACCESS_KEY": "id", "SECRET_KEY": "own", "CLOUD_REGION": "eu-1", "NGC_KEY": VALUE, "WANDB_API_KEY": "w"}
    assert expected.items() <= found.items()


def test_a_cluster_is_read_from_a_block_of_prefect_kubernetes_without_that_package(server: Any) -> None:
    kubernetes = pytest.importorskip(
        "prefect_kubernetes", reason="prefect-kubernetes is missing: make setup installs it"
    )
    config = {"clusters": [], "current-context": "other", "users": [{"user": {"token": VALUE}}]}
    cluster = kubernetes.KubernetesClusterConfig(config=config, context_name="lab")
    cluster.save("lab")
    kubernetes.KubernetesCredentials(cluster_config=cluster).save("lab")
    code = (
        "import asyncio, json, sys; from prefect_tao.blocks import TaoKubernetes as T; "
        "from prefect_tao.blocks.named import load_credentials; "
        "found = [asyncio.run(load_credentials(T(cluster_config=name))) for name in sys.argv[1:]]; "
        "print(json.dumps([found, 'prefect_kubernetes' in sys.modules]))"
    )
    env = {"PATH": os.environ["PATH"], "HOME": str(server.home), "PREFECT_API_URL": server.api}
    words = [sys.executable, "-c", code, "kubernetes-cluster-config/lab", "kubernetes-credentials/lab"]
    done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    found, is_imported = json.loads(done.stdout)
    assert [json.loads(one["KUBECONFIG_TEXT"]) for one in found] == [config, config]
    assert [one["TAO_K8S_CONTEXT"] for one in found] == ["lab", "lab"]
    assert not is_imported


def test_a_named_block_of_a_type_that_is_of_no_use_is_an_error_that_says_which_are() -> None:
    docker = pytest.importorskip("prefect_docker", reason="prefect-docker is missing: make setup installs it")
    docker.DockerHost().save("named")
    with pytest.raises(ValueError, match="the block docker-host/named is of no use here: name one of aws-credentials"):
        asyncio.run(load_credentials(TaoDocker(ngc_key="docker-host/named")))


def test_a_named_block_that_is_not_there_is_an_error_that_names_it() -> None:
    for name in ("tao-ngc-key/none-such", "no-such-type/x", "aws-credentials/none-such"):
        with pytest.raises(ValueError, match=f"there is no saved block {name}"):
            asyncio.run(load_credentials(TaoDocker(ngc_key=name)))
