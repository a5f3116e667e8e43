"""A task with a verifier, an answer to it, and one score of that answer, for the tests of scorers."""

from __future__ import annotations

import json
from typing import Any

from schemas.events import Message, Response, RewardSource, Sampling, Task, derive_id
from streams.scorers import Outcome, Scorers


def a_task(answer: Any = "11", *, sources: tuple[RewardSource, ...] = (), verifier: str | None = None) -> Task:
    return Task(
        task_id="t1",
        created_at=1,
        policy="default",
        messages=(Message(role="user", content="4 + 7 ="),),
        verifier=json.dumps({"answer": answer}) if verifier is None else verifier,
        reward_sources=sources or (RewardSource(name="exact"),),
    )


def a_response(text: str, *, tokens: int = 3) -> Response:
    return Response(
        response_id=derive_id("s1", 0),
        sampling_id="s1",
        task_id="t1",
        created_at=2,
        policy="default",
        slot=0,
        group_size=1,
        adapter_version=0,
        base_digest="b",
        tokenizer_digest="k",
        engine="scripted",
        finish_reason="stop",
        prompt_tokens=5,
        completion_tokens=tokens,
        latency_ms=1.0,
        text=text,
        sampling=Sampling(),
    )


def outcome(scorers: Scorers, name: str, text: str, settings: dict[str, Any], answer: Any = "11") -> Outcome:
    source = RewardSource(name=name, settings=json.dumps(settings))
    return scorers.score(a_task(answer), a_response(text), source)
