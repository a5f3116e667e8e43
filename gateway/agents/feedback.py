"""Feedback: an opinion about an answer, as a reward in the log.

POST …/v1/feedback {id, value, reason} ──► the answer that the recorder knows ──► a reward from feedback/SOURCE

It enters no group and ends no trajectory: a conversation may continue after a remark about it.
"""

from __future__ import annotations

import asyncio
from typing import Literal, Protocol

from pydantic import Field
from starlette.requests import Request

from gateway.agents.caller import AGENT_ID, CALLS, FindsAgents, read_model_call
from gateway.http.body import Answer, Body, Whole
from gateway.http.principal import principal_of, sees
from schemas.conventions import FEEDBACK, RatedAnswer
from schemas.events import MAX_REWARD, RATIONALE_CHARACTERS, Coordinates
from streams.errors import CallError, LogError, RefusedError
from streams.tools.asking import bare_id

TURN = "9f3a2d0c-1b7e-5c55-8a20-4d2f8f0c7e61"


class FeedbackBody(Body):
    """What somebody thinks of an answer."""

    id: str = Field(
        min_length=1,
        max_length=200,
        description="of the answer, as its body or its header `x-request-id` has it; or of a whole trajectory",
    )
    value: float = Field(
        ge=-MAX_REWARD, le=MAX_REWARD, description="how good it is; 0 (bad) to 1 (good), unless you use another scale"
    )
    reason: str | None = Field(None, max_length=RATIONALE_CHARACTERS, description="why, in words")
    source: str | None = Field(
        None, min_length=1, max_length=200, description="who says so; default: the agent that is in the address"
    )
    choice: Whole | None = Field(None, ge=0, description="which of `n` answers; default: the one of the id")


class RecordedFeedback(Answer):
    """An opinion that is in the log."""

    object: Literal["feedback"]
    id: str = Field(description="of the turn or trajectory that it is about")
    value: float
    reason: str | None
    source: str
    recorded_at: str = Field(description="`topic[partition]@offset` of the reward")


class FindsAnswers(FindsAgents, Protocol):
    """Finds recorded answers: the recorder of the agents' stage."""

    async def rated(self, answer_id: str, choice: int | None) -> RatedAnswer | None:
        """Return the turn of this id, or of another choice of its call, or the trajectory of this id; None if none."""


class WritesFeedback(Protocol):
    """Writes an opinion to the log, once: streams/tools/asking.py."""

    def __call__(self, answer: RatedAnswer, value: float, *, source: str, reason: str | None) -> Coordinates:
        """Return its place. Raises RefusedError if the source rated it otherwise before, LogError without a broker."""


class FeedbackBox:
    """Records opinions one at a time, so that concurrent duplicates are written once."""

    def __init__(self, recorder: FindsAnswers, write: WritesFeedback) -> None:
        self._recorder, self._write, self._writing = recorder, write, asyncio.Lock()

    @CALLS.post(
        "/feedback",
        may="feedback.give",
        takes=FeedbackBody,
        parameters=(AGENT_ID,),
        sends={"id": TURN, "value": 1, "reason": "It is right."},
        example=RecordedFeedback(
            object="feedback",
            id=TURN,
            value=1.0,
            reason="It is right.",
            source="feedback/default",
            recorded_at="streamward.rewards[3]@1041",
        ),
    )
    async def give_feedback(self, request: Request, raw: bytes) -> RecordedFeedback:
        """Say what you think of an answer."""
        body, caller = await read_model_call(request, FeedbackBody, raw, self._recorder)
        source, answer = body.source or caller.agent_id, await self._answer(request, body)
        try:
            async with self._writing:
                position = await asyncio.to_thread(self._write, answer, body.value, source=source, reason=body.reason)
        except RefusedError as exc:
            raise CallError("conflict", str(exc), "value") from exc
        except LogError as exc:
            raise CallError("busy", f"{exc}; try again") from exc
        return RecordedFeedback(
            object="feedback",
            id=answer.answer_id,
            value=body.value,
            reason=body.reason,
            source=FEEDBACK + source,
            recorded_at=str(position),
        )

    async def _answer(self, request: Request, body: FeedbackBody) -> RatedAnswer:
        """Return the answer that an opinion is about. Raises CallError if its sender can see no answer with this id."""
        answer_id = bare_id(body.id)
        owner = await self._recorder.agent_of(answer_id)
        is_seen = owner is not None and sees(principal_of(request), owner)
        answer = await self._recorder.rated(answer_id, body.choice) if is_seen else None
        if answer is None:
            choice = "" if body.choice is None else f" with a choice {body.choice}"
            raise CallError(
                "not_found",
                f"there is no answer and no trajectory {body.id}{choice} that the server remembers (serve.longest_s); "
                "`streamward reward` finds older ones",
                "id",
            )
        return answer
