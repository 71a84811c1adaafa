"""Kubernetes clusters. The driver is still to come."""

from prefect_tao.platforms.kubernetes.settings import KubernetesSettings
from prefect_tao.platforms.registry import PlatformInfo

PLATFORM = PlatformInfo(
    settings=KubernetesSettings,
    block="prefect_tao.blocks:TaoKubernetes",
    install="prefect-tao[kubernetes]",
)
