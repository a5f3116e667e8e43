"""An engine and a scorer that fail in every way, by chance, for the processes of the fault matrix.

    CHAOS='{"engine": true}' ──► scripted engine: raises, answers garbage, hangs, or takes its process with it
    reward source tests.chaos.bad_peers:moody ──► hangs, raises, NaN, eats memory, exits; else 1.0 and 0.0 by turns

Not covered: an engine that lies about the version it served; the agent's own tests do that.
"""

from __future__ import annotations

import os
import random
import time
from dataclasses import replace
from typing import Any

from schemas.events import Response, Task
from streams.engines.protocol import Completion, SamplingRequest
from streams.engines.scripted.scripted_engine import ScriptedEngine
from streams.scorers import entry_point

CHANCE = 0.04
"""Of each kind of failure, per round of the engine."""
MOODY = "tests.chaos.bad_peers:moody"
_draw = random.Random()


def wire_in() -> None:
    """Make the scripted engine of this process a bad one."""
    sample = ScriptedEngine.sample

    def moody_sample(self: ScriptedEngine, requests: list[SamplingRequest]) -> list[list[Completion]]:
        mood = _draw.random() / CHANCE
        if mood < 1:
            raise RuntimeError("the engine is out of memory")
        if mood < 2:
            os._exit(1)
        answers = sample(self, requests)
        if mood < 3:
            return answers[:-1]
        if mood < 4:
            return [[replace(slot, logprobs=(float("nan"),) * len(slot.logprobs)) for slot in a] for a in answers]
        if mood < 5:
            return [[replace(slot, completion_token_ids=(1, 2, 3)) for slot in slots] for slots in answers]
        if mood < 5.5:
            time.sleep(3600)
        return answers

    ScriptedEngine.sample = moody_sample  # type: ignore[method-assign]


@entry_point("moody/1")
def moody(task: Task, response: Response, settings: dict[str, Any]) -> float:
    """Fail as the response's id says, so that a retry fails again; one response in nine."""
    match int(response.response_id[:4], 16) % 64:
        case 0:
            time.sleep(3600)
        case 1 | 2:
            raise ValueError("a scorer that does not like this answer")
        case 3 | 4:
            return float("nan")
        case 5:
            return float(len("x" * (64 * 1024**3)))
        case 6:
            os._exit(3)
    return float(response.slot % 2)
