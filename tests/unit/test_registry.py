"""Platforms by entry point: ours are there and agree with their blocks; another package's needs no line of ours."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from prefect.types import SecretDict
from pydantic import SecretStr, ValidationError

from prefect_tao.blocks.tao_block import Named
from prefect_tao.catalog.loading import load_catalog
from prefect_tao.jobs.errors import InvalidInput
from prefect_tao.platforms import drivers, has_driver, open_platform
from prefect_tao.platforms.registry import PlatformInfo, registered

every = pytest.mark.parametrize("name", sorted(registered()))

SETTINGS = """
from typing import Annotated
from pydantic import Field
from prefect_tao.platforms.fields import FROZEN, InShape, LimitedFields, Variable

class AcmeFields(LimitedFields):
    site: Annotated[str, Variable("ACME_SITE")] = Field(title="Site", description="Which site.")
    gpus: Annotated[int, InShape("num_gpus")] = Field(3, ge=0, title="GPUs", description="Of a job that does not say.")

class AcmeSettings(AcmeFields):
    model_config = FROZEN
"""
INFO = """
from acme_cloud.settings import AcmeSettings
from prefect_tao.platforms.registry import PlatformInfo

PLATFORM = PlatformInfo(
    settings=AcmeSettings, block="acme_cloud.blocks:AcmeCloud", driver="acme_cloud.driver:AcmePlatform", install="acme"
)
"""
ENTRY = """
platforms:
  acme:
    title: Acme Cloud
    description: Somebody else's machines.
    aliases: [ac]
    block: acme-cloud
    required: [ACME_SITE]
    storage: {scheme: s3, uri: "s3://{bucket_name}/{path}"}
credentials:
  ACME_SITE: {description: Names the site., how_to_get: Ask Acme., secret: false}
"""


def package(folder: Path, **files: str) -> dict[str, str]:
    """A distribution in `folder`, and the environment that finds it there as if it were installed."""
    texts = {
        "acme_cloud/__init__.py": INFO,
        "acme_cloud/settings.py": SETTINGS,
        "acme_cloud/driver.py": "import no_such_package",
        "acme_cloud/platform.yaml": ENTRY,
        "acme_cloud-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: acme-cloud\nVersion: 1.0\n",
        "acme_cloud-1.0.dist-info/entry_points.txt": "[prefect_tao.platforms]\nacme = acme_cloud:PLATFORM\n",
        **files,
    }
    for name, text in texts.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return {**os.environ, "PYTHONPATH": str(folder), "ACME_SITE": ""}


def cli(env: dict[str, str], *words: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "prefect_tao.cli", *words], env=env, capture_output=True, text=True, timeout=60
    )
    return done.stdout + done.stderr


def test_all_platforms_of_the_catalog_are_registered() -> None:
    assert set(registered()) == set(load_catalog(overlays=[]).platforms)
    assert drivers() == ["brev", "kubernetes", "lepton", "local-docker", "process", "remote-docker", "slurm"]


@every
def test_settings_and_block_have_the_same_fields_but_for_secrets_and_names_of_blocks(name: str) -> None:
    info = registered()[name]
    block, settings = info.load_block(), info.settings
    hidden = {field for field, about in block.model_fields.items() if about.annotation in (SecretStr, SecretDict)}
    assert set(settings.model_fields) == set(block.model_fields) - hidden - set(block.marked(Named))
    for field, about in settings.model_fields.items():
        assert (about.title, about.description, about.default, about.metadata) == (
            block.model_fields[field].title,
            block.model_fields[field].description,
            block.model_fields[field].default,
            block.model_fields[field].metadata,
        )
    assert load_catalog(overlays=[]).platforms[name].block == block.get_block_type_slug()


@every
def test_settings_are_frozen_and_refuse_what_they_do_not_know(name: str) -> None:
    kind = registered()[name].settings
    required = {
        field: ["x"] if field == "hostnames" else "x"
        for field in kind.model_fields
        if kind.model_fields[field].is_required()
    }
    made = kind(**required)
    with pytest.raises(ValidationError, match="frozen"):
        made.max_jobs = 3  # type: ignore[attr-defined]
    with pytest.raises(ValidationError, match="max_jbos"):
        kind(**required, max_jbos=3)


def test_what_a_block_leaves_out_comes_from_a_variable_and_what_it_says_wins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TAO_RESULTS_ROOT", "/around")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert open_platform("process").settings()["results_root"] == "/around"
    assert open_platform("process", {"results_root": "/said"}).settings()["results_root"] == "/said"
    with pytest.raises(InvalidInput, match="rot: Extra inputs are not permitted"):
        open_platform("process/x", {"rot": "/data"})


@pytest.fixture
def driverless(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(registered(), "brev", replace(registered()["brev"], driver=None))


def test_every_platform_of_the_catalog_has_a_driver() -> None:
    assert [name for name in load_catalog().platforms if not has_driver(name)] == []


def test_a_platform_without_a_driver_is_known_but_not_launched_on(driverless: None) -> None:
    assert not has_driver("brev")
    with pytest.raises(InvalidInput, match="there is no platform 'brev'"):
        open_platform("brev/lab")


def test_the_platform_of_another_package_is_there_like_ours(tmp_path: Path) -> None:
    env = package(tmp_path)
    assert "acme           Acme Cloud (also ac): Somebody else's machines." in cli(env, "platforms")
    shown = cli(env, "platforms", "ac")
    assert "ACME_SITE: Names the site. How to get it: Ask Acme." in shown
    assert "num_gpus = 3" in shown
    missing = cli(env, "jobs", "--target", "acme")
    assert "pip install 'acme'" in missing
    assert "no_such_package" in missing
    package(tmp_path, **{"acme_cloud/driver.py": "class AcmePlatform:\n    pass"})
    unset = cli(env, "jobs", "--target", "acme")
    assert "acme is not set up: it needs site" in unset
    assert "prefect-tao setup acme --name NAME, which takes ACME_SITE where" in unset


@pytest.mark.parametrize(
    ("files", "said"),
    [
        (
            {"acme_cloud/__init__.py": "import no_such_package"},
            "acme-cloud: acme: acme_cloud:PLATFORM cannot be",
        ),
        ({"acme_cloud/platform.yaml": "platforms: {}"}, "platforms.acme: there is no entry for this platform"),
        (
            {"acme_cloud-1.0.dist-info/entry_points.txt": "[prefect_tao.platforms]\nslurm = acme_cloud:PLATFORM\n"},
            "brings a platform of this name too",
        ),
    ],
)
def test_a_package_that_is_wrong_is_named(tmp_path: Path, files: dict[str, str], said: str) -> None:
    assert said in cli(package(tmp_path, **files), "platforms")


def test_a_platform_says_what_it_lacks(driverless: None) -> None:
    assert isinstance(registered()["process"], PlatformInfo)
    with pytest.raises(InvalidInput, match="no driver yet"):
        registered()["brev"].load_driver()
