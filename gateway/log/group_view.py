"""The group of a task, made of rows of the log.

task_id ──► tools/views/explanation.py: answers by slot, verdict, sentences ──► GroupAnswer

Not covered: the same task over versions, which may be other tenants' tasks.
"""

from __future__ import annotations

from gateway.http.principal import no_task, sees_task, task_names
from gateway.log.group_answer import GroupAnswer, GroupResult, GroupReward, GroupSlot, GroupSource, GroupTask
from streams.access.roles import Principal
from streams.errors import NotFoundError
from streams.kafka.topics import topics
from streams.output import moment
from streams.settings.model import Settings
from streams.tools.query.views import literal
from streams.tools.views.explanation import ExplainedTask, find_explained
from streams.tools.views.log_view import LogSnapshot, Row
from streams.tools.views.side_by_side import SlotAnswer
from streams.tools.views.task import TaskHistory

TASK_FIELDS = ("policy", "purpose", "scenario", "tenant", "agent", "group_size", "messages")
GROUP_FIELDS = (
    *("group_id", "policy", "purpose", "adapter_version", "group_size", "complete"),
    *("reward_mean", "reward_std", "formula", "credit", "dropped_reason", "passed_over"),
)
RESPONSE_FIELDS = (
    *("response_id", "text", "error", "finish_reason", "adapter_version"),
    *("agent_id", "success", "completion_tokens", "latency_ms"),
)
MEMBER_FIELDS = ("reward", "advantage", "components")
REWARD_FIELDS = ("reward_id", "source", "value", "error", "rationale", "components", "scorer_version", "metadata")


def read_group(log: LogSnapshot, settings: Settings, task_id: str, principal: Principal | None) -> GroupAnswer:
    """Return a task's group. Raises NotFoundError without such a task, and for one of another tenant."""
    for name in task_names(principal, task_id):
        task = _find(log, name)
        if task is not None and sees_task(principal, *_owner(log, task.history)):
            return _group_answer(task, settings, moment(int(log.as_of.timestamp() * 1000)))
    raise NotFoundError(no_task(task_id))


def _find(log: LogSnapshot, task_id: str) -> ExplainedTask | None:
    """Return a task by its whole id: the beginning of an id may find other tenants' tasks."""
    try:
        task = find_explained(log, task_id)
    except NotFoundError:
        return None
    return task if task.history.task_id == task_id else None


def _owner(log: LogSnapshot, history: TaskHistory) -> tuple[str | None, str | None]:
    """Return the tenant and the agent of a task; "" for a tenant that the log does not tell any more."""
    if history.task is not None:
        return history.task["tenant"], history.task["agent"]
    row = log.first(f"SELECT tenant FROM groups WHERE task_id = {literal(history.task_id)}")  # noqa: S608 - a literal
    agents = {response["agent_id"] for response in history.responses}
    return "" if row is None else row["tenant"], agents.pop() if len(agents) == 1 else None


def _group_answer(task: ExplainedTask, settings: Settings, as_of: str) -> GroupAnswer:
    history = task.history
    names = {label: topics(settings.topics)[label].name for label in ("tasks", "responses", "rewards", "groups")}
    return GroupAnswer(
        object="group",
        task_id=history.task_id,
        verdict=task.why.verdict,
        why=task.why.sentences,
        task=None if history.task is None else _task(history.task, names["tasks"]),
        group=None if history.group is None else _group(history.group, names["groups"]),
        slots=[_slot(slot, names) for slot in task.answers.slots],
        as_of=as_of,
    )


def _task(row: Row, topic: str) -> GroupTask:
    sources = [GroupSource(name=source["name"], weight=source["weight"]) for source in row["reward_sources"] or ()]
    return GroupTask(
        **{name: row[name] for name in TASK_FIELDS},
        reward_sources=sources,
        metadata=row["metadata"] or {},
        recorded_at=_position(topic, row),
    )


def _group(row: Row, topic: str) -> GroupResult:
    return GroupResult(
        **{name: row[name] for name in GROUP_FIELDS},
        batch=row["sequence"],
        trained_version=row["trained"],
        recorded_at=_position(topic, row),
    )


def _slot(slot: SlotAnswer, topic_names: dict[str, str]) -> GroupSlot:
    response, member = slot.response or {}, slot.member or {}
    return GroupSlot(
        slot=slot.slot,
        **{name: response.get(name) for name in RESPONSE_FIELDS},
        **{name: member.get(name) for name in MEMBER_FIELDS},
        left_out=slot.left_out,
        rewards=[_reward(row, topic_names["rewards"]) for row in slot.rewards],
        opinions=[_reward(row, topic_names["rewards"]) for row in slot.opinions],
        turns=len(slot.turns),
        recorded_at=None if slot.response is None else _position(topic_names["responses"], slot.response),
    )


def _reward(row: Row, topic: str) -> GroupReward:
    return GroupReward(**{name: row[name] for name in REWARD_FIELDS}, recorded_at=_position(topic, row))


def _position(topic: str, row: Row) -> str:
    return f"{topic}[{row['_partition']}]@{row['_offset']}"
