"""Runs: the list, and one run turn by turn.

    filter ──► the newest answers and conversations that pass ──► their rows of view `runs` ──► ListedRuns
    trajectories, turns, rewards of one ──► WholeRun

Only the filter's fields are read from the whole log; the figures are read for the runs of one page. A conversation
passes if one of its runs does, and its place is that of its newest run.

A search for words reads every text of the log, since the DuckDB wheel comes without the full-text extension: 0.8 s for
10,000 runs of four calls (tests/benchmarks/search_runs.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace

from streams.errors import NotFoundError, SettingsError
from streams.settings.model import Settings
from streams.tools.query.runs_view import failed_tools_sql, runs_sql, verdicts_sql
from streams.tools.query.views import literal
from streams.tools.views.log_view import PAGE_ROWS, LogSnapshot, Row, RowPage
from streams.tools.views.sorting import Sorting

CHAT = "chat"
"""The scenario of runs without a task."""
UNJUDGED = "none"
"""In place of a verdict: runs that have none."""
VERDICTS = ("promote", "reject", "needs_human", UNJUDGED)
PURPOSES = ("train", "serve", "eval")
ANSWERS_SQL = """
SELECT response_id AS run_id, response_id AS answer_id, task_id, policy, agent_id, adapter_version,
    metadata['purpose'] AS purpose, false AS is_chat, _timestamp, _partition, _offset FROM responses
    WHERE response_id NOT IN (SELECT trajectory_id FROM trajectories WHERE kind = 'started')
UNION ALL
SELECT trajectory_id, coalesce(metadata['conversation'], trajectory_id), task_id, policy, agent_id, NULL, purpose,
    sampling_id IS NULL, _timestamp, _partition, _offset
    FROM trajectories WHERE kind = 'started'
"""
"""The first record of each run, with the conversation that it is of."""
TEXTS_SQL = """
SELECT trajectory_id AS run_id, [trajectory_id, task_id, turn_id] AS ids,
    lower(concat_ws(' ', list_aggregate(list_transform(messages, lambda m: m.content),
    'string_agg', ' '), reply.content, list_aggregate(list_transform(reply.tool_calls, lambda c: c.arguments),
    'string_agg', ' '))) AS said FROM turns
UNION ALL
SELECT response_id, [response_id, task_id], lower(text) FROM responses
UNION ALL
SELECT response_id, NULL, lower(list_aggregate(list_transform(messages, lambda m: m.content), 'string_agg', ' '))
    FROM tasks JOIN responses USING (task_id)
"""
"""Questions, answers and results of tools, by run, with its ids."""


SHORTEST_ID = 6
"""The fewest characters of a word that is looked for in ids."""
BEGINNING = 200
"""Characters of a question or an answer that a list has."""
BEGAN = "began"
SORTED_BY = {
    BEGAN: "began_ms",
    "agent": "agent_id",
    "scenario": "scenario",
    "version": "list_max(versions)",
    "ended": "ending",
    "turns": "turns",
    "tools": "tool_calls",
    "seconds": "latency_ms",
    "tokens": "sampled_tokens",
    "usd": "cost_usd",
    "reward": "reward",
    "feedback": "feedback",
    "verdict": "verdict",
}
"""Columns that runs can be sorted by, and what view `runs` calls them."""


@dataclass(frozen=True)
class RunFilter:
    """The filter of runs. Raises SettingsError for an unknown word."""

    agent: str = ""
    policy: str = ""
    scenario: str = ""
    version: int | None = None
    """That answered, a turn of it at least."""
    verdict: str = ""
    purpose: str = ""
    failed_tools: bool = False
    """Only runs in which a tool failed."""
    text: str = ""
    """Words that questions, answers or results of tools have, in any order and in upper or lower case, or with which
    an id of the run or of its task begins."""
    sort: str = ""
    """A column of SORTED_BY, after a minus from the largest; empty: the newest first."""

    def __post_init__(self) -> None:
        self.sorting  # noqa: B018 - which raises
        for name, value, words in (("verdict", self.verdict, VERDICTS), ("purpose", self.purpose, PURPOSES)):
            if value and value not in words:
                raise SettingsError(f"{name} is {value[:80]!r}; expected one of {', '.join(words)}")

    @property
    def sorting(self) -> Sorting:
        """The order of the list. Raises SettingsError for an unknown column."""
        return Sorting(SORTED_BY, self.sort)

    @property
    def query(self) -> dict[str, str]:
        """The fields that are set, by their names in an address."""
        chosen = {field.name: getattr(self, field.name) for field in fields(self)}
        texts = {name: "yes" if value is True else str(value) for name, value in chosen.items()}
        return {name: texts[name] for name, value in chosen.items() if value not in ("", None, False)}

    def answers_sql(self, settings: Settings) -> str:
        """Return the statement of these runs in their order, with the tasks of each."""
        condition = " AND ".join(self._conditions(settings)) or "true"
        chosen = (
            f"SELECT answer_id, list(DISTINCT task_id) AS task_ids FROM (SELECT *, {condition} AS is_chosen "  # noqa: S608
            f"FROM ({ANSWERS_SQL})) GROUP BY answer_id HAVING bool_or(is_chosen) "
            "ORDER BY max(row(_timestamp, -_partition, _offset)) DESC"
        )
        if not self.sort:
            return chosen
        figures = f"SELECT answer_id, {self.sorting.columns[self.sorting.column]} AS figure FROM runs"  # noqa: S608
        order = Sorting({self.sorting.column: "figure"}, self.sort).order("answer_id")
        return f"SELECT c.* FROM ({chosen}) AS c LEFT JOIN ({figures}) USING (answer_id) ORDER BY {order}"  # noqa: S608

    def _conditions(self, settings: Settings) -> Iterator[str]:
        if self.agent:
            yield f"agent_id = {literal(self.agent)}"
        if self.policy:
            yield f"policy = {literal(self.policy)}"
        if self.scenario:
            is_chat = " OR is_chat" if self.scenario == CHAT else ""
            tasks = f"SELECT task_id FROM tasks WHERE scenario = {literal(self.scenario)}"  # noqa: S608 - a literal
            yield f"(task_id IN ({tasks}){is_chat})"
        if self.version is not None:
            turns = f"SELECT trajectory_id FROM turns WHERE adapter_version = {self.version}"  # noqa: S608 - a number
            yield f"coalesce(adapter_version = {self.version}, run_id IN ({turns}))"
        if self.verdict == UNJUDGED:
            yield f"answer_id NOT IN (SELECT answer_id FROM ({verdicts_sql()}))"  # noqa: S608
        elif self.verdict:
            verdicts = f"SELECT answer_id FROM ({verdicts_sql()}) WHERE verdict = {literal(self.verdict)}"  # noqa: S608
            yield f"answer_id IN ({verdicts})"
        if self.purpose:
            tasks = f"SELECT task_id FROM tasks WHERE purpose = {literal(self.purpose)}"  # noqa: S608 - a literal
            yield f"coalesce(purpose = {literal(self.purpose)}, task_id IN ({tasks}))"
        if self.failed_tools:
            yield f"answer_id IN ({failed_tools_sql(settings)})"
        if words := self.text.split():
            has_all = " AND ".join(f"bool_or({_has_word(word)})" for word in words)
            yield f"run_id IN (SELECT run_id FROM ({TEXTS_SQL}) GROUP BY run_id HAVING {has_all})"  # noqa: S608


def _has_word(word: str) -> str:
    """Return the condition of a row of TEXTS_SQL that a word is in it."""
    text = f"contains(said, lower({literal(word)}))"
    return (
        text
        if len(word) < SHORTEST_ID
        else f"({text} OR list_bool_or(list_transform(ids, lambda i: starts_with(i, {literal(word)}))))"
    )


@dataclass(frozen=True)
class ListedRuns:
    """Some runs, with the columns of view `runs`, and what they were chosen by."""

    chosen: RunFilter
    runs: RowPage


@dataclass(frozen=True)
class WholeRun:
    """One run: its figures, its model calls in order, and its scores."""

    answer_id: str
    run: Row
    response: Row | None
    """The answer of a run without turns."""
    turns: list[Row]
    rewards: list[Row]


def list_runs(log: LogSnapshot, chosen: RunFilter, first: int, size: int = PAGE_ROWS) -> ListedRuns:
    """Return a page of runs, the newest first."""
    settings = log.view.settings
    page = log.page(chosen.answers_sql(settings), first, size)
    rows = {row["answer_id"]: row for row in _rows(log, page.rows)}
    ids = [row["answer_id"] for row in page.rows]
    return ListedRuns(chosen, replace(page, rows=[rows[name] for name in ids if name in rows]))


def run_texts(log: LogSnapshot, runs: Sequence[Row]) -> dict[str, Row]:
    """Return the beginnings of `question` and `answer` of some runs, by their answer_id.

    Of a run with turns: the last message before the first, and the answer of the last.
    """
    of_run = {run_id: row["answer_id"] for row in runs for run_id in row["run_ids"]}
    if not of_run:
        return {}
    names = ", ".join(map(literal, of_run))
    rows = log.rows(f"""
SELECT trajectory_id AS run_id, left(arg_min(messages[-1].content, row(_partition, _offset)), {BEGINNING}) AS question,
    left(arg_max(reply.content, row(_partition, _offset)), {BEGINNING}) AS answer
FROM turns WHERE trajectory_id IN ({names}) GROUP BY trajectory_id
UNION ALL
SELECT response_id, left(any_value(t.messages[-1].content), {BEGINNING}), left(any_value(r.text), {BEGINNING})
FROM responses AS r LEFT JOIN tasks AS t USING (task_id)
WHERE response_id IN ({names}) AND response_id NOT IN (SELECT trajectory_id FROM turns) GROUP BY response_id
""")  # noqa: S608 - literals
    by_run = {row["run_id"]: row for row in rows}
    texts: dict[str, Row] = {}
    for row in runs:
        said = [by_run[run_id] for run_id in row["run_ids"] if run_id in by_run]
        if said:
            texts[row["answer_id"]] = {"question": said[0]["question"], "answer": said[-1]["answer"]}
    return texts


def find_row(log: LogSnapshot, run_id: str) -> Row | None:
    """Return the row of a run, or of the conversation that it is of; None if not found or not visible."""
    named = f"SELECT answer_id FROM ({ANSWERS_SQL}) WHERE {literal(run_id)} IN (answer_id, run_id)"  # noqa: S608
    of_it = f"SELECT answer_id, list(DISTINCT task_id) AS task_ids FROM ({ANSWERS_SQL}) WHERE answer_id IN ({named})"  # noqa: S608
    answer = log.first(f"{of_it} GROUP BY answer_id")
    rows = [] if answer is None else _rows(log, [answer])
    return next((row for row in rows if answer is not None and row["answer_id"] == answer["answer_id"]), None)


def whole_id(log: LogSnapshot, beginning: str) -> str | None:
    """Return the full id of a run or a conversation by its prefix or name; None unless exactly one matches."""
    ids = f"SELECT DISTINCT unnest([answer_id, run_id]) AS name FROM ({ANSWERS_SQL})"  # noqa: S608
    listed = f"SELECT name FROM ({ids}) WHERE starts_with(name, {literal(beginning)}) ORDER BY name"  # noqa: S608
    names = [row["name"] for row in log.rows(listed, limit=2)]
    return names[0] if len(names) == 1 or beginning in names else None


def _rows(log: LogSnapshot, answers: list[Row]) -> list[Row]:
    """Return the rows of answers with their tasks; a conversation is the task of its verdicts, too."""
    task_ids = {task_id for row in answers for task_id in (*row["task_ids"], row["answer_id"])}
    return log.rows(runs_sql(log.view.settings, task_ids)) if task_ids else []


def turns_sql(run_ids: Sequence[str]) -> str:
    """Return the statement of the model calls of these runs, in order."""
    names = ", ".join(map(literal, run_ids))
    return f"""
SELECT * EXCLUDE (prompt_token_ids, completion_token_ids, logprobs),
    len(completion_token_ids) AS sampled_tokens, epoch_ms(created_at) - epoch_ms(started_at) AS took_ms
FROM turns WHERE trajectory_id IN ({names})
QUALIFY row_number() OVER (PARTITION BY turn_id ORDER BY _offset) = 1
ORDER BY list_position([{names}], trajectory_id), number, _offset
"""  # noqa: S608 - literals


def find_run(log: LogSnapshot, answer_id: str) -> WholeRun:
    """Return one run, or the conversation that it is of. Raises NotFoundError."""
    run = find_row(log, answer_id)
    if run is None:
        raise NotFoundError(f"the log has no run {answer_id[:80]!r}; /runs lists them")
    turns, response, names = log.rows(turns_sql(run["run_ids"])), None, ", ".join(map(literal, run["run_ids"]))
    if not turns:
        response = log.first(f"SELECT text, error, finish_reason, slot FROM responses WHERE response_id IN ({names})")  # noqa: S608
    rewards = log.rows(
        f"SELECT * FROM rewards WHERE response_id IN ({names}) OR response_id IN "  # noqa: S608
        f"(SELECT turn_id FROM turns WHERE trajectory_id IN ({names})) ORDER BY _timestamp, _offset"
    )
    return WholeRun(run["answer_id"], run, response, turns, rewards)
