"""Jobs as detached process groups on this machine: the default platform, with nothing to set up."""

from prefect_tao.platforms.process.settings import ProcessSettings
from prefect_tao.platforms.registry import PlatformInfo

PLATFORM = PlatformInfo(
    settings=ProcessSettings,
    block="prefect_tao.blocks:TaoProcess",
    driver="prefect_tao.platforms.process.driver:ProcessPlatform",
)
