"""Repeat what a busy log or recorder did not do, until it is accepted or written; and end the tasks that do so."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

from streams.errors import CallError

AGAIN_S = 0.5
"""Pause before something is tried again."""
TRIES = 120
"""How often a call that is not accepted is made."""

T = TypeVar("T")
log = logging.getLogger("streamward.threads")


async def until_accepted(call: Callable[[], Awaitable[T]]) -> T:
    """Return what a call returns once it is accepted. Raises CallError; `busy` only after TRIES."""
    for _ in range(TRIES - 1):
        try:
            return await call()
        except CallError as exc:
            if exc.kind != "busy":
                raise
        await asyncio.sleep(AGAIN_S)
    return await call()


async def until_possible(call: Callable[[], Awaitable[T]], doing: str) -> T:
    """Return what a call returns, however long the log cannot be used; `doing`: for warnings. Raises CallError."""
    while True:
        try:
            return await call()
        except CallError as exc:
            if exc.kind != "busy":
                raise
            log.warning("%s waits: %s", doing, exc)
        await asyncio.sleep(AGAIN_S)


async def end_tasks(tasks: Iterable[asyncio.Task[None]]) -> None:
    """Cancel tasks, and return once they have ended."""
    ending = list(tasks)
    for task in ending:
        task.cancel()
    await asyncio.gather(*ending, return_exceptions=True)
