"""The table row of a group, kept small because it is written at each event.

    OpenGroup | ClosedGroup ── dump ──► row of table open-groups ── load ──► the same

Each slot and score, of which a row has many, is a list of values in the order of the fields, without their names.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from streams.stages.advantages.state import (
    ClosedGroup,
    GroupState,
    OpenGroup,
    QuotaUse,
    ResponseCandidate,
    ResponseRef,
    RewardRef,
    SamplingState,
    ScoreDigest,
    ShareUse,
    SourceScore,
    TaskInfo,
)
from streams.worker.table_rows import pack, unpack

ROW_VERSION = 8
CLOSED_FIELDS = tuple(name for name in ClosedGroup._fields if name != "rejected")
"""Fields in the order of a row."""


def dump(state: OpenGroup | ClosedGroup) -> bytes:
    """Return the table row of a state."""
    rejected = {"rejected": sorted(state.rejected)} if state.rejected else {}
    if isinstance(state, ClosedGroup):
        closed: dict[str, Any] = {"closed": [_plain(getattr(state, name)) for name in CLOSED_FIELDS]}
        return pack(ROW_VERSION, closed | rejected)
    row = {
        "first": state.first_seen_ms,
        "task": state.task,
        "early": state.early,
        "samplings": state.samplings,
        "scores": state.scores,
        "quota": state.quota,
    }
    trace = {"trace": state.trace} if state.trace else {}
    return pack(ROW_VERSION, row | rejected | trace)


def load(row: bytes | None) -> GroupState:
    """Return the state in a table row; None for no row. Raises ValueError for a row of another version."""
    if row is None:
        return None
    data = unpack(row, ROW_VERSION)
    return _closed_group(data) if "closed" in data else _open(data)


_CLOSED = re.compile(rb'\{"v":%d,"closed":\[(\d+),' % ROW_VERSION)


def closed_ms(row: bytes) -> int | None:
    """Return when the group in this row closed, without reading the rest; None if it is open."""
    match = _CLOSED.match(row)
    return None if match is None else int(match[1])


def _plain(value: Any) -> Any:
    return sorted(value) if isinstance(value, frozenset) else value


def _closed_group(data: Mapping[str, Any]) -> ClosedGroup:
    values = dict(zip(CLOSED_FIELDS, data["closed"], strict=True))
    values |= {
        "task": _task(*values["task"]),
        "samplings": {name: (version, shared) for name, (version, shared) in values["samplings"].items()},
        "failed": frozenset(values["failed"]),
        "scores": {reward_id: ScoreDigest(*score) for reward_id, score in values["scores"].items()},
        "quota": _quota(values["quota"]),
    }
    return ClosedGroup(**values, rejected=frozenset(data.get("rejected", ())))


def _open(data: Mapping[str, Any]) -> OpenGroup:
    return OpenGroup(
        task=None if data["task"] is None else _task(*data["task"]),
        early=tuple(_early(*values) for values in data["early"]),
        samplings={
            sampling_id: SamplingState(version, size, shared, {int(n): ResponseRef(*ref) for n, ref in slots.items()})
            for sampling_id, (version, size, shared, slots) in data["samplings"].items()
        },
        scores={
            response_id: {source: _score(*score) for source, score in scores.items()}
            for response_id, scores in data["scores"].items()
        },
        first_seen_ms=data["first"],
        rejected=frozenset(data.get("rejected", ())),
        trace=data.get("trace", ""),
        quota=_quota(data["quota"]),
    )


def _quota(shares: Sequence[Any]) -> QuotaUse:
    return QuotaUse._make(ShareUse(*share) for share in shares)


def _task(*values: Any) -> TaskInfo:
    info = TaskInfo(*values)
    return info._replace(
        sources=tuple((name, weight) for name, weight in info.sources),
        metadata=tuple((name, text) for name, text in info.metadata),
    )


def _score(*values: Any) -> SourceScore:
    return SourceScore._make((*values[:-1], tuple(values[-1])))


def _early(*values: Any) -> ResponseCandidate | RewardRef:
    *_, ref = values
    if len(values) == len(ResponseCandidate._fields):
        return ResponseCandidate._make((*values[:-1], ResponseRef(*ref)))
    return RewardRef._make((*values[:-1], _score(*ref)))


class GroupRows:
    """`dump` and `load`, without parsing a row that it dumped itself and that was not replaced since. Any other writer
    of the table (a recovery, an earlier owner) stores another object. So it is only a cache.
    """

    MAX_ROWS = 4096

    def __init__(self) -> None:
        self._dumped: dict[bytes, tuple[bytes, OpenGroup]] = {}

    def dump(self, key: bytes, state: OpenGroup | ClosedGroup) -> bytes:
        """Return the table row of the state under `key`."""
        row = dump(state)
        self._dumped.pop(key, None)
        if isinstance(state, OpenGroup):  # a closed one is rarely read again
            if len(self._dumped) >= self.MAX_ROWS:
                del self._dumped[next(iter(self._dumped))]
            self._dumped[key] = (row, state)
        return row

    def load(self, key: bytes, row: bytes | None) -> GroupState:
        """Return the state in the row that is stored under `key`. Raises as `load`."""
        dumped = self._dumped.get(key)
        return dumped[1] if dumped is not None and dumped[0] is row else load(row)

    def forget_replaced(self, table: Mapping[bytes, bytes]) -> None:
        """Forget rows that are not in the table any more."""
        for key in [key for key, (row, _) in self._dumped.items() if table.get(key) is not row]:
            del self._dumped[key]
