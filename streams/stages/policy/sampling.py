"""Ask the engine, and believe nothing it does not show.

    requests ──► engine, within policy.round_timeout_s ──► every slot of every request, by the version asked for
                     └── it fails on the round: each task alone ──► it fails on that: every slot failed

Not covered: why an engine fails. It says so in the response's `error`, and here in the log of the process.
"""

from __future__ import annotations

import logging
import math
import time

from schemas.events import Response
from streams.engines import Completion, Engine, SamplingRequest
from streams.errors import StreamwardError
from streams.observability import catalog
from streams.observability.metrics import Meter
from streams.settings.model import Policy
from streams.stages.policy.deadline import at_most
from streams.stages.policy.rounds import all_failed, malformed

log = logging.getLogger("streamward.policy")


class Sampler:
    """An engine that is checked."""

    def __init__(self, engine: Engine, policy: Policy, meter: Meter) -> None:
        """`meter` is told how long each round took, and whether the engine answers: its condition `engine`."""
        self._engine, self._policy, self._meter = engine, policy, meter

    def sample(self, requests: list[SamplingRequest], version: int) -> list[list[Completion]]:
        """Return the engine's answers; if it fails on the round, of each task alone; if it fails on that, as failed.

        Raises StreamwardError if the engine served another version.
        """
        try:
            return self._asked(requests, version)
        except StreamwardError:
            raise
        except Exception as exc:  # an engine is a large thing, and raises whatever is inside it
            log.warning("a round of %d tasks failed, each is tried alone: %r", len(requests), exc)
        answers = []
        for request in requests:
            try:
                answers += self._asked([request], version)
            except StreamwardError:
                raise
            except Exception as exc:
                log.error("task %s: every slot failed: %r", request.task.task_id, exc)
                self._meter.not_ready("engine", f"it failed on the last task it was asked: {exc!r}")
                answers.append(all_failed(request, f"{type(exc).__name__}: {exc}"))
        return answers

    def _asked(self, requests: list[SamplingRequest], version: int) -> list[list[Completion]]:
        what, most_s = f"a round of {len(requests)} tasks", self._policy.round_timeout_s
        self._meter.begin(what, within_s=most_s or math.inf)
        with at_most(most_s, what):
            started = time.monotonic()
            answers = self._engine.sample(requests)
            self._meter.observe(catalog.SAMPLING, time.monotonic() - started, self._policy.name)
        if self._engine.served_version != version:
            raise StreamwardError(
                f"the engine {self._engine.name} was told to serve version {version} and says that it served "
                f"{self._engine.served_version}. Nothing it answered was written; who else uses this engine?"
            )
        if len(answers) != len(requests):
            raise ValueError(f"the engine answered {len(answers)} of {len(requests)} requests")
        for request, completions in zip(requests, answers, strict=True):
            if (wrong := malformed(request, completions)) is not None:
                raise ValueError(wrong)
        self._meter.ready("engine")
        return answers


def count(meter: Meter, slot: Response) -> None:
    """Count one response that was written."""
    meter.add(catalog.RESPONSES, slot.policy, slot.finish_reason)
    meter.add(catalog.TOKENS, slot.policy, by=slot.completion_tokens)
    meter.add(catalog.PROMPT_TOKENS, slot.policy, by=slot.prompt_tokens)
