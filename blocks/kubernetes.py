"""The block of the kubernetes platform: which cluster and namespace, and what jobs carry there."""

from __future__ import annotations

from typing import Annotated

from prefect.blocks.core import Block
from pydantic import Field

from prefect_tao.blocks.tao_block import BLOCK_NAME, After, Named, PlatformBlock
from prefect_tao.platforms.kubernetes.settings import KubernetesFields


class TaoKubernetes(KubernetesFields, PlatformBlock, Block):
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
    _description = "Runs TAO jobs as Jobs of a Kubernetes cluster."

    cluster_config: Annotated[str | None, Named("kubernetes"), After("kubeconfig")] = Field(
        None,
        title="Cluster block",
        description="Instead of a file: a saved block such as kubernetes-credentials/lab.",
        pattern=BLOCK_NAME,
    )
