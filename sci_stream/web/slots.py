"""Threads for answers that take time: so many at once, and a bounded number that waits."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from sci_stream.errors import EnvironmentFault

T = TypeVar("T")
# More than the connections that the server admits: the others are of clients that have gone.
_MAX_WAITING = 128


class Slots:
    """Run functions in threads, ``at_once`` at a time, in the order in which they were asked for;
    ``max_waiting`` may wait.

    The pool of the event loop has five threads on a host with one core: all slots together must
    not be more.
    """

    def __init__(self, at_once: int, max_waiting: int = _MAX_WAITING) -> None:
        self._free = asyncio.Semaphore(at_once)
        self._max_waiting = max_waiting
        self._waiting = 0

    async def run(self, work: Callable[[], T]) -> T:
        """Run a function in a thread once a slot is free.

        Raises `EnvironmentFault` if too many wait.
        """
        if self._waiting >= self._max_waiting:
            raise EnvironmentFault(
                "The page has too many requests to answer",
                expected=f"at most {self._max_waiting} that wait",
                hint="Try again in a moment.",
            )
        self._waiting += 1
        try:
            await self._free.acquire()
        finally:
            self._waiting -= 1
        try:
            return await asyncio.to_thread(work)
        finally:
            self._free.release()
