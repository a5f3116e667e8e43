"""Which tasks are answered together, and what of the answers is written.

    waiting tasks ──► choose: one version, urgent first ──► Round ──► engine ──► answers ──► responses, in slot order

The pure half of the policy agent: no Kafka, no clock, no weights.

Not covered: joining a round that is under way. Who comes later waits for the next.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from schemas.events import Coordinates, Response, Task, derive_id
from streams.engines.protocol import Completion, SamplingRequest, failed
from streams.observability.tracing.context import Context


@dataclass(frozen=True, slots=True)
class WaitingTask:
    """A task that was read and is not answered yet."""

    task: Task
    at: Coordinates
    deadline_ms: int | None
    """Answers recorded later do not count, ms since the epoch; None: they always do."""
    arrival: int = 0
    """Its place in the order in which this agent read tasks, over all partitions."""
    trace: Context | None = None

    @property
    def urgent(self) -> bool:
        """Whether it is answered as soon as possible, whatever the trainer does."""
        return self.task.purpose != "train"


@dataclass(frozen=True, slots=True)
class SamplingBatch:
    """Tasks that are answered together, by one version."""

    version: int
    tasks: tuple[WaitingTask, ...]


def choose(
    waiting: Iterable[WaitingTask],
    *,
    version_for: Callable[[Task], int | None],
    room: Callable[[int], int],
    most: int,
) -> SamplingBatch | None:
    """Return the next round of at most `most` tasks, or None if nothing may start.

    The first task that may start decides the version and the length: those of one round share both, since a round lasts
    as long as its longest answer. `eval` and `serve` go before `train`, each in the order in which they came, so every
    version and length has its turn. A task takes the version that `version_for` says, and waits while that is None. At
    most `room(version)` train tasks start.
    """
    first: tuple[int, int] | None = None
    chosen: list[WaitingTask] = []
    places: dict[int, int] = {}
    for candidate in sorted(waiting, key=lambda one: (not one.urgent, one.arrival)):
        length = candidate.task.sampling.max_tokens
        if first is not None and length != first[1]:
            continue
        version = version_for(candidate.task)
        if version is None or (first is not None and version != first[0]):
            continue
        if not candidate.urgent:
            left = places[version] if version in places else room(version)
            places[version] = left - 1
            if left < 1:
                continue
        first = (version, length)
        chosen.append(candidate)
        if len(chosen) == most:
            break
    return None if first is None else SamplingBatch(first[0], tuple(chosen))


# --- answers ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedVersion:
    """What every response of a round says about who answered."""

    adapter_version: int
    engine: str
    base_digest: str
    tokenizer_digest: str
    created_at: int
    latency_ms: float


def malformed(request: SamplingRequest, completions: Sequence[Completion]) -> str | None:
    """Return what is wrong with an engine's answer to `request` as a whole, or None."""
    got = [completion.slot for completion in completions]
    if got != list(range(request.task.group_size)):
        return f"the engine answered slots {got}, expected 0 to {request.task.group_size - 1} in order"
    return None


def all_failed(request: SamplingRequest, error: str) -> list[Completion]:
    """Return an answer to `request` in which every slot failed for good."""
    return [failed(slot, error) for slot in range(request.task.group_size)]


def response(request: SamplingRequest, completion: Completion, served: ServedVersion) -> Response:
    """Return the record of one slot."""
    task = request.task
    good = completion.error is None
    return Response(
        response_id=derive_id(request.sampling_id, completion.slot),
        sampling_id=request.sampling_id,
        task_id=task.task_id,
        created_at=served.created_at,
        traceparent=task.traceparent,
        metadata={"purpose": task.purpose},
        policy=task.policy,
        slot=completion.slot,
        group_size=task.group_size,
        adapter_version=served.adapter_version,
        base_digest=served.base_digest,
        tokenizer_digest=served.tokenizer_digest,
        engine=served.engine,
        finish_reason=completion.finish_reason if good else "error",
        error=completion.error,
        prompt_tokens=len(completion.prompt_token_ids),
        completion_tokens=len(completion.completion_token_ids) if good else 0,
        latency_ms=served.latency_ms,
        text=completion.text if good else "",
        sampling=task.sampling,
        prompt_token_ids=completion.prompt_token_ids if good else (),
        completion_token_ids=completion.completion_token_ids if good else (),
        logprobs=completion.logprobs if good else (),
        loss_mask=(True,) * len(completion.completion_token_ids) if good else (),
    )


def unusable(slot: Response, error: str) -> Response:
    """Return `slot` as one that failed for good: its tokens cannot be written."""
    return replace(
        slot,
        finish_reason="error",
        error=error,
        text="",
        completion_tokens=0,
        prompt_token_ids=(),
        completion_token_ids=(),
        logprobs=(),
        loss_mask=(),
    )
