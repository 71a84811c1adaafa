"""Gathers questions that are asked side by side, so that one trip to the platform answers them all."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

Q = TypeVar("Q")
A = TypeVar("A")

# Long enough for the tasks of one flow to arrive, too short for a person to notice.
GATHER_SECONDS = 0.02


class Batcher(Generic[Q, A]):
    """Calls `answer` with everything that was asked since its last call; one call at a time.

    `answer` returns one answer or one exception per question, or raises for all of them. Whoever stops waiting does
    not stop the others, nor the trip that is under way.
    """

    def __init__(self, answer: Callable[[Sequence[Q]], Awaitable[Sequence[A | BaseException]]]) -> None:
        self._answer = answer
        self._waiting: list[tuple[Q, asyncio.Future[A]]] = []
        self._asking: asyncio.Task[None] | None = None

    async def ask(self, question: Q) -> A:
        """The answer to `question`."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[A] = loop.create_future()
        self._waiting.append((question, future))
        if self._asking is None or self._asking.done():
            self._asking = loop.create_task(self._ask_on())
        return await future

    async def _ask_on(self) -> None:
        await asyncio.sleep(GATHER_SECONDS)
        while self._waiting:
            batch, self._waiting = self._waiting, []
            try:
                answers = await self._answer([question for question, _ in batch])
            except Exception as error:
                answers = [error] * len(batch)
            for (_, future), answer in zip(batch, answers, strict=True):
                _settle(future, answer)


def _settle(future: asyncio.Future[A], answer: A | BaseException) -> None:
    if future.done():
        return
    if isinstance(answer, BaseException):
        future.set_exception(answer)
    else:
        future.set_result(answer)
