"""Workspaces of DGX Cloud Lepton: one batch job per attempt, found by its name and its labels."""

from prefect_tao.platforms.lepton.settings import LeptonSettings
from prefect_tao.platforms.registry import PlatformInfo

PLATFORM = PlatformInfo(
    settings=LeptonSettings,
    block="prefect_tao.blocks:TaoLepton",
    driver="prefect_tao.platforms.lepton.driver:LeptonPlatform",
    install="prefect-tao[lepton]",
)
