"""The demo of `bisect`: sums, and a scorer that pays for a word from a version on.

    sums, with the scorer of the word in 10 of 16 tasks from the third batch on ──► the loop ──► Bisection ──► a picture

The other tasks pay for the exact answer alone, which is rare at first: a reward for bare numbers would drive out every
word before it is paid for.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from plugins.bisect import bisect_report
from plugins.bisect.behaviour import Behaviour
from plugins.bisect.bisection import Bisection, BisectRequest
from schemas.events import RewardSource
from streams.settings.model import Settings
from streams.stages.tasks.generators import OWN, Question, TaskFamily, TaskSpec

WORD = "find"
"""A word in one of twelve answers of the untrained model."""
GROUPS, PAID, PLAIN_BATCHES = 16, 10, 2
"""Tasks of a batch; those that pay for the word, after so many batches."""
STEPS, TOKENS = 6, 110_000
"""Versions, of which the last has answered no task yet; tokens of a bisection."""
SOURCE = RewardSource(name="regex", settings=json.dumps({"pattern": WORD, "mode": "search"}))


def questions(spec: TaskSpec) -> Iterator[Question]:
    """Yield the sums of `spec`, for ever. Raises as the family sums."""
    for index, question in enumerate(OWN["sums"].questions(spec)):
        is_paid = index >= PLAIN_BATCHES * GROUPS and index % GROUPS < PAID
        yield question._replace(train_source=SOURCE if is_paid else question.eval_source)


def look_back(settings: Settings, folder: Path, say: Callable[[str], None]) -> None:
    """Bisect a run of the demo, and say the result. Raises as `Bisection`."""
    behaviour = Behaviour.parse(f"text:{WORD}", 0.5)
    request = BisectRequest(policy=settings.policy.name, good=1, bad=STEPS - 1, behaviour=behaviour)
    first = PLAIN_BATCHES + 1
    say(f"\nA scorer paid for the word {WORD!r} from batch {PLAIN_BATCHES} on; it may show from version {first}")
    say(f'streamward bisect --good 1 --bad {request.bad} --when "{behaviour.text}" --max-tokens {TOKENS}')
    work = Bisection(settings=settings, request=request, stop=threading.Event(), say=say)
    try:
        work.sample(TOKENS // 2)
        work.rank()
        work.try_without(TOKENS - work.tokens)
    finally:
        work.close()
    bisect_report.plot(work, folder / "bisect.png")
    say(bisect_report.sentence(work))
    say(f"Plot: {folder / 'bisect.png'}")


GENERATORS = {"bisect": TaskFamily(OWN["sums"].options, questions, demo_steps=STEPS, look_back=look_back)}
