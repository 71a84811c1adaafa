"""A target is opened once per event loop, however many tasks want it."""

from __future__ import annotations

import asyncio

from prefect_tao.tasks.targets.opening import open_target


async def test_tasks_that_come_at_once_share_one_driver_and_one_watcher() -> None:
    opened = await asyncio.gather(*(open_target("process") for _ in range(20)))
    assert len({id(one.platform) for one in opened}) == len({id(one.watcher) for one in opened}) == 1


def test_another_event_loop_has_its_own() -> None:
    first, second = (asyncio.run(open_target("process")) for _ in range(2))
    assert first.watcher is not second.watcher
