"""Try scorers as the agent would use them, without writing anything: load them, or score a text.

task, text, reward source ──► a response that is in no log ──► worker process, thread or here ──► ScoreOutcome
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from schemas.events import Response, RewardSource, Task, derive_id
from streams.errors import SettingsError
from streams.scorers import ScoreError, ScoreOutcome, Scorers, parts
from streams.settings.model import Scoring


def source_of(name: str, task: Task) -> RewardSource:
    """Return the reward source NAME or NAME=JSON; without JSON it has the task's settings.

    Raises SettingsError if it cannot run.
    """
    name, equals, settings = name.partition("=")
    given = next((source.settings for source in task.reward_sources if source.name == name), "{}")
    source = RewardSource(name=name, settings=settings if equals else given)
    try:
        parts(source)
    except ScoreError as exc:
        raise SettingsError(f"{name}: {exc}") from exc
    return source


def load_scorers(scoring: Scoring, sources: Iterable[RewardSource]) -> None:
    """Load the scorers of these sources. Raises SettingsError for the first that could not score here."""
    wanted = list(dict.fromkeys(sources))
    with Scorers(scoring) as scorers:
        if (missing := scorers.missing(wanted)) is not None:
            raise SettingsError(missing.error)
        try:
            scorers.load(wanted)
        except ScoreError as exc:
            raise SettingsError(str(exc)) from exc


def try_scorer(scoring: Scoring, task: Task, source: RewardSource, text: str) -> ScoreOutcome:
    """Return the score of `source` for `text` as an answer to `task`, at the first attempt. Raises as `try_texts`."""
    return try_texts(scoring, task, source, [text])[0]


def try_texts(scoring: Scoring, task: Task, source: RewardSource, texts: Iterable[str]) -> list[ScoreOutcome]:
    """Return the score of `source` for each text as an answer to `task`. Raises as `try_answers`."""
    return list(try_answers(scoring, source, ((task, text) for text in texts)))


def try_answers(scoring: Scoring, source: RewardSource, answers: Iterable[tuple[Task, str]]) -> Iterator[ScoreOutcome]:
    """Yield the score of `source` for each answer to its task, at the first attempt.

    Raises SettingsError if the scorer needs a judge and none is configured, or its module is not listed.
    """
    with Scorers(scoring.model_copy(update={"retries": 0})) as scorers:
        if (missing := scorers.missing([source])) is not None:
            raise SettingsError(missing.error)
        for task, text in answers:
            yield scorers.score(task, _answer(task, text), source)


def _answer(task: Task, text: str) -> Response:
    """Return a text as a response."""
    sampling_id = derive_id("trial", task.task_id)
    return Response(
        response_id=derive_id(sampling_id, 0),
        sampling_id=sampling_id,
        task_id=task.task_id,
        created_at=task.created_at,
        policy=task.policy,
        slot=0,
        group_size=task.group_size,
        adapter_version=0,
        base_digest="",
        tokenizer_digest="",
        engine="trial",
        finish_reason="stop",
        prompt_tokens=0,
        completion_tokens=0,
        latency_ms=0.0,
        text=text,
        sampling=task.sampling,
    )
