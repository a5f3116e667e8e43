"""Score recorded responses again, with other scorers.

    tasks, responses of the experiment ──► each scorer, in the order of the responses ──► rewards of the experiment

A reward carries the record time of its response, so it is in time for every deadline its response was in time for.
Slow scorers run side by side, MOST_OPEN at a time, and are written in order. What was scored before a stop is not
scored again: a judge costs money.

Not covered: the verdict of a scorer that gives another one each time it is asked. The first that is written counts.
"""

from __future__ import annotations

import json
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from typing import NamedTuple

from schemas.events import Response, Reward, RewardSource, Task
from schemas.serde import EncodeError, Poison, encode
from streams.errors import SettingsError, StreamwardError
from streams.kafka.history import History
from streams.kafka.record import Record
from streams.scorers import ScoreError, ScoreOutcome, Scorers, parts
from streams.settings.model import Settings
from streams.stages.scoring.agent import JUDGE_THREADS, reward_of
from streams.stages.scoring.task_lookup import TaskLookup
from streams.tools.replay.copy import CopyProgress, Writer

MOST_OPEN = 256
"""Scores in work at most."""
LOOKED_UP = 200
"""Responses whose tasks are looked up together."""
NEVER = ("unknown_scorer", "bad_settings", "missing_package")
"""Why a score failed that no other response will get either."""


class Scored(NamedTuple):
    """A score in work, or done."""

    record: Record
    response: Response
    source: RewardSource
    outcome: Future[ScoreOutcome] | ScoreOutcome

    def result(self) -> ScoreOutcome:
        """Return the outcome, once it is there."""
        return self.outcome.result() if isinstance(self.outcome, Future) else self.outcome


def parse(options: Iterable[str]) -> tuple[RewardSource, ...]:
    """Return what `--scorer NAME` or `--scorer NAME=JSON` say. Raises SettingsError.

    >>> parse(['length={"limit": 6}'])[0].settings
    '{"limit": 6}'
    """
    sources = []
    for text in options:
        name, equals, settings = text.partition("=")
        source = RewardSource(name=name, settings=settings if equals else "{}")
        try:
            parts(source)
        except ScoreError as exc:
            raise SettingsError(f"--scorer {text}: {exc}") from exc
        sources.append(source)
    names = [source.name for source in sources]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise SettingsError(f"--scorer {twice[0]} is given twice; put both into one mix, which adds them up")
    return tuple(sources)


def as_text(sources: Iterable[RewardSource]) -> str:
    """Return the scorers as an event records them."""
    return json.dumps([[source.name, source.settings] for source in sources])


def rescore(
    settings: Settings,
    history: History,
    starts: dict[tuple[str, int], int],
    ends: dict[tuple[str, int], int],
    sources: tuple[RewardSource, ...],
    writer: Writer,
    watch: CopyProgress,
) -> Counter[str]:
    """Score each response between `starts` and `ends`, and return how many `rewards` there are and `scores_failed`.

    Raises SettingsError for a scorer that cannot run, StreamwardError if not one response got a score, Stopped,
    LogError if the log fails.
    """
    counts: Counter[str] = Counter()
    first = ""
    with Scorers(settings.scoring) as scorers, ThreadPoolExecutor(settings.scoring.processes + JUDGE_THREADS) as pool:
        try:
            for one in _in_order(_started(settings, history, starts, ends, sources, writer, watch, scorers, pool)):
                outcome = one.result()
                if outcome.reason in NEVER:
                    raise SettingsError(f"scorer {one.source.name}, {one.record.at}: {outcome.error}")
                if outcome.error is not None:
                    counts["scores_failed"] += 1
                    first = first or f"{one.record.at}: {outcome.error}"
                counts["scored"] += 1
                payload = _reward(one, outcome)
                writer.write("rewards", one.record.at.partition, one.record.key, payload, one.record.timestamp_ms)
        finally:
            scorers.stop()
            pool.shutdown(wait=False, cancel_futures=True)
    writer.flush()
    if counts["scored"] and counts["scores_failed"] == counts["scored"]:
        raise StreamwardError(f"not one of {counts['scored']} scores could be given; the first: {first}")
    counts["rewards"] = counts["scored"] + writer.passed["rewards"]
    return counts


def _started(
    settings: Settings,
    history: History,
    starts: dict[tuple[str, int], int],
    ends: dict[tuple[str, int], int],
    sources: tuple[RewardSource, ...],
    writer: Writer,
    watch: CopyProgress,
    scorers: Scorers,
    pool: ThreadPoolExecutor,
) -> Iterator[Scored]:
    """Begin every score that is not written yet, in the order of the responses."""
    quick = {source.name: scorers.is_quick(source) for source in sources}
    records = watch.over("scoring", history.read(starts, ends), sum(ends[tp] - starts[tp] for tp in starts))
    with TaskLookup(settings) as known:
        for chunk in iter(lambda: list(islice(records, LOOKED_UP)), []):
            responses = [(record, response) for record in chunk if (response := _to_score(record)) is not None]
            tasks = _tasks(known, responses)
            for record, response in responses:
                task = tasks.get(response.task_id)
                for source in sources:
                    if task is None or writer.has("rewards", record.at.partition):
                        continue
                    if quick[source.name]:
                        yield Scored(record, response, source, scorers.score(task, response, source))
                    else:
                        yield Scored(record, response, source, pool.submit(scorers.score, task, response, source))


def _in_order(scores: Iterator[Scored]) -> Iterator[Scored]:
    """Yield the scores in their order, while up to MOST_OPEN behind them run."""
    waiting: deque[Scored] = deque()
    for one in scores:
        waiting.append(one)
        while len(waiting) >= MOST_OPEN or (waiting and not isinstance(waiting[0].outcome, Future)):
            yield waiting.popleft()
    yield from waiting


def _to_score(record: Record) -> Response | None:
    response = record.decode(Response)
    return None if isinstance(response, Poison) or response.error is not None else response


def _tasks(known: TaskLookup, responses: list[tuple[Record, Response]]) -> dict[str, Task]:
    wanted: dict[int, set[str]] = {}
    for record, response in responses:
        wanted.setdefault(record.at.partition, set()).add(response.task_id)
    found: dict[str, Task] = {}
    for partition, task_ids in wanted.items():
        for task_id, task in known.find(partition, task_ids).items():
            if isinstance(task, Task):
                found[task_id] = task
    return found


def _reward(one: Scored, outcome: ScoreOutcome) -> bytes:
    """Return the reward; a verdict that cannot be written is a score that failed, so that none is missing."""
    try:
        return encode(reward_of(one.response, one.source, outcome, one.record.timestamp_ms))
    except EncodeError as exc:
        said = ScoreOutcome(value=None, error=f"malformed: {exc}", version=outcome.version, latency_ms=0.0, tries=1)
        made: Reward = reward_of(one.response, one.source, said, one.record.timestamp_ms)
        return encode(made)
