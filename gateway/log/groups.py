"""One task's group as JSON: what the page shows beside each other, slot by slot.

task_id ──► tools/views: rows of the log ──► side_by_side.py: slots, and why it taught something or nothing ──► JSON

Not covered: the same task over versions, which may be other tenants' tasks.
"""

from __future__ import annotations

from typing import Any

from gateway.http.principal import no_task, sees_task, task_names
from streams.access.roles import Principal
from streams.errors import NotFoundError
from streams.kafka.topics import topics
from streams.output import moment
from streams.settings.model import Settings
from streams.tools.query.views import literal
from streams.tools.views import side_by_side, task as tasks
from streams.tools.views.log_view import Look, Row
from streams.tools.views.side_by_side import SlotAnswer
from streams.tools.views.task import OneTask


def group(look: Look, settings: Settings, task_id: str, asks: Principal | None) -> dict[str, Any]:
    """Return a task's group. Raises NotFoundError without such a task, and for one of another tenant."""
    for name in task_names(asks, task_id):
        found = _whole(look, name)
        if found is not None and sees_task(asks, *_whose(look, found)):
            return _shown(found, settings) | {"as_of": moment(int(look.at.timestamp() * 1000))}
    raise NotFoundError(no_task(task_id))


def _whole(look: Look, task_id: str) -> OneTask | None:
    """Return a task by its whole id: what the beginning of an id finds depends on other tenants' tasks."""
    try:
        found = tasks.one(look, task_id)
    except NotFoundError:
        return None
    return found if found.task_id == task_id else None


def _whose(look: Look, found: OneTask) -> tuple[str | None, str | None]:
    """Return the tenant and the agent of a task; "" for a tenant that nobody can tell any more."""
    if found.task is not None:
        return found.task["tenant"], found.task["agent"]
    row = look.first(f"SELECT tenant FROM groups WHERE task_id = {literal(found.task_id)}")  # noqa: S608 - a literal
    agents = {one["agent_id"] for one in found.responses}
    return "" if row is None else row["tenant"], agents.pop() if len(agents) == 1 else None


def _shown(found: OneTask, settings: Settings) -> dict[str, Any]:
    said, columns = side_by_side.why(found), side_by_side.answers(found)
    where = {label: topics(settings.topics)[label].name for label in ("tasks", "responses", "rewards", "groups")}
    return {
        "object": "group",
        "task_id": found.task_id,
        "verdict": said.verdict,
        "why": said.sentences,
        "task": None if found.task is None else _task(found.task, where["tasks"]),
        "group": None if found.group is None else _group(found.group, where["groups"]),
        "slots": [_slot(slot, where) for slot in columns.slots],
    }


def _task(row: Row, topic: str) -> dict[str, Any]:
    sources = [{"name": each["name"], "weight": each["weight"]} for each in row["reward_sources"] or ()]
    return {
        **{name: row[name] for name in ("policy", "purpose", "scenario", "tenant", "agent", "group_size", "messages")},
        "reward_sources": sources,
        "metadata": row["metadata"] or {},
        "recorded_at": _at(topic, row),
    }


def _group(row: Row, topic: str) -> dict[str, Any]:
    names = ("group_id", "policy", "purpose", "adapter_version", "group_size", "complete")
    return {
        **{name: row[name] for name in names},
        **{name: row[name] for name in ("reward_mean", "reward_std", "formula", "credit", "dropped_reason")},
        "passed_over": row["passed_over"],
        "batch": row["sequence"],
        "trained_version": row["trained"],
        "recorded_at": _at(topic, row),
    }


def _slot(slot: SlotAnswer, where: dict[str, str]) -> dict[str, Any]:
    response, member = slot.response or {}, slot.member or {}
    return {
        "slot": slot.slot,
        **{name: response.get(name) for name in ("response_id", "text", "error", "finish_reason", "adapter_version")},
        **{name: response.get(name) for name in ("agent_id", "success", "completion_tokens", "latency_ms")},
        **{name: member.get(name) for name in ("reward", "advantage", "components")},
        "left_out": slot.left_out,
        "rewards": [_reward(row, where["rewards"]) for row in slot.rewards],
        "opinions": [_reward(row, where["rewards"]) for row in slot.opinions],
        "turns": len(slot.turns),
        "recorded_at": None if slot.response is None else _at(where["responses"], slot.response),
    }


def _reward(row: Row, topic: str) -> dict[str, Any]:
    names = ("reward_id", "source", "value", "error", "rationale", "components", "scorer_version", "metadata")
    return {**{name: row[name] for name in names}, "recorded_at": _at(topic, row)}


def _at(topic: str, row: Row) -> str:
    return f"{topic}[{row['_partition']}]@{row['_offset']}"
