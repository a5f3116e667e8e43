"""The list of groups, filtered, the newest first, with the question and the beginnings of the answers.

    filter ──► positions of one page of groups ──► what became of each ──► GroupList
                                               └─► question, answers with their rewards, length

A filter narrows only the positions, so that the contents are read for the groups of one page, not for all.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, fields, replace
from typing import NamedTuple

from streams.tools.query.views import literal
from streams.tools.views.group_outcome import NOTHING_REASON_SQL, outcome
from streams.tools.views.log_view import LogSnapshot, Row, RowPage
from streams.tools.views.sorting import Sorting
from streams.tools.views.task import outcomes_sql

PAGE_GROUPS = 100
"""Groups of one page of the list."""
BEGINNING = 200
"""Characters of a question or an answer that the list has."""
SHOWN_ANSWERS = 3
GROUP_FIGURES = ("task_id", "reward_mean", "reward_std", "adapter_version", "scenario")
"""Columns of groups that a list can be sorted by."""
NAMES_LISTED = 200
"""Scenarios that the form suggests."""

FATES = {
    "all": "true",
    "taught": f"purpose = 'train' AND ({NOTHING_REASON_SQL}) IS NULL",
    "nothing": f"({NOTHING_REASON_SQL}) IS NOT NULL",
}
"""What the list can be narrowed to."""
TAUGHT_NOTHING_SQL = f"""
SELECT policy, count(*) AS groups, count(*) FILTER (trained IS NOT NULL) AS trained
FROM ({outcomes_sql()}) WHERE {FATES["nothing"]} GROUP BY policy
"""  # noqa: S608
"""By policy, how many groups the list of those that taught nothing has, and how many of them were trained on."""
ANSWERS_SQL = """
    SELECT task_id, response_id, text, completion_tokens FROM responses WHERE {condition} AND coalesce(error, '') = ''
    QUALIFY row_number() OVER (PARTITION BY response_id ORDER BY _offset) = 1
"""
"""Each answer once, without failed ones."""
LENGTHS_SQL = """
    SELECT task_id, avg(completion_tokens) AS tokens, max(completion_tokens) AS longest FROM (
        SELECT arg_min(task_id, _offset) AS task_id, arg_min(completion_tokens, _offset) AS completion_tokens
        FROM responses WHERE coalesce(error, '') = '' GROUP BY response_id)
    GROUP BY task_id
"""
"""The tasks of all answers and how long these are, each counted once as in ANSWERS_SQL, in two thirds of its time."""
QUESTIONS_SQL = "SELECT task_id, arg_min(messages[-1].content, _offset) AS question FROM tasks GROUP BY task_id"
SHORTEST_ID = 4
"""The fewest characters of a search that are looked for in ids."""
SORTED_BY = {
    "task": "task_id",
    "question": "question",
    "reward": "reward_mean",
    "spread": "reward_std",
    "tokens": "tokens",
    "longest": "longest",
    "version": "adapter_version",
    "scenario": "scenario",
    "written": "_timestamp",
}
_JOINED = {"question": QUESTIONS_SQL, "tokens": LENGTHS_SQL, "longest": LENGTHS_SQL}
"""What a column is looked up in that the groups themselves do not have."""


def plain_number(value: float) -> str:
    """Return a number with all its digits, and no others.

    >>> plain_number(0.25), plain_number(3.0)
    ('0.25', '3')
    """
    return repr(value).removesuffix(".0")


class Limits(NamedTuple):
    """The least and the most that a figure may be; None: as it is."""

    least: float | None = None
    most: float | None = None

    def conditions(self, figure: str) -> list[str]:
        """Return the conditions that a figure is within these."""
        bounds = ((">=", self.least), ("<=", self.most))
        return [f"{figure} {sign} {bound!r}" for sign, bound in bounds if bound is not None]


ANY = Limits()


@dataclass(frozen=True)
class GroupFilter:
    """Which groups are listed."""

    policy: str = ""
    fate: str = "all"
    version: int | None = None
    """The one that answered."""
    made: int | None = None
    """The one that was made of them, in its own step."""
    scenario: str = ""
    text: str = ""
    """In the last message of its task or in an answer, in upper or lower case, or the beginning of an id."""
    reward: Limits = ANY
    """Of the mean over its answers."""
    spread: Limits = ANY
    """Of the standard deviation of its rewards."""
    tokens: Limits = ANY
    """Of the mean length of its answers."""
    longest: Limits = ANY
    """Of the length of its longest answer."""
    sort: str = ""
    """A column of SORTED_BY, after a minus from the largest; empty: the newest first."""
    until: int | None = None
    """Written at this time or before, ms since the epoch: the pages of a list are of the same groups."""

    @property
    def sorting(self) -> Sorting:
        """The order of the list. Raises SettingsError for an unknown column."""
        return Sorting(SORTED_BY, self.sort)

    @property
    def sql(self) -> str:
        """The statement of the positions of these groups in their order, each with how many there are in all."""
        condition = " AND ".join(self._conditions()) or "true"
        if self.fate in FATES and self.fate != "all":
            groups = f"FROM ({outcomes_sql(condition)}) WHERE {FATES[self.fate]}"
        else:
            first = "row_number() OVER (PARTITION BY _partition, group_id ORDER BY _offset) = 1"
            columns = f"SELECT _partition, _offset, _timestamp{''.join(f', {name}' for name in GROUP_FIGURES)}"
            groups = f"FROM ({columns} FROM groups WHERE {condition} QUALIFY {first})"
        lookup = _JOINED.get(self.sorting.column)
        joined = "" if lookup is None else f" LEFT JOIN ({lookup}) USING (task_id)"
        return (
            "SELECT _partition, _offset, max(epoch_ms(_timestamp)) OVER () AS written, count(*) OVER () AS listed "  # noqa: S608
            f"FROM (SELECT * {groups}){joined} "
            f"ORDER BY {self.sorting.order('_timestamp DESC, _partition, _offset DESC')}"
        )

    @property
    def query(self) -> dict[str, str]:
        """Return the chosen values, by their names in an address."""
        chosen: dict[str, str] = {}
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, Limits):
                bounds = {f"{field.name}_from": value.least, f"{field.name}_to": value.most}
                chosen |= {name: plain_number(bound) for name, bound in bounds.items() if bound is not None}
            elif value not in (field.default, "", None):
                chosen[field.name] = str(value)
        return chosen

    def _conditions(self) -> list[str]:
        """Return the conditions on records of groups; all records of a group meet them, or none."""
        conditions = [
            f"{column} = {literal(name)}"
            for column, name in (("policy", self.policy), ("scenario", self.scenario))
            if name
        ]
        if self.version is not None:
            conditions.append(f"adapter_version = {self.version}")
        if self.made is not None:
            conditions.append(f"(_partition, _offset) IN ({_step_groups_sql(self.policy, self.made)})")
        if self.until is not None:
            conditions.append(f"epoch_ms(_timestamp) <= {self.until}")
        conditions += [*self.reward.conditions("reward_mean"), *self.spread.conditions("reward_std")]
        if self.text:
            conditions.append(f"task_id IN ({_with_text_sql(self.text)})")
        if lengths := [*self.tokens.conditions("tokens"), *self.longest.conditions("longest")]:
            conditions.append(f"task_id IN (SELECT task_id FROM ({LENGTHS_SQL}) WHERE {' AND '.join(lengths)})")  # noqa: S608
        return conditions


@dataclass(frozen=True)
class GroupList:
    """Groups, and what they can be narrowed to.

    Each group has its `outcome`, `question`, `tokens` (mean length of its answers), `longest` of them, `different` (how
    many answers differ), and `answers`: the beginnings of the best, the second best and the worst, with `reward` and
    `times`.
    """

    chosen: GroupFilter
    groups: RowPage
    listed: int
    """How many groups there are on all pages; of an empty page 0."""
    until: int | None
    """For the next pages: when the newest group of the first one was written."""
    policies: list[str]
    scenarios: list[str]


def list_groups(log: LogSnapshot, chosen: GroupFilter, first: int) -> GroupList:
    """Return a page of the list of groups."""
    page = log.page(chosen.sql, first, PAGE_GROUPS)
    groups = replace(page, rows=groups_at(log, page.rows) if page.rows else [])
    names = log.first("SELECT list(DISTINCT policy) AS policies, list(DISTINCT scenario) AS scenarios FROM groups")
    assert names is not None  # noqa: S101 - an aggregate has a row
    newest: Row = page.rows[0] if page.rows else {"listed": 0, "written": None}
    return GroupList(
        chosen,
        groups,
        newest["listed"],
        newest["written"] if chosen.until is None else chosen.until,
        policies=sorted(filter(None, names["policies"] or ())),
        scenarios=sorted(filter(None, names["scenarios"] or ()))[:NAMES_LISTED],
    )


def groups_at(log: LogSnapshot, positions: list[Row]) -> list[Row]:
    """Return the groups at these positions as the list shows them, in their order."""
    listed = _are_at(positions)
    outcomes = log.rows(outcomes_sql(listed))
    texts = {row["task_id"]: row for row in log.rows(_texts_sql({row["task_id"] for row in outcomes}, listed))}
    groups = {(row["_partition"], row["_offset"]): row | _in_words(row, texts) for row in outcomes}
    return [groups[row["_partition"], row["_offset"]] for row in positions]


def _are_at(positions: list[Row]) -> str:
    """Return the condition that records are at these positions; what is stored without their offsets is not read."""
    offsets = ", ".join(str(row["_offset"]) for row in positions)
    places = ", ".join(f"({row['_partition']}, {row['_offset']})" for row in positions)
    return f"_offset IN ({offsets}) AND (_partition, _offset) IN ({places})"


def _in_words(group: Row, texts: dict[str, Row]) -> Row:
    """Return what became of a group, its question, and its answers from the best to the worst."""
    of_task = texts.get(group["task_id"], {})
    answers = of_task.get("answers") or []
    shown = answers if len(answers) <= SHOWN_ANSWERS else [*answers[: SHOWN_ANSWERS - 1], answers[-1]]
    return {
        "outcome": outcome(group),
        "question": of_task.get("question"),
        "tokens": of_task.get("tokens"),
        "longest": of_task.get("longest"),
        "answers": shown,
        "different": len(answers),
    }


def _step_groups_sql(policy: str, version: int) -> str:
    """Return the statement of the positions of the groups of the batch that a version was made of."""
    return f"""
SELECT groups_partition, unnest(groups_offsets) FROM whole.batches SEMI JOIN (
    SELECT last_batch AS sequence FROM whole.adapters
    WHERE policy = {literal(policy)} AND kind = 'trained' AND version = {version} ORDER BY _offset LIMIT 1
) USING (sequence) WHERE policy = {literal(policy)}
"""  # noqa: S608 - a literal


def _with_text_sql(text: str) -> str:
    """Return the statement of the tasks that have a text in their last message or in an answer."""
    searched = literal(text)
    ids = ("tasks", "task_id"), ("groups", "task_id"), ("groups", "group_id"), ("responses", "response_id")
    named = [f"SELECT task_id FROM {view} WHERE starts_with({name}, {searched})" for view, name in ids]  # noqa: S608
    by_id = "".join(f" UNION ALL {sql}" for sql in named) if len(text) >= SHORTEST_ID else ""
    return (
        f"SELECT task_id FROM tasks WHERE contains(lower(messages[-1].content), lower({searched})) "  # noqa: S608
        f"UNION ALL SELECT task_id FROM responses WHERE contains(lower(text), lower({searched}))"
        f"{by_id}"
    )


def _texts_sql(task_ids: Collection[str], listed: str) -> str:
    """Return the statement of the questions of some tasks, and of what was answered, by the rewards in their groups.

    `listed`: the condition on these groups.
    """
    condition = f"task_id IN ({', '.join(map(literal, task_ids))})"
    return f"""
WITH question AS (
    SELECT task_id, left(arg_min(messages[-1].content, _offset), {BEGINNING}) AS question
    FROM tasks WHERE {condition} GROUP BY task_id
), scored AS (
    SELECT m.response_id, m.reward FROM
    (SELECT unnest(members) AS m FROM groups WHERE {listed})
), answered AS ({ANSWERS_SQL.format(condition=condition)}), lengths AS (
    SELECT task_id, avg(completion_tokens) AS tokens, max(completion_tokens) AS longest FROM answered GROUP BY task_id
), different AS (
    SELECT task_id, text, count(*) AS times, max(reward) AS reward
    FROM answered LEFT JOIN scored USING (response_id) GROUP BY task_id, text
), best_first AS (
    SELECT task_id, list({{'text': left(text, {BEGINNING}), 'times': times, 'reward': reward}}
        ORDER BY reward DESC NULLS LAST, times DESC, text) AS answers
    FROM different GROUP BY task_id
)
SELECT * FROM question FULL JOIN lengths USING (task_id) FULL JOIN best_first USING (task_id)
"""  # noqa: S608 - literals
