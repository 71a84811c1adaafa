"""Docker engines, on this machine or on another one: one container per attempt, found by its label."""

from prefect_tao.platforms.docker.settings import DockerSettings
from prefect_tao.platforms.registry import PlatformInfo

PLATFORM = PlatformInfo(
    settings=DockerSettings,
    block="prefect_tao.blocks:TaoDocker",
    driver="prefect_tao.platforms.docker.driver:DockerPlatform",
    install="prefect-tao[docker]",
)
