"""Find a run in the log by its id, if the visitor may see it.

    id ──► a statement: its tasks, and where every record about them is ──► records ──► FinishedReader ──► EndedRun

The reader gets a history with only these records, so the code that assembles a run exists once. An id names a response,
a conversation, or one run of a conversation, of which a person may judge the answer alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from plugins.improve.curation.ended_run import EndedRun, ended_run
from schemas.events import Coordinates
from streams.errors import NotFoundError
from streams.kafka.history import History
from streams.kafka.record import Record, TopicPartition
from streams.kafka.topics import topics
from streams.settings.model import Settings
from streams.tools.query.finished import LABELS, Finished, FinishedReader, FinishedSelection
from streams.tools.query.views import literal
from streams.tools.views.log_view import LogReader, LogSnapshot

RUNS_SQL = """
SELECT response_id AS run_id, task_id, NULL AS conversation, NULL AS place FROM responses UNION ALL
SELECT trajectory_id, task_id, metadata['conversation'], CASE WHEN kind = 'ended' AND sampling_id IS NULL
    THEN {'label': 'trajectories', 'partition': _partition, 'offset': _offset} END FROM trajectories UNION ALL
SELECT trajectory_id, task_id, t.metadata['conversation'],
    {'label': 'groups', 'partition': g._partition, 'offset': g._offset}
    FROM trajectories AS t JOIN groups AS g USING (task_id) WHERE t.metadata['conversation'] IS NOT NULL
"""
"""Every run, its task, its conversation, and where it ended; of a task, its group."""


class TaskRecords:
    """The records about some tasks, as a history."""

    def __init__(self, settings: Settings, records: Mapping[Coordinates, Record]) -> None:
        self._topics = topics(settings.topics)
        self._records = dict(sorted(records.items()))

    def bounds(self, labels: Iterable[str]) -> dict[TopicPartition, tuple[int, int]]:
        """Return (0, offset after the last) per partition of these topics."""
        shapes = [self._topics[label] for label in labels]
        ends = {(topic.name, partition): 0 for topic in shapes for partition in range(topic.partitions)}
        for at in self._records:
            if (at.topic, at.partition) in ends:
                ends[at.topic, at.partition] = at.offset + 1
        return {tp: (0, end) for tp, end in ends.items()}

    def read(self, starts: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]) -> Iterator[Record]:
        """Yield the records from `starts` to below `ends`."""
        for at, record in self._records.items():
            tp = (at.topic, at.partition)
            if tp in starts and starts[tp] <= at.offset < ends[tp]:
                yield record

    def fetch(self, places: Iterable[Coordinates]) -> dict[Coordinates, Record]:
        """Return the records at those of these coordinates that are about the tasks."""
        return {place: self._records[place] for place in places if place in self._records}


def find_run(log: LogSnapshot, history: History, answer_id: str) -> EndedRun:
    """Return a run that the visitor of a snapshot may see. Raises NotFoundError for one that has not ended."""
    return ended_run(find_finished(log, history, answer_id), log.view.settings)


def find_newest_run(log: LogReader, history: History, answer_id: str) -> EndedRun:
    """Return a run that a visitor may see, also one that ended since the log was looked at. Raises as `find_run`."""
    try:
        with log.snapshot() as snapshot:
            return find_run(snapshot, history, answer_id)
    except NotFoundError:
        log.view.outdate()
    with log.snapshot() as snapshot:
        return find_run(snapshot, history, answer_id)


def find_finished(log: LogSnapshot, history: History, answer_id: str) -> Finished:
    """Return what the log has of a run. Raises as `find_run`."""
    settings, own_id, names = log.view.settings, literal(answer_id), topics(log.view.settings.topics)
    row = log.first(
        f"SELECT list(DISTINCT task_id) AS tasks, any_value(conversation) AS conversation, min(place) AS place "  # noqa: S608
        f"FROM ({RUNS_SQL}) WHERE {own_id} IN (run_id, conversation) HAVING count(*) > 0"
    )
    if row is None:
        raise NotFoundError(f"the log has no run {answer_id[:80]!r}; `streamward improve curate queue` lists some")
    places = " UNION ALL ".join(
        f"SELECT '{label}' AS label, _partition, _offset FROM {label} "  # noqa: S608
        f"WHERE task_id IN ({', '.join(map(literal, row['tasks']))})"
        for label in LABELS
    )
    records = history.fetch(
        Coordinates(names[place["label"]].name, place["_partition"], place["_offset"]) for place in log.rows(places)
    )
    is_one_answer = row["conversation"] not in (None, answer_id) and row["place"] is not None
    end = None
    if is_one_answer:
        label, partition, offset = row["place"].values()
        end = {Coordinates(names[label].name, partition, offset): {answer_id: ()}}
    reader = FinishedReader(settings, TaskRecords(settings, records), FinishedSelection(unfit=True, ends=end))
    for finished in reader.round():
        if finished.answer_id == answer_id:
            return replace(finished, task_id=row["conversation"]) if is_one_answer else finished
    raise NotFoundError(f"run {answer_id[:80]!r} has not ended, or its group is still open")
