"""The trainer: batches in order, one adapter version each.

    batches[policy] ──► groups by offset ──► one step ──► checkpoint ──► adapter store ──► adapters: trained ──► commit
         ▲                                      │ rename      │ rename       │ acknowledged
         └── next offset, from the checkpoint ◄─┘             └── both are found again and not done twice

Batch s turns version s into version s + 1. The checkpoint says which batch comes next; the consumer group's commit is a
hint for people who look at lag. Killed anywhere, the trainer goes on from its newest whole checkpoint and ends with the
same bytes: a version that was checkpointed and not yet announced is announced at the start, and a version that is in
the log already must come out the same. Without any checkpoint it trains again from batch 0.

A group that contradicts itself goes to `dead-letters`, and the step is taken without it: no bad group stops a policy.

Two trainers of one policy on one machine: the second is refused. On two machines, with a folder each, both announce
every version, with the same bytes, and whoever reads takes the first.

Not covered: starting from a version whose batches or groups are cut by retention. It is refused: keep the checkpoints,
or the log.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import confluent_kafka as ck
from safetensors import SafetensorError

from schemas.events import AdapterEvent, Batch, Coordinates, derive_id
from schemas.serde import Poison
from streams.adapters import signing, store
from streams.adapters.versions import read_state
from streams.engines.base_model import Base, load_base
from streams.errors import RefusedError, SettingsError, StreamwardError
from streams.kafka import admin, times
from streams.kafka.client import client_config
from streams.kafka.lag import LagMeter
from streams.kafka.producer import Producer
from streams.kafka.reader import PartitionReader, fetch
from streams.kafka.record import dead_letter, partition_of
from streams.kafka.registry import client as schema_registry
from streams.kafka.retry import BrokerOutage, StoppedWaiting
from streams.kafka.topics import topics
from streams.observability import metrics
from streams.observability.metrics import OFF, Meter
from streams.observability.tracing import context, tracer as tracing
from streams.observability.tracing.context import Context
from streams.observability.tracing.tracer import OFF as NO_TRACER, Tracer
from streams.settings.model import Settings
from trainer import checkpoint, metrics as report, ranks
from trainer.checkpoint import ADAPTER_FOLDER, State
from trainer.launch import Place
from trainer.learner import BatchGroups, Learner, cut, due, out_of_turn, where
from trainer.model import pin
from trainer.recipe import in_recipe
from trainer.shares import Others

STAGE = "trainer"
START_S = 3600.0
"""How long loading may take without being taken for stuck: there may be a model to fetch."""
log = logging.getLogger(__name__)


def run(settings: Settings, *, steps: int | None = None, stop: threading.Event, place: Place | None = None) -> None:
    """Train batch after batch until `stop` is set, or `steps` batches were trained; a step that began is finished.

    `place` says that this is rank 0 of several, which share the work; otherwise it computes all shares by itself.

    While the broker is away it waits (streams/kafka/retry.py); a version that is checkpointed by then is announced
    later, by the next process if need be.

    Raises RefusedError if another process trains this policy, if a batch is missing, or if a version comes out other
    than the log says; SettingsError if the checkpoint is of another model, or the signing key cannot be used; LogError
    if the log fails; LostProcessError if another rank is gone; StreamwardError if a disk takes nothing more.
    """
    try:
        _run(settings, steps, stop, place)
    except (OSError, SafetensorError) as exc:
        if (what := checkpoint.disk_trouble(exc)) is None:
            raise
        raise StreamwardError(
            f"{settings.trainer.checkpoints} or {settings.adapters.store}: {what}. Mend that and start the trainer "
            "again: it goes on from its newest whole checkpoint, and what it was writing is not missed"
        ) from exc


def _run(settings: Settings, steps: int | None, stop: threading.Event, place: Place | None) -> None:
    signing.check_signing_key(settings.adapters)
    pin(settings)
    with metrics.served(settings, "train") as meter, tracing.opened(settings, "train", meter) as tracer:
        _follow(settings, steps, stop, meter, tracer, place)


def _follow(
    settings: Settings, steps: int | None, stop: threading.Event, meter: Meter, tracer: Tracer, place: Place | None
) -> None:
    patience = BrokerOutage(settings.kafka, stop, meter)
    try:
        with (
            checkpoint.hold(settings.trainer.checkpoints, settings.policy.name) as folder,
            Producer(settings, outage=patience, stage=STAGE) as producer,
            ranks.others(place, settings.metrics.stuck_s) as others,
        ):
            schema_registry.wait(settings, meter, stop)
            meter.begin("loading the base model", within_s=START_S)
            line = PolicyTrainer(settings, folder, load_base(settings.model), producer, patience, meter, tracer, others)
            line.resume()
            for done, (at, batch, came) in enumerate(line.batches(stop), start=1):
                line.train(at, batch, came)
                if done == steps or stop.is_set():
                    return
    except StoppedWaiting as exc:
        log.warning("%s", exc)


class PolicyTrainer:
    """The line of adapters of one policy, and the trainer that makes it longer."""

    def __init__(
        self,
        settings: Settings,
        folder: Path,
        base: Base,
        producer: Producer,
        patience: BrokerOutage,
        meter: Meter = OFF,
        tracer: Tracer = NO_TRACER,
        others: Others | None = None,
    ) -> None:
        self._settings, self._folder, self._base = settings, folder, base
        self._producer, self._patience, self._meter, self._tracer = producer, patience, meter, tracer
        self._learner = Learner(settings, base, others)
        self._known = dict(read_state(settings, settings.policy.name).versions)
        partition = partition_of(settings.policy.name, settings.topics.policy_partitions)
        self._source = (topics(settings.topics)["batches"].name, partition)
        self._tail: PartitionReader | None = None
        self._handled = 0
        self._intake = LagMeter(meter, STAGE, settings.topics, self._stands)
        self._waited_since = time.perf_counter()

    def resume(self) -> None:
        """Go on from the newest whole checkpoint, and announce its version if that was not done.

        Raises SettingsError if it is of another model, RefusedError if it is of another log.
        """
        found = checkpoint.latest(self._folder)
        newest = max(self._known)
        if found is None:
            report.version(self._meter, self._settings.policy.name, 0)
            log.info("policy %s: no checkpoint, so from batch 0", self._settings.policy.name)
            return
        path, state = found
        if state.base_digest != self._base.base_digest:
            raise SettingsError(
                f"{path}: trained on base {state.base_digest[:12]}, but model.base={self._settings.model.base} has "
                f"{self._base.base_digest[:12]}; restore model.base and model.dtype, or train under another policy.name"
            )
        if state.version > newest + 1:
            raise RefusedError(
                f"{path}: this checkpoint is version {state.version}, but the newest in the log is {newest}; it "
                "belongs to another log. Set trainer.checkpoints to a folder of this log's own, or remove "
                f"{self._folder}"
            )
        self._learner.restore(path, state)
        for one in in_recipe(state.version + 1, state.recipe, self._learner.recipe):
            log.warning("%s is %s from version %d on; it was %s", one.name, one.reproduced, one.version, one.recorded)
        report.version(self._meter, state.policy, state.version)
        log.info("policy %s: version %d, next batch at offset %d", state.policy, state.version, state.next_offset)
        if state.version not in self._known:
            self._announce(path, state, self._came(state))

    def batches(self, stop: threading.Event) -> Iterator[tuple[Coordinates, Batch, Context | None]]:
        """Yield the batches of this policy from the next one on, in sequence, as they come, with where and which trace.

        Raises RefusedError if one is missing.
        """
        first = admin.offsets(self._settings, ["batches"])[self._source][0]
        begin = self._learner.next_offset
        if 0 < begin < first:
            log.warning(
                "%s[%d]: the next batch is looked for from %d, and the first record is %d: retention has cut %d, which "
                "does no harm if they were of other policies", *self._source, begin, first, first - begin,
            )  # fmt: skip
        self._handled = max(first, begin)
        with PartitionReader(self._settings, {self._source: self._handled}, outage=self._patience) as self._tail:
            self._meter.ready("kafka")
            while not stop.is_set():
                self._meter.begin("waits for a batch")
                self._intake.look()
                for record in self._tail.poll(count=1):
                    self._intake.took(self._source, record.at.offset, record.timestamp_ms)
                    batch = record.decode(Batch)
                    if isinstance(batch, Poison):
                        log.error("passed over, not a batch: %s", batch.error, extra=record.log_extra)
                        self._producer.send(dead_letter(record, stage=STAGE, reason=batch.reason, error=batch.error))
                        self._producer.flush()
                    elif due(batch, self._settings.policy.name, self._learner.version):
                        if problem := out_of_turn(record.at, batch, self._learner.version, first):
                            raise RefusedError(
                                f"{problem}. Restore the checkpoints that reach further, or the records; and keep "
                                "them longer (topics.retention_days) than a trainer may be down"
                            )
                        yield record.at, batch, context.of_headers(record.headers)
                    self._handled = record.at.offset + 1
                    self._intake.done(self._source, self._handled)

    def train(self, at: Coordinates, batch: Batch, came: Context | None = None) -> None:
        """Turn version `batch.sequence` into the next: step, checkpoint, publish, announce, commit.

        `came` is the trace of the batch's record.
        """
        began_ms = time.time() * 1000
        self._meter.begin(f"trains version {batch.sequence + 1}")
        marks = [self._waited_since, started := time.perf_counter()]
        chosen = self._chosen(batch)
        marks.append(time.perf_counter())
        state, metrics = self._learner.step(at, batch, chosen, {"fetch_s": marks[2] - started}, self._meter.heartbeat)
        marks.append(time.perf_counter())
        path = self._learner.save(self._folder, state, self._settings.trainer.keep_checkpoints)
        marks.append(time.perf_counter())
        self._announce(path, state, came, began_ms)
        marks.append(time.perf_counter())
        report.step(self._meter, state, metrics, chosen.good, marks)
        self._waited_since = time.perf_counter()
        log.info(
            "version %d: reward %.3f, loss %.4f, %d groups, %d tokens, %.1f s",
            state.version, metrics.get("reward", 0.0), metrics.get("loss", 0.0), len(chosen.good), metrics["tokens"],
            time.perf_counter() - started,
            extra={"at": at},
        )  # fmt: skip

    def _stands(self) -> dict[tuple[str, int], tuple[int, int]]:
        """Return the next offset and the end of the batches' partition, as far as known. Asks no broker."""
        end = None if self._tail is None else self._tail.end(self._source)
        return {} if end is None else {self._source: (min(self._handled, end), end)}

    def _chosen(self, batch: Batch) -> BatchGroups:
        """Return the groups of `batch`; those refused are dead-lettered."""
        topic = topics(self._settings.topics)["groups"].name
        bounds = self._patience.ask(lambda: admin.offsets(self._settings, ["groups"]), "to where groups begin")
        if problem := cut(batch, topic, bounds[topic, batch.groups_partition][0]):
            raise RefusedError(
                f"{problem}. Restore the checkpoints that reach further, or the records; or train on under another "
                "policy.name. Then keep groups longer (topics.retention_days) than a trainer may be down"
            )
        wanted = where(batch, topic)
        records = fetch(self._settings, wanted, outage=self._patience)
        chosen = self._learner.choose(batch, (records[coordinates] for coordinates in wanted))
        for record, reason, error in chosen.refused:
            log.warning("left out of the step: %s", error, extra=record.log_extra)
            self._producer.send(dead_letter(record, stage=STAGE, reason=reason, error=error))
        if chosen.refused:
            self._producer.flush()  # before the checkpoint, after which this batch is not read again
        return chosen

    def _came(self, state: State) -> Context | None:
        """Return the trace of the batch that a checkpoint was made of, if its record is still there."""
        at = Coordinates(*self._source, state.next_offset - 1)
        bounds = self._patience.ask(lambda: admin.offsets(self._settings, ["batches"]), "to where batches begin")
        first, end = bounds[self._source]
        if not first <= at.offset < end:
            return None
        return context.of_headers(fetch(self._settings, [at], outage=self._patience)[at].headers)

    def _announce(self, path: Path, state: State, came: Context | None, began_ms: float | None = None) -> None:
        """Publish the adapter in checkpoint `path`, say so in the log, and commit. Each of it again is a no-op."""
        known = self._known.get(state.version)
        if known is not None and known.files != store.manifest_of(path / ADAPTER_FOLDER):
            raise RefusedError(
                f"{path}: version {state.version} trained again is not what the log says it was, byte for byte. The "
                "recipe differs (`streamward adapters show` has the old one), or the checkpoint is of another log: "
                "restore libraries, threads, device and settings, or train under another policy.name"
            )
        uri, files = store.publish(
            path / ADAPTER_FOLDER,
            self._settings.adapters.store,
            state.policy,
            state.version,
            self._settings.adapters.signing_key,
        )
        if known is None:
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
            trace = self._tracer.follows(came, event.event_id)
            told = self._tracer.on_ack(event, trace, began_ms=began_ms)
            self._producer.send(event, on_ack=told, headers=tracing.headers_of(trace))
        self._producer.flush()
        self._commit()

    def _commit(self) -> None:
        """Tell the consumer group where this trainer stands. Nothing reads it to decide."""
        group = f"{self._settings.topics.prefix}{STAGE}-{self._settings.policy.name}"
        client = ck.Consumer({**client_config(self._settings.kafka), "group.id": group})
        here = [ck.TopicPartition(*self._source, self._learner.next_offset)]
        try:
            self._patience.ask(lambda: client.commit(offsets=here, asynchronous=False), "to a commit")
        except ck.KafkaException as exc:
            log.warning("offset %d was not committed, which only affects the lag shown: %s", here[0].offset, exc)
        finally:
            self._patience.close(client.close)
