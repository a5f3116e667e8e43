"""Every training call and its result, as the log has them, for the routes of the Tinker API.

    training-calls, training-results ──► a thread that follows ──► CallState: sessions, models, samplers, checkpoints
    append(call) ──► acknowledged, and folded ──► the request is answered by the call's id
    result(call_id) ◄── a result came: the requests that wait for it are woken, in their event loop

A server that was killed reads the log again, so its clients ask on for what they were waiting. Requests that wait hold
no thread. The outputs of the newest results are kept in memory; those of older ones are read from the log again.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

from plugins.jobs.fold.monthly_spending import MonthBudget
from plugins.tinker.calls.call_state import CallState
from schemas.events import Coordinates, TrainingCall, TrainingResult
from schemas.serde import EncodeError, Poison
from schemas.tokens import Octets
from streams.adapters.stored_tensors import get, put
from streams.errors import CallError, EventError, LogError, NotFoundError
from streams.kafka.followed import FollowedOnDemand, FollowedTopic
from streams.kafka.reader import fetch
from streams.kafka.record import Record
from streams.kafka.topics import topics
from streams.settings.model import Settings

KEPT_BYTES = 256 * 1024 * 1024
"""Outputs of results in memory."""
TenantMonth = Callable[[str | None, int], MonthBudget | None]
"""What a tenant may spend in the month of a time; None: no limit."""
Waiter = tuple[asyncio.AbstractEventLoop, asyncio.Event]


class CallLog(FollowedTopic):
    """Calls and results, followed in a thread. Use as a context manager; methods may be called from any thread."""

    def __init__(self, settings: Settings, month: TenantMonth) -> None:
        """`month` knows what tenants spent. Raises NotFoundError without the topics, LogError without a broker."""
        super().__init__(settings, "training-calls", "training-results")
        self.month = month
        self._calls_topic = topics(settings.topics)["training-calls"].name
        self._state = CallState()
        self._places: dict[str, Coordinates] = {}
        """Of the result of each call."""
        self._outputs: OrderedDict[str, Octets] = OrderedDict()
        self._kept_bytes = 0
        self._waiters: dict[str, set[Waiter]] = {}

    @contextmanager
    def state(self) -> Iterator[CallState]:
        """Yield what the calls and results come to, which does not change meanwhile. Raises LogError."""
        with self._changed:
            self._raise_error()
            yield self._state

    def append(self, call: TrainingCall) -> None:
        """Write a call, its tensors in the store if they are too large; it is folded when this returns.

        Raises CallError for a call that cannot be written, LogError, SettingsError for a store that cannot.
        """
        try:
            self._write(call)
        except EncodeError as exc:
            raise CallError("invalid", f"{call.kind}: {exc}") from exc
        except EventError as exc:
            if not len(call.data):
                raise CallError("too_large", f"{call.kind}: {exc}") from exc
            uri, sha256 = put(self._settings.adapters.store, call.data.data)
            self.append(replace(call, data=Octets(), data_uri=uri, data_sha256=sha256))

    def result(self, call_id: str) -> TrainingResult | None:
        """Return the result of a call with its outputs; None if there is none yet. Old ones are read from the log."""
        with self.state() as state:
            result = state.results.get(call_id)
            if result is None:
                return None
            if (outputs := self._outputs.get(call_id)) is not None:
                return self._whole(result if result.outputs_uri else replace(result, outputs=outputs))
            place = self._places[call_id]
        event = fetch(self._settings, [place])[place].decode(TrainingResult)
        assert not isinstance(event, Poison), "it was read before"  # noqa: S101
        return self._whole(event)

    def _whole(self, result: TrainingResult) -> TrainingResult:
        """Return a result with the outputs that are in the store."""
        if result.outputs_uri is None or result.outputs_sha256 is None:
            return result
        content = get(self._settings.adapters.store, result.outputs_uri, result.outputs_sha256)
        return replace(result, outputs=Octets(content), outputs_uri=None, outputs_sha256=None)

    def has_result(self, call_id: str) -> bool:
        """Return whether a call has ended."""
        with self.state() as state:
            return call_id in state.results

    async def wait(self, name: str, within_s: float, is_there: Callable[[CallState], bool]) -> None:
        """Return once a result came for a call, or for a sampling session, of this name; or when the time is over.

        At once if it came before. Raises CallError once the log cannot be read.
        """
        waiter = (asyncio.get_running_loop(), asyncio.Event())
        try:
            with self.state() as state:
                if is_there(state):
                    return
                self._waiters.setdefault(name, set()).add(waiter)
        except LogError as exc:
            raise CallError("busy", str(exc)) from exc
        try:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(waiter[1].wait(), within_s)
        finally:
            with self._changed:
                waiting = self._waiters.get(name, set())
                waiting.discard(waiter)
                if not waiting:
                    self._waiters.pop(name, None)

    # --- following ----------------------------------------------------------------------------------------------------

    def _take(self, record: Record) -> None:
        if record.at.topic == self._calls_topic:
            call = record.decode_placed(TrainingCall, self._partitions)
            if not isinstance(call, Poison):
                self._state.take(call)
            return
        result = record.decode_placed(TrainingResult, self._partitions)
        if isinstance(result, Poison) or result.call_id in self._state.results:  # the first result counts
            return
        self._keep(result.call_id, result.outputs)
        self._places[result.call_id] = record.at
        self._state.take(replace(result, outputs=Octets()))
        self._wake(result.call_id)
        self._wake(result.call_id.rpartition(":")[0])

    def _keep(self, call_id: str, outputs: Octets) -> None:
        self._outputs[call_id] = outputs
        self._kept_bytes += len(outputs)
        while self._kept_bytes > KEPT_BYTES:
            self._kept_bytes -= len(self._outputs.popitem(last=False)[1])

    def _wake(self, name: str) -> None:
        for loop, event in self._waiters.get(name, ()):
            with contextlib.suppress(RuntimeError):  # the loop was closed: the server ends
                loop.call_soon_threadsafe(event.set)


class OpenCalls(FollowedOnDemand[CallLog]):
    """The CallLog of a server, opened when a request first needs it. Use as a context manager."""

    def __init__(self, settings: Settings, month: TenantMonth) -> None:
        super().__init__(lambda settings: CallLog(settings, month), settings)

    @property
    def log(self) -> CallLog:
        """The calls. Reads both topics when it is first asked for. Raises as CallLog."""
        try:
            return self.open()
        except NotFoundError as exc:
            raise NotFoundError(f"{exc}; `streamward admin topics apply` makes the topics of training calls") from exc
