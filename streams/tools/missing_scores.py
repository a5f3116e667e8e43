"""Write the scores that failed, once their scorer is repaired.

    dead-letters of scoring ──► responses whose group has not left ──► each source without a score ──► rewards
                                                    └── it has: too late                  └── fails again: as before
A dead letter is dropped when its response has every score, or its group has left. If another process scores at the same
time, both rewards have the same `reward_id`, and the first counts.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TypeVar

from schemas.conventions import SCORELESS
from schemas.events import AdvantagedGroup, Coordinates, Event, Response, Reward, RewardSource, Task
from schemas.serde import Poison, decode
from streams.errors import EventError
from streams.kafka import times
from streams.kafka.group_names import SCORING
from streams.kafka.offsets import positions
from streams.kafka.producer import Producer
from streams.kafka.topics import topics
from streams.scorers import ScoreOutcome, Scorers
from streams.scorers.execution import JUDGE_THREADS
from streams.settings.model import Settings
from streams.stages.scoring.breaker import PAUSED_REASON
from streams.stages.scoring.scoring_agent import STAGE, reward_of
from streams.stages.scoring.task_lookup import TaskLookup
from streams.tools.dead_letters import letters as dead_letters
from streams.tools.dead_letters.letters import Letter, Matching
from streams.tools.dead_letters.originals import originals
from streams.tools.dead_letters.redrive import RedriveOrder, decide

E = TypeVar("E", bound=Event)


@dataclass(frozen=True, slots=True, kw_only=True)
class MissingScores:
    """One dead letter, its response, and the missing scorers."""

    letter: Letter
    response: Response
    task: Task
    sources: tuple[RewardSource, ...]
    """Empty: it has every score."""


@dataclass(slots=True)
class Rescored:
    """What came of it."""

    rewards: int = 0
    too_late: int = 0
    """Responses that their group left without."""
    errors: list[str] = field(default_factory=list)
    """Why scores failed, or could not be tried here."""
    whole: list[Letter] = field(default_factory=list)
    """Dead letters of responses that have every score now."""


def rescore_failed(settings: Settings, *, since_ms: int | None, actor: str) -> Rescored:
    """Write the scores that are missing for dead letters written since then.

    It ends early where a scorer fails scoring.max_failures times in a row. Raises LogError if the log fails.
    """
    letters = dead_letters.load(settings)
    every = letters.matching(Matching(stage=STAGE, since_ms=since_ms), "open")
    chosen = [letter for letter in every if letter.event.reason in (*SCORELESS, PAUSED_REASON)]
    responses = _responses(settings, chosen)
    result = Rescored()
    if not responses:
        return result
    oldest_ms = min(letter.event.source_timestamp for letter, _ in responses)
    left = {group.task_id for group in _since(settings, "groups", oldest_ms, AdvantagedGroup)}
    held = _held(settings, [letter for letter, _ in responses])
    gone, waiting = [], []
    for letter, response in responses:
        if response.task_id in left and letter.event.reason != PAUSED_REASON:
            gone.append(letter)
        else:
            waiting.append((letter, response))
    missing = _missing(settings, waiting, oldest_ms)
    late = [one for one in missing if one.sources and one.response.task_id in left and one.letter.source not in held]
    gone += [one.letter for one in late]
    result.too_late = len(gone)
    _score(settings, [one for one in missing if one not in late], held, result)
    for some, why in ((result.whole, "it has every score"), (gone, "its group has left without it")):
        order = RedriveOrder(verdict="dropped", actor=actor, why=f"admin rescore --failed: {why}")
        for _ in decide(settings, letters, some, order):
            pass
    return result


def _held(settings: Settings, chosen: list[Letter]) -> set[Coordinates]:
    """Return the responses that the agent itself will score: those of a paused scorer that it has not committed.

    One that it has committed may have failed for good since: a record has one dead letter of a stage, the first.
    """
    committed = {(at.topic, at.partition): at.committed for at in positions(settings) if at.group == SCORING}
    paused = (letter.source for letter in chosen if letter.event.reason == PAUSED_REASON)
    return {source for source in paused if source.offset >= committed.get((source.topic, source.partition), 0)}


def _responses(settings: Settings, chosen: list[Letter]) -> list[tuple[Letter, Response]]:
    found = []
    for letter, original in originals(settings, chosen):
        if not isinstance(original, EventError):
            response = decode(original.payload, Response)
            if isinstance(response, Response):
                found.append((letter, response))
    return found


def _missing(settings: Settings, responses: list[tuple[Letter, Response]], oldest_ms: int) -> list[MissingScores]:
    """Return each response with its task and the sources of missing scores."""
    scored = {(reward.response_id, reward.source) for reward in _since(settings, "rewards", oldest_ms, Reward)}
    wanted: dict[int, set[str]] = {}
    for letter, response in responses:
        wanted.setdefault(letter.source.partition, set()).add(response.task_id)
    tasks: dict[str, Task | Poison] = {}
    with TaskLookup(settings) as lookup:
        for partition, task_ids in wanted.items():
            tasks |= lookup.find(partition, task_ids)
    missing = []
    for letter, response in responses:
        if isinstance(task := tasks.get(response.task_id), Task):
            sources = (one for one in task.reward_sources if (response.response_id, one.name) not in scored)
            missing.append(MissingScores(letter=letter, response=response, task=task, sources=tuple(sources)))
    return missing


def _score(settings: Settings, missing: list[MissingScores], held: set[Coordinates], result: Rescored) -> None:
    """Score and write what is missing, and note in `result` what came of it."""
    limits, in_a_row = settings.scoring, 0
    result.whole += [one.letter for one in missing if not one.sources]
    to_score: list[MissingScores] = []
    with (
        Producer(settings) as producer,
        Scorers(limits) as scorers,
        ThreadPoolExecutor(limits.processes + JUDGE_THREADS) as pool,
    ):
        for one in missing:
            if one.sources and one.letter.source not in held:
                lacking = scorers.missing(one.sources)
                if lacking is None:
                    to_score.append(one)
                else:
                    result.errors.append(lacking.error)

        def outcomes(one: MissingScores) -> list[tuple[RewardSource, ScoreOutcome]]:
            return [(source, scorers.score(one.task, one.response, source)) for source in one.sources]

        for one, scores in zip(to_score, pool.map(outcomes, to_score), strict=True):
            errors = [outcome.error for _, outcome in scores if outcome.error is not None]
            for source, outcome in scores:
                if outcome.error is None:
                    producer.send(reward_of(one.response, source, outcome, times.now_ms()))
            result.rewards += len(scores) - len(errors)
            result.errors += errors
            result.whole += [] if errors else [one.letter]
            in_a_row = in_a_row + 1 if errors else 0
            if limits.max_failures and in_a_row >= limits.max_failures:
                scorers.stop()
                pool.shutdown(wait=False, cancel_futures=True)
                return


def _since(settings: Settings, label: str, since_ms: int, kind: type[E]) -> Iterator[E]:
    """Yield the events of a topic that were recorded from then on."""
    begin = times.Begin("time", since_ms)
    for found in times.tail(settings, [topics(settings.topics)[label]], begin, until_end=True):
        if isinstance(found.event, kind):
            yield found.event
