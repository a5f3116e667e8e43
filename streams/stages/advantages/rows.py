"""The table row of a group that waits, or has left.

    Open | Closed ── dump ──► row of table open-groups ── load ──► Open | Closed

A row is written at each event, so it is kept small: what stands in it many times (slots, scores) is a tuple, and so a
list of values in the order of the fields, without their names. What is loaded equals what was dumped.

Fields may be added, never taken away or moved: a worker of an older release may be in the same group, and passes over
what it does not know; a newer one reads old rows, without what is new. So no upgrade strands anybody.

Not covered: rows of another version. `load` refuses them, and the worker then reads its source topics again from offset
0 under a new consumer group.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from streams.stages.advantages.state import (
    ClosedGroup,
    ClosedGroupDigest,
    GroupState,
    OpenGroup,
    ResponseCandidate,
    ResponseRef,
    RewardRef,
    SamplingState,
    ScoreDigest,
    SourceScore,
    TaskInfo,
)
from streams.table_rows import pack, unpack

ROW_VERSION = 1


def dump(state: OpenGroup | ClosedGroup) -> bytes:
    """Return the table row of a state."""
    refused = {"refused": sorted(state.refused)} if state.refused else {}
    if isinstance(state, ClosedGroup):
        seen, memory = sorted(state.seen), state.memory
        row: dict[str, Any] = {"closed": [state.closed_ms, seen, state.sampling_id]}
        if memory is not None:
            # in the order of the ids, which stand there already
            said = [memory.said.get(one, memory.answers.get(one, 0)) for one in seen]
            row["memory"] = [memory.task, memory.content, memory.drawn, sorted(memory.failed), said]
        return pack(ROW_VERSION, row | refused)
    return pack(
        ROW_VERSION,
        {
            "first": state.first_seen_ms,
            "task": state.task,
            "early": state.early,
            "attempts": state.attempts,
            "scores": state.scores,
            **refused,
            **({"trace": state.trace} if state.trace else {}),
        },
    )


def load(row: bytes | None) -> GroupState:
    """Return the state in a table row; None for no row. Raises ValueError for a row of another version."""
    if row is None:
        return None
    data = unpack(row, ROW_VERSION)
    refused = frozenset(data.get("refused", ()))
    if "closed" in data:
        closed_ms, seen, sampling_id = data["closed"]
        memory = _memory(seen, *data["memory"]) if "memory" in data else None
        return ClosedGroup(closed_ms, frozenset(seen), sampling_id, memory, refused)
    return OpenGroup(
        task=None if data["task"] is None else _facts(*data["task"]),
        early=tuple(_early(*values) for values in data["early"]),
        attempts={
            sampling_id: SamplingState(version, size, shared, {int(n): ResponseRef(*slot) for n, slot in slots.items()})
            for sampling_id, (version, size, shared, slots) in data["attempts"].items()
        },
        scores={
            response_id: {source: SourceScore(*score) for source, score in scores.items()}
            for response_id, scores in data["scores"].items()
        },
        first_seen_ms=data["first"],
        refused=refused,
        trace=data.get("trace", ""),
    )


class GroupRows:
    """Dumps and loads as above, and need not parse a row that it dumped itself and that nobody exchanged since.

    Whoever else writes the table (a recovery, an owner before) puts another object there. So it is a cache, never a
    fact.
    """

    KEPT = 4096

    def __init__(self) -> None:
        self._made: dict[bytes, tuple[bytes, OpenGroup]] = {}

    def dump(self, key: bytes, state: OpenGroup | ClosedGroup) -> bytes:
        """Return the table row of the state under `key`."""
        row = dump(state)
        self._made.pop(key, None)
        if isinstance(state, OpenGroup):  # a closed one is hardly asked for again
            if len(self._made) >= self.KEPT:
                del self._made[next(iter(self._made))]
            self._made[key] = (row, state)
        return row

    def let_go(self, table: Mapping[bytes, bytes]) -> None:
        """Forget rows that are not in the table any more."""
        for key in [key for key, (row, _) in self._made.items() if table.get(key) is not row]:
            del self._made[key]

    def load(self, key: bytes, row: bytes | None) -> GroupState:
        """Return the state in the row that lies under `key`. Raises as `load`."""
        made = self._made.get(key)
        return made[1] if made is not None and made[0] is row else load(row)


def _facts(*values: Any) -> TaskInfo:
    facts = TaskInfo(*values)
    return facts._replace(
        sources=tuple((name, weight) for name, weight in facts.sources),
        metadata=tuple((name, text) for name, text in facts.metadata),
    )


def _memory(seen: list[str], task: Any, content: str, drawn: Any, failed: Any, said: Any) -> ClosedGroupDigest:
    return ClosedGroupDigest(
        task=_facts(*task),
        content=content,
        drawn={sampling_id: (version, shared) for sampling_id, (version, shared) in drawn.items()},
        failed=frozenset(failed),
        said={one: ScoreDigest(*values) for one, values in zip(seen, said, strict=True) if isinstance(values, list)},
        answers={one: digest for one, digest in zip(seen, said, strict=True) if isinstance(digest, str)},
    )


def _early(*values: Any) -> ResponseCandidate | RewardRef:
    *scalars, row = values
    kind: Any = ResponseCandidate if len(values) == len(ResponseCandidate._fields) else RewardRef
    return kind(*scalars, (ResponseRef if kind is ResponseCandidate else SourceScore)(*row))  # type: ignore[no-any-return]
