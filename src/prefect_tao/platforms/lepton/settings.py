"""The settings of the lepton platform."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from prefect_tao.platforms.fields import FROZEN, InShape, RemoteFields, Variable, Word, Words


class LeptonFields(RemoteFields):
    """The workspace, and where in it jobs run."""

    workspace_id: Annotated[Word, Variable("LEPTON_WORKSPACE_ID")] = Field(
        title="Workspace id", description="As the workspace's page shows it."
    )
    workspace_url: Annotated[str | None, Variable("LEPTON_WORKSPACE_URL")] = Field(
        None,
        title="API address",
        description="Of a workspace that is not behind the public gateway, without a slash at its end.",
        pattern=r"^https?://\S*[^/\s]$",
    )
    workspace_origin_url: Annotated[str | None, Variable("LEPTON_WORKSPACE_ORIGIN_URL")] = Field(
        None, title="Origin", description="Only for a gateway that asks for it.", pattern="^https?://"
    )
    node_group: str | None = Field(
        None, title="Node group", description="By name or id; the only one there is when left out."
    )
    other_node_groups: Words = Field(
        default_factory=list,
        title="Other node groups",
        description="Where a job goes that finds no room in the first one, in this order.",
    )
    capacity_minutes: float = Field(
        30,
        gt=0,
        title="Minutes to wait for room",
        description="Then a job is stopped and sent to the next node group; in the last one it stays in line.",
    )
    resource_shape: Word | None = Field(
        None, title="GPU shape", description="Such as gpu.8xh100-sxm; chosen by the number of GPUs when left out."
    )
    cpu_shapes: Words = Field(
        default_factory=lambda: ["cpu.medium", "cpu.large", "cpu.small"],
        title="CPU shapes",
        description="For jobs without GPUs, the preferred one first.",
    )
    image_pull_secret: Word | None = Field(
        None, title="Image pull secret", description="One that is there; made from the NGC key when left out."
    )
    mounts: Words = Field(
        default_factory=list,
        title="Mounts",
        description="Of the node group's storage, as volume:/path:/inside; found by themselves when left out.",
    )
    nodes: Annotated[int, InShape("num_nodes")] = Field(
        1, ge=1, title="Nodes", description="Of a job that asks for none."
    )
    gpus: Annotated[int, InShape("num_gpus")] = Field(
        1, ge=0, title="GPUs", description="Per node, of a job that asks for none."
    )
    queue_priority: str | None = Field(
        None,
        title="Queue priority",
        description="Such as mid-4000, in a node group that queues jobs; the workspace's own when left out.",
        pattern=r"^(low-[123]000|mid-[456]000|high-[789]000)$",
    )
    can_be_preempted: bool = Field(
        False, title="May be preempted", description="Whether jobs of a higher priority may take a job's machines."
    )
    reservation: Word | None = Field(None, title="Reservation", description="The id of reserved capacity to use.")
    ttl_seconds_after_finished: int = Field(
        259200, ge=0, title="Seconds kept", description="How long the workspace keeps an ended job and its logs."
    )


class LeptonSettings(LeptonFields):
    """What the driver takes."""

    model_config = FROZEN

    @property
    def node_groups(self) -> list[str]:
        """All that jobs may go to, in the order in which they are tried; none where the only one is meant."""
        return [*([self.node_group] if self.node_group else []), *self.other_node_groups]
