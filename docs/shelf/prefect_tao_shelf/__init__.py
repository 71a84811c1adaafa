"""A small platform: each job is a folder on a shelf, and a process of this machine that claims it."""

from prefect_tao.platforms.registry import PlatformInfo
from prefect_tao_shelf.settings import ShelfSettings

PLATFORM = PlatformInfo(
    settings=ShelfSettings,
    block="prefect_tao_shelf.blocks:TaoShelf",
    driver="prefect_tao_shelf.driver:ShelfPlatform",
    install="prefect-tao-shelf",
)
