"""Select the tasks of a log to replay.

    --policy --since --until --from --to --key --scenario --where ──► Selection ──► tasks ──► SelectedTasks: their keys

Only train tasks are chosen; their responses, rewards and control records follow by key. Ages become times at the first
request, and the range is fixed then, so that a repeated request selects the same records. A task that is in the log
twice, once inside the range, is chosen with both copies.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from schemas.events import SourceRange, Task
from schemas.serde import Poison
from streams.errors import NotFoundError, RefusedError
from streams.kafka.history import History
from streams.kafka.record import Record, TopicPartition
from streams.kafka.times import parse_time
from streams.kafka.topics import topics
from streams.settings.model import Settings

SOURCES = ("tasks", "responses", "rewards", "group-control", "adapters")
"""The topics a replay reads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Which train tasks to replay; None is no limit. Times are those of the records, milliseconds since the epoch."""

    policy: str
    since_ms: int | None = None
    until_ms: int | None = None
    """Exclusive."""
    first: int | None = None
    """Offset in each partition of `tasks`."""
    next: int | None = None
    """Exclusive."""
    key: str | None = None
    scenario: str | None = None
    where: str | None = None
    """SQL condition over the view of tasks."""
    asked: tuple[tuple[str, str], ...] = ()
    """The options as they were given: `--since 2h` means the same experiment an hour later."""

    def plain(self) -> dict[str, str]:
        """Return it as an event records it."""
        fields = ("policy", "since_ms", "until_ms", "first", "next", "key", "scenario", "where")
        limits = {name: str(value) for name in fields if (value := getattr(self, name)) is not None}
        return limits | {f"--{name}": text for name, text in self.asked}


def parse(policy: str, options: Mapping[str, Any]) -> Selection:
    """Return the selection of options as they are given: since, until, from, to, key, scenario, where.

    Raises SettingsError for a time that cannot be read.
    """
    limits = {name: options.get(name) for name in ("since", "until", "from", "to", "key", "scenario", "where")}

    def time_of(name: str) -> int | None:
        text = limits[name]
        return None if text is None else parse_time(text, f"--{name}")

    return Selection(
        policy=policy,
        since_ms=time_of("since"),
        until_ms=time_of("until"),
        first=limits["from"],
        next=limits["to"],
        key=limits["key"],
        scenario=limits["scenario"],
        where=limits["where"],
        asked=tuple((name, str(text)) for name, text in limits.items() if text is not None),
    )


def from_plain(plain: Mapping[str, str]) -> Selection:
    """Return the selection that an event records."""

    def number(name: str) -> int | None:
        return int(plain[name]) if name in plain else None

    return Selection(
        policy=plain["policy"],
        since_ms=number("since_ms"),
        until_ms=number("until_ms"),
        first=number("first"),
        next=number("next"),
        key=plain.get("key"),
        scenario=plain.get("scenario"),
        where=plain.get("where"),
        asked=tuple((name.removeprefix("--"), text) for name, text in plain.items() if name.startswith("--")),
    )


def ranges_of(settings: Settings, history: History, selection: Selection) -> tuple[SourceRange, ...]:
    """Return the ranges that can be read now, cut to the selected offsets.

    Raises RefusedError if retention has deleted part of them, LogError if the log cannot be read.
    """
    tasks = topics(settings.topics)["tasks"].name
    ranges = []
    for (topic, partition), (low, high) in sorted(history.bounds(SOURCES).items()):
        first, end = low, high
        if topic == tasks:
            first = low if selection.first is None else selection.first
            end = high if selection.next is None else min(high, max(selection.next, first))
            if first < low:
                raise RefusedError(_cut(f"{topic}[{partition}]@{first}", f"the first record has offset {low}"))
        ranges.append(SourceRange(topic=topic, partition=partition, first=min(first, high), next=end))
    return tuple(ranges)


def _cut(place: str, reason: str) -> str:
    return (
        f"{place}: retention has deleted a part of the range; {reason}. Ask for a later range, or restore the part "
        "(from an archive, if there is one)"
    )


class SelectedTasks(NamedTuple):
    """The tasks of a selection."""

    keys: frozenset[bytes]
    by_scenario: dict[str, int]
    unreadable: int
    """Records of `tasks` in the range that are not tasks."""


def choose(
    settings: Settings, history: History, selection: Selection, ranges: Iterable[SourceRange], among: set[str] | None
) -> SelectedTasks:
    """Return the train tasks to replay; `among`: the ids that satisfy `selection.where`; None without one. Raises
    NotFoundError if none is left, RefusedError if the log begins after `selection.since_ms`.
    """
    name = topics(settings.topics)["tasks"].name
    starts, ends = bounds(ranges, name)
    keys: set[bytes] = set()
    by_scenario: dict[str, int] = {}
    seen: set[TopicPartition] = set()
    unreadable = 0
    for record in history.read(starts, ends):
        tp = (record.at.topic, record.at.partition)
        if tp not in seen:
            seen.add(tp)
            _refuse_cut(record, starts[tp], selection)
        if not _in_time(record, selection):
            continue
        task = record.decode(Task)
        if isinstance(task, Poison):
            unreadable += 1
        elif _is_selected(task, selection, among) and record.key == task.task_id.encode() and record.key not in keys:
            keys.add(record.key)
            by_scenario[task.scenario] = by_scenario.get(task.scenario, 0) + 1
    if not keys:
        limits = ", ".join(f"--{option} {text}" for option, text in selection.asked) or "no other limit"
        raise NotFoundError(
            f"no train task of policy {selection.policy} is in the range ({limits}); `streamward events tail tasks "
            "--from start` shows them all"
        )
    return SelectedTasks(frozenset(keys), by_scenario, unreadable)


def bounds(ranges: Iterable[SourceRange], *names: str) -> tuple[dict[TopicPartition, int], dict[TopicPartition, int]]:
    """Return first and next offset per partition of these topics, without those that are empty."""
    nonempty = [source for source in ranges if source.topic in names and source.first < source.next]
    return (
        {(source.topic, source.partition): source.first for source in nonempty},
        {(source.topic, source.partition): source.next for source in nonempty},
    )


def _refuse_cut(record: Record, start: int, selection: Selection) -> None:
    """Raise RefusedError if the log begins with this record, later than the selection's `since_ms`."""
    since_ms = selection.since_ms
    if start > 0 and selection.first is None and since_ms is not None and record.timestamp_ms > since_ms:
        reason = f"the first record, of {record.timestamp_ms} ms, is younger than --since, {since_ms} ms"
        raise RefusedError(_cut(str(record.at), reason))


def _in_time(record: Record, selection: Selection) -> bool:
    if selection.since_ms is not None and record.timestamp_ms < selection.since_ms:
        return False
    return selection.until_ms is None or record.timestamp_ms < selection.until_ms


def _is_selected(task: Task, selection: Selection, among: set[str] | None) -> bool:
    return (
        task.purpose == "train"
        and task.policy == selection.policy
        and selection.scenario in (None, task.scenario)
        and selection.key in (None, task.task_id)
        and (among is None or task.task_id in among)
    )
