"""Drivers as tests open them: with these settings and no others, whatever the environment says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lepton_api import LeptonServer

from prefect_tao.platforms.brev.driver import BrevPlatform
from prefect_tao.platforms.brev.settings import BrevSettings
from prefect_tao.platforms.docker.driver import DockerPlatform
from prefect_tao.platforms.docker.settings import DockerSettings
from prefect_tao.platforms.kubernetes.driver import KubernetesPlatform
from prefect_tao.platforms.kubernetes.settings import KubernetesSettings
from prefect_tao.platforms.lepton.driver import LeptonPlatform
from prefect_tao.platforms.lepton.settings import LeptonSettings
from prefect_tao.platforms.process.driver import ProcessPlatform
from prefect_tao.platforms.process.settings import ProcessSettings
from prefect_tao.platforms.slurm.driver import SlurmPlatform
from prefect_tao.platforms.slurm.settings import SlurmSettings


def process_settings(root: str | Path, **settings: Any) -> ProcessSettings:
    """Settings of the process driver, with its folders at `root`."""
    given = {name: str(value) if isinstance(value, Path) else value for name, value in settings.items()}
    return ProcessSettings(root=str(root), **given)


def process_at(root: str | Path, **settings: Any) -> ProcessPlatform:
    """The process driver, with its folders at `root`."""
    return ProcessPlatform("process", process_settings(root, **settings))


def docker_at(target: str = "local-docker", **settings: Any) -> DockerPlatform:
    """The Docker driver with the engine that `settings` name."""
    return DockerPlatform(target, DockerSettings(**settings))


def slurm_at(target: str = "slurm/test", **settings: Any) -> SlurmPlatform:
    """The SLURM driver for a cluster that is nowhere unless `settings` say where, and has no /lustre."""
    given = {"user": "me", "hostnames": ["login"], "partition": "polar", "container_mounts": []}
    return SlurmPlatform(target, SlurmSettings(**{**given, **settings}))


def kubernetes_at(target: str = "kubernetes/test", **settings: Any) -> KubernetesPlatform:
    """The Kubernetes driver for the cluster that `settings` name; a refusal is asked about again at once."""
    platform = KubernetesPlatform(target, KubernetesSettings(**settings))
    platform.api.second_answer = 0.0
    return platform


def lepton_at(server: LeptonServer, target: str = "lepton/test", **settings: Any) -> LeptonPlatform:
    """The Lepton driver for the stand-in's workspace."""
    given = {"workspace_id": server.cloud.id, "workspace_url": server.url, "gpus": 0, **settings}
    platform = LeptonPlatform(target, LeptonSettings(**given))
    platform.take_credentials({"LEPTON_AUTH_TOKEN": server.cloud.token, **KEYS})
    return platform


def brev_at(target: str = "brev/test", **settings: Any) -> BrevPlatform:
    """The Brev driver for the stand-in whose command is on the PATH."""
    platform = BrevPlatform(target, BrevSettings(**{"owner": "me", "gpus": 0, "poll_seconds": 0.1, **settings}))
    platform.take_credentials(KEYS)
    return platform


# What the S3 server of the tests takes.
KEYS = {"ACCESS_KEY": "test", "SECRET_KEY": "test"}
