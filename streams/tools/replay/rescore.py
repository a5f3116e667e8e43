"""Score recorded responses again, with other scorers.

    tasks, responses of the experiment ──► each scorer, in the order of the responses ──► rewards of the experiment

A reward has the record time of its response, so it meets every deadline that its response met. Slow scorers run in
parallel, MAX_PENDING at a time, and are written in order. A response scored before a stop is not scored again, since a
judge costs money. So if a scorer is not deterministic, its first written score counts.
"""

from __future__ import annotations

import json
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from functools import partial
from itertools import islice
from typing import NamedTuple

from schemas.events import Response, RewardSource, Task
from schemas.serde import EncodeError, Poison, encode
from streams.errors import SettingsError, StreamwardError
from streams.kafka.history import LogHistory
from streams.kafka.record import Record
from streams.kafka.topics import topics
from streams.scorers import ScoreOutcome, Scorers
from streams.stages.scoring.scoring_agent import reward_of, unwritable
from streams.stages.scoring.task_lookup import TaskLookup
from streams.tools.replay.replay_context import Replay
from streams.tools.replay.selection import bounds

MAX_PENDING = 256
"""Scores that may be pending at once."""
LOOKED_UP = 200
"""Number of responses with tasks that are looked up together."""
PERMANENT = ("unknown_scorer", "bad_settings", "missing_package", "module_not_listed")
"""Reasons for which every other score of this scorer would fail as well."""


class Scored(NamedTuple):
    """A score, pending or done."""

    record: Record
    response: Response
    source: RewardSource
    outcome: Future[ScoreOutcome] | ScoreOutcome

    def result(self) -> ScoreOutcome:
        """Wait for the outcome."""
        return self.outcome.result() if isinstance(self.outcome, Future) else self.outcome


def as_text(sources: Iterable[RewardSource]) -> str:
    """Return the scorers as an event records them."""
    return json.dumps([[source.name, source.settings] for source in sources])


def rescore(replay: Replay) -> Counter[str]:
    """Score each copied response; return the numbers of `rewards` and `scores_failed`.

    Raises SettingsError for a scorer that cannot run, StreamwardError if every score failed, Stopped, LogError if the
    log fails.
    """
    counts: Counter[str] = Counter()
    first = ""
    with Scorers(replay.settings.scoring) as scorers:
        for score in _in_order(_start_scores(replay, scorers)):
            outcome, coordinates = score.result(), score.record.at
            if outcome.reason in PERMANENT:
                raise SettingsError(f"scorer {score.source.name}, {coordinates}: {outcome.error}")
            if outcome.error is not None:
                counts["scores_failed"] += 1
                first = first or f"{coordinates}: {outcome.error}"
            counts["scored"] += 1
            payload = _reward(score, outcome)
            replay.writer.write("rewards", coordinates.partition, score.record.key, payload, score.record.timestamp_ms)
    replay.writer.flush()
    if counts["scored"] and counts["scores_failed"] == counts["scored"]:
        raise StreamwardError(f"all {counts['scored']} scores failed; the first: {first}")
    counts["rewards"] = counts["scored"] + replay.writer.skipped["rewards"]
    return counts


def _start_scores(replay: Replay, scorers: Scorers) -> Iterator[Scored]:
    """Begin every score that is not written yet, in the order of the responses."""
    quick = {source.name: scorers.is_quick(source) for source in replay.scorers}
    starts, ends = bounds(replay.writer.ranges("responses"), topics(replay.settings.topics)["responses"].name)
    copied = LogHistory(replay.settings).read(starts, ends)
    records = replay.progress.track("scoring", copied, sum(ends[tp] - starts[tp] for tp in starts))
    with TaskLookup(replay.settings) as lookup:
        for chunk in iter(lambda: list(islice(records, LOOKED_UP)), []):
            responses = [(record, response) for record in chunk if (response := _to_score(record)) is not None]
            tasks = _tasks(lookup, responses)
            for record, response in responses:
                task = tasks.get(response.task_id)
                for source in replay.scorers:
                    if task is None or replay.writer.skip_written("rewards", record.at.partition):
                        continue
                    if quick[source.name]:
                        yield Scored(record, response, source, scorers.score(task, response, source))
                    else:
                        yield Scored(
                            record,
                            response,
                            source,
                            scorers.start(task, source, partial(scorers.score, task, response, source)),
                        )


def _in_order(scores: Iterator[Scored]) -> Iterator[Scored]:
    """Yield the scores in their order, while up to MAX_PENDING later ones run."""
    waiting: deque[Scored] = deque()
    for score in scores:
        waiting.append(score)
        while len(waiting) >= MAX_PENDING or (waiting and not isinstance(waiting[0].outcome, Future)):
            yield waiting.popleft()
    yield from waiting


def _to_score(record: Record) -> Response | None:
    response = record.decode(Response)
    return None if isinstance(response, Poison) or response.error is not None else response


def _tasks(lookup: TaskLookup, responses: list[tuple[Record, Response]]) -> dict[str, Task]:
    ids_of: dict[int, set[str]] = {}
    for record, response in responses:
        ids_of.setdefault(record.at.partition, set()).add(response.task_id)
    tasks: dict[str, Task] = {}
    for partition, task_ids in ids_of.items():
        for task_id, task in lookup.find(partition, task_ids).items():
            if isinstance(task, Task):
                tasks[task_id] = task
    return tasks


def _reward(score: Scored, outcome: ScoreOutcome) -> bytes:
    """Return the reward; a score that cannot be encoded is recorded as failed, so that none is missing."""
    try:
        return encode(reward_of(score.response, score.source, outcome, score.record.timestamp_ms))
    except EncodeError as exc:
        failed = unwritable(outcome, exc)
        return encode(reward_of(score.response, score.source, failed, score.record.timestamp_ms))
