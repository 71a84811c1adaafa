"""Instances of NVIDIA Brev. The driver is still to come."""

from prefect_tao.platforms.brev.settings import BrevSettings
from prefect_tao.platforms.registry import PlatformInfo

PLATFORM = PlatformInfo(
    settings=BrevSettings,
    block="prefect_tao.blocks:TaoBrev",
)
