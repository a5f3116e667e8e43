"""Decide which adapter version serves, and say how well each one did on held-out tasks.

    adapters (trained, promoted, ...) ──► direct: the newest trained version ──► adapters (promoted)
    groups of pinned eval tasks       ──► the whole suite is in              ──► adapters (evaluated)
    both keyed by policy

A promotion names the primary it replaces (compare and swap). So this stage has at most one of its own on the way: what
is trained meanwhile is promoted when that one was read back, against the primary that was then in force. If a person
was faster, the promotion is refused by every reader alike, this stage included, and it decides again.

Not covered: the row of a policy keeps one short entry per version and per decision, and never forgets one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

from schemas.events import AdapterEvent, AdvantagedGroup, derive_id
from schemas.serde import Poison
from streams import outcomes
from streams.errors import EventError
from streams.outcomes import short
from streams.rows import pack, unpack
from streams.serving import DECISIONS, Serving, refusal, step
from streams.topics import topics

if TYPE_CHECKING:
    from streams.app import App

STAGE = "rollouts"


# --- which version serves ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Line:
    """The adapters of one policy, as far as the next decision needs them."""

    serving: Serving = field(default_factory=Serving)
    newest: int = 0
    newest_at: int = 0
    """When the newest version was trained, ms."""
    asked: str | None = None
    """The promotion that was written and not read back yet."""
    decided: frozenset[str] = frozenset()
    """Short ids of the decisions read so far (adapters.DECISIONS): a second copy of one must not act."""


def reduce(line: Line, event: AdapterEvent) -> tuple[Line, Sequence[AdapterEvent]]:
    """Return the line after `event`, and the promotion it calls for, under mode `direct`."""
    if event.kind in DECISIONS:
        if short(event.event_id) in line.decided:
            return line, ()
        line = replace(line, decided=line.decided | {short(event.event_id)})
        if event.event_id == line.asked:
            line = replace(line, asked=None)
    if refusal(event, line.serving) is None:
        line = replace(line, serving=step(line.serving, event))
        if event.kind == "trained" and event.version > line.newest:
            line = replace(line, newest=event.version, newest_at=event.created_at)
    serving = line.serving
    if line.asked is not None or line.newest <= serving.primary or serving.statuses[line.newest] != "trained":
        return line, ()
    promotion = _promotion(line, event.policy)
    return replace(line, asked=promotion.event_id), (promotion,)


def _promotion(line: Line, policy: str) -> AdapterEvent:
    """Return the event that makes the newest version primary: a function of the line, so a second one is no other."""
    return AdapterEvent(
        # the expected version is part of the id: after a refusal the next attempt is another fact
        event_id=derive_id(policy, line.newest, "promoted", line.serving.primary),
        policy=policy,
        created_at=line.newest_at,
        version=line.newest,
        kind="promoted",
        actor=STAGE,
        reason="direct: newest trained version",
        expected_version=line.serving.primary,
    )


# --- the table rows ---------------------------------------------------------------------------------------------------

ROW_VERSION = 2


def dump(line: Line) -> bytes:
    """Return the table row of a line."""
    return pack(ROW_VERSION, asdict(line) | {"decided": sorted(line.decided)})


def load_line(row: bytes | None) -> Line:
    """Return the line in a table row; a new one for no row. Raises ValueError for a row of another version."""
    if row is None:
        return Line()
    data = unpack(row, ROW_VERSION)
    serving = data["serving"]
    serving["statuses"] = {int(version): status for version, status in serving["statuses"].items()}
    return Line(**data | {"serving": Serving(**serving), "decided": frozenset(data["decided"])})


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
        key = outcomes.suite_key(group)
        if key is None:
            return
        suite, made = outcomes.count(outcomes.load(suites.get(key)), group)
        for result in made:
            await outlet.emit(result)
        suites[key] = outcomes.dump(suite)

    dead_letters = outlet.dead_letters(STAGE)
    agent(app, named["adapters"], on_adapter, dead_letters, name=STAGE)
    agent(app, named["groups"], on_group, dead_letters, name=f"{STAGE}.suites")
