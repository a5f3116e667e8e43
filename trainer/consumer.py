"""The trainer: batches in order, one adapter version each.

    batches[policy] ──► groups by offset ──► one step ──► checkpoint ──► adapter store ──► adapters: trained ──► commit
         ▲                                      │ rename      │ rename       │ acknowledged
         └── next offset, from the checkpoint ◄─┘             └── both are found after a crash, not done twice

Batch s turns version s into version s + 1. The checkpoint says which batch comes next; the consumer group's commit is
only for people who look at lag. Killed anywhere, the trainer resumes from its newest complete checkpoint and ends with
the same bytes: a version that was checkpointed but not announced is announced at the start, and a version that is
already in the log must have the same bytes. Without any checkpoint it trains again from batch 0.

A group that contradicts itself goes to `dead-letters`, and the step is taken without it: no bad group stops a policy.

A second trainer of one policy on one machine is refused. On two machines, each with its own folder, both announce every
version, with the same bytes, and readers take the first.

Not covered: starting from a version whose batches or groups retention has deleted. It is refused: keep the checkpoints,
or the log.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from schemas.events import AdapterEvent, AdvantagedGroup, Batch, Coordinates, derive_id
from schemas.serde import Poison
from streams.adapters import signing, store
from streams.adapters.versions import Version, read_state
from streams.errors import OtherBaseError, RefusedError, SettingsError
from streams.kafka import admin, times
from streams.kafka.history import LogHistory
from streams.kafka.lag import LagMeter
from streams.kafka.producer import Producer
from streams.kafka.reader import PartitionReader, fetch, read
from streams.kafka.record import Record, dead_letter
from streams.kafka.registry import client as schema_registry
from streams.kafka.retry import BrokerOutage, StoppedWaiting
from streams.kafka.topics import topics
from streams.observability import metrics
from streams.observability.metrics import OFF, Meter
from streams.observability.tracing import context, tracer as tracing
from streams.observability.tracing.context import Context
from streams.observability.tracing.tracer import OFF as NO_TRACER, Tracer
from streams.settings.model import Settings
from trainer import metrics as step_metrics
from trainer.group_membership import Presence, source_of
from trainer.ranks import exchange
from trainer.ranks.exchange import Ranks
from trainer.ranks.launch import Place
from trainer.step.model import pin
from trainer.step.recipe import in_recipe
from trainer.versions import checkpoint, import_adapter as imports
from trainer.versions.checkpoint import ADAPTER_FOLDER, State
from trainer.versions.learner import BatchGroups, Learner, base_of, cut, due, out_of_turn, where

STAGE = "trainer"
START_S = 3600.0
"""How long loading may take before it counts as stuck: a model may have to be downloaded."""
log = logging.getLogger(__name__)


def run(settings: Settings, *, steps: int | None = None, stop: threading.Event, place: Place | None = None) -> None:
    """Train batch after batch until `stop` is set or `steps` batches are trained; a step that began is finished.

    With `place` this is rank 0 of several that share the work; without it all shares are computed here.

    While the broker is unreachable it waits (streams/kafka/retry.py); a version that has a checkpoint by then is
    announced later, by the next process if necessary.

    Raises RefusedError if another process trains this policy, if a batch is missing, or if a version has other bytes
    than in the log; SettingsError if the checkpoint is of another model, or the signing key cannot be used; LogError
    if the log fails; LostProcessError if another rank is lost; StreamwardError if a disk is full.
    """
    with (
        running(settings, stop, place) as io,
        checkpoint.hold(settings.trainer.checkpoints, settings.policy.name) as folder,
        Presence(settings, io.outage) as presence,
    ):
        learner = learner_of(settings, io, stop)
        trainer = PolicyTrainer(settings, folder, learner, replace(io, presence=presence))
        trainer.resume()
        for done, (at, batch, trace) in enumerate(trainer.batches(stop), start=1):
            trainer.train(at, batch, trace)
            if done == steps or stop.is_set():
                return


@contextmanager
def running(settings: Settings, stop: threading.Event, place: Place | None) -> Iterator[TrainerIO]:
    """Yield what the trainers of this process talk to. Ends quietly if it is stopped during an outage.

    Raises SettingsError for a signing key that cannot be used, StreamwardError if a disk is full in the block.
    """
    where = f"{settings.trainer.checkpoints} or {settings.adapters.store}"
    advice = "Fix that and start the trainer again: it resumes from its newest complete checkpoint, and loses nothing"
    with checkpoint.explaining_disks(where, advice):
        signing.check_signing_key(settings.adapters)
        pin(settings)
        with metrics.served(settings, "train") as meter, tracing.opened(settings, "train", meter) as tracer:
            outage = BrokerOutage(settings.kafka, stop, meter)
            try:
                with (
                    Producer(settings, outage=outage, stage=STAGE) as producer,
                    exchange.others(place, settings.metrics.stuck_s) as others,
                ):
                    yield TrainerIO(producer, outage, meter, tracer, others)
            except StoppedWaiting as exc:
                log.warning("%s", exc)


def learner_of(settings: Settings, io: TrainerIO, stop: threading.Event) -> Learner:
    """Return a learner at version 0, with the base model. Raises as `Learner`."""
    schema_registry.wait(settings, io.meter, stop)
    io.meter.begin("loading the base model", within_s=START_S)
    return Learner(settings, base_of(settings), io.others)


@dataclass(frozen=True, slots=True)
class TrainerIO:
    """What a trainer talks to."""

    producer: Producer
    outage: BrokerOutage
    meter: Meter = OFF
    tracer: Tracer = NO_TRACER
    others: Ranks | None = None
    """The other ranks, if any."""
    presence: Presence | None = None
    """Of a process that trains one policy; None in a fleet."""


class PolicyTrainer:
    """The trainer of one policy: batches in, versions out. `folder` has its checkpoints.

    Several may share a `learner`: before one is used, it gets that one's state (trainer/policy_states.py).
    """

    def __init__(
        self,
        settings: Settings,
        folder: Path,
        learner: Learner,
        io: TrainerIO,
        versions: Mapping[int, Version] | None = None,
    ) -> None:
        """`versions` are those in the log since `folder` is held; without them they are read."""
        self._settings, self._folder, self._learner = settings, folder, learner
        self._producer, self._outage, self._meter, self._tracer = io.producer, io.outage, io.meter, io.tracer
        self._presence = io.presence
        if versions is None:
            versions = read_state(settings, settings.policy.name, io.outage).versions
        self._tuned = next((one.version for one in versions.values() if one.tuned_by is not None), None)
        self._known = {version: one.files for version, one in versions.items()}
        self._brought = imports.newest(versions)
        self.source = source_of(settings)
        self._reader: PartitionReader | None = None
        self._handled = 0
        self._lag = LagMeter(io.meter, STAGE, settings.topics, self._position)
        self._waited_since = time.perf_counter()

    @property
    def version(self) -> int:
        """The version that the learner is at."""
        return self._learner.version

    def resume(self) -> None:
        """Resume from the newest complete checkpoint, and announce its version if that was not done; or from a version
        that was trained elsewhere, if the checkpoint is not one behind it.

        Raises SettingsError if it is of another model, RefusedError if it is of another log, has other bytes than the
        log says, or the policy is tuned.
        """
        found = checkpoint.latest(self._folder)
        newest, name = max(self._known), self._settings.policy.name
        if self._tuned is not None:
            raise RefusedError(
                f"version {self._tuned} of {name} was made by `streamward tune`, and no batch follows it; train "
                f"under another policy.name. To train what was tuned, make it a base: `streamward adapters export "
                f"{newest} FOLDER --merge --policy {name}`, then model.base=FOLDER"
            )
        if self._brought is not None and (found is None or found[1].version <= self._brought.version):
            imports.begin(self._settings, name, self._learner, self._brought)
            step_metrics.version(self._meter, name, self._brought.version)
            return
        if found is None:
            step_metrics.version(self._meter, name, 0)
            log.info("policy %s: no checkpoint, so it starts with batch 0", name)
            return
        path, state = found
        if state.base_digest != self._learner.base_digest:
            raise SettingsError(
                f"{path}: trained on base {state.base_digest[:12]}, but model.base={self._settings.model.base} has "
                f"{self._learner.base_digest[:12]}; restore model.base and model.dtype, or train under another "
                "policy.name"
            )
        if state.version > newest + 1:
            raise RefusedError(
                f"{path}: this checkpoint is version {state.version}, but the newest in the log is {newest}: it "
                "belongs to another log, or only a newer program can read the versions that follow. Set "
                f"trainer.checkpoints to a folder of this log's own, or remove {self._folder}; or install that program"
            )
        self._refuse_other_bytes(path, state)
        self._learner.restore(path, state)
        for one in in_recipe(state.version + 1, state.recipe, self._learner.recipe):
            log.warning("%s is %s from version %d on; it was %s", one.name, one.reproduced, one.version, one.recorded)
        step_metrics.version(self._meter, state.policy, state.version)
        log.info("policy %s: version %d, next batch at offset %d", state.policy, state.version, state.next_offset)
        if state.version not in self._known:
            self._announce(path, state, self._trace_of(state))

    def batches(self, stop: threading.Event) -> Iterator[tuple[Coordinates, Batch, Context | None]]:
        """Yield the batches of this policy from the next one on, as they arrive, with their coordinates and trace.

        Raises RefusedError if one is missing.
        """
        first, _ = admin.offsets(self._settings, ["batches"])[self.source]
        begin = self._learner.next_offset
        if 0 < begin < first:
            log.warning(
                "%s[%d]: the next batch is expected from %d on, but the first record is %d: retention has deleted %d, "
                "which is harmless if they were of other policies", *self.source, begin, first, first - begin,
            )  # fmt: skip
        self._handled = max(first, begin)
        with PartitionReader(self._settings, {self.source: self._handled}, outage=self._outage) as self._reader:
            self._meter.ready("kafka")
            while not stop.is_set():
                self._meter.begin("waits for a batch")
                self._lag.look()
                for record in self._reader.poll(count=1):
                    self._lag.took(self.source, record.at.offset, record.timestamp_ms)
                    batch = batch_in(record, self._producer)
                    if batch is not None and due(batch, self._settings.policy.name, self.version):
                        self.refuse_gap(record.at, batch, first)
                        yield record.at, batch, context.of_headers(record.headers)
                    self._handled = record.at.offset + 1
                    self._lag.done(self.source, self._handled)

    def recorded(self, end: int) -> Iterator[Record]:
        """Yield the records of `batches` from our next batch on, below `end`, as far as retention has left them."""
        first, _ = self.bounds("batches")
        start = max(first, self._learner.next_offset)
        yield from read(self._settings, {self.source: start}, {self.source: max(start, end)}, outage=self._outage)

    def bounds(self, label: str) -> tuple[int, int]:
        """Return where the partition of this policy in `batches` or `groups` begins and ends."""
        found = self._outage.ask(lambda: admin.offsets(self._settings, [label]), f"to where {label} begin")
        return found[topics(self._settings.topics)[label].name, self.source[1]]

    def refuse_gap(self, at: Coordinates, batch: Batch, first: int) -> None:
        """Raise RefusedError if `batch`, which is due, is not the next; `first` is where its partition begins."""
        if problem := out_of_turn(at, batch, self.version, first):
            raise RefusedError(
                f"{problem}. Restore the checkpoints that reach further, or the records; and keep "
                "them longer (topics.retention_days) than a trainer may be down"
            )

    def train(self, at: Coordinates, batch: Batch, trace: Context | None = None) -> None:
        """Turn version `batch.sequence` into the next: step, checkpoint, publish, announce, commit.

        `trace` is that of the batch's record.
        """
        began_ms = time.time() * 1000
        self._meter.begin(f"trains version {batch.sequence + 1}")
        marks = [self._waited_since, started := time.perf_counter()]
        groups = self._groups_of(batch)
        marks.append(time.perf_counter())
        state, metrics = self._learner.step(at, batch, groups, {"fetch_s": marks[2] - started}, self._meter.heartbeat)
        state = imports.noted(state, self._brought)
        marks.append(time.perf_counter())
        path = self._learner.save(self._folder, state, self._settings.trainer.keep_checkpoints)
        marks.append(time.perf_counter())
        self._announce(path, state, trace, began_ms)
        marks.append(time.perf_counter())
        step_metrics.step(self._meter, state, metrics, groups.good, marks)
        self._waited_since = time.perf_counter()
        log.info(
            "%s: version %d: reward %.3f, loss %.4f, %d groups, %d tokens, %.1f s",
            state.policy, state.version, metrics.get("reward", 0.0), metrics.get("loss", 0.0), len(groups.good),
            metrics["tokens"], time.perf_counter() - started,
            extra={"at": at},
        )  # fmt: skip

    def _position(self) -> dict[tuple[str, int], tuple[int, int]]:
        """Return the next offset and the end of the batches' partition, if known. Asks no broker."""
        end = None if self._reader is None else self._reader.end(self.source)
        return {} if end is None else {self.source: (min(self._handled, end), end)}

    def _groups_of(self, batch: Batch) -> BatchGroups:
        """Return the groups of `batch`; those refused are dead-lettered."""
        topic = topics(self._settings.topics)["groups"].name
        bounds = self._outage.ask(lambda: admin.offsets(self._settings, ["groups"]), "to where groups begin")
        if problem := cut(batch, topic, bounds[topic, batch.groups_partition][0]):
            raise RefusedError(
                f"{problem}. Restore the checkpoints that reach further, or the records; or train on under another "
                "policy.name. Then keep groups longer (topics.retention_days) than a trainer may be down"
            )
        wanted = where(batch, topic)
        records = fetch(self._settings, wanted, outage=self._outage)
        found = [records[coordinates] for coordinates in wanted]
        if self._presence is None and self.version == 0:
            self._refuse_other_base(batch, found)
        groups = self._learner.groups_of(batch, found, LogHistory(self._settings, self._outage))
        for record, reason, error in groups.refused:
            log.warning("left out of the step: %s", error, extra=record.log_extra)
            self._producer.send(dead_letter(record, stage=STAGE, reason=reason, error=error))
        if groups.refused:
            self._producer.flush()  # before the checkpoint, after which this batch is not read again
        return groups

    def _refuse_other_base(self, batch: Batch, records: Sequence[Record]) -> None:
        """Raise OtherBaseError if every group of the first batch was sampled on another base model."""
        decoded = (record.decode(AdvantagedGroup) for record in records)
        bases = {group.base_digest for group in decoded if not isinstance(group, Poison)}
        if bases and self._learner.base_digest not in bases:
            raise other_base(batch.policy, min(bases), self._learner.base_digest)

    def _trace_of(self, state: State) -> Context | None:
        """Return the trace of the batch that made a checkpoint, if its record is still there."""
        at = Coordinates(*self.source, state.next_offset - 1)
        first, end = self.bounds("batches")
        if not first <= at.offset < end:
            return None
        return context.of_headers(fetch(self._settings, [at], outage=self._outage)[at].headers)

    def _announce(self, path: Path, state: State, trace: Context | None, began_ms: float | None = None) -> None:
        """Publish the adapter in checkpoint `path`, write its event, and commit. Each is a no-op the second time."""
        self._refuse_other_bytes(path, state)
        uri, files = store.publish(
            path / ADAPTER_FOLDER,
            self._settings.adapters.store,
            state.policy,
            state.version,
            self._settings.adapters.signing_key,
        )
        if state.version not in self._known:
            event = AdapterEvent(
                event_id=derive_id(state.policy, state.version, "trained"),
                policy=state.policy,
                created_at=times.now_ms(),
                version=state.version,
                kind="trained",
                actor=STAGE,
                reason=f"batch {state.next_sequence - 1}",
                parent_version=state.version - 1,
                uri=uri,
                base_digest=state.base_digest,
                first_batch=0,
                last_batch=state.next_sequence - 1,
                recipe=state.recipe,
                metrics=state.metrics,
                files=files,
            )
            own = self._tracer.follows(trace, event.event_id)
            on_ack = self._tracer.on_ack(event, own, began_ms=began_ms)
            self._producer.send(event, on_ack=on_ack, headers=tracing.headers_of(own))
        self._producer.flush()
        self._known[state.version] = files
        if self._presence is not None:
            self._presence.commit(self._learner.next_offset)

    def _refuse_other_bytes(self, path: Path, state: State) -> None:
        """Raise RefusedError if the log has the version of this checkpoint with other bytes."""
        known = self._known.get(state.version)
        if known is not None and known != store.manifest_of(path / ADAPTER_FOLDER):
            raise RefusedError(
                f"{path}: version {state.version} trained again has other bytes than in the log. The "
                "recipe differs (`streamward adapters show` has the old one), or the checkpoint is of another log: "
                "restore libraries, threads, device and settings, or train under another policy.name"
            )


def other_base(policy: str, got: str, expected: str) -> OtherBaseError:
    """Return why a fleet leaves this policy alone; the arguments are digests of base models."""
    return OtherBaseError(
        f"policy {policy} is of base model {got[:12]}, and this fleet has {expected[:12]}: it is left alone. Run a "
        "fleet of that model under another fleet.name, and tell them apart by fleet.policies"
    )


def batch_in(record: Record, producer: Producer | None) -> Batch | None:
    """Return the batch in a record, None if it is none; then `producer`, if any, writes its dead letter."""
    batch = record.decode(Batch)
    if not isinstance(batch, Poison):
        return batch
    if producer is not None:
        log.error("skipped, not a batch: %s", batch.error, extra=record.log_extra)
        producer.send(dead_letter(record, stage=STAGE, reason=batch.reason, error=batch.error))
        producer.flush()
    return None
