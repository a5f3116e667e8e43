"""Whole groups to load a log with: a task, its eight responses, a reward for each; 17 events.

    whole(n) ──► Task, Response x 8, Reward x 8, of realistic size: 64 prompt tokens, 32 tokens a response unless given

Not covered: late, doubled or failed events.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from schemas.events import Event, Message, Response, Reward, RewardSource, Sampling, Task, derive_id
from schemas.tokens import Logprobs, LossMask, TokenIds
from streams.kafka.producer import Producer
from streams.settings.model import Settings
from tests.benchmarks.side_by_side import say

SLOTS = 8
EVENTS = 1 + 2 * SLOTS
WAVE = 4000
"""Groups that are open at the same time."""
PROMPT_TOKENS, COMPLETION_TOKENS = 64, 32
SAMPLING = Sampling(max_tokens=COMPLETION_TOKENS)


class Whole(NamedTuple):
    """The events of one group."""

    task: Task
    responses: list[Response]
    rewards: list[Reward]


def whole(name: str, tokens: int = COMPLETION_TOKENS) -> Whole:
    """Return the group called `name`, `tokens` a response; the same events for the same name, times aside."""
    rng, now_ms = random.Random(name), int(time.time() * 1000)
    task = Task(
        task_id=derive_id("bench", name),
        created_at=now_ms,
        policy="bench",
        group_size=SLOTS,
        sampling=SAMPLING,
        reward_sources=(RewardSource(name="exact"),),
        verifier='{"answer": "42"}',
        messages=(
            Message(role="system", content="Reply with only the final answer."),
            Message(role="user", content=f"State the final answer to the following arithmetic problem: {name} ="),
        ),
    )
    prompt = TokenIds.of(rng.randrange(49_152) for _ in range(PROMPT_TOKENS))
    responses = [_response(task, slot, prompt, tokens, rng) for slot in range(SLOTS)]
    return Whole(task, responses, [_reward(response) for response in responses])


def _response(task: Task, slot: int, prompt: TokenIds, tokens: int, rng: random.Random) -> Response:
    sampling_id = derive_id(task.task_id, "sampling")
    return Response(
        response_id=derive_id(sampling_id, slot),
        sampling_id=sampling_id,
        task_id=task.task_id,
        created_at=task.created_at,
        policy=task.policy,
        slot=slot,
        group_size=SLOTS,
        adapter_version=0,
        base_digest="b" * 64,
        tokenizer_digest="c" * 64,
        engine="bench",
        finish_reason="stop",
        prompt_tokens=PROMPT_TOKENS,
        completion_tokens=tokens,
        latency_ms=100.0 * rng.random(),
        text="The answer is 42, as one sees by counting twice. " * 2,
        sampling=SAMPLING,
        prompt_token_ids=prompt,
        completion_token_ids=TokenIds.of(rng.choices(range(49_152), k=tokens)),
        logprobs=Logprobs.of(-3 * rng.random() for _ in range(tokens)),
        loss_mask=LossMask(b"\1" * tokens),
    )


def _reward(response: Response) -> Reward:
    return Reward(
        reward_id=derive_id(response.response_id, "exact"),
        response_id=response.response_id,
        task_id=response.task_id,
        created_at=response.created_at,
        policy=response.policy,
        slot=response.slot,
        source="exact",
        value=float(response.slot % 2),
        scorer_version="1",
        components={"match": float(response.slot % 2)},
    )


def preload(settings: Settings, groups: int, tokens: int = COMPLETION_TOKENS) -> None:
    """Write that many groups, WAVE after wave and each stage after stage, as a backlog that nobody has read."""
    say(f"  writing {groups} groups of {tokens} tokens a response, {groups * EVENTS} events")
    with Producer(settings) as producer:
        for first in range(0, groups, WAVE):
            for event in wave(range(first, min(first + WAVE, groups)), tokens):
                producer.send(event)


def wave(numbers: Iterable[int], tokens: int = COMPLETION_TOKENS) -> Iterator[Event]:
    """Yield the events of these groups, stage after stage."""
    groups = [whole(f"{number} + {number}", tokens) for number in numbers]
    yield from (group.task for group in groups)
    yield from (response for group in groups for response in group.responses)
    yield from (reward for group in groups for reward in group.rewards)
