"""One task with all of its later records, and the statement of the outcome of each group.

task_id ──► task, group, responses, rewards, turns, batch, version ──► TaskHistory
"""

from __future__ import annotations

from dataclasses import dataclass, field

from streams.errors import NotFoundError
from streams.tools.query.views import literal
from streams.tools.views.log_view import LogSnapshot, Row

SAME_QUESTION_ROWS = 200
"""Groups of the same question that are shown."""
SHORTEST_ID = 6
"""The fewest characters of an id that name a task, if no other id begins with them."""


FIRST_TRAINED = """(
    SELECT policy, version, last_batch FROM whole.adapters WHERE kind = 'trained'
    QUALIFY row_number() OVER (PARTITION BY policy, version ORDER BY _offset) = 1
)"""
"""Each version once, by the event that made it: a trainer and a tuner may want one at once, and the first has it."""


def outcomes_sql(condition: str = "true") -> str:
    """Return the statement of each group once, and what became of it: all, or those that a condition narrows it to.

    The condition may name what every record of a group has alike. What batches and versions say of a group is looked
    up in all of them, whatever tenant reads. Of a group's lists only `members` is read: tokens are most of the bytes in
    `responses`.
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
    FROM {FIRST_TRAINED} WHERE last_batch IS NOT NULL
    QUALIFY row_number() OVER (PARTITION BY policy, last_batch ORDER BY version) = 1
),
one AS (
    SELECT _partition, _offset, _timestamp, task_id, group_id, policy, purpose, scenario, adapter_version, group_size,
        len(members) AS scored, reward_mean, reward_std, dropped_reason, complete, formula, credit, left_out,
        NOT coalesce(list_bool_or(list_transform(members, lambda r: r.advantage <> 0
            OR len(list_filter(r.spans, lambda s: s.advantage <> 0)) > 0)), false) AS flat,
        len(list_filter(members, lambda r: r.finish_reason = 'length')) AS cut_answers
    FROM groups SEMI JOIN first USING (_partition, _offset) WHERE {condition}
)
SELECT one.*, cut.sequence, passed.passed_over, made.trained
FROM one LEFT JOIN cut USING (_partition, _offset) LEFT JOIN passed USING (_partition, _offset)
ASOF LEFT JOIN made ON made.policy = one.policy AND made.last_batch >= cut.sequence
"""  # noqa: S608 - a condition of ours


@dataclass(frozen=True, slots=True)
class TaskHistory:
    """A task and everything that became of it."""

    task_id: str
    task: Row | None
    group: Row | None
    responses: list[Row]
    rewards: list[Row]
    members: dict[int, Row] = field(default_factory=dict)
    """What the group has of each slot."""
    turns: list[Row] = field(default_factory=list)
    same_question: list[Row] = field(default_factory=list)
    """The groups of tasks that ask the same, this one included."""
    reward_range: tuple[float, float] | None = None
    """The lowest and the highest reward of this policy in this scenario; looked up where all of a group are equal."""

    @property
    def group_size(self) -> int:
        """The number of its slots, if known."""
        size: int = (self.group or self.task or {}).get("group_size") or 0
        return size or max((row["group_size"] for row in self.responses), default=0)

    @property
    def sources(self) -> list[str]:
        """The names of its reward sources."""
        return [source["name"] for source in (self.task or {}).get("reward_sources") or ()]


def find_task(log: LogSnapshot, task_id: str) -> TaskHistory:
    """Return a task by its id, or the beginning of it. Raises NotFoundError if nothing in the log is about it."""
    condition = f"task_id = {literal(task_id)}"
    task = log.first(f"SELECT * FROM tasks WHERE {condition} ORDER BY _offset")  # noqa: S608 - a literal
    group = group_of(log, task_id)
    responses = log.rows(
        "SELECT * EXCLUDE (prompt_token_ids, logprobs, loss_mask, branches) FROM responses "  # noqa: S608
        f"WHERE {condition} QUALIFY row_number() OVER (PARTITION BY response_id ORDER BY _offset) = 1 ORDER BY _offset"
    )
    if task is None and group is None and not responses:
        whole_id = complete_id(log, task_id)
        if whole_id not in (None, task_id):
            return find_task(log, str(whole_id))
        raise NotFoundError(
            f"nothing in the log is about a task {task_id[:80]!r}; /groups lists those that have groups"
        )
    rewards = log.rows(
        f"SELECT * FROM rewards WHERE {condition} "  # noqa: S608
        "QUALIFY row_number() OVER (PARTITION BY reward_id ORDER BY _offset) = 1 ORDER BY slot, source, _offset"
    )
    return TaskHistory(
        task_id,
        task,
        group,
        responses,
        rewards,
        members={} if group is None else _members(log, group),
        turns=_turns(log, condition) if any(row["agent_id"] for row in responses) else [],
        same_question=[] if task is None else _same_question(log, task),
        reward_range=_reward_range(log, group) if group is not None and group["flat"] else None,
    )


def complete_id(log: LogSnapshot, prefix: str) -> str | None:
    """Return the full id of a task by its prefix; None unless exactly one matches."""
    if len(prefix) < SHORTEST_ID:
        return None
    rows = log.rows(
        "SELECT DISTINCT task_id FROM (SELECT task_id FROM tasks UNION SELECT task_id FROM groups) "  # noqa: S608
        f"WHERE starts_with(task_id, {literal(prefix)})",
        2,
    )
    return str(rows[0]["task_id"]) if len(rows) == 1 else None


def group_of(log: LogSnapshot, task_id: str) -> Row | None:
    """Return the first group of a task and what became of it; None without one."""
    return log.first(f"{outcomes_sql(f'task_id = {literal(task_id)}')} ORDER BY one._offset")


def _members(log: LogSnapshot, group: Row) -> dict[int, Row]:
    rows = log.rows(
        "SELECT m.slot, m.reward, m.advantage, m.components, m.spans, m.partition, m.offset, m.response_id FROM "  # noqa: S608
        f"(SELECT unnest(members) AS m FROM groups WHERE {_is_record(group)})"
    )
    return {row["slot"]: row for row in rows}


def _turns(log: LogSnapshot, condition: str) -> list[Row]:
    return log.rows(
        "SELECT * EXCLUDE (prompt_token_ids, completion_token_ids, logprobs) FROM turns "  # noqa: S608
        f"WHERE {condition} QUALIFY row_number() OVER (PARTITION BY turn_id ORDER BY _offset) = 1 "
        "ORDER BY trajectory_id, number"
    )


def _reward_range(log: LogSnapshot, group: Row) -> tuple[float, float] | None:
    row = log.first(
        "SELECT min(m.reward) AS lowest, max(m.reward) AS highest FROM (SELECT unnest(members) AS m FROM groups "  # noqa: S608
        f"WHERE policy = {literal(group['policy'])} AND scenario = {literal(group['scenario'])} AND purpose <> 'serve')"
    )
    return None if row is None or row["lowest"] is None else (row["lowest"], row["highest"])


def _same_question(log: LogSnapshot, task: Row) -> list[Row]:
    """Return the groups of the tasks of a policy that ask the same as one. Of a single task only its own are read."""
    messages = f"(SELECT messages FROM tasks WHERE {_is_record(task)})"  # noqa: S608
    same = f"SELECT DISTINCT task_id FROM tasks WHERE policy = {literal(task['policy'])} AND messages = {messages}"  # noqa: S608
    ids = [literal(row["task_id"]) for row in log.rows(same, SAME_QUESTION_ROWS + 1)]
    listed = same if len(ids) > SAME_QUESTION_ROWS else ", ".join(ids)
    return log.rows(f"""
SELECT adapter_version, task_id, purpose, _timestamp, reward_mean, reward_std, group_size,
    list_transform(members, lambda r: r.reward) AS rewards, dropped_reason, _partition, _offset
FROM groups WHERE task_id IN ({listed})
QUALIFY row_number() OVER (PARTITION BY group_id ORDER BY _offset) = 1
ORDER BY adapter_version, _timestamp
LIMIT {SAME_QUESTION_ROWS}
""")  # noqa: S608 - literals


def _is_record(row: Row) -> str:
    """Return the condition that a record is the one of a row."""
    return f"_partition = {row['_partition']} AND _offset = {row['_offset']}"
