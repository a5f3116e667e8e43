"""Call the engine and check its answers.

    SamplingBatch (a round) ──► Sampler ──► engine ──► completions, checked

An engine's answer is checked before it is used: it must come within policy.round_timeout_s, from the version that was
asked, with every slot of every task. If the engine fails on a round, each task is tried alone; a task it fails on alone
gets failed slots. An engine that hangs ends the process with exit code 75, so that its supervisor can start a fresh
one: nothing of the round was committed, and a thread stuck in native code cannot be stopped any other way.
"""

from __future__ import annotations

import contextlib
import logging
import math
import time
from collections.abc import Iterator, Mapping, Sequence

from streams.engines.protocol import Completion, Engine, SamplingRequest, failed_slots
from streams.engines.sharing import SharedEngine
from streams.errors import StreamwardError
from streams.observability import catalog
from streams.observability.metrics import Meter
from streams.processes.watchdog import Watchdog
from streams.settings.model import Policy

log = logging.getLogger("streamward.policy")


class Sampler:
    """An engine with checks of its answers."""

    def __init__(self, engine: Engine, policy: Policy, meter: Meter) -> None:
        """`meter` gets the duration of each round, and whether the engine answers (its condition `engine`)."""
        self._engine, self._policy, self._meter = engine, policy, meter

    def sample(self, requests: list[SamplingRequest], version: int) -> list[list[Completion]]:
        """Return the engine's answers; if it fails, those to each task alone; if that fails too, failed slots.

        Raises StreamwardError if the engine served another version.
        """
        try:
            return self._ask(requests, version)
        except StreamwardError:
            raise
        except Exception as exc:  # engines may raise anything
            log.warning("a round of %d tasks failed, each is tried alone: %r", len(requests), exc)
        answers = []
        for request in requests:
            try:
                answers += self._ask([request], version)
            except StreamwardError:
                raise
            except Exception as exc:  # an engine runs a model: out of memory, a driver, a bug
                log.error("task %s: every slot failed: %r", request.task.task_id, exc)
                self._meter.not_ready("engine", f"it failed on the last task it was asked: {exc!r}")
                answers.append(failed_slots(request, f"{type(exc).__name__}: {exc}"))
        return answers

    def _ask(self, requests: list[SamplingRequest], version: int) -> list[list[Completion]]:
        label, most_s = f"a round of {len(requests)} tasks", self._policy.round_timeout_s
        self._meter.begin(label, within_s=most_s or math.inf)
        with at_most(most_s, label):
            started = time.monotonic()
            answers = self._engine.sample(requests)
            self._meter.observe(catalog.SAMPLING, time.monotonic() - started, self._policy.name)
        if self._engine.served_version != version:
            raise StreamwardError(
                f"the engine {self._engine.name} should serve version {version}, but reports "
                f"{self._engine.served_version}. None of its answers were written; who else uses this engine?"
            )
        if len(answers) != len(requests):
            raise ValueError(f"the engine answered {len(answers)} of {len(requests)} requests")
        for request, completions in zip(requests, answers, strict=True):
            if (problem := shape_problem(request, completions)) is not None:
                raise ValueError(problem)
        self._meter.ready("engine")
        return answers


def sample_mixed(
    engine: SharedEngine, requests_of: Mapping[str, list[SamplingRequest]], policy: Policy, meter: Meter
) -> dict[str, list[list[Completion]]]:
    """Return the answers to requests of several policies in one round. Raises the engine's errors."""
    label = f"a round of {sum(map(len, requests_of.values()))} tasks of {len(requests_of)} policies"
    meter.begin(label, within_s=policy.round_timeout_s or math.inf)
    started = time.monotonic()
    with at_most(policy.round_timeout_s, label):
        answers = dict(zip(requests_of, engine.sample_mixed(requests_of), strict=True))
    for name, requests in requests_of.items():
        meter.observe(catalog.SAMPLING, time.monotonic() - started, name)
        for request, completions in zip(requests, answers[name], strict=True):
            if (problem := shape_problem(request, completions)) is not None:
                raise ValueError(problem)
    meter.ready("engine")
    return answers


def shape_problem(request: SamplingRequest, completions: Sequence[Completion]) -> str | None:
    """Return what is wrong with the shape of an engine's answer to `request`, or None."""
    slots = [completion.slot for completion in completions]
    if slots != list(range(request.task.group_size)):
        return f"the engine answered slots {slots}, expected 0 to {request.task.group_size - 1} in order"
    return None


@contextlib.contextmanager
def at_most(seconds: float, label: str) -> Iterator[None]:
    """End this process with EXIT_RESTART if the block takes longer; 0 seconds: never."""
    if not seconds:
        yield
        return
    with Watchdog(seconds, f"{label} has taken over {seconds:g} s"):
        yield
