"""Kubernetes clusters: one Job per attempt in one namespace, found by its labels."""

from prefect_tao.platforms.kubernetes.settings import KubernetesSettings
from prefect_tao.platforms.registry import PlatformInfo

PLATFORM = PlatformInfo(
    settings=KubernetesSettings,
    block="prefect_tao.blocks:TaoKubernetes",
    driver="prefect_tao.platforms.kubernetes.driver:KubernetesPlatform",
    install="prefect-tao[kubernetes]",
)
