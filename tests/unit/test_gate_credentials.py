"""Credentials are asked for only where platform, model and locations need them, and their values are never repeated."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from gate_tools import Elsewhere, catalog, launch, level_of, only, resolved

from prefect_tao.catalog.loading import load_catalog
from prefect_tao.environment import variables
from prefect_tao.jobs.errors import InvalidInput
from prefect_tao.jobs.finding import Finding, Level, blocking
from prefect_tao.jobs.request import JobRequest
from prefect_tao.preflight.checks.credentials import HIDDEN, hide_values, missing, platform_needs, secret_values
from prefect_tao.preflight.gates import run_gate


async def platform_findings(platform: str, **fields: Any) -> list[Finding]:
    return await run_gate("platform_credentials", launch(platform, **fields))


async def test_a_platform_asks_for_its_own_credentials_only() -> None:
    checks = {finding.subject for finding in await platform_findings("lepton")}
    assert checks == {"credential LEPTON_WORKSPACE_ID", "credential LEPTON_AUTH_TOKEN"}


async def test_a_missing_credential_tells_what_it_is_and_how_to_get_it() -> None:
    found = only(await platform_findings("lepton"), "credential LEPTON_AUTH_TOKEN")
    assert found.level is Level.FAIL
    assert "LEPTON_AUTH_TOKEN is missing" in found.message
    assert "What LEPTON_AUTH_TOKEN is" in found.message
    assert "Ask the owner of LEPTON_AUTH_TOKEN" in found.remedy
    assert "lepton-auth-token" in found.remedy


@pytest.mark.parametrize("value", ["", "  \n"])
async def test_an_empty_credential_is_missing_and_says_so(value: str) -> None:
    credentials = {"LEPTON_AUTH_TOKEN": value, "LEPTON_WORKSPACE_ID": "w"}
    findings = await platform_findings("lepton", credentials=credentials)
    assert level_of(findings, "credential LEPTON_WORKSPACE_ID") is Level.OK
    assert "set to an empty string" in only(findings, "credential LEPTON_AUTH_TOKEN").message


async def test_the_keys_of_s3_are_asked_for_only_with_a_location_there() -> None:
    def names(findings: list[Finding]) -> set[str]:
        return {finding.subject.split(" ")[1] for finding in blocking(findings)}

    without = await platform_findings("kubernetes", ask=resolved("kubernetes", {"a": "hf_model://org/name"}))
    assert names(without) == set()
    assert names(await platform_findings("kubernetes", ask=resolved("kubernetes", {"a": "s3://bucket/a"}))) == {
        "ACCESS_KEY",
        "SECRET_KEY",
    }
    in_spec = resolved("kubernetes", spec={"train": {"results": ["s3://bucket/out"]}})
    assert names(await platform_findings("kubernetes", ask=in_spec)) == {"ACCESS_KEY", "SECRET_KEY"}
    bucket = await platform_findings("kubernetes", credentials={"S3_BUCKET_NAME": "results"})
    assert names(bucket) == {"ACCESS_KEY", "SECRET_KEY"}


async def test_a_bucket_asks_for_no_keys_where_results_stay_on_shared_storage(tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.touch()
    credentials = {"SLURM_USER": "u", "SLURM_PARTITION": "p", "SSH_KEY_PATH": str(key), "S3_BUCKET_NAME": "b"}
    assert not blocking(await platform_findings("slurm", credentials=credentials))


async def test_without_ssh_identity_one_finding_asks_for_the_key_path_with_five_steps() -> None:
    findings = await platform_findings("slurm", credentials={"SLURM_USER": "u", "SLURM_PARTITION": "p"})
    [found] = blocking(findings)
    assert found.message.startswith("SSH_KEY_PATH is missing")
    assert "SSH_AUTH_SOCK" not in found.message + found.remedy
    steps = ("ssh-keygen", "ssh-copy-id", "ssh-keyscan", "chmod 600", "ssh -o BatchMode=yes")
    places = [found.remedy.index(f"{number}. ") for number in range(1, 6)]
    assert found.remedy.startswith("give SSH_KEY_PATH")
    for number, step in enumerate(steps):
        assert step in found.remedy[places[number] :].split("\n")[0]


async def test_an_agent_will_do_instead_of_a_key() -> None:
    credentials = {"SLURM_USER": "u", "SLURM_PARTITION": "p", "SSH_AUTH_SOCK": "/run/agent"}
    assert not blocking(await platform_findings("slurm", credentials=credentials))


async def test_a_key_path_that_names_no_file_fails(tmp_path: Path) -> None:
    credentials = {"SLURM_USER": "u", "SLURM_PARTITION": "p", "SSH_KEY_PATH": str(tmp_path / "nobody")}
    [found] = blocking(await platform_findings("slurm", credentials=credentials))
    assert "does not exist" in found.message
    assert "nobody" not in found.model_dump_json()


async def test_the_model_and_the_job_ask_for_theirs() -> None:
    request = JobRequest.build(command="true", secrets=["WANDB_API_KEY"])
    asked = launch(ask=resolved(request=request, credentials=("HF_TOKEN",)))
    findings = await run_gate("model_credentials", asked)
    assert {found.subject for found in blocking(findings)} == {"credential HF_TOKEN", "credential WANDB_API_KEY"}
    assert "wandb-api-key" in only(findings, "credential WANDB_API_KEY").remedy


async def test_a_conditional_credential_is_information() -> None:
    findings = await run_gate("model_credentials", launch(credentials={"HF_TOKEN": "hf"}))
    assert not blocking(findings)
    assert "only when: the image is private" in only(findings, "credential NGC_KEY").message


async def test_a_container_without_a_model_needs_no_model_credentials() -> None:
    findings = await run_gate("model_credentials", launch(ask=resolved(model="any")))
    assert not blocking(findings)


def test_what_is_missing_can_be_listed_for_asking() -> None:
    needs = missing(platform_needs(catalog(), "slurm"), {"SLURM_USER": "u"})
    assert [need.preferred for need in needs] == ["SLURM_PARTITION", "SSH_KEY_PATH"]


def test_a_secret_in_the_words_of_a_platform_is_hidden() -> None:
    said = Finding(
        level=Level.FAIL, subject="reachable", message="token abc-def-ghi refused", evidence="abc-def-ghi-long"
    )
    credentials = {"LEPTON_AUTH_TOKEN": "abc-def-ghi", "HF_TOKEN": "abc-def-ghi-long", "SLURM_USER": "refused"}
    [hidden] = hide_values(catalog(), credentials, [said])
    assert hidden.message == f"token {HIDDEN} refused"
    assert hidden.evidence == HIDDEN


def test_settings_of_a_store_are_no_secrets_and_what_nobody_knows_is_one() -> None:
    given = {"SECRET_KEY": "s", "MY_TOKEN": "t", "S3_ENDPOINT_URL": "https://x", "S3_ADDRESSING_STYLE": "path"}
    assert set(secret_values(load_catalog(), given)) == {"SECRET_KEY", "MY_TOKEN"}


async def test_a_key_that_ssh_knows_by_its_own_configuration_is_not_demanded(tmp_path: Path) -> None:
    class Configured(Elsewhere):
        async def own_login(self) -> str:
            return "~/.ssh/cluster_key"

    asked = launch("slurm", Configured(tmp_path), credentials={"SLURM_USER": "u", "SLURM_PARTITION": "p"})
    found = await run_gate("platform_credentials", asked)
    assert not blocking(found)
    assert any("~/.ssh/cluster_key" in finding.message for finding in found)


async def test_a_block_that_is_not_there_is_one_problem() -> None:
    asked = launch("slurm", None, credentials={})
    asked.refusal = InvalidInput("there is no saved block for the target slurm/polr", "saved are: polar")
    found = await run_gate("platform_credentials", asked)
    assert all(finding.follows for finding in found)
    assert not any("is missing" in finding.message for finding in found)


def test_names_that_aws_uses_count_where_ours_are_not_set() -> None:
    keys = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "s", "AWS_REGION": "r"}
    found = variables(keys)
    assert (found["ACCESS_KEY"], found["SECRET_KEY"], found["CLOUD_REGION"]) == ("a", "s", "r")
    assert variables({**keys, "ACCESS_KEY": "mine", "SECRET_KEY": "own"})["ACCESS_KEY"] == "mine"
    # Half of one pair with half of another opens nothing.
    assert "SECRET_KEY" not in variables({**keys, "ACCESS_KEY": "mine"})
