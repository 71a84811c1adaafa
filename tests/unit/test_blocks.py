"""Blocks: complete forms, variables in and out, and no secret where it could be read."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args, get_origin

import pytest
from prefect.blocks.core import Block
from prefect.utilities.dispatch import get_registry_for_type
from pydantic import SecretStr, ValidationError

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
from prefect_tao.blocks.named import variables_of
from prefect_tao.blocks.tao_block import PlatformBlock
from prefect_tao.environment import parse, variables
from prefect_tao.jobs.errors import InvalidInput
from prefect_tao.platforms.fields import LimitedFields, RemoteFields
from prefect_tao.platforms.process.driver import ProcessPlatform
from prefect_tao.platforms.process.settings import ProcessSettings

ALL: list[Any] = [getattr(blocks, name) for name in blocks.__all__]
SECRET = "s3cr3t-value-nobody-may-see"
STORAGE = {
    "S3_BUCKET_NAME": "bucket",
    "S3_ENDPOINT_URL": "https://store.example.com",
    "CLOUD_REGION": "eu-1",
    "ACCESS_KEY": f"{SECRET}-access",
    "SECRET_KEY": f"{SECRET}-secret",
    "TAO_RESULTS_ROOT": "/results",
}
SLURM = {"SLURM_USER": "me", "SLURM_HOSTNAME": "login1,login2", "SLURM_PARTITION": "polar,grizzly"}
# Block -> a full set of its variables under the names they are handed on as.
FULL: dict[Any, dict[str, str]] = {
    TaoProcess: {"PREFECT_TAO_HOME": "/data/tao", "TAO_RESULTS_ROOT": "/results", "PREFECT_TAO_GPUS": "0,1"},
    TaoSlurm: {
        **{name: value for name, value in STORAGE.items() if name != "TAO_RESULTS_ROOT"},
        **SLURM,
        "SLURM_ACCOUNT": "vision",
        "SLURM_BASE_RESULTS_DIR": "/lustre/results",
        "SLURM_CONTAINER_MOUNTS": "/lustre,/home",
        "SSH_KEY_PATH": "~/.ssh/id",
        "SSH_KEY_PASSPHRASE": f"{SECRET}-key",
        "SLURM_KNOWN_HOSTS": "~/.ssh/cluster_hosts",
        "SLURM_SSH_PORT": "2222",
    },
    TaoDocker: {
        **STORAGE,
        "DOCKER_HOST": "ssh://me@box",
        "DOCKER_NETWORK": "tao_default",
        "DOCKER_USERNAME": "$oauthtoken",
        "DOCKER_PULL_POLICY": "always",
        "DOCKER_AUTO_REMOVE": "true",
        "HOST_SSH_PATH": "~/.ssh",
    },
    TaoKubernetes: {**STORAGE, "KUBECONFIG": "~/k", "TAO_K8S_NAMESPACE": "training", "TAO_K8S_CONTEXT": "lab"},
    TaoLepton: {
        **STORAGE,
        "LEPTON_WORKSPACE_ID": "ws1",
        "LEPTON_AUTH_TOKEN": f"{SECRET}-lepton",
        "LEPTON_WORKSPACE_URL": "https://lepton.example.com/ws1",
        "LEPTON_WORKSPACE_ORIGIN_URL": "https://lepton.example.com",
    },
    TaoBrev: {**STORAGE, "BREV_API_TOKEN": f"{SECRET}-brev"},
    TaoNgcKey: {"NGC_KEY": f"{SECRET}-ngc"},
    TaoHuggingFaceToken: {"HF_TOKEN": f"{SECRET}-hf"},
}
SECRETS = {
    TaoSlurm: {"access_key", "secret_key", "secrets.*", "ssh_key_passphrase"},
    TaoProcess: set(),
    TaoLepton: {"access_key", "secret_key", "secrets.*", "auth_token"},
    TaoBrev: {"access_key", "secret_key", "secrets.*", "api_token"},
    TaoNgcKey: {"key"},
    TaoHuggingFaceToken: {"token"},
}
each = pytest.mark.parametrize("kind", ALL, ids=lambda kind: kind.get_block_type_slug())


# -- the form ----------------------------------------------------------------------------------------------------------


@each
def test_a_block_is_registered_and_explains_itself(kind: Any) -> None:
    assert get_registry_for_type(Block)[kind.get_block_type_slug()] is kind
    assert kind.get_block_type_slug().startswith("tao-")
    assert kind.get_description()
    assert kind._logo_url is None  # a browser without internet would show a broken picture
    assert f"import {kind.__name__}" in kind.get_code_example().replace("TaoDocker, ", "")


@each
def test_lists_are_text_fields_with_commas(kind: Any) -> None:
    lists = [name for name, field in kind.model_fields.items() if "list[" in str(field.annotation)]
    fields = kind.model_json_schema()["properties"]
    assert {(name, fields[name]["type"]) for name in lists} == {(name, "string") for name in lists}
    assert all("commas" in fields[name]["description"] and "items" not in fields[name] for name in lists)


def test_a_list_is_saved_as_the_form_shows_it_and_read_back_as_it_was() -> None:
    options = ["--gres=gpu:1,shard:2", "--nice=5"]
    block = TaoSlurm(user="me", hostnames=["login1", "login2"], partition="p", extra_flags=options)
    stored = block.model_dump()
    assert (stored["hostnames"], stored["extra_flags"]) == ("login1, login2", "--gres=gpu:1,shard:2, --nice=5")
    again = TaoSlurm(**{name: stored[name] for name in ("user", "hostnames", "partition", "extra_flags")})
    assert (again.hostnames, again.extra_flags) == (["login1", "login2"], options)


def test_no_shared_base_is_a_block_type() -> None:
    ours = {slug for slug, kind in get_registry_for_type(Block).items() if kind.__module__.startswith("prefect_tao.")}
    assert ours == {kind.get_block_type_slug() for kind in ALL}


@each
def test_an_example_runs_as_it_is_written(kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    saved: list[Block] = []
    monkeypatch.setattr(Block, "save", lambda block, name: saved.append(block))
    for name, value in FULL[kind].items():
        monkeypatch.setenv(name, value)
    code = kind.get_code_example().partition("```python\n")[2].partition("```")[0]
    exec(code, {})
    assert any(isinstance(block, kind) for block in saved)


@each
def test_every_field_has_a_title_and_a_description_and_the_platforms_own_come_first(kind: Any) -> None:
    fields = kind.model_json_schema()["properties"]
    assert [name for name, field in fields.items() if not (field.get("title") and field.get("description"))] == []
    assert [field["position"] for field in fields.values()] == list(range(len(fields)))
    shared = {*LimitedFields.model_fields, *PlatformBlock.model_fields}
    assert next(iter(fields)) not in shared
    assert set(list(fields)[len(fields.keys() - shared) :]) <= shared | RemoteFields.model_fields.keys()
    required = kind.model_json_schema().get("required", [])
    assert list(fields)[: len(required)] == required


@each
def test_the_api_is_told_which_fields_are_secret(kind: Any) -> None:
    expected = SECRETS.get(kind, {"access_key", "secret_key", "secrets.*"})
    assert set(kind._to_block_schema().fields["secret_fields"]) == expected


@each
def test_no_field_is_a_collection_of_secrets_which_the_api_shows_in_clear(kind: Any) -> None:
    def nested(annotation: Any) -> bool:
        inside = any(SecretStr in (part, *get_args(part)) or nested(part) for part in get_args(annotation))
        return get_origin(annotation) in (dict, list, tuple, set) and inside

    assert [name for name, field in kind.model_fields.items() if nested(field.annotation)] == []


def test_blocks_load_without_the_packages_of_other_blocks_or_platforms() -> None:
    heavy = ("prefect_aws", "prefect_docker", "prefect_kubernetes", "paramiko", "docker", "leptonai")
    code = f"import sys, prefect_tao.blocks.named\nprint([name for name in {heavy!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


# -- variables in and out ----------------------------------------------------------------------------------------------


@each
def test_what_comes_from_variables_goes_out_under_the_same_names(kind: Any) -> None:
    block = kind.from_env(FULL[kind])
    assert block.credentials() == FULL[kind]


def test_a_block_has_credentials_only_for_what_is_set() -> None:
    assert TaoProcess().credentials() == {}
    assert TaoSlurm.from_env(SLURM).credentials() == {
        **SLURM,
        "SLURM_CONTAINER_MOUNTS": "/lustre",
    }


def test_variables_become_typed_settings() -> None:
    settings = TaoSlurm.from_env(SLURM).settings()
    assert settings["hostnames"] == ["login1", "login2"]
    assert settings["partition"] == "polar,grizzly"
    assert (settings["gpus"], settings["cpus"], settings["time_hours"], settings["timeout_hours"]) == (4, 16, 4, 3.8)
    assert settings["use_requeue"] is settings["use_sqsh"] is True
    assert TaoDocker.from_env({"DOCKER_AUTO_REMOVE": "1"}).settings()["auto_remove"] is True


def test_all_missing_variables_are_named_at_once() -> None:
    with pytest.raises(ValueError, match="SLURM_USER, SLURM_HOSTNAME, SLURM_PARTITION not set"):
        TaoSlurm.from_env({"SLURM_USER": "", "SLURM_PARTITION": "  "})
    with pytest.raises(ValueError, match="LEPTON_AUTH_TOKEN not set"):
        TaoLepton.from_env({"LEPTON_WORKSPACE_ID": "ws1"})


def test_other_spellings_are_read_and_the_seeds_spelling_wins() -> None:
    assert TaoBrev.from_env({"BREV_API_KEY": "bak-1"}).credentials() == {"BREV_API_TOKEN": "bak-1"}
    both = {"AWS_ACCESS_KEY_ID": "theirs", "ACCESS_KEY": "ours", "AWS_SECRET_ACCESS_KEY": "half"}
    assert TaoDocker.from_env(both).access_key.get_secret_value() == "ours"
    assert TaoDocker.from_env(both).secret_key.get_secret_value() == "half"


def test_the_environment_wins_over_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / ".config" / "tao" / ".env"
    file.parent.mkdir(parents=True)
    file.write_text("export SLURM_USER=from-file\nSLURM_HOSTNAME='login1'\nSLURM_PARTITION=gpu # the fast one\n")
    for name in SLURM:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert TaoSlurm.from_env().user == "from-file"
    monkeypatch.setenv("SLURM_USER", "from-environment")
    monkeypatch.setenv("SLURM_PARTITION", "")
    assert (TaoSlurm.from_env().user, TaoSlurm.from_env().partition) == ("from-environment", "gpu")
    assert variables({"SLURM_USER": "given"}) == {"SLURM_USER": "given"}


@pytest.mark.parametrize(
    ("line", "value"),
    [
        ("KEY=plain", "plain"),
        ("  export KEY = spaced  ", "spaced"),
        ("KEY=before # comment", "before"),
        ("KEY=with#hash", "with#hash"),
        ("KEY='single # ${HOME} \\n'", "single # ${HOME} \\n"),
        ('KEY="a \\"word\\" and \\\\ and \\n" # comment', 'a "word" and \\ and \n'),
        ("KEY=$oauthtoken", "$oauthtoken"),
        ("KEY=a=b==", "a=b=="),
        ("KEY='open", None),
        ("KEY=pa${B}ss", "pa${B}ss"),
        ("KEY=", ""),
        ("KEY= # nothing", ""),
        ("KEY=windows\r", "windows"),
        ("# KEY=comment", None),
        ("KEY", None),
        ("=value", None),
        ("TWO WORDS=value", None),
    ],
)
def test_lines_of_the_file(line: str, value: str | None) -> None:
    assert parse(f"OTHER=1\n{line}\n").get("KEY") == value


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / ".config" / "tao" / ".env").mkdir(parents=True)
    with pytest.raises(InvalidInput, match=r"tao/\.env cannot be read: Is a directory"):
        variables({"HOME": str(tmp_path)})


# -- secrets -----------------------------------------------------------------------------------------------------------


@each
def test_secrets_are_in_credentials_and_nowhere_else(kind: Any) -> None:
    block = kind.from_env(FULL[kind])
    if "secrets" in kind.model_fields:
        block = block.model_copy(update={"secrets": type(block.secrets)({"WANDB_API_KEY": f"{SECRET}-wandb"})})
        assert block.credentials()["WANDB_API_KEY"] == f"{SECRET}-wandb"
    shown = [repr(block), str(block), repr(block.settings()), block.model_dump_json(), repr(block.model_dump())]
    assert [text for text in shown if SECRET in text] == []
    json.dumps(block.settings())


@each
def test_an_error_about_one_field_does_not_quote_another(kind: Any) -> None:
    names = {
        name: f"{SECRET}-{name}" for name in ("access_key", "auth_token", "api_token") if name in kind.model_fields
    }
    with pytest.raises(ValidationError) as caught:
        kind(
            **names, **({"max_jobs": SECRET} if "max_jobs" in kind.model_fields else {"root": 1, "key": 1, "token": 1})
        )
    assert SECRET not in str(caught.value)


def test_settings_are_copies_and_hold_no_names_of_blocks() -> None:
    block = TaoDocker(
        env={"A": "1"}, aws_credentials="aws-credentials/prod", registry="docker-registry-credentials/ngc"
    )
    settings = block.settings()
    settings["env"]["B"] = "2"
    assert block.env == {"A": "1"}
    assert not {"aws_credentials", "registry", "access_key", "secret_key", "secrets"} & settings.keys()
    assert block.named() == {"aws_credentials": "aws-credentials/prod", "registry": "docker-registry-credentials/ngc"}


# -- values ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: TaoSlurm(user="me", hostnames=[], partition="p"), "hostnames"),
        (lambda: TaoSlurm(user="-oProxyCommand=x", hostnames=["a"], partition="p"), "user"),
        (lambda: TaoSlurm(user="me", hostnames=["two words"], partition="p"), "hostnames"),
        (lambda: TaoSlurm(user="me", hostnames=["a"], partition=""), "partition"),
        (lambda: TaoSlurm(user="me", hostnames=["a"], partition="p", time_hours=9, max_time_hours=4), "max_time_hours"),
        (lambda: TaoDocker(host="/var/run/docker.sock"), "host"),
        (lambda: TaoDocker(aws_credentials="prod"), "aws_credentials"),
        (lambda: TaoDocker(max_jobs=0), "max_jobs"),
        (lambda: TaoDocker(poll_seconds=0), "poll_seconds"),
        (lambda: TaoLepton(workspace_id="ws1", auth_token=""), "auth_token"),
        (lambda: TaoLepton(workspace_id="w", auth_token="t", workspace_url="https://x/y/"), "workspace_url"),
    ],
)
def test_a_wrong_value_is_refused_by_the_name_of_its_field(make: Callable[[], Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        make()


def test_an_emptied_form_field_is_the_default() -> None:
    block = TaoDocker(host="", network=" ", s3_endpoint_url="", access_key="")
    assert (block.host, block.network, block.s3_endpoint_url) == ("unix:///var/run/docker.sock", None, None)


def test_a_docker_block_is_local_or_remote_by_its_host() -> None:
    assert TaoDocker().local
    assert not TaoDocker(host="ssh://me@box").local
    assert not TaoDocker(host="tcp://box:2376").local


def test_the_process_driver_takes_the_settings_of_its_block(tmp_path: Path) -> None:
    settings = TaoProcess(root=str(tmp_path), gpu_ids=["0"]).settings()
    assert settings == {"root": str(tmp_path), "gpu_ids": ["0"]}
    assert ProcessPlatform("process/x", ProcessSettings(**settings)).root == tmp_path.resolve()


# -- blocks of others --------------------------------------------------------------------------------------------------


def test_blocks_of_other_packages_give_their_values_under_our_names() -> None:
    aws = pytest.importorskip("prefect_aws", reason="prefect-aws is missing: make setup installs it")
    docker = pytest.importorskip("prefect_docker", reason="prefect-docker is missing: make setup installs it")
    prod = aws.AwsCredentials(aws_access_key_id="id", aws_secret_access_key="key", region_name="eu-1")
    assert variables_of(prod.model_dump(), "aws-credentials/prod") == {
        "ACCESS_KEY": "id",
        "SECRET_KEY": "key",
        "CLOUD_REGION": "eu-1",
    }
    lab = aws.MinIOCredentials(
        minio_root_user="id",
        minio_root_password="key",
        aws_client_parameters={"endpoint_url": "http://store:9000"},
    )
    assert variables_of(lab.model_dump(), "minio-credentials/lab") == {
        "ACCESS_KEY": "id",
        "SECRET_KEY": "key",
        "S3_ENDPOINT_URL": "http://store:9000",
    }
    ngc = docker.DockerRegistryCredentials(username="$oauthtoken", password="key", registry_url="registry.example.com")
    assert variables_of(ngc.model_dump(), "docker-registry-credentials/ngc") == {
        "DOCKER_USERNAME": "$oauthtoken",
        "DOCKER_PASSWORD": "key",
        "DOCKER_REGISTRY": "registry.example.com",
    }


async def test_probing_a_target_asks_its_driver(home: Path) -> None:
    from prefect_tao.tasks.targets.probing import probe_target

    findings = await probe_target("process")
    assert findings
    assert not [finding for finding in findings if finding.blocks]
    assert not os.path.exists(home)
