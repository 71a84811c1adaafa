"""Instances of NVIDIA Brev: one container per attempt, on an instance that is made for it or on one of the person's."""

from prefect_tao.platforms.brev.settings import BrevSettings
from prefect_tao.platforms.registry import PlatformInfo

PLATFORM = PlatformInfo(
    settings=BrevSettings,
    block="prefect_tao.blocks:TaoBrev",
    driver="prefect_tao.platforms.brev.driver:BrevPlatform",
    install="prefect-tao[docker]",
)
