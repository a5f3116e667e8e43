"""Serve training calls: one base model, and one call a turn, or several samples from the same weights.

    training-calls ──► CallQueue ──► next_turn ──► ResidentModels.enter ──► apply ──► training-results ──► commit
                                             ├──► SavedWeights: a version, or a sampling session's files
                                             └──► CallSampler: all samples that wait for the same weights

Processes of one fleet.name are a consumer group over training-calls: each model belongs to the process that owns its
partition, and moves with it; they share trainer.checkpoints, or a model that moves is computed from its first call,
which takes time and changes no byte. A process that starts, or gains a partition, reads the partition's results and
then its calls from the first record, and does what has no result. So a call that was done when its worker was killed
is done again, with the same bytes, and its result is written once; a result that comes second, from a worker that did
not know that it had been replaced, is equal to the first, which counts.

A call that cannot be done has a result that says why, and whose fault it is; its model is as it was before it.

Not covered: samples from servers (vLLM), and one process for several devices.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

from plugins.tinker.calls.call_names import policy_of
from plugins.tinker.calls.call_rules import line_refusal
from plugins.tinker.calls.call_state import CallState, place_of
from plugins.tinker.worker import call_metrics
from plugins.tinker.worker.apply_call import CallOutcome, apply
from plugins.tinker.worker.call_costs import cost_of
from plugins.tinker.worker.call_queue import CallQueue, WaitingCall
from plugins.tinker.worker.call_sampler import CallSampler
from plugins.tinker.worker.call_tensors import output_bytes
from plugins.tinker.worker.called_model import CalledModel
from plugins.tinker.worker.resident_models import ResidentModels
from plugins.tinker.worker.saved_weights import SavedWeights
from plugins.tinker.worker.worker_settings import Tinker
from schemas.events import CallFault, TrainingCall, TrainingResult
from schemas.serde import Poison
from schemas.tokens import Octets
from streams.adapters import stored_tensors
from streams.engines import quantized_base
from streams.engines.base_model import Base, load_base
from streams.engines.fair_share import Turns, next_turn, take_turn
from streams.engines.local.prompt_scores import PromptDraw
from streams.errors import CallError, EventError, RefusedError
from streams.files import Scratch
from streams.kafka import times
from streams.kafka.client import POLL_S
from streams.kafka.consumer import OnAssignment
from streams.kafka.group_names import begin
from streams.kafka.history import LogHistory
from streams.kafka.record import Record, TopicPartition
from streams.kafka.registry import client as schema_registry
from streams.kafka.topics import topics
from streams.observability.trace_context import of_headers
from streams.settings.model import Fleet, Settings
from trainer.batch_source import FleetConsumer
from trainer.fleet import START_S, connect
from trainer.policy_trainer import TrainerIO
from trainer.step.model import recipe

LABEL, RESULTS = "training-calls", "training-results"
SAVES = ("save_weights", "save_weights_for_sampler")
FETCHED = 64
"""Calls that are read again at once."""
BATCH_TOKENS = 4096
"""Tokens, of prompts and of answers at most, of samples that are served together: so long do other models wait."""
RECORD_ROOM = 64 * 1024
"""Bytes of a result without its outputs, at most."""

log = logging.getLogger(__name__)


def run(settings: Settings, *, stop: threading.Event, calls: int | None = None) -> None:
    """Serve calls until `stop` is set, or so many are done.

    A call that began is finished. While the broker is unreachable it waits (streams/kafka/retry.py). Raises
    SettingsError if the base model cannot be used, LogError if the log fails, StreamwardError if a disk is full.
    """
    quantized_base.refuse(settings.model, "a worker of calls")
    with connect(settings, stop, None, is_fleet=True, process="calls") as io:
        schema_registry.wait(settings, io.meter, stop)
        io.meter.begin("loading the base model", within_s=START_S)
        with CallWorker(settings, load_base(settings.model), io) as worker:
            done = 0
            while done != calls and not stop.is_set():
                done += worker.turn(None if calls is None else calls - done)


def calls_group(fleet: Fleet) -> str:
    """Return the consumer group of the workers of a fleet."""
    return f"{begin('trainer')}@{fleet.name}@calls"


def call_recipe(settings: Settings, base: Base) -> dict[str, str]:
    """Return everything but the calls that decides the bytes of weights. Call `pin` first."""
    own = {name: value for name, value in recipe(settings).items() if not name.startswith("trainer.")}
    digests = {"base_digest": base.base_digest, "tokenizer_digest": base.tokenizer_digest}
    return own | digests | {"trainer.threads": str(settings.trainer.threads)}


@dataclass(frozen=True, slots=True)
class SavedAs:
    """Where a call has saved weights."""

    version: int | None = None
    uri: str | None = None
    path: str | None = None


@dataclass(frozen=True, slots=True)
class CallFailure:
    """Why a call failed, and whose fault that is."""

    error: str | None = None
    fault: CallFault | None = None


NOT_SAVED, NO_FAILURE = SavedAs(), CallFailure()


class CallWorker:
    """The models of this process's partitions. Use as a context manager."""

    def __init__(self, settings: Settings, base: Base, io: TrainerIO) -> None:
        """Take over `base`, whose model is trained; samples come from a second one with the same weights."""
        self._settings, self._io, self._base = settings, io, base
        self._state = CallState()
        self._queue = CallQueue(self._state)
        self._turns = Turns()
        self._history = LogHistory(settings, io.outage)
        self._positions: dict[TopicPartition, int] = {}
        self._gained: list[TopicPartition] = []
        self._stack = ExitStack()
        self._scratch = self._stack.enter_context(Scratch("calls"))
        model = CalledModel(settings, base)
        self._models = ResidentModels(
            model, settings.trainer.checkpoints, base.base_digest, settings.of_plugin(Tinker).states, self
        )
        self._models.on_checkpoint = io.producer.flush
        self._recipe = call_recipe(settings, base)
        self._saved = SavedWeights(settings, model, base.base_digest, self._recipe, self._scratch)
        self._sampler = CallSampler(settings, self._state, self._models, self._saved, self)
        self._stack.callback(self._sampler.close)

    def __enter__(self) -> Self:
        on_assignment = OnAssignment(self._gain, self._lose, self._lose)
        self._consumer = FleetConsumer(
            self._settings, calls_group(self._settings.fleet), [LABEL], self._io.outage, on_assignment
        )
        self._stack.callback(self._consumer.close)
        self._io.meter.collect(self._report)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        with self._stack:
            if kind is None:
                self._models.close()

    def turn(self, limit: int | None = None) -> int:
        """Take in new calls, and serve the model whose turn it is; return how many calls were served, up to `limit`.

        Samples that are served together count as so many turns.
        """
        self._io.meter.begin("waits for a call")
        ready = self._queue.turns()
        self._poll(0.0 if ready else POLL_S)
        key = next_turn(self._turns, self._queue.turns())
        waiting = None if key is None else self._queue.next(key)
        served = 0
        if key is not None and waiting is not None:
            if waiting.call.kind == "sample":
                served = self._serve_samples(self._queue.samples(key, waiting)[:limit])
            else:
                self._serve_call(waiting)
                served = 1
            self._turns = take_turn(self._turns, key, self._weight_of, served)
        first = self._queue.first_waiting()
        self._consumer.commit({tp: first.get(tp[1], position) for tp, position in self._positions.items()})
        return served

    def _weight_of(self, key: str) -> float:
        return self._settings.fleet.weight_of(policy_of(key))

    # --- the log ------------------------------------------------------------------------------------------------------

    def _poll(self, timeout_s: float) -> None:
        records = self._consumer.poll(timeout_s=timeout_s)
        gained, self._gained = self._gained, []
        if gained:
            self._read_results({partition for _, partition in gained})
        for record in records:
            tp = (record.at.topic, record.at.partition)
            if tp in self._positions:
                self._take(record)
                self._positions[tp] = record.at.offset + 1
        for tp, end in self._consumer.take_reached_ends().items():
            if tp in self._positions:
                self._positions[tp] = max(self._positions[tp], end)

    def _take(self, record: Record) -> None:
        call = record.decode_placed(TrainingCall, self._settings.topics.policy_partitions)
        if isinstance(call, Poison):
            log.error("skipped, not a training call: %s", call.error, extra=record.log_extra)
            return
        refused = None if call.call_id in self._state.calls else line_refusal(self._state, call, call.created_at)
        self._state.take(call)
        self._queue.take(WaitingCall(record.at, call, of_headers(record.headers), refused))

    def _read_results(self, partitions: set[int]) -> None:
        """Take the results that these partitions have by now."""
        bounds = self._history.bounds([RESULTS])
        ours = {tp: ends for tp, ends in bounds.items() if tp[1] in partitions}
        starts, ends = {tp: low for tp, (low, _) in ours.items()}, {tp: high for tp, (_, high) in ours.items()}
        for record in self._history.read(starts, ends):
            result = record.decode_placed(TrainingResult, self._settings.topics.policy_partitions)
            if not isinstance(result, Poison):
                self._state.take(result)

    def calls_of(self, model: str, begin: int, end: int) -> Iterator[TrainingCall]:
        """Yield the calls of a model again, with their data."""
        places = self._queue.places(model, begin, end)
        for start in range(0, len(places), FETCHED):
            part = places[start : start + FETCHED]
            records = self._history.fetch(part)
            for at in part:
                call = records[at].decode(TrainingCall)
                assert not isinstance(call, Poison), "it was read before"  # noqa: S101
                yield call

    def _gain(self, tps: list[TopicPartition]) -> None:
        self._positions |= dict.fromkeys(tps, 0)
        self._gained += tps

    def _lose(self, tps: list[TopicPartition]) -> None:
        for tp in tps:
            self._positions.pop(tp, None)
        for model in self._queue.drop({partition for _, partition in tps}):
            self._models.forget(model)

    def result_of(self, call_id: str) -> TrainingResult | None:
        """Return the result that a call has in the log."""
        return self._state.results.get(call_id)

    # --- files of calls -----------------------------------------------------------------------------------------------

    def data(self, call: TrainingCall) -> bytes:
        """Return the data of a call. Raises CallError."""
        if call.data_uri is None:
            return bytes(call.data.data)
        try:
            return stored_tensors.get(self._settings.adapters.store, call.data_uri, call.data_sha256 or "")
        except EventError as exc:
            raise CallError("invalid", f"the data of the call cannot be read: {exc}", "data") from exc

    def weights(self, call: TrainingCall) -> Path:
        """Return the folder of the weights that a call loads. Raises CallError."""
        if call.source is None:
            raise CallError("invalid", f"there are no saved weights {call.path}", "path")
        return self._saved.fetch(call.source, call.path or "")

    # --- one call -----------------------------------------------------------------------------------------------------

    def _serve_call(self, waiting: WaitingCall) -> None:
        call = waiting.call
        self._io.meter.begin(f"{call.kind} of {call.model}")
        began = time.perf_counter()
        outcome, saved, failure = CallOutcome(), NOT_SAVED, NO_FAILURE
        state_sha256: str | None = None
        try:
            self._enter(waiting)
            began = time.perf_counter()  # to compute a model again is the operator's time, and no caller's
            outcome, saved = self._do(call)
            if outcome.changes_weights:
                state_sha256 = self._models.digest(call.model)
        except CallError as exc:
            failure = CallFailure(_words(exc), "user")
        except (EventError, RefusedError, RuntimeError) as exc:  # torch says so that it has no memory, and more
            log.exception("call %s failed", call.call_id)
            failure = CallFailure(f"{type(exc).__name__}: {exc}", "server")
        seconds = time.perf_counter() - began
        place = place_of(call)
        if failure.error is not None and place is not None:
            self._models.stays(call.model, place)
        self._finish(waiting, outcome, saved, state_sha256, failure, seconds)
        self._io.producer.flush()
        if failure.error is None and place is not None and call.kind not in SAVES:
            self._models.advance(call.model, place, seconds, self._settings.of_plugin(Tinker).checkpoint_s)

    def _enter(self, waiting: WaitingCall) -> None:
        """Have the model that a call is about as it was before it. Raises CallError, and as the parts."""
        call, place = waiting.call, place_of(waiting.call)
        if waiting.refused is not None:
            raise CallError("invalid", waiting.refused)
        if place:
            self._check_created(call.model)
            self._models.enter(call.model, place - 1)

    def _do(self, call: TrainingCall) -> tuple[CallOutcome, SavedAs]:
        """Serve a call; return its outcome and where it saved. Raises as `_enter`."""
        place = place_of(call)
        if call.kind == "unload_model":
            self._models.forget(call.model)
            return CallOutcome(response={"model_id": call.model}), SavedAs()
        assert place is not None  # noqa: S101 - all others have one
        if place == 0:
            self._models.create(call)
        if call.kind in SAVES:
            return self._save(call, place)
        return apply(self._models.model, call, self), SavedAs()

    def _check_created(self, model: str) -> None:
        created = self._state.results.get(model)
        if created is not None and created.error is not None:
            raise CallError("invalid", f"model {model} was not created: {created.error}", "model_id")

    def _save(self, call: TrainingCall, place: int) -> tuple[CallOutcome, SavedAs]:
        if call.path is None:
            self._saved.keep_for_sampler(self._models.folder(call.model), place)
            self._models.stays(call.model, place)
            return CallOutcome(response={"sampling_session_id": call.sampling_session}), SavedAs()
        event = self._saved.publish(call, place)
        self._models.stays(call.model, place)
        assert event.origin is not None  # noqa: S101 - it was made so
        path = event.origin.path
        return CallOutcome(response={"path": path}), SavedAs(event.version, event.uri, path)

    # --- samples ------------------------------------------------------------------------------------------------------

    def _serve_samples(self, samples: Sequence[WaitingCall]) -> int:
        """Serve samples from the same weights in one pass, as many as fit and at least one; return how many."""
        self._io.meter.begin(f"samples of {samples[0].call.model}")
        batch, served, tokens = list[tuple[WaitingCall, PromptDraw]](), 0, 0
        for waiting in samples:
            try:
                request, room = self._sampler.request_of(waiting)
            except CallError as exc:
                self._finish(waiting, CallOutcome(), failure=CallFailure(_words(exc), "user"))
            else:
                if batch and tokens + room > BATCH_TOKENS:
                    break
                tokens += room
                batch.append((waiting, request))
            served += 1
        self._draw_batch(batch)
        self._io.producer.flush()
        return served

    def _draw_batch(self, batch: Sequence[tuple[WaitingCall, PromptDraw]]) -> None:
        """Draw the answers to a batch; the time of each is that since the one before it was done."""
        left, began = {waiting.call.call_id: (waiting, request) for waiting, request in batch}, time.perf_counter()
        try:
            for waiting, outcome in self._sampler.draw_all(batch):
                del left[waiting.call.call_id]
                now = time.perf_counter()
                self._finish(waiting, outcome, seconds=now - began)
                self._io.meter.heartbeat()
                began = now
        except CallError as exc:  # about their weights
            for waiting, _ in left.values():
                self._finish(waiting, CallOutcome(), failure=CallFailure(_words(exc), "user"))
        except (EventError, RefusedError, RuntimeError) as exc:
            if len(batch) > 1:  # one of them may have been too much; what fails has failed alone
                for pair in left.values():
                    self._draw_batch([pair])
                return
            log.exception("call %s failed", batch[0][0].call.call_id)
            failure = CallFailure(f"{type(exc).__name__}: {exc}", "server")
            self._finish(batch[0][0], CallOutcome(), failure=failure, seconds=time.perf_counter() - began)

    # --- results ------------------------------------------------------------------------------------------------------

    def _finish(
        self,
        waiting: WaitingCall,
        outcome: CallOutcome,
        saved: SavedAs = NOT_SAVED,
        state_sha256: str | None = None,
        failure: CallFailure = NO_FAILURE,
        seconds: float = 0.0,
    ) -> None:
        """Write the result of a call, and take it as the log will have it; the caller flushes."""
        call = waiting.call
        trainer_s = seconds if outcome.is_training else 0.0
        result = TrainingResult(
            call_id=call.call_id,
            model=call.model,
            created_at=times.now_ms(),
            traceparent=call.traceparent,
            metadata=self._recipe if call.call_id == call.model else {},
            kind=call.kind,
            session_id=call.session_id,
            seq_id=call.seq_id,
            subject_id=call.subject_id,
            tenant=call.tenant,
            source_partition=waiting.at.partition,
            source_offset=waiting.at.offset,
            category=failure.fault,
            error=failure.error,
            version=saved.version,
            path=saved.path,
            uri=saved.uri,
            state_sha256=state_sha256,
            prompt_tokens=outcome.prompt_tokens,
            completion_tokens=outcome.completion_tokens,
            seconds=seconds,
            trainer_s=trainer_s,
            cost_usd=cost_of(call.prices, outcome.prompt_tokens, outcome.completion_tokens, trainer_s),
            response=json.dumps(outcome.response, sort_keys=True, separators=(",", ":")),
            metrics=dict(outcome.metrics),
        )
        self._io.producer.send(self._with_outputs(result, outcome))
        self._state.take(result)
        self._queue.end(call)
        self._io.meter.add(call_metrics.DONE, call.kind, failure.fault or "done")
        self._io.meter.observe(call_metrics.SECONDS, seconds, call.kind)

    def _with_outputs(self, result: TrainingResult, outcome: CallOutcome) -> TrainingResult:
        """Return the result with its outputs, or where they are if they are too large for a record."""
        content = output_bytes(outcome.outputs)
        if len(content) <= topics(self._settings.topics)[RESULTS].max_bytes - RECORD_ROOM:
            return replace(result, outputs=Octets(content))
        uri, sha256 = stored_tensors.put(self._settings.adapters.store, content)
        return replace(result, outputs_uri=uri, outputs_sha256=sha256)

    def _report(self) -> None:
        """Set the gauges. Called in the metrics server's thread, so it only reads."""
        self._io.meter.set(call_metrics.WAITING, self._queue.backlog())


def _words(exc: CallError) -> str:
    """Return what a caller reads of an error."""
    place = "" if exc.parameter is None else f"{exc.parameter}: "
    way_out = "" if exc.way_out is None else f"; {exc.way_out}"
    return f"{place}{exc.message}{way_out}"
