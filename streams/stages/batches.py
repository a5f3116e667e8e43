"""Cut each policy's groups into training steps.

    groups ──► drop what must not be trained on ──► window of `batches.groups` ──► batches
    key policy   named, with its reason              one state per policy          key policy

A group's lag is the number of earlier batches that its sampling version had not taken (`AdvantagedGroup.batches`), from
the log alone. A tuned version takes no batch, so tuning makes no group older; the trainer's importance ratio measures
its change of the weights. In an experiment (`trainer.off_policy`) adapters of another run sampled the groups, and their
lag is the one recorded with them. The same groups under the same rule give the same batches, also on redelivery: a
batch is named by policy and sequence, and the first of its name in the partition wins.

A window closes by count only, so the last few groups of a policy wait until more tasks are submitted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, astuple, dataclass, replace
from typing import TYPE_CHECKING

from schemas.conventions import OUTSIDE, POLICY_LAG
from schemas.events import AdvantagedGroup, Batch, Coordinates, DroppedGroup, LagCount, derive_id
from schemas.serde import Poison
from streams.errors import EventError
from streams.kafka.topics import topics
from streams.observability import catalog, trace_context
from streams.observability.metrics import Meter
from streams.settings.model import Batches
from streams.worker.table_rows import pack, unpack

if TYPE_CHECKING:
    from streams.kafka.record import Record
    from streams.worker.driver import Driver

STAGE = "batches"
RULE_VERSION = 1
"""Incremented when the same groups would be cut differently under the same settings; `tests/histories` has recorded
cuts."""
MAX_NAMED = 1000
"""Maximum number of dropped groups that a window names: its row is written at each group, and a policy that has learned
all its tasks drops every one. The others are counted in the batch's metadata, and `groups` shows why each was
dropped."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A group in the window: its offset, and the values that the batch counts."""

    offset: int
    lag: int
    responses: int
    loss_tokens: int
    created_at: int
    trace: str = ""
    """Trace in the header of its record; "" without one."""


@dataclass(frozen=True, slots=True)
class BatchWindow:
    """One policy's next batch, being collected."""

    sequence: int = 0
    next_offset: int = 0
    """Groups below this offset are in the state already: a redelivered record changes nothing."""
    entries: tuple[Entry, ...] = ()
    dropped: tuple[DroppedGroup, ...] = ()
    unnamed: int = 0
    """Groups dropped beyond MAX_NAMED."""


@dataclass(frozen=True, slots=True)
class Cutter:
    """The reducer, under one rule: no clock, no I/O."""

    rule: Batches
    off_policy: bool = False
    """Whether adapters of another run sampled the groups; their lag is then the one in their metadata."""

    def reduce(
        self, window: BatchWindow, group: AdvantagedGroup, at: Coordinates, *, doubled: bool, trace: str = ""
    ) -> tuple[BatchWindow, Sequence[Batch]]:
        """Return the window after `group`, and the batch if that filled it.

        `doubled` says that this group_id was read before; the driver keeps the many ids. `trace` is that of the group's
        record, kept for the batch's; it affects no decision.
        """
        if at.offset < window.next_offset:
            return window, ()
        window = replace(window, next_offset=at.offset + 1)
        if group.purpose != "train":
            return window, ()
        reason = "duplicate" if doubled else self._why_dropped(window, group)
        if reason is not None:
            if len(window.dropped) >= MAX_NAMED:
                return replace(window, unnamed=window.unnamed + 1), ()
            dropped = DroppedGroup(group_id=group.group_id, offset=at.offset, reason=reason)
            return replace(window, dropped=(*window.dropped, dropped)), ()
        entry = Entry(
            offset=at.offset,
            lag=self._lag(window, group),
            responses=len(group.responses),
            loss_tokens=sum(response.loss_tokens for response in group.responses),
            created_at=group.created_at,
            trace=trace,
        )
        window = replace(window, entries=(*window.entries, entry))
        if len(window.entries) < self.rule.groups:
            return window, ()
        return BatchWindow(window.sequence + 1, window.next_offset), (self._cut(window, group.policy, at.partition),)

    def _why_dropped(self, window: BatchWindow, group: AdvantagedGroup) -> str | None:
        if group.dropped_reason is not None:
            return group.dropped_reason
        if group.is_outside:
            return OUTSIDE
        if self.rule.zero_variance == "drop" and group.flat:
            return "zero_variance"
        lag = self._lag(window, group)
        if lag > self.rule.max_policy_lag:
            return "stale"
        if lag < 0:
            return "unknown_version"  # sampled by a version that has taken batches which this log does not have yet
        return None

    def _lag(self, window: BatchWindow, group: AdvantagedGroup) -> int:
        """Return how many batches ago `group` was sampled; below 0 if that is impossible or not recorded."""
        if not self.off_policy:
            return window.sequence - group.batches
        recorded = group.metadata.get(POLICY_LAG, "")
        return int(recorded) if recorded.isdecimal() else -1

    def _cut(self, window: BatchWindow, policy: str, partition: int) -> Batch:
        lags = Counter(entry.lag for entry in window.entries)
        return Batch(
            batch_id=derive_id(policy, "batch", window.sequence),
            policy=policy,
            created_at=max(entry.created_at for entry in window.entries),
            metadata={"dropped_unnamed": str(window.unnamed)} if window.unnamed else {},
            sequence=window.sequence,
            closed_by="count",
            max_policy_lag=self.rule.max_policy_lag,
            groups=len(window.entries),
            responses=sum(entry.responses for entry in window.entries),
            loss_tokens=sum(entry.loss_tokens for entry in window.entries),
            groups_partition=partition,
            groups_offsets=tuple(entry.offset for entry in window.entries),
            lags=tuple(LagCount(lag=lag, groups=lags[lag]) for lag in sorted(lags)),
            dropped=window.dropped,
        )


def _report(meter: Meter, policy: str, before: BatchWindow, after: BatchWindow, made: Sequence[Batch]) -> None:
    """Count dropped groups, and the lag of the groups in a batch."""
    if len(after.dropped) > len(before.dropped):
        meter.add(catalog.DROPS, STAGE, after.dropped[-1].reason)
    elif after.unnamed > before.unnamed:
        meter.add(catalog.DROPS, STAGE, "unnamed")
    for batch in made:
        for lag in batch.lags:
            for _ in range(lag.groups):
                meter.observe(catalog.POLICY_LAG, lag.lag, policy)


# --- the table row ---------------------------------------------------------------------------------------------------

ROW_VERSION = 2


def dump(window: BatchWindow) -> bytes:
    """Return the table row of a window."""
    return pack(ROW_VERSION, asdict(window) | {"entries": [astuple(entry) for entry in window.entries]})


def load(row: bytes | None) -> BatchWindow:
    """Return the window in a table row; a new one for no row. Raises ValueError for a row of another version."""
    if row is None:
        return BatchWindow()
    data = unpack(row, ROW_VERSION)
    entries = tuple(Entry(*values) for values in data["entries"])
    dropped = tuple(DroppedGroup(**one) for one in data["dropped"])
    return BatchWindow(**data | {"entries": entries, "dropped": dropped})


def dump_offset(offset: int) -> bytes:
    """Return the row of a group_id: the offset at which it was first read."""
    return str(offset).encode()


def is_double(first_at: bytes | None, offset: int) -> bool:
    """Return whether the group at `offset`, whose row is `first_at`, was read before at another offset.

    The same record read again after a kill is not a double of itself.
    """
    return first_at not in (None, dump_offset(offset))


# --- the live wiring -------------------------------------------------------------------------------------------------


def register(driver: Driver) -> None:
    """Drive the reducer from `groups`. Every group_id has its own row, so that none enters twice."""
    settings = driver.settings
    cutter, outlet = Cutter(settings.batches, settings.trainer.off_policy), driver.outlet(STAGE)
    windows = driver.table("batch-windows", settings.topics.policy_partitions)
    seen = driver.table("batched-groups", settings.topics.policy_partitions)

    async def handle(record: Record) -> None:
        # by what is in clear: a batch refers to its groups, and is cut the same after an erasure
        group = record.decode_placed(AdvantagedGroup, settings.topics.policy_partitions, closed=True)
        if isinstance(group, Poison):
            raise EventError(group.error, reason=group.reason)
        key, group_key = group.policy.encode(), group.group_id.encode()
        first_at = seen.get(group_key)
        before = load(windows.get(key))
        cause, doubled = trace_context.of_headers(record.headers), is_double(first_at, record.at.offset)
        trace = "" if cause is None else cause.traceparent
        window, made = cutter.reduce(before, group, record.at, doubled=doubled, trace=trace)
        for batch in made:
            causes = [*(trace_context.parse(entry.trace) for entry in before.entries), cause]
            began_ms = min([group.created_at, *(entry.created_at for entry in before.entries)])
            joined = driver.traces.of_batch(batch, cause, causes)
            await outlet.emit_traced(batch, joined, began_ms=began_ms)
        _report(driver.meter, group.policy, before, window, made)
        windows[key] = dump(window)
        if first_at is None:  # a double must not replace it: read again after a kill, it would be the first
            seen[group_key] = dump_offset(record.at.offset)

    driver.agent(topics(settings.topics)["groups"], handle, STAGE)
