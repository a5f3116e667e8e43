"""Feedback: what somebody thinks of an answer, as a reward in the log.

POST …/v1/feedback {id, value, reason} ──► the answer that the recorder knows ──► a reward from feedback/SOURCE

It enters no group and ends no trajectory: a conversation may continue after a remark about it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Protocol

from pydantic import Field

from gateway.http.body import Body, Whole
from schemas.conventions import FEEDBACK, RatedAnswer
from schemas.events import MAX_REWARD, RATIONALE_CHARACTERS, Coordinates
from streams.errors import CallError, LogError, RefusedError
from streams.tools.asking import bare_id


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


class FindsAnswers(Protocol):
    """Who knows what was answered: the recorder of the agents' stage."""

    async def rated(self, answer_id: str, choice: int | None) -> RatedAnswer | None:
        """Return the turn of this id, or of another choice of its call, or the trajectory of this id; None if none."""

    async def agent_of(self, name: str) -> str | None:
        """Return whose a turn or a trajectory is; None if there is none of this id."""


class WritesFeedback(Protocol):
    """Who writes an opinion to the log, once: streams/tools/asking.py."""

    def __call__(self, answer: RatedAnswer, value: float, *, source: str, reason: str | None) -> Coordinates:
        """Return where it is. Raises RefusedError if the source said otherwise before, LogError without a broker."""


class FeedbackBox:
    """Takes opinions one after the other, so that the same one twice at once is written once."""

    def __init__(self, answers: FindsAnswers, write: WritesFeedback) -> None:
        self.answers, self._write, self._one = answers, write, asyncio.Lock()

    async def take(self, body: FeedbackBody, agent_id: str, sees: Callable[[str], bool]) -> dict[str, Any]:
        """Record an opinion; return what the client gets. `sees`: the answers of which agents. Raises CallError."""
        source, answer_id = body.source or agent_id, bare_id(body.id)
        owner = await self.answers.agent_of(answer_id)
        known = owner is not None and sees(owner)
        answer = await self.answers.rated(answer_id, body.choice) if known else None
        if answer is None:
            which = "" if body.choice is None else f" with a choice {body.choice}"
            raise CallError(
                "not_found",
                f"there is no answer and no trajectory {body.id}{which} that the server remembers (serve.longest_s); "
                "`streamward reward` finds older ones",
                "id",
            )
        try:
            async with self._one:
                at = await asyncio.to_thread(self._write, answer, body.value, source=source, reason=body.reason)
        except RefusedError as exc:
            raise CallError("conflict", str(exc), "value") from exc
        except LogError as exc:
            raise CallError("busy", f"{exc}; try again") from exc
        return {
            "object": "feedback",
            "id": answer.answer_id,
            "value": body.value,
            "reason": body.reason,
            "source": FEEDBACK + source,
            "recorded_at": str(at),
        }
