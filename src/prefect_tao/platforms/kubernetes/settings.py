"""The settings of the kubernetes platform."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from prefect_tao.platforms.fields import FROZEN, InShape, RemoteFields, Variable, Word


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
    results_claim: Word | None = Field(
        None, title="Results volume claim", description="A PersistentVolumeClaim, mounted at the results folder."
    )
    node_selector: dict[str, str] = Field(
        default_factory=dict, title="Node selector", description="Labels that the nodes of a job must have."
    )
    gpu_resource: Word = Field("nvidia.com/gpu", title="GPU resource", description="What nodes call their GPUs.")
    nodes: Annotated[int, InShape("num_nodes")] = Field(
        1, ge=1, title="Nodes", description="Of a job that asks for none."
    )
    gpus: Annotated[int, InShape("num_gpus")] = Field(
        1, ge=0, title="GPUs", description="Per node, of a job that asks for none."
    )
    backoff_limit: int = Field(
        0, ge=0, title="Restarts by the cluster", description="Zero leaves retries to the flow, which knows the reason."
    )
    ttl_seconds_after_finished: int = Field(
        3600, ge=0, title="Seconds kept", description="How long the cluster keeps an ended job and its logs."
    )


class KubernetesSettings(KubernetesFields):
    """What the driver takes."""

    model_config = FROZEN
