"""What a workspace offers to a launch, found out without leaving anything behind."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from urllib.parse import quote

from prefect_tao.jobs.errors import InvalidInput
from prefect_tao.jobs.finding import COMPUTE, IMAGE, NO_GATE, Finding, GateName, Level
from prefect_tao.jobs.request import JobRequest
from prefect_tao.platforms.lepton import placement, render
from prefect_tao.platforms.lepton.client import FORBIDDEN, NOT_FOUND, NotTaken
from prefect_tao.platforms.lepton.placement import NodeGroup
from prefect_tao.platforms.lepton.submit import LeptonLauncher, is_on_ngc


class WorkspaceLooks:
    """Findings about one workspace, all seen from the target."""

    def __init__(self, launcher: LeptonLauncher, target: str, request: JobRequest | None) -> None:
        self.launcher, self.target, self.request = launcher, target, request
        self.found: list[Finding] = []

    def say(self, level: Level, subject: str, message: str, remedy: str = "", gate: GateName = NO_GATE) -> None:
        """Add a finding."""
        text = f"{subject}: {message}"
        self.found.append(
            Finding(level=level, subject=subject, message=text, checked_from=self.target, remedy=remedy, gate=gate)
        )

    def tried(self, subject: str, look: Callable[[], Any], gate: GateName = NO_GATE) -> Any:
        """What a look finds; None, and a finding, for what is not there."""
        try:
            return look()
        except InvalidInput as error:
            self.say(Level.FAIL, subject, error.cause, error.remedy, gate)
        except NotTaken as error:
            self.say(
                Level.UNKNOWN, subject, f"Lepton does not say: {error.said}", "check the rights of the token", gate
            )
        return None


def findings(launcher: LeptonLauncher, target: str, request: JobRequest | None) -> list[Finding]:
    """All of them. Raises Unreachable when Lepton does not answer, or refuses the token."""
    looks = WorkspaceLooks(launcher, target, request)
    if _workspace(looks):
        before = len(looks.found)
        group = looks.tried("node group", launcher.node_group)
        if len(looks.found) == before:
            _place(looks, group)
            _other_groups(looks)
    _results(looks)
    return looks.found


def _workspace(looks: WorkspaceLooks) -> bool:
    workspace, id = looks.launcher.workspace, looks.launcher.settings.workspace_id
    try:
        told = workspace.get("/workspace") or {}
    except NotTaken as error:
        remedies = {
            NOT_FOUND: "copy the id from the workspace's page: LEPTON_WORKSPACE_ID, or the block's workspace id",
            FORBIDDEN: "use a token of this workspace: LEPTON_AUTH_TOKEN, or the block's token",
        }
        message = f"there is no workspace {id}" if error.status == NOT_FOUND else f"{id}: {error.said}"
        looks.say(Level.FAIL, "workspace", message, remedies.get(error.status, "check the id and the token"))
        return False
    state = str(told.get("workspace_state") or "normal")
    if state != "normal":
        looks.say(Level.FAIL, "workspace", f"{id} is {state}", "ask the workspace's administrator")
        return False
    looks.say(Level.OK, "reachable", f"workspace {id}")
    return True


def _place(looks: WorkspaceLooks, group: NodeGroup | None) -> None:
    launcher, request = looks.launcher, looks.request
    if group:
        _node_group(looks, group)
    for one in looks.tried("mounts", lambda: launcher.mounts(request, group)) or ():
        _mount(looks, group, one)
    if name := launcher.settings.image_pull_secret:
        _pull_secret(looks, name)
    elif request and is_on_ngc(request.image) and not launcher.credentials.get("NGC_KEY"):
        message = f"{request.image} is pulled without a login"
        looks.say(Level.WARN, "pull secret", message, "set NGC_KEY where the image is not public", IMAGE)
    if request:
        shape = looks.tried("shape", lambda: launcher.shape(request, group), COMPUTE)
        if shape:
            looks.say(Level.OK, "shape", f"{shape}, {_workers(looks)}", gate=COMPUTE)
        _not_limited(looks, request)


def _node_group(looks: WorkspaceLooks, group: NodeGroup) -> None:
    settings = looks.launcher.settings
    nodes = render.wanted_nodes(looks.request, settings) if looks.request else 1
    if not group.ready_nodes:
        looks.say(
            Level.WARN, "node group", f"{group.name} has no node that is ready", "jobs wait until one is", COMPUTE
        )
    elif nodes > group.ready_nodes:
        message = f"{nodes} nodes were asked for, and {group.name} has {group.ready_nodes} that are ready"
        looks.say(Level.WARN, "node group", message, "the job waits until there are enough; or ask for fewer", COMPUTE)
    else:
        looks.say(Level.OK, "node group", f"{group.name}, {group.ready_nodes} nodes ready")
    if (settings.queue_priority or settings.can_be_preempted) and not group.has_queue:
        message = f"{group.name} has no queue, so it takes neither a priority nor the leave to preempt"
        looks.say(Level.FAIL, "queue", message, "remove both from the block", COMPUTE)


def _other_groups(looks: WorkspaceLooks) -> None:
    """The node groups that a job without room is sent to have to take it too."""
    launcher, request = looks.launcher, looks.request
    for name in launcher.settings.node_groups[1:]:
        group = looks.tried("node group", lambda: launcher.node_group(name), COMPUTE)  # noqa: B023 - called at once
        if group:
            looks.tried("mounts", lambda: launcher.mounts(request, group), COMPUTE)  # noqa: B023
        if group and request:
            looks.tried("shape", lambda: launcher.shape(request, group), COMPUTE)  # noqa: B023


def _mount(looks: WorkspaceLooks, group: NodeGroup | None, one: dict[str, str]) -> None:
    name = placement.volume_of(one, group)
    where = {"nodegroup_id": group.id} if group else {}
    rules = looks.tried(
        "mounts", lambda: looks.launcher.workspace.get(f"/storage-permission/{quote(name, safe='')}", **where)
    )
    if placement.may_mount(rules, one["path"], None):
        looks.say(Level.OK, "mounts", f"{one['path']} of {name} at {one['mount_path']}")
        return
    remedy = f"mount one of {placement.allowed_paths(rules)}, for example {name}:PATH:{one['mount_path']} in the block"
    looks.say(Level.FAIL, "mounts", f"the workspace does not let you mount {one['path']} of {name}", remedy)


def _pull_secret(looks: WorkspaceLooks, name: str) -> None:
    names = looks.tried("pull secret", looks.launcher.pull_secrets, IMAGE)
    if names is None:
        return
    if name in names:
        looks.say(Level.OK, "pull secret", name, gate=IMAGE)
        return
    offered = ", ".join(names) or "none"
    looks.say(Level.FAIL, "pull secret", f"the workspace has no {name}", f"it has: {offered}", IMAGE)


def _results(looks: WorkspaceLooks) -> None:
    if not looks.launcher.claims:
        looks.say(
            Level.WARN,
            "results",
            "there is neither a results folder nor a bucket: results end with their job, and a launch whose answer is "
            "lost cannot be repeated safely",
            "set an S3 bucket (S3_BUCKET_NAME), or a results folder on the node group's storage (TAO_RESULTS_ROOT)",
        )


def _workers(looks: WorkspaceLooks) -> str:
    nodes = render.wanted_nodes(looks.request, looks.launcher.settings) if looks.request else 1
    return "one worker" if nodes == 1 else f"{nodes} workers"


def _not_limited(looks: WorkspaceLooks, request: JobRequest) -> None:
    """A shape brings its own CPUs and memory."""
    for name in ("cpus", "memory"):
        if getattr(request.resources, name):
            remedy = "leave it out, or name a shape in the block that has them"
            looks.say(Level.WARN, name, f"Lepton takes {name} from the shape, not from the job", remedy, COMPUTE)
