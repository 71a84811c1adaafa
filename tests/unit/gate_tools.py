"""What the tests of the gates share: a small catalog, launches made from it, platforms that answer in known ways."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from opened_platforms import process_settings

from prefect_tao.catalog.nouns import Catalog
from prefect_tao.jobs.errors import Unreachable
from prefect_tao.jobs.finding import Finding, Level
from prefect_tao.jobs.platform import Platform, Rendered
from prefect_tao.jobs.request import JobRequest
from prefect_tao.platforms.process.driver import ProcessPlatform
from prefect_tao.preflight.checked_launch import Launch
from prefect_tao.preflight.resolve.ask import Resolved

IMAGE = "registry.example/tao:1"
S3_STORAGE = {"scheme": "aws", "uri": "s3://{bucket_name}/{path}"}
S3_OPTIONAL = [{"name": "ACCESS_KEY", "only_when": "s3"}, {"name": "S3_ENDPOINT_URL", "only_when": "custom endpoint"}]
SSH_GROUP = {"name": "ssh_identity", "one_of": ["SSH_AUTH_SOCK", "SSH_KEY_PATH"], "preferred": "SSH_KEY_PATH"}


def _platform(title: str, **fields: Any) -> dict[str, Any]:
    return {"title": title, "description": "", "block": f"tao-{title}", "storage": S3_STORAGE, **fields}


def _credential(name: str, secret: bool = True) -> dict[str, Any]:
    return {"description": f"What {name} is.", "how_to_get": f"Ask the owner of {name}.", "secret": secret}


def catalog() -> Catalog:
    """One platform of each kind, and one model."""
    names = ("SLURM_PARTITION", "SSH_KEY_PATH", "SSH_AUTH_SOCK", "LEPTON_WORKSPACE_ID")
    return Catalog.model_validate(
        {
            "platforms": {
                "process": _platform(
                    "process",
                    storage={"scheme": "local", "uri": "file://{absolute_path}"},
                    remote=False,
                    containers=False,
                ),
                "slurm": _platform(
                    "slurm",
                    aliases=["cluster"],
                    required=["SLURM_USER", "SLURM_PARTITION"],
                    groups=[SSH_GROUP],
                    storage={"scheme": "lustre", "uri": "lustre:///{absolute_path}"},
                    path_examples=["/lustre/fsw/team/data/train"],
                ),
                "lepton": _platform("lepton", required=["LEPTON_WORKSPACE_ID", "LEPTON_AUTH_TOKEN"]),
                "kubernetes": _platform(
                    "kubernetes", optional=S3_OPTIONAL, path_examples=["s3://bucket/data/train"], aliases=["k8s"]
                ),
            },
            "credentials": {
                **{name: _credential(name, secret=False) for name in ("SLURM_USER", *names)},
                **{name: _credential(name) for name in ("LEPTON_AUTH_TOKEN", "ACCESS_KEY", "SECRET_KEY", "HF_TOKEN")},
            },
            "images": {},
            "host_minimum": {"driver": "580", "cuda": "13.0", "container_toolkit": "1.19.0"},
            "models": {
                "reasoner": {
                    "title": "Reasoner",
                    "arch": "reasoner",
                    "credentials": ["HF_TOKEN"],
                    "conditional_credentials": {"NGC_KEY": "the image is private"},
                    "hardware": {"min_gpus": 8},
                    "host_minimum": {"cuda": "12.4"},
                    "actions": {
                        "train": {"command": "train", "json_required_fields": {"data.annotation": ["video_fps"]}}
                    },
                }
            },
        }
    )


def resolved(
    platform: str = "process",
    datasets: dict[str, str] | None = None,
    gpus: int = 8,
    request: JobRequest | None = None,
    **fields: Any,
) -> Resolved:
    """A launch that resolved without a finding."""
    return Resolved(
        **{
            "model": "reasoner",
            "action": "train",
            "platform": platform,
            "image": IMAGE,
            "image_source": "model.image",
            "request": request or JobRequest.build(command="true", resources={"gpus": gpus}),
            "spec": {},
            "datasets": datasets or {},
            **fields,
        }
    )


def launch(
    platform: str = "process", driver: Platform | None = None, *, ask: Resolved | None = None, **fields: Any
) -> Launch:
    """A launch as the gates see it."""
    return Launch(catalog(), ask or resolved(platform), driver, **{"credentials": {}, **fields})


class Elsewhere(ProcessPlatform):
    """Stands for a platform over a network: it answers with what it was given, and notes what it was asked."""

    runs_here = False
    read_path = Platform.read_path

    def __init__(self, root: Path, answer: list[Finding] | Unreachable | None = None) -> None:
        super().__init__("slurm/test", process_settings(root))
        self.answer = answer or []
        self.there: set[str] = set()
        self.asked: list[str] = []
        self.begun, self.may_answer = asyncio.Event(), asyncio.Event()
        self.may_answer.set()

    async def probe(self, request: JobRequest | None = None) -> list[Finding]:
        self.asked.append("probe")
        self.begun.set()
        await self.may_answer.wait()
        if isinstance(self.answer, Unreachable):
            raise self.answer
        self.asked.append("answered")
        return self.answer

    async def check_path(self, uri: str) -> bool:
        self.asked.append(uri)
        return uri in self.there

    def render(self, request: JobRequest, key: str, attempt: int) -> Rendered:
        return Rendered(request, key, attempt, "", {})


def level_of(findings: list[Finding], check: str) -> Level:
    """The level of the one finding with this check."""
    [found] = [finding for finding in findings if finding.subject == check]
    return found.level


def only(findings: list[Finding], check: str) -> Finding:
    """The one finding with this check."""
    [found] = [finding for finding in findings if finding.subject == check]
    return found


def tree(folder: Path) -> dict[str, tuple[int, int]]:
    """All that is below a folder, with times, so that two looks can be compared."""
    return {str(path): (path.stat().st_mtime_ns, path.stat().st_size) for path in sorted(folder.rglob("*"))}
