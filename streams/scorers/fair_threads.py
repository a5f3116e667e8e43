"""Threads that share their time among keys, so that a key with many jobs does not delay the others.

(key, job) ──► a queue for each key ──► one job of each key in turn ──► Future
"""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")


class TurnPool:
    """At most `threads` threads; they start with the first jobs."""

    def __init__(self, threads: int, name: str) -> None:
        self._max_threads, self._name = threads, name
        self._threads: list[threading.Thread] = []
        self._changed = threading.Condition()
        self._queues: OrderedDict[str, deque[tuple[Future[Any], Callable[[], Any]]]] = OrderedDict()
        self._idle = self._waiting = 0  # threads, jobs
        self._closed = False

    def submit(self, key: str, job: Callable[[], T]) -> Future[T]:
        """Run `job` when it is its key's turn. The future is cancelled if the pool closes first."""
        future: Future[T] = Future()
        with self._changed:
            if self._closed:
                future.cancel()
                return future
            self._queues.setdefault(key, deque()).append((future, job))
            self._waiting += 1
            if self._idle < self._waiting and len(self._threads) < self._max_threads:
                name = f"{self._name}-{len(self._threads)}"
                self._threads.append(threading.Thread(target=self._work, name=name, daemon=True))
                self._threads[-1].start()
            self._changed.notify()
        return future

    def cancel(self) -> None:
        """Accept no more jobs, and cancel waiting ones."""
        with self._changed:
            self._closed = True
            waiting = [future for queue in self._queues.values() for future, _ in queue]
            self._queues.clear()
            self._changed.notify_all()
        for future in waiting:
            future.cancel()

    def join(self) -> None:
        """Wait for the running jobs; call `cancel` first."""
        for thread in self._threads:
            thread.join()

    def _work(self) -> None:
        while (entry := self._next()) is not None:
            future, job = entry
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(job())
                except BaseException as exc:  # of a thread; raised again where it is waited for
                    future.set_exception(exc)

    def _next(self) -> tuple[Future[Any], Callable[[], Any]] | None:
        with self._changed:
            self._idle += 1
            self._changed.wait_for(lambda: self._queues or self._closed)
            self._idle -= 1
            if self._closed:
                return None
            key, queue = self._queues.popitem(last=False)
            entry = queue.popleft()
            self._waiting -= 1
            if queue:
                self._queues[key] = queue  # at the end: the others come first
            return entry
