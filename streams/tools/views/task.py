"""Tasks: the list of groups, and one task with everything that became of it.

groups, newest first                                                 ──► the list
task_id ──► task, group, responses, rewards, turns, batch, version   ──► OneTask ──► side_by_side.py
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from streams.errors import NotFoundError
from streams.tools.query.views import literal
from streams.tools.views.log_view import Look, Row

if TYPE_CHECKING:
    from streams.tools.views.answer_tokens import TokenTexts

PAGE_ROWS = 50
MOST_AGAIN = 200
"""Groups of the same question that are shown."""


def fate_sql(condition: str = "true") -> str:
    """Return the statement of each group once, and what became of it: all, or those that a condition narrows it to.

    The condition may name what every record of a group has alike. What batches and versions say of a group is looked
    up, whosever they are. Of a group's lists only `members` is read: tokens are most of the bytes in `responses`.
    """
    return f"""
WITH first AS (
    SELECT _partition, min(_offset) AS _offset FROM groups WHERE {condition} GROUP BY _partition, group_id
),
cut AS (SELECT groups_partition AS _partition, unnest(groups_offsets) AS _offset, policy, sequence FROM whole.batches),
passed AS (SELECT groups_partition AS _partition, d.offset AS _offset, d.reason AS passed_over FROM
    (SELECT groups_partition, unnest(dropped) AS d FROM whole.batches)),
made AS (
    SELECT policy, last_batch, min(version) OVER (PARTITION BY policy ORDER BY last_batch DESC) AS trained
    FROM whole.adapters WHERE kind = 'trained'
    QUALIFY row_number() OVER (PARTITION BY policy, last_batch ORDER BY version) = 1
),
one AS (
    SELECT _partition, _offset, _timestamp, task_id, group_id, policy, purpose, scenario, adapter_version, group_size,
        len(members) AS scored, reward_mean, reward_std, dropped_reason, complete, formula, credit, left_out,
        len(list_filter(members, lambda r: r.advantage <> 0
            OR len(list_filter(r.spans, lambda s: s.advantage <> 0)) > 0)) = 0 AS flat
    FROM groups SEMI JOIN first USING (_partition, _offset) WHERE {condition}
)
SELECT one.*, cut.sequence, passed.passed_over, made.trained
FROM one LEFT JOIN cut USING (_partition, _offset) LEFT JOIN passed USING (_partition, _offset)
ASOF LEFT JOIN made ON made.policy = one.policy AND made.last_batch >= cut.sequence
"""  # noqa: S608 - a condition of ours


FATES = {
    "all": "true",
    "taught": "dropped_reason IS NULL AND NOT flat",
    "nothing": "purpose = 'train' AND (dropped_reason IS NOT NULL OR flat OR passed_over IS NOT NULL)",
}
"""What the list can be narrowed to."""


def groups_sql(*, policy: str = "", fate: str = "all", version: int | None = None) -> str:
    """Return the statement of the list: the newest groups first."""
    wanted = [FATES.get(fate, "true")]
    if policy:
        wanted.append(f"policy = {literal(policy)}")
    if version is not None:
        wanted.append(f"adapter_version = {version}")
    newest_first = "ORDER BY _timestamp DESC, _partition, _offset DESC"
    return f"SELECT * FROM ({fate_sql()}) WHERE {' AND '.join(wanted)} {newest_first}"  # noqa: S608


@dataclass(slots=True)
class OneTask:
    """A task and everything that became of it."""

    task: Row | None
    group: Row | None
    responses: list[Row] = field(default_factory=list)
    members: dict[int, Row] = field(default_factory=dict)
    """What the group has of each slot."""
    rewards: list[Row] = field(default_factory=list)
    turns: list[Row] = field(default_factory=list)
    again: list[Row] = field(default_factory=list)
    """The groups of tasks that ask the same, this one included."""
    rewards_from: float | None = None
    rewards_to: float | None = None
    """The lowest and the highest reward of this policy in this scenario; looked up where all of a group are equal."""

    @property
    def task_id(self) -> str:
        """Its id."""
        return str((self.task or self.group or self.responses[0])["task_id"])


SHORTEST_ID = 6
"""The fewest characters of an id that name a task, if no other id begins with them."""


def whole_id(look: Look, begins: str) -> str | None:
    """Return the only id of a task that begins so; None if there is none, or several."""
    if len(begins) < SHORTEST_ID:
        return None
    found = look.rows(
        "SELECT DISTINCT task_id FROM (SELECT task_id FROM tasks UNION SELECT task_id FROM groups) "  # noqa: S608
        f"WHERE starts_with(task_id, {literal(begins)})",
        2,
    )
    return str(found[0]["task_id"]) if len(found) == 1 else None


def one(look: Look, task_id: str) -> OneTask:
    """Return a task by its id, or the beginning of it. Raises NotFoundError if nothing in the log is about it."""
    asked = literal(task_id)
    of = f"WHERE task_id = {asked}"
    task = look.first(f"SELECT * FROM tasks {of} ORDER BY _offset")  # noqa: S608 - a literal
    group = group_of(look, task_id)
    found = OneTask(task, group)
    found.responses = look.rows(
        "SELECT * EXCLUDE (prompt_token_ids, logprobs, loss_mask, branches) FROM responses "  # noqa: S608
        f"{of} QUALIFY row_number() OVER (PARTITION BY response_id ORDER BY _offset) = 1 ORDER BY _offset"
    )
    if task is None and group is None and not found.responses:
        if (whole := whole_id(look, task_id)) not in (None, task_id):
            return one(look, str(whole))
        raise NotFoundError(
            f"nothing in the log is about a task {task_id[:80]!r}; /groups lists those that have groups"
        )
    if group is not None:
        members = look.rows(
            "SELECT m.slot, m.reward, m.advantage, m.components, m.spans, m.partition, m.offset, m.response_id FROM "  # noqa: S608
            f"(SELECT unnest(members) AS m FROM groups WHERE {place(group)})"
        )
        found.members = {row["slot"]: row for row in members}
    found.rewards = look.rows(
        f"SELECT * FROM rewards {of} "  # noqa: S608
        "QUALIFY row_number() OVER (PARTITION BY reward_id ORDER BY _offset) = 1 ORDER BY slot, source, _offset"
    )
    if any(row["agent_id"] for row in found.responses):
        found.turns = look.rows(
            "SELECT * EXCLUDE (prompt_token_ids, completion_token_ids, logprobs) FROM turns "  # noqa: S608
            f"{of} QUALIFY row_number() OVER (PARTITION BY turn_id ORDER BY _offset) = 1 "
            "ORDER BY trajectory_id, number"
        )
    if task is not None:
        same = same_sql(task)
        ids = [literal(row["task_id"]) for row in look.rows(same, MOST_AGAIN + 1)]
        found.again = look.rows(again_sql(same if len(ids) > MOST_AGAIN else ", ".join(ids)))
    if group is not None and group["flat"]:
        ends = look.first(range_sql(group["policy"], group["scenario"])) or {}
        found.rewards_from, found.rewards_to = ends.get("lowest"), ends.get("highest")
    return found


def group_of(look: Look, task_id: str) -> Row | None:
    """Return the first group of a task and what became of it; None without one."""
    return look.first(f"{fate_sql(f'task_id = {literal(task_id)}')} ORDER BY one._offset")


def range_sql(policy: str, scenario: str) -> str:
    """Return the statement of the lowest and the highest reward of a policy's groups in a scenario."""
    return (
        "SELECT min(m.reward) AS lowest, max(m.reward) AS highest FROM (SELECT unnest(members) AS m FROM groups "  # noqa: S608
        f"WHERE policy = {literal(policy)} AND scenario = {literal(scenario)} AND purpose <> 'serve')"
    )


def same_sql(task: Row) -> str:
    """Return the statement of the ids of all tasks of the same policy that ask the same as a task, it among them."""
    asked = f"(SELECT messages FROM tasks WHERE {place(task)})"  # noqa: S608
    return f"SELECT DISTINCT task_id FROM tasks WHERE policy = {literal(task['policy'])} AND messages = {asked}"  # noqa: S608


def again_sql(ids: str) -> str:
    """Return the statement of the groups of some tasks, by version: of literals, or of what a statement finds.

    Of a single task nothing but its own groups is read.
    """
    return f"""
SELECT adapter_version, task_id, purpose, _timestamp, reward_mean, reward_std, group_size,
    list_transform(members, lambda r: r.reward) AS rewards, dropped_reason, _partition, _offset
FROM groups WHERE task_id IN ({ids})
QUALIFY row_number() OVER (PARTITION BY group_id ORDER BY _offset) = 1
ORDER BY adapter_version, _timestamp
LIMIT {MOST_AGAIN}
"""  # noqa: S608 - literals


def place(row: Row) -> str:
    """Return the condition that a record is the one of a row."""
    return f"_partition = {row['_partition']} AND _offset = {row['_offset']}"


def as_shown(found: OneTask, texts: TokenTexts | None = None) -> dict[str, Any]:
    """Return what the template prints of it; `texts` is a tokenizer."""
    from streams.tools.views import side_by_side

    return {"one": found, "answers": side_by_side.answers(found, texts), "why": side_by_side.why(found)}
