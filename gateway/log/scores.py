"""Try a scorer on texts, and write nothing.

{scorer, texts, answer} ──► a task of its own ──► may the sender name it? ──► try_texts ──► a score for each text
"""

from __future__ import annotations

import asyncio
import json
from typing import Annotated, Any, Literal

from pydantic import Field
from starlette.requests import Request

from gateway.http.body import Answer, Body
from gateway.http.errors import apart
from gateway.http.route import REST
from gateway.log.named_code import check_named
from schemas.events import Message, RewardSource, Task, derive_id
from streams.errors import CallError, SettingsError
from streams.kafka import times
from streams.scorers import ScoreOutcome, source_problems
from streams.settings.model import Settings
from streams.stages.scoring.trial import try_texts
from streams.stages.tasks.task_line import Answer as RightAnswer

MOST_TEXTS = 32
AT_ONCE = 2
"""Requests that are answered at the same time; each may have a process of its own."""


class ScoreBody(Body):
    """Texts, and the scorer that judges them."""

    scorer: str = Field(min_length=1, max_length=500, description="a built-in one, or module:function")
    texts: Annotated[list[str], Field(min_length=1, max_length=MOST_TEXTS, description="answers to the same task")]
    settings: dict[str, Any] | None = Field(None, description="of the scorer")
    answer: RightAnswer | None = Field(None, description="the right answer")
    verifier: dict[str, Any] | None = Field(None, description="what is checked against, in the place of answer")
    prompt: str | None = Field(None, description="the question")


class TriedScore(Answer):
    """What a scorer gives a text, or why nothing; neither value nor error: it has no opinion."""

    value: float | None
    components: dict[str, float] | None
    rationale: str | None
    version: str | None
    error: str | None
    reason: str | None


class TriedScores(Answer):
    """A score for each text, in their order."""

    object: Literal["list"]
    scorer: str
    data: list[TriedScore]


RIGHT = TriedScore(value=1.0, components={}, rationale=None, version="exact/2", error=None, reason=None)


class ScorerTrials:
    """The route that tries scorers."""

    def __init__(self, settings: Settings) -> None:
        self._settings, self._at_once = settings, asyncio.Semaphore(AT_ONCE)

    @REST.post(
        "/score",
        may="scores.try",  # a scorer that is executed code takes code.run, too
        refuses=(),
        sends={"scorer": "exact", "texts": ["11", "12"], "answer": 11},
        example=TriedScores(object="list", scorer="exact", data=[RIGHT]),
        tools={"score": ""},
        toolsets=("log", "scoring"),
    )
    async def try_scorer(self, request: Request, body: ScoreBody) -> TriedScores:
        """Say what a scorer gives texts, and write nothing."""
        if self._at_once.locked():
            raise CallError("busy", "as many texts as may be scored at once are being scored; try again")
        async with self._at_once:
            return await apart(self._score, request, body)

    def _score(self, request: Request, body: ScoreBody) -> TriedScores:
        if body.answer is not None and body.verifier is not None:
            raise CallError("invalid", "give either answer or verifier; answer is short for one", "verifier")
        task = self._task(body)
        check_named(request, self._settings.serve, task, "scorer")
        if problems := "; ".join(source_problems(task)):
            raise CallError("invalid", problems)
        try:
            outcomes = try_texts(self._settings.scoring, task, task.reward_sources[0], body.texts)
        except SettingsError as exc:  # no judge, or a module that is not listed
            raise CallError("unsupported", str(exc), "scorer") from exc
        return TriedScores(object="list", scorer=body.scorer, data=[_score(outcome) for outcome in outcomes])

    def _task(self, body: ScoreBody) -> Task:
        """Return a task that is only scored."""
        verifier = body.verifier if body.answer is None else {"answer": body.answer}
        return Task(
            task_id=derive_id("trial", body.scorer),
            created_at=times.now_ms(),
            policy=self._settings.policy.name,
            purpose="serve",
            group_size=1,
            verifier=json.dumps(verifier or {}),
            reward_sources=(RewardSource(name=body.scorer, settings=json.dumps(body.settings or {})),),
            messages=() if body.prompt is None else (Message(role="user", content=body.prompt),),
        )


def _score(outcome: ScoreOutcome) -> TriedScore:
    return TriedScore(
        value=outcome.value,
        components=outcome.components,
        rationale=outcome.rationale,
        version=outcome.version,
        error=outcome.error,
        reason=outcome.reason,
    )
