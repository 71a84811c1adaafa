"""The block of the kubernetes platform: which cluster and namespace, and what jobs carry there."""

from __future__ import annotations

from typing import Annotated

from prefect.blocks.core import Block
from pydantic import Field, HttpUrl

from prefect_tao.blocks.base import BLOCK_NAME, Named, PlatformBlock, Variable, Word


class TaoKubernetes(PlatformBlock, Block):
    """A Kubernetes cluster: by kubeconfig, by a saved block, or from inside by the pod's service account.

    Example:
        Save one under a name and launch on it:

        ```python
        from prefect_tao.blocks import TaoKubernetes

        TaoKubernetes(context="lab", namespace="training", image_pull_secret="ngc").save("lab")
        # then: prefect-tao run --target kubernetes/lab --gpus 1 --image IMAGE -- python train.py
        ```
    """

    _block_type_name = "TAO Kubernetes"
    _block_type_slug = "tao-kubernetes"
    _logo_url = HttpUrl("https://github.com/kubernetes.png")
    _description = "Runs TAO jobs as Jobs of a Kubernetes cluster."

    namespace: Annotated[Word, Variable("TAO_K8S_NAMESPACE")] = Field(
        "default", title="Namespace", description="Where you may create Jobs and Secrets."
    )
    context: Annotated[str | None, Variable("TAO_K8S_CONTEXT")] = Field(
        None, title="Context", description="Of the kubeconfig; its current one when left out."
    )
    kubeconfig: Annotated[str | None, Variable("KUBECONFIG")] = Field(
        None, title="Kubeconfig file", description="On the machine that runs the flow; the usual one when left out."
    )
    cluster_config: Annotated[str | None, Named("kubernetes")] = Field(
        None,
        title="Cluster block",
        description="Instead of a file: a saved block such as kubernetes-cluster-config/lab.",
        pattern=BLOCK_NAME,
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
    nodes: int = Field(1, ge=1, title="Nodes", description="Of a job that asks for none.")
    gpus: int = Field(1, ge=0, title="GPUs", description="Per node, of a job that asks for none.")
    backoff_limit: int = Field(
        0, ge=0, title="Restarts by the cluster", description="Zero leaves retries to the flow, which knows the reason."
    )
    ttl_seconds_after_finished: int = Field(
        3600, ge=0, title="Seconds kept", description="How long the cluster keeps an ended job and its logs."
    )
