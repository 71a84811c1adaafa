"""SLURM clusters behind ssh: one connection, one question for all jobs, one job per name."""

from prefect_tao.platforms.registry import PlatformInfo
from prefect_tao.platforms.slurm.settings import SlurmSettings

PLATFORM = PlatformInfo(
    settings=SlurmSettings,
    block="prefect_tao.blocks:TaoSlurm",
    driver="prefect_tao.platforms.slurm.driver:SlurmPlatform",
    install="prefect-tao[slurm]",
)
