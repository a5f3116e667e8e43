"""The behaviour that a search is for: an expression, and the answers that show it.

    SQL over responses | scorer:NAME | text:WORDS ──► Behaviour ──► PolicyAnswers ──► Mark of each answer

A recorded answer is a row of `unique_responses`; one that is sampled again is a row with the same columns, so the same
SQL holds for both. An expression that is NULL is not shows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

from plugins.bisect.version_search import Mark
from schemas.events import Purpose, Response, RewardSource, Task
from schemas.serde import Poison, encode
from streams.arrow import decode
from streams.arrow.decode import DecodedRows
from streams.errors import SettingsError, StreamwardError
from streams.kafka.history import History
from streams.kafka.topics import topics
from streams.scorers import named_sources
from streams.settings.model import Settings
from streams.stages.scoring.trial import try_answers
from streams.tools.archive.history import Source
from streams.tools.query.session import Session
from streams.tools.query.views import literal

SCORER, TEXT = "scorer:", "text:"
SAMPLED = "bisect_answers"
"""The view of answers that were sampled again."""


@dataclass(frozen=True, slots=True)
class Behaviour:
    """The behaviour that a search is for."""

    text: str
    """As it was given."""
    sql: str = ""
    """A condition on a row of `responses`; empty: the scorer decides."""
    scorer: RewardSource | None = None
    at_least: float = 0.5
    """The score from which on an answer shows it."""

    @classmethod
    def parse(cls, text: str, at_least: float) -> Self:
        """Return the behaviour of --when. Raises SettingsError for an unknown scorer, or no text."""
        if text.startswith(SCORER):
            (source,) = named_sources([text.removeprefix(SCORER)])
            return cls(text, scorer=source, at_least=at_least)
        if text.startswith(TEXT):
            words = text.removeprefix(TEXT)
            if not words.strip():
                raise SettingsError(f"--when {text!r}: expected words after {TEXT}, such as {TEXT}sorry")
            return cls(text, sql=f"contains(lower(text), lower({literal(words)}))")
        if not text.strip():
            raise SettingsError(f"--when: expected SQL over responses, {SCORER}NAME or {TEXT}WORDS, got nothing")
        return cls(text, sql=text)


class RecordedAnswer(NamedTuple):
    """A recorded answer of a version."""

    mark: Mark
    response_id: str
    tokens: int
    """Of its prompt and of itself."""


class GroupPlace(NamedTuple):
    """A group of a batch."""

    version: int
    """The version that its batch made."""
    batch: int
    group_id: str
    task_id: str
    partition: int
    offset: int


class TaughtResponse(NamedTuple):
    """A response that a version was trained on."""

    place: GroupPlace
    response_id: str
    advantage: float


class PolicyAnswers:
    """The answers of a policy in the log as it is now. Close it at the end."""

    def __init__(self, settings: Settings, policy: str, behaviour: Behaviour, source: Source, history: History) -> None:
        """Raises SettingsError for SQL that does not parse, RefusedError for SQL that does more than read."""
        self._settings, self._policy, self._behaviour, self._history = settings, policy, behaviour, history
        self._session = Session(settings, source=source)
        self.tasks: Mapping[str, Task] = {}
        """Tasks of recorded answers, by id."""
        if behaviour.sql:
            self._session.parse(self._statement("unique_responses"))

    def close(self) -> None:
        """Release the session."""
        self._session.close()

    def read_recorded(self, newest: int, purpose: Purpose) -> list[RecordedAnswer]:
        """Return every answer of versions up to `newest`; failed ones are left out. Raises as `Session.run`."""
        condition = (
            f"policy = {literal(self._policy)} AND error IS NULL AND adapter_version <= {newest} "
            f"AND coalesce(metadata['purpose'], 'train') = {literal(purpose)}"
        )
        rows = list(self._rows(self._statement("unique_responses", condition)))
        self.tasks = self._tasks({row["task_id"] for row in rows})
        return [
            RecordedAnswer(Mark(row["adapter_version"], row["task_id"], shows), row["response_id"], row["tokens"])
            for row, shows in self._with_shows(rows)
        ]

    def mark_sampled(self, responses: Sequence[Response]) -> list[Mark]:
        """Return the marks of answers that are not in the log."""
        topic = topics(self._settings.topics)["responses"].name
        payloads: list[bytes | None] = [encode(response) for response in responses]
        keys: list[bytes | None] = [response.task_id.encode() for response in responses]
        numbers = list(range(len(responses)))
        rows = DecodedRows(topic, [0] * len(numbers), numbers, [0] * len(numbers), keys, payloads, [])
        table = decode.decode_rows(Response, rows).table
        self._session.con.from_arrow(table).create_view(SAMPLED, replace=True)
        described = list(self._rows(self._statement(SAMPLED)))
        return [Mark(row["adapter_version"], row["task_id"], shows) for row, shows in self._with_shows(described)]

    def taught(self, first: int, last: int) -> list[TaughtResponse]:
        """Return the responses from which the versions from `first` to `last` were made."""
        names = "version, batch, group_id, task_id, group_partition, group_offset, response_id, advantage"
        condition = f"policy = {literal(self._policy)} AND version BETWEEN {first} AND {last} AND advantage IS NOT NULL"
        rows = self._rows(f"SELECT {names} FROM lineage WHERE {condition} ORDER BY ALL")  # noqa: S608
        groups = ((GroupPlace(*list(row.values())[:-2]), row) for row in rows)
        return [TaughtResponse(place, row["response_id"], row["advantage"]) for place, row in groups]

    def _statement(self, view: str, condition: str = "true") -> str:
        shows = f"coalesce(({self._behaviour.sql}\n), false)" if self._behaviour.sql else "NULL"
        return (
            f"SELECT response_id, task_id, adapter_version, prompt_tokens + completion_tokens AS tokens, "  # noqa: S608
            f"CAST({shows} AS BOOLEAN) AS shows, {'NULL AS text' if self._behaviour.sql else 'text'} "
            f"FROM {view} WHERE {condition} ORDER BY _partition, _offset"
        )

    def _rows(self, sql: str) -> Iterator[dict[str, Any]]:
        for batch in self._session.run(sql).batches:
            yield from batch.to_pylist()

    def _with_shows(self, rows: Sequence[Mapping[str, Any]]) -> list[tuple[Mapping[str, Any], bool]]:
        """Return the rows with whether they show it, without those that the scorer could not score.

        Raises StreamwardError if it could score none.
        """
        scorer = self._behaviour.scorer
        if scorer is None:
            return [(row, row["shows"]) for row in rows]
        scorable = [row for row in rows if row["task_id"] in self.tasks]
        texts = ((self.tasks[row["task_id"]], row["text"]) for row in scorable)
        outcomes = list(try_answers(self._settings.scoring, scorer, texts))
        scores = [(row, outcome.value) for row, outcome in zip(scorable, outcomes, strict=True)]
        scored = [(row, value >= self._behaviour.at_least) for row, value in scores if value is not None]
        if scorable and not scored:
            error = outcomes[0].error or "it abstained"
            raise StreamwardError(f"--when {self._behaviour.text}: no answer could be scored, the first since: {error}")
        return scored

    def _tasks(self, task_ids: Iterable[str]) -> dict[str, Task]:
        """Return the tasks with these ids that the log or the archive still has."""
        keys, tasks = {task_id.encode() for task_id in task_ids}, dict[str, Task]()
        bounds = self._history.bounds(["tasks"])
        starts, ends = ({tp: bound[side] for tp, bound in bounds.items()} for side in (0, 1))
        for record in self._history.read(starts, ends):
            if record.key in keys and not isinstance(task := record.decode(Task), Poison):
                tasks.setdefault(task.task_id, task)
        return tasks
