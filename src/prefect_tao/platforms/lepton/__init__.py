"""Workspaces of DGX Cloud Lepton. The driver is still to come."""

from prefect_tao.platforms.lepton.settings import LeptonSettings
from prefect_tao.platforms.registry import PlatformInfo

PLATFORM = PlatformInfo(
    settings=LeptonSettings,
    block="prefect_tao.blocks:TaoLepton",
    install="prefect-tao[lepton]",
)
