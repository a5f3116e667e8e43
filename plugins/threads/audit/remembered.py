"""The audit's facts about what runs leave in the store: each item follows from a run's rule, its end, and a call.

ThreadEvent ──► RunRule: what a run's agent was to remember, and its answer      MemoryEvent of a rule ──► RuleFact
Turn of protocol memory ──► ItemTurn: what a prompt has answered                          └─► problem, or None
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from plugins.threads.audit.thread_facts import OF_MEMORY, tenant_of
from schemas import json_text
from schemas.events import MemoryEvent, ThreadEvent, Turn, derive_id
from streams.tools.audit.record_digests import digest


class RuleFact(NamedTuple):
    """What an event says of the rule that wrote it."""

    event_id: str
    run_id: str
    verdict_id: str | None
    answer_turn: str | None
    rule: str
    item_turn: str | None
    item: int
    """A digest of key and value; 0: none was put."""


@dataclass(slots=True)
class RunRule:
    """What the agent of a run was to remember of it."""

    thread_id: str
    namespace: str
    on: str
    maker: str
    """The prompt without its version, or the function."""
    turn_id: str | None = None
    """Of its answer; None: it has not succeeded."""


class ItemTurn(NamedTuple):
    """What a prompt has answered."""

    turn_id: str
    rule: str
    item: int


@dataclass(slots=True)
class RememberedRuns:
    """Every run with a rule, and the calls that were made for them."""

    rules: dict[str, RunRule] = field(default_factory=dict)
    turns: dict[str, ItemTurn] = field(default_factory=dict)
    """By trajectory, which has the id of the event."""

    def take(self, event: ThreadEvent | Turn) -> None:
        """Take in a request or an end of a run, its deletion, or a call."""
        if isinstance(event, Turn):
            if event.protocol == OF_MEMORY:
                item = _digest_of_answer(event.reply.content)
                self.turns[event.trajectory_id] = ItemTurn(event.turn_id, f"prompt {event.prompt_version}", item)
        elif event.kind == "run_requested" and (rule := _run_rule(event)) is not None:
            self.rules.setdefault(event.run_id or "", rule)
        elif event.kind == "run_ended" and event.run_id in self.rules:
            self.rules[event.run_id].turn_id = event.turn_id

    def due(self) -> Iterable[str]:
        """Return the runs whose end is enough to leave something."""
        return (run_id for run_id, rule in self.rules.items() if rule.on == "run" and rule.turn_id is not None)

    def problem(self, fact: RuleFact, namespace: str, *, has_turns: bool) -> str | None:
        """Return why a rule cannot have written an event; None if it can. `has_turns`: none were deleted."""
        rule = self.rules.get(fact.run_id)
        if rule is None:
            return f"run {fact.run_id} is not in threads with a rule to remember"
        if fact.event_id != derive_id(fact.run_id, "remember", fact.verdict_id or ""):
            return "its id is not that of its run and verdict"
        made_by = fact.rule.partition("@")[0] if fact.rule.startswith("prompt ") else fact.rule.rpartition(" ")[0]
        if made_by != rule.maker or namespace != rule.namespace:
            return f"{fact.rule} wrote it to {namespace}, and the run has {rule.maker} for {rule.namespace}"
        if (fact.verdict_id is None) != (rule.on == "run") or fact.answer_turn != rule.turn_id:
            return f"its evidence is turn {fact.answer_turn}, verdict {fact.verdict_id}; the run has {rule.turn_id}"
        turn = self.turns.get(fact.event_id)
        if fact.item_turn is not None and turn is None and has_turns:
            return f"turn {fact.item_turn}, which made its item, is not in turns"
        if fact.item_turn is not None and turn is not None:
            if (turn.turn_id, turn.rule) != (fact.item_turn, fact.rule):
                return f"turn {turn.turn_id} by {turn.rule} was made for it, and it names {fact.item_turn}"
            if fact.item and fact.item != turn.item:
                return f"its item is not that of turn {turn.turn_id}"
        return None


def rule_fact(event: MemoryEvent) -> RuleFact | None:
    """Return what an event says of the rule that wrote it; None if none did."""
    if event.run_id is None or event.rule is None:
        return None
    item = 0 if event.value is None or event.sealed else _digest_of(event.key, json_text.parse_or_text(event.value))
    evidence = (event.run_id, event.verdict_id, event.answer_turn, event.rule, event.item_turn)
    return RuleFact(event.event_id, *evidence, item)


def _run_rule(event: ThreadEvent) -> RunRule | None:
    memory = json_text.parse_or_text(event.memory_config or "{}")
    rule = memory.get("remember") if isinstance(memory, dict) else None
    if not isinstance(rule, dict):
        return None
    labels = rule.get("namespace") or memory.get("namespace") or []
    tenant = tenant_of(event.thread_id) or tenant_of(event.agent_id or "")
    namespace = ".".join([*([] if tenant is None else [tenant]), *labels])
    prompt = str(rule.get("prompt")).partition("@")[0]
    maker = f"function {rule['function']}" if rule.get("function") else f"prompt {prompt}"
    return RunRule(event.thread_id, namespace, rule.get("on", "run"), maker)


def _digest_of_answer(text: str) -> int:
    item = json_text.parse_or_text(text)
    return _digest_of(item.get("key"), item.get("value")) if isinstance(item, dict) else 0


def _digest_of(key: Any, value: Any) -> int:
    return digest(key, json.dumps(value, sort_keys=True))
