"""Sealing: responses a second that a producer writes, sealed and in clear.

    responses of 256 tokens ──► encode ──► Producer ──► acknowledged        beside: the same of no subject

The two alternate, and the median of each counts: other work on the machine slows both.

Not covered: what a reader takes to open them; docs/privacy.md has it.
"""

from __future__ import annotations

import random
import statistics
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from schemas import key_source
from schemas.events import Response, derive_id
from schemas.tokens import Logprobs, LossMask, TokenIds
from streams.kafka import admin
from streams.kafka.producer import Producer
from streams.settings.model import Settings
from tests.benchmarks.loop import node
from tests.benchmarks.side_by_side import line, say
from tests.support.factories import response

RESPONSES, TOKENS, ROUNDS = 20_000, 256, 5
AIM = 0.95


def run() -> Iterator[dict[str, Any]]:
    """Yield how many sealed responses a second are written."""
    say(f"sealing: {ROUNDS} times {RESPONSES:,} responses, sealed and in clear")
    with tempfile.TemporaryDirectory(prefix="streamward-bench-") as folder, node() as made:
        from plugins.privacy.person_keys import PersonKeys
        from plugins.privacy.privacy_settings import Privacy

        admin.apply_topics(made)
        rule = Privacy(key_folder=folder, seal="named")
        keys = PersonKeys(made, rule)
        key_source.use(keys)
        subject = keys.subject_of(None, "ann", None)
        rates: dict[bool, list[float]] = {False: [], True: []}
        for _ in range(ROUNDS):
            for is_sealed in rates:
                rates[is_sealed].append(_rate(made, subject if is_sealed else None))
        key_source.use(key_source.NoKeys())
    sealed, clear = statistics.median(rates[True]), statistics.median(rates[False])
    yield line(
        "sealing", "sealed responses a second", ours=sealed, peer=clear, unit="responses/s", ratio=sealed / clear,
        target=AIM, peer_is="in clear", responses=RESPONSES, tokens=TOKENS,
    )  # fmt: skip


def _rate(settings: Settings, subject: str | None) -> float:
    whole = response(
        subject=subject,
        text="word " * TOKENS,
        prompt_token_ids=TokenIds.of(random.choices(range(50_000), k=TOKENS)),
        completion_token_ids=TokenIds.of(random.choices(range(50_000), k=TOKENS)),
        logprobs=Logprobs.of([-random.random() for _ in range(TOKENS)]),
        loss_mask=LossMask(b"\1" * TOKENS),
    )
    responses: list[Response] = [
        replace(whole, task_id=f"t{n}", sampling_id=f"s{n}", response_id=derive_id(f"s{n}", whole.slot))
        for n in range(RESPONSES)
    ]
    began = time.perf_counter()
    with Producer(settings) as producer:
        for event in responses:
            producer.send(event)
    return RESPONSES / (time.perf_counter() - began)
