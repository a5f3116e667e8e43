"""Decide which adapter version serves, and say how well each one did on held-out tasks.

    adapters (trained, promoted, ...) ──► direct: the newest trained version ──► adapters (promoted)
    groups of pinned eval tasks       ──► the whole suite is in              ──► adapters (evaluated)
    both keyed by policy

A promotion names the primary it replaces (compare and swap). So this stage has at most one of its own on the way: what
is trained meanwhile is promoted when that one was read back, against the primary that was then in force. If a person
was faster, the promotion is refused by every reader alike, this stage included, and it decides again.

An eval task belongs to a suite (`metadata["suite"]` of `metadata["suite_size"]` tasks) and is pinned to a version. Each
task leaves one group, so a suite is done when that many different tasks are in. What could not be scored is counted as
failed and is in no mean: a missing reward is missing, never 0.

Not covered: the row of a policy keeps one short entry per version and per decision, and never forgets one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

from schemas.events import AdapterEvent, AdvantagedGroup, derive_id
from schemas.serde import Poison
from streams.adapters import DECISIONS, Status, refusal, step
from streams.errors import ContradictoryEvent, EventError
from streams.rows import pack, unpack
from streams.topics import topics

if TYPE_CHECKING:
    from streams.app import App

STAGE = "rollouts"


# --- which version serves ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Line:
    """The adapters of one policy, as far as the next decision needs them."""

    primary: int = 0
    newest: int = 0
    newest_at: int = 0
    """When the newest version was trained, ms."""
    asked: str | None = None
    """The promotion that was written and not read back yet."""
    statuses: Mapping[int, Status] = field(default_factory=lambda: {0: "primary"})
    decided: frozenset[str] = frozenset()
    """Short ids of the decisions read so far (adapters.DECISIONS): a second copy of one must not act."""


def reduce(line: Line, event: AdapterEvent) -> tuple[Line, Sequence[AdapterEvent]]:
    """Return the line after `event`, and the promotion it calls for, under mode `direct`."""
    if event.kind in DECISIONS:
        if _short(event.event_id) in line.decided:
            return line, ()
        line = replace(line, decided=line.decided | {_short(event.event_id)})
        if event.event_id == line.asked:
            line = replace(line, asked=None)
    if refusal(event, statuses=line.statuses, primary=line.primary) is None:
        statuses, primary = step(line.statuses, line.primary, event)
        line = replace(line, statuses=statuses, primary=primary)
        if event.kind == "trained" and event.version > line.newest:
            line = replace(line, newest=event.version, newest_at=event.created_at)
    if line.asked is not None or line.newest <= line.primary or line.statuses[line.newest] != "trained":
        return line, ()
    promotion = _promotion(line, event.policy)
    return replace(line, asked=promotion.event_id), (promotion,)


def _promotion(line: Line, policy: str) -> AdapterEvent:
    """Return the event that makes the newest version primary: a function of the line, so a second one is no other."""
    return AdapterEvent(
        # the expected version is part of the id: after a refusal the next attempt is another fact
        event_id=derive_id(policy, line.newest, "promoted", line.primary),
        policy=policy,
        created_at=line.newest_at,
        version=line.newest,
        kind="promoted",
        actor=STAGE,
        reason="direct: newest trained version",
        expected_version=line.primary,
    )


# --- how well it did --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Suite:
    """What is known of one suite asked of one version."""

    size: int
    tasks: tuple[str, ...] = ()
    """Short ids of the tasks that are in; empty again once the suite is done."""
    n: int = 0
    """Scored responses."""
    exact: int = 0
    reward_sum: float = 0.0
    failed: int = 0
    """Slots without a score, and tasks that another version answered."""
    last_at: int = 0
    done: bool = False


def suite_key(group: AdvantagedGroup) -> bytes | None:
    """Return the key of the suite `group` counts for, or None if it counts for none.

    Raises ContradictoryEvent if it names a suite and no version.
    """
    if group.purpose != "eval" or "suite" not in group.metadata:
        return None
    return "\x1f".join((group.policy, group.metadata["suite"], str(_pinned(group)))).encode()


def count(suite: Suite | None, group: AdvantagedGroup) -> tuple[Suite, Sequence[AdapterEvent]]:
    """Return the suite after `group`, which `suite_key` gave a key, and its result if that was the last one.

    `exact` is the share of scored responses whose source "exact" gave 1.0 (without such a source: whose reward is 1.0).

    Raises ContradictoryEvent if the group's suite_size is no count, or not the one the suite began with.
    """
    size = _count(group, "suite_size")
    suite = suite or Suite(size=size)
    if size != suite.size:
        raise ContradictoryEvent(
            f"task {group.task_id} says suite {group.metadata['suite']!r} has {size} tasks, but it began with "
            f"{suite.size}. Give another set of questions another suite name"
        )
    if suite.done or _short(group.task_id) in suite.tasks:
        return suite, ()
    mismatch = group.adapter_version not in (-1, _pinned(group))
    responses = () if mismatch else group.responses
    suite = replace(
        suite,
        tasks=(*suite.tasks, _short(group.task_id)),
        n=suite.n + len(responses),
        exact=suite.exact + sum(response.components.get("exact", response.reward) == 1.0 for response in responses),
        reward_sum=suite.reward_sum + sum(response.reward for response in responses),
        failed=suite.failed + group.group_size - len(responses),
        last_at=max(suite.last_at, group.created_at),
    )
    if len(suite.tasks) < suite.size:
        return suite, ()
    return replace(suite, tasks=(), done=True), (_result(suite, group),)


def _result(suite: Suite, group: AdvantagedGroup) -> AdapterEvent:
    name, version = group.metadata["suite"], _pinned(group)
    metrics = {"n": float(suite.n), "failed": float(suite.failed)}
    if suite.n:
        metrics |= {"exact": suite.exact / suite.n, "mean_reward": suite.reward_sum / suite.n}
    return AdapterEvent(
        event_id=derive_id(group.policy, version, "evaluated", name),
        policy=group.policy,
        created_at=suite.last_at,
        version=version,
        kind="evaluated",
        actor=STAGE,
        reason=f"all {suite.size} tasks of the suite are in",
        suite=name,
        metrics=metrics,
    )


def _short(any_id: str) -> str:
    """Return 48 bits of an id, which tell the decisions on a policy, or the tasks of a suite, apart.

    They are bits of its hash: people may give tasks ids of their own, and those often begin alike.
    """
    return derive_id(any_id)[:13]


def _pinned(group: AdvantagedGroup) -> int:
    if "pinned_version" not in group.metadata:
        raise ContradictoryEvent(
            f"task {group.task_id} belongs to suite {group.metadata['suite']!r} but is pinned to no version, so its "
            "answer says nothing about one; set adapter_version on every task of a suite"
        )
    return _count(group, "pinned_version")


def _count(group: AdvantagedGroup, name: str) -> int:
    text = group.metadata.get(name, "")
    if not text.isdecimal():
        raise ContradictoryEvent(
            f'task {group.task_id} of suite {group.metadata["suite"]!r} has metadata["{name}"] {text!r}; expected a '
            "whole number, e.g. 64"
        )
    return int(text)


# --- the table rows ---------------------------------------------------------------------------------------------------

ROW_VERSION = 1


def dump(row: Line | Suite) -> bytes:
    """Return the table row of a state."""
    data = asdict(row)
    if isinstance(row, Line):
        data["decided"] = sorted(row.decided)
    return pack(ROW_VERSION, data)


def load_line(row: bytes | None) -> Line:
    """Return the line in a table row; a new one for no row. Raises ValueError for a row of another version."""
    if row is None:
        return Line()
    data = unpack(row, ROW_VERSION)
    data["statuses"] = {int(version): status for version, status in data["statuses"].items()}
    return Line(**data | {"decided": frozenset(data["decided"])})


def load_suite(row: bytes | None) -> Suite | None:
    """Return the suite in a table row; None for no row. Raises ValueError for a row of another version."""
    if row is None:
        return None
    data = unpack(row, ROW_VERSION)
    return Suite(**data | {"tasks": tuple(data["tasks"])})


# --- the wiring -------------------------------------------------------------------------------------------------------


def register(app: App) -> None:
    """Drive both reducers. Each writes a table of its own, so no row has two writers."""
    from streams.agents import agent
    from streams.app import Outlet, record_of, table

    settings = app.settings
    named, outlet = topics(settings.topics), Outlet(app)
    lines = table(app, "rollouts-lines", settings.topics.policy_partitions)
    suites = table(app, "rollouts-suites", settings.topics.policy_partitions)

    async def on_adapter(faust_event: Any) -> None:
        event = record_of(faust_event).decode(AdapterEvent)
        if isinstance(event, Poison):
            raise EventError(event.error, reason=event.reason)
        key = event.policy.encode()
        line, made = reduce(load_line(lines.get(key)), event)
        for promotion in made:
            await outlet.emit(promotion)
        lines[key] = dump(line)

    async def on_group(faust_event: Any) -> None:
        group = record_of(faust_event).decode(AdvantagedGroup)
        if isinstance(group, Poison):
            return  # the batch stage reads the same record and writes its dead letter
        key = suite_key(group)
        if key is None:
            return
        suite, made = count(load_suite(suites.get(key)), group)
        for result in made:
            await outlet.emit(result)
        suites[key] = dump(suite)

    dead_letters = outlet.dead_letters(STAGE)
    agent(app, named["adapters"], on_adapter, dead_letters, name=STAGE)
    agent(app, named["groups"], on_group, dead_letters, name=f"{STAGE}.suites")
