"""Fault 11: engines and scorers that fail.

Not covered: engines on other machines; there is none yet.
"""

from __future__ import annotations

import random
from typing import Any

from schemas.events import RewardSource
from tests.chaos.bad_peers import MOODY
from tests.chaos.load import Load
from tests.chaos.matrix import fault
from tests.chaos.world import World


@fault(
    11,
    "an engine that dies, hangs, answers garbage",
    "the engine raises, exits, returns too few answers, NaN logprobs, wrong lengths, or hangs, in 1 round of 5",
    starts=("streams", "scoring"),
    settings={"policy": {"round_timeout_s": 5.0}},
    codes=frozenset({1, 75}),
)
def bad_engine(world: World, load: Load, draw: random.Random) -> None:
    world.start("policy", engine=True)
    load.until(1)


def _moody(number: int) -> dict[str, Any]:
    """Return what is special about task `number`: every 30th is judged by the scorer that fails, too."""
    return {"reward_sources": (RewardSource(name="exact"), RewardSource(name=MOODY))} if number % 30 == 0 else {}


@fault(
    11,
    "a scorer that hangs, raises, returns NaN, eats memory",
    "so it treats one answer in nine to every 30th task, in worker processes with a time limit of 0.5 s",
    settings={"scoring": {"timeout_s": 0.5, "retries": 0, "processes": 2, "modules": "tests.chaos.bad_peers"}},
    tasks=_moody,
)
def bad_scorer(world: World, load: Load, draw: random.Random) -> None:
    load.until(1)
