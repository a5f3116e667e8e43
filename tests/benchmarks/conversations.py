"""Conversations in the in-process engine: eight together against one alone, and kept prefixes against none.

Each has five turns: a system message and a tool's description that all share, a question, and behind each answer
another question of its own. SmolLM2-135M, float32, answers of at most 24 tokens at temperature 1. The system message
begins with the number of the round, so nothing is kept from the last; for a prompt that is run whole, with the turn's.

Not covered: an adapter, and the server around the engine.
"""

from __future__ import annotations

import itertools
import os
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from tests.benchmarks.side_by_side import by_turns, line, median_s

TOGETHER, TURNS, ANSWER = 8, 5, 24
THREADS = 2
SYSTEM = (
    "You are a careful clerk in a library. You answer in one short sentence. You have a tool that looks a book up: "
    'call it as {"name": "look_up", "arguments": {"title": "..."}} on a line of its own, and wait for its result. '
    "Never make up a shelf, a title or an author; say that you do not know, or ask for what you need to know."
)


def run() -> Iterator[dict[str, Any]]:
    """Yield how much longer eight conversations take than one, and what the kept prefixes save."""
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # as the server's process sets it
    from streams.engines.base_model import load_base
    from streams.engines.local.continuous import ContinuousEngine
    from streams.settings.model import Model

    base = load_base(Model())
    engine = ContinuousEngine(base, min(THREADS, os.cpu_count() or 1))
    talks = _talks(engine, base.tokenizer)
    together = by_turns({"eight": lambda: talks(TOGETHER), "one": lambda: talks(1)}, rounds=3, warm=False)
    seconds = {name: median_s(turns) for name, turns in together.items()}
    case = f"{TOGETHER} conversations of {TURNS} turns"
    yield line(
        "conversations",
        case,
        ours=seconds["eight"],
        peer=TOGETHER * seconds["one"],
        unit="s",
        ratio=TOGETHER * seconds["one"] / seconds["eight"],
        target=TOGETHER / 2,
        peer_is="the same engine, one conversation after another",
        times_one_alone=round(seconds["eight"] / seconds["one"], 2),
        times_its_processor_time=round(_processor_s(together["eight"]) / _processor_s(together["one"]), 2),
    )
    kept = by_turns({"kept": lambda: talks(1), "whole": lambda: talks(1, whole=True)}, rounds=3, warm=False)
    seconds = {name: median_s(turns) for name, turns in kept.items()}
    yield line(
        "conversations",
        f"1 conversation of {TURNS} turns",
        ours=seconds["kept"],
        peer=seconds["whole"],
        unit="s",
        ratio=seconds["whole"] / seconds["kept"],
        peer_is="the same engine, each prompt run whole",
        times_its_processor_time=round(_processor_s(kept["whole"]) / _processor_s(kept["kept"]), 2),
    )
    engine.close()


def _processor_s(measured: list[tuple[float, float]]) -> float:
    return statistics.median(seconds for _, seconds in measured)


def _talks(engine: Any, tokenizer: Any) -> Callable[..., float]:
    from schemas.events import Sampling
    from streams.engines.token_stream import Generation

    rounds = itertools.count(100)

    def tokens(text: str) -> tuple[int, ...]:
        return tuple(tokenizer(text, add_special_tokens=False)["input_ids"])

    def talk(number: int, key: str, whole: bool) -> None:
        said: tuple[int, ...] = ()
        for turn in range(TURNS):
            question = f"Where do I find book {number}, volume {turn}?"
            said += tokens(f"\n<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n")
            system = tokens(f"{turn if whole else 0} <|im_start|>system\n{key}. {SYSTEM}<|im_end|>")
            asked = Generation(
                prompt_token_ids=system + said, sampling=Sampling(max_tokens=ANSWER), draw_key=f"{key} {number} {turn}"
            )
            said += tuple(token for token, _ in engine.submit(asked))

    def talks(count: int, whole: bool = False) -> float:
        """Have so many conversations at once, and return the seconds of processor time."""
        key, begun = str(next(rounds)), time.process_time()
        threads = [threading.Thread(target=talk, args=(number, key, whole)) for number in range(count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return time.process_time() - begun

    return talks
