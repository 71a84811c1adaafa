"""The settings of the kubernetes platform."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from prefect_tao.platforms.fields import FROZEN, InShape, RemoteFields, Variable, Word, Words


class KubernetesFields(RemoteFields):
    """Which cluster and namespace, and what jobs carry there."""

    namespace: Annotated[Word, Variable("TAO_K8S_NAMESPACE")] = Field(
        "default", title="Namespace", description="Where you may create Jobs and Secrets."
    )
    context: Annotated[str | None, Variable("TAO_K8S_CONTEXT")] = Field(
        None, title="Context", description="Of the kubeconfig; its current one when left out."
    )
    kubeconfig: Annotated[str | None, Variable("KUBECONFIG")] = Field(
        None, title="Kubeconfig file", description="On the machine that runs the flow; the usual one when left out."
    )
    service_account: Word | None = Field(
        None, title="Service account", description="Of the jobs; the namespace's default when left out."
    )
    image_pull_secret: Word | None = Field(
        None, title="Image pull secret", description="A Secret for private images that is already in the namespace."
    )
    ngc_pull_secret: bool = Field(
        False, title="Make a pull secret", description="For images of nvcr.io, from NGC_KEY; it goes with its job."
    )
    image_pull_policy: Literal["Always", "IfNotPresent", "Never"] | None = Field(
        None, title="Pull images", description="When a node pulls the image; the cluster's own rule when left out."
    )
    results_claim: Word | None = Field(
        None, title="Results volume claim", description="A PersistentVolumeClaim, mounted at the results folder."
    )
    mounts: Words = Field(
        default_factory=list,
        title="Mounts",
        description="As pvc://CLAIM:/inside, host:///path:/inside or nfs://SERVER/path:/inside, with :ro to read only.",
    )
    node_selector: dict[str, str] = Field(
        default_factory=dict, title="Node selector", description="Labels that the nodes of a job must have."
    )
    tolerations: Words = Field(
        default_factory=list,
        title="Tolerations",
        description="Taints of nodes that jobs may run on all the same, as KEY, KEY=VALUE or KEY=VALUE:EFFECT.",
    )
    priority_class: Word | None = Field(
        None, title="Priority class", description="Of the jobs; the cluster's default when left out."
    )
    queue: Word | None = Field(
        None, title="Kueue queue", description="The local queue that starts the jobs, on a cluster with Kueue."
    )
    run_as_user: int | None = Field(
        None, ge=0, title="User", description="The uid of the job; the image's if left out."
    )
    fs_group: int | None = Field(
        None, ge=0, title="Volume group", description="The gid that owns the volumes, so that the user may write there."
    )
    annotations: dict[str, str] = Field(
        default_factory=dict, title="Annotations", description="Of the Pods, such as those that a sidecar looks for."
    )
    pod_template: dict[str, Any] = Field(
        default_factory=dict,
        title="Pod template",
        description="What is missing here, as a Pod template: affinity, CSI volumes. What we set ourselves wins.",
    )
    gpu_resource: Word = Field(
        "nvidia.com/gpu", title="GPU resource", description="What nodes call their GPUs, or a MIG slice of one."
    )
    helper_image: Word = Field(
        "busybox:stable", title="Helper image", description="With a shell; a small Pod of it looks at volumes."
    )
    autoscales: bool = Field(
        False, title="Nodes come on demand", description="The cluster adds nodes for jobs, so none need be there yet."
    )
    nodes: Annotated[int, InShape("num_nodes")] = Field(
        1, ge=1, title="Nodes", description="Of a job that asks for none."
    )
    gpus: Annotated[int, InShape("num_gpus")] = Field(
        1, ge=0, title="GPUs", description="Per node, of a job that asks for none."
    )
    master_port: int = Field(
        29500, ge=1, le=65535, title="Rendezvous port", description="Where the nodes of one job find each other."
    )
    image_patience: int = Field(
        600,
        ge=1,
        title="Seconds for a fault to heal",
        description="How long a job may wait for an image, Secret or volume that the cluster cannot get.",
    )
    start_patience: int = Field(
        1800,
        ge=1,
        title="Seconds for all nodes to start",
        description="How long the first nodes of a job may wait for the others before all are given back.",
    )
    active_deadline_seconds: int | None = Field(
        None, ge=1, title="Longest run", description="Seconds after which the cluster ends a Pod; none when left out."
    )
    ttl_seconds_after_finished: int = Field(
        3600, ge=0, title="Seconds kept", description="How long the cluster keeps an ended job and its logs."
    )


class KubernetesSettings(KubernetesFields):
    """What the driver takes."""

    model_config = FROZEN
