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
import math
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import confluent_kafka as ck
from safetensors import SafetensorError

from schemas.events import AdapterEvent, AdvantagedGroup, Batch, Coordinates, derive_id
from schemas.serde import Poison
from streams import adapter_store, cluster
from streams.adapters import read_state
from streams.engines.weights import Base, load_base
from streams.errors import ContradictoryEvent, RefusedError, SettingsError, StreamwardError
from streams.log import Producer, Record, client_config, dead_letter, partition_of
from streams.patience import Patience, StoppedWaiting
from streams.reading import Tail, fetch
from streams.settings import Settings
from streams.topics import topics
from trainer import checkpoint
from trainer.checkpoint import ADAPTER_FOLDER, State
from trainer.collate import Expected, check_group
from trainer.grpo import LogGRPOTrainer
from trainer.model import pin, recipe, wrap

STAGE = "trainer"
log = logging.getLogger(__name__)


def run(settings: Settings, *, steps: int | None = None, stop: threading.Event) -> None:
    """Train batch after batch until `stop` is set, or `steps` batches were trained; a step that began is finished.

    While the broker is away it waits (streams/patience.py); a version that is checkpointed by then is announced later,
    by the next process if need be.

    Raises RefusedError if another process trains this policy, if a batch is missing, or if a version comes out other
    than the log says; SettingsError if the checkpoint is of another model; LogError if the log fails; StreamwardError
    if a disk takes nothing more.
    """
    try:
        _run(settings, steps, stop)
    except (OSError, SafetensorError) as exc:
        if (what := checkpoint.disk_trouble(exc)) is None:
            raise
        raise StreamwardError(
            f"{settings.trainer.checkpoints} or {settings.adapters.store}: {what}. Mend that and start the trainer "
            "again: it goes on from its newest whole checkpoint, and what it was writing is not missed"
        ) from exc


def _run(settings: Settings, steps: int | None, stop: threading.Event) -> None:
    pin(settings)
    patience = Patience(settings.kafka, stop)
    try:
        with (
            checkpoint.hold(settings.trainer.checkpoints, settings.policy.name) as folder,
            Producer(settings, patience=patience) as producer,
        ):
            line = Line(settings, folder, load_base(settings.model), producer, patience)
            line.resume()
            for done, (at, batch) in enumerate(line.batches(stop), start=1):
                line.train(at, batch)
                if done == steps or stop.is_set():
                    return
    except StoppedWaiting as exc:
        log.warning("%s", exc)


class Line:
    """The line of adapters of one policy, and the trainer that makes it longer."""

    def __init__(self, settings: Settings, folder: Path, base: Base, producer: Producer, patience: Patience) -> None:
        self._settings, self._folder, self._base = settings, folder, base
        self._producer, self._patience = producer, patience
        model = wrap(base.model, settings.trainer)
        self._trainer = LogGRPOTrainer(model, base.tokenizer, settings.trainer)
        if self._trainer.plain_because:
            log.warning("prompts are run once per response, which is slow: %s", self._trainer.plain_because)
        self._recipe = recipe(settings) | {
            "base_digest": base.base_digest,
            "tokenizer_digest": base.tokenizer_digest,
        }
        self._version = 0
        self._next_offset = 0
        self._known = dict(read_state(settings, settings.policy.name).versions)
        partition = partition_of(settings.policy.name, settings.topics.policy_partitions)
        self._source = (topics(settings.topics)["batches"].name, partition)

    def resume(self) -> None:
        """Go on from the newest whole checkpoint, and announce its version if that was not done.

        Raises SettingsError if it is of another model, RefusedError if it is of another log.
        """
        found = checkpoint.latest(self._folder)
        newest = max(self._known)
        if found is None:
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
        checkpoint.restore(path, self._trainer.model, self._trainer.optimizer)
        self._version, self._next_offset = state.version, state.next_offset
        for name in sorted(self._recipe.keys() | state.recipe.keys()):
            if (now := self._recipe.get(name)) != (then := state.recipe.get(name)):
                log.warning("%s is %s from version %d on; it was %s", name, now, state.version + 1, then)
        log.info("policy %s: version %d, next batch at offset %d", state.policy, state.version, state.next_offset)
        if state.version not in self._known:
            self._announce(path, state)

    def batches(self, stop: threading.Event) -> Iterator[tuple[Coordinates, Batch]]:
        """Yield the batches of this policy from the next one on, in sequence, as they come.

        Raises RefusedError if one is missing.
        """
        first = cluster.offsets(self._settings, ["batches"])[self._source][0]
        if 0 < self._next_offset < first:
            log.warning(
                "%s[%d]: the next batch is looked for from %d, and the first record is %d: retention has cut %d, which "
                "does no harm if they were of other policies", *self._source, self._next_offset, first,
                first - self._next_offset,
            )  # fmt: skip
        with Tail(self._settings, {self._source: max(first, self._next_offset)}, patience=self._patience) as tail:
            while not stop.is_set():
                for record in tail.poll(count=1):
                    batch = record.decode(Batch)
                    if isinstance(batch, Poison):
                        log.error("%s: passed over, not a batch: %s", record.at, batch.error)
                        self._producer.send(dead_letter(record, stage=STAGE, reason=batch.reason, error=batch.error))
                        self._producer.flush()
                    elif batch.policy == self._settings.policy.name and batch.sequence >= self._version:
                        if batch.sequence > self._version:
                            raise RefusedError(
                                f"{record.at}: batch {batch.sequence} of {batch.policy}, expected {self._version}: a "
                                f"batch is missing (the first record there is has offset {first}), and without it no "
                                "later version can be reproduced. Restore the checkpoints that reach further, or the "
                                "records; and keep them longer (topics.retention_days) than a trainer may be down"
                            )
                        yield record.at, batch

    def train(self, at: Coordinates, batch: Batch) -> None:
        """Turn version `batch.sequence` into the next: step, checkpoint, publish, announce, commit."""
        started = time.perf_counter()
        groups, refused = self._groups(batch)
        fetched = time.perf_counter()
        metrics = self._trainer.train_batch(groups)
        metrics |= {"groups_refused": float(refused), "fetch_s": fetched - started}
        state = State(
            policy=batch.policy,
            version=batch.sequence + 1,
            next_sequence=batch.sequence + 1,
            next_offset=at.offset + 1,
            base_digest=self._base.base_digest,
            batch_id=batch.batch_id,
            recipe=self._recipe,
            metrics={name: value for name, value in metrics.items() if math.isfinite(value)},
        )
        path = checkpoint.save(
            self._folder,
            state,
            self._trainer.model,
            self._trainer.optimizer,
            self._settings.model.base,
            self._settings.trainer.keep_checkpoints,
        )
        self._version, self._next_offset = state.version, state.next_offset
        self._announce(path, state)
        log.info(
            "version %d: reward %.3f, loss %.4f, %d groups, %d tokens, %.1f s",
            state.version, metrics.get("reward", 0.0), metrics.get("loss", 0.0), len(groups), metrics["tokens"],
            time.perf_counter() - started,
            extra={"at": at},
        )  # fmt: skip

    def _groups(self, batch: Batch) -> tuple[list[AdvantagedGroup], int]:
        """Return the groups of `batch` in its order, and how many were refused and dead-lettered."""
        topic = topics(self._settings.topics)["groups"].name
        wanted = [Coordinates(topic, batch.groups_partition, offset) for offset in batch.groups_offsets]
        self._refuse_cut(batch, topic)
        records = fetch(self._settings, wanted, patience=self._patience)
        expected = Expected(
            policy=batch.policy,
            version=batch.sequence,
            base_digest=self._base.base_digest,
            tokenizer_digest=self._base.tokenizer_digest,
            vocabulary=self._base.model.config.get_text_config().vocab_size,
        )
        good = []
        for coordinates in wanted:
            group = self._checked(records[coordinates], expected)
            if group is not None:
                good.append(group)
        if len(good) < len(wanted):
            self._producer.flush()  # before the checkpoint, after which this batch is not read again
        return good, len(wanted) - len(good)

    def _refuse_cut(self, batch: Batch, topic: str) -> None:
        """Raise RefusedError if retention has cut groups of `batch`: a step without them is another one."""
        bounds = self._patience.ask(lambda: cluster.offsets(self._settings, ["groups"]), "to where groups begin")
        first = bounds[topic, batch.groups_partition][0]
        gone = [offset for offset in batch.groups_offsets if offset < first]
        if gone:
            raise RefusedError(
                f"{topic}[{batch.groups_partition}]@{gone[0]}: retention has cut {len(gone)} of "
                f"{len(batch.groups_offsets)} groups of batch {batch.sequence}; the first there is has offset {first}. "
                f"Without them version {batch.sequence + 1} cannot be trained. Restore the checkpoints that reach "
                "further, or the records; or train on under another policy.name. Then keep groups longer "
                "(topics.retention_days) than a trainer may be down"
            )

    def _checked(self, record: Record, expected: Expected) -> AdvantagedGroup | None:
        group = record.decode(AdvantagedGroup)
        if isinstance(group, Poison):
            reason, error = group.reason, group.error
        else:
            try:
                check_group(group, expected, record.at)
                return group
            except ContradictoryEvent as exc:
                reason, error = exc.reason, str(exc).removeprefix(f"{record.at}: ")
        log.warning("%s: left out of the step: %s", record.at, error)
        self._producer.send(dead_letter(record, stage=STAGE, reason=reason, error=error))
        return None

    def _announce(self, path: Path, state: State) -> None:
        """Publish the adapter in checkpoint `path`, say so in the log, and commit. Each of it again is a no-op."""
        known = self._known.get(state.version)
        if known is not None and known.files != adapter_store.manifest_of(path / ADAPTER_FOLDER):
            raise RefusedError(
                f"{path}: version {state.version} trained again is not what the log says it was, byte for byte. The "
                "recipe differs (`streamward adapters show` has the old one), or the checkpoint is of another log: "
                "restore libraries, threads, device and settings, or train under another policy.name"
            )
        uri, files = adapter_store.publish(
            path / ADAPTER_FOLDER, self._settings.adapters.store, state.policy, state.version
        )
        if known is None:
            self._producer.send(
                AdapterEvent(
                    event_id=derive_id(state.policy, state.version, "trained"),
                    policy=state.policy,
                    created_at=time.time_ns() // 1_000_000,
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
            )
        self._producer.flush()
        self._commit()

    def _commit(self) -> None:
        """Tell the consumer group where this trainer stands. Nothing reads it to decide."""
        group = f"{self._settings.topics.prefix}{STAGE}-{self._settings.policy.name}"
        client = ck.Consumer({**client_config(self._settings.kafka), "group.id": group})
        here = [ck.TopicPartition(*self._source, self._next_offset)]
        try:
            self._patience.ask(lambda: client.commit(offsets=here, asynchronous=False), "to a commit")
        except ck.KafkaException as exc:
            log.warning("offset %d was not committed, which only affects the lag shown: %s", self._next_offset, exc)
        finally:
            self._patience.close(client.close)
