"""The trainer of one policy: each of its batches becomes an adapter version.

    batch ──► groups by offset ──► one step ──► checkpoint ──► adapter store ──► adapters: trained ──► is it the one?
                                       │ rename      │ rename       │ acknowledged      │ no: another process was faster
      resume: the newest checkpoint ◄──┘             └── both are found after a crash,  └─► the same batch again, on top
                                                         not done twice

A batch turns the newest version of the policy into the next. The checkpoint says which batch comes next. Killed
anywhere, the trainer resumes from its newest complete checkpoint and ends with the same bytes: a version that has a
checkpoint and is not in the log is announced at the start, and a version that is already in the log must have the same
bytes. Without any checkpoint it trains again from batch 0.

Versions are also tuned, or imported, and then the newest one is not this trainer's: the next batch is trained onto it
from its files (trainer/versions/adopt_version.py). If one is announced while a step is taken, both want the same number
and the first in the log has it. The step is then taken again on top; every reader skips the record of the first
attempt, and its checkpoint has the number of another process's version, so nothing resumes from it.

A group that contradicts itself goes to `dead-letters`, and the step is taken without it: no bad group stops a policy.

A second trainer of one policy on one machine is refused. On two machines, each with its own folder, both announce every
version, with the same bytes, and readers take the first.

Not covered: starting from a version whose batches or groups retention has deleted. It is refused: keep the checkpoints,
or the log.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from schemas.conventions import UNCHANGED
from schemas.events import AdapterEvent, AdvantagedGroup, AnsweringAgent, Batch, Coordinates, derive_id
from schemas.serde import Poison
from streams.adapters import store
from streams.adapters.versions import Version, weights_of
from streams.errors import OtherBaseError, RefusedError, SettingsError
from streams.kafka import admin, times
from streams.kafka.history import LogHistory
from streams.kafka.producer import Producer
from streams.kafka.reader import fetch, read
from streams.kafka.record import Record, dead_letter
from streams.kafka.retry import BrokerOutage, StoppedWaiting
from streams.kafka.topics import topics
from streams.observability import trace_context
from streams.observability.metrics import OFF, Meter
from streams.observability.trace_context import Context
from streams.observability.tracing import tracer as tracing
from streams.observability.tracing.tracer import OFF as NO_TRACER, Tracer
from streams.settings.model import Settings
from trainer import metrics
from trainer.batch_source import STAGE, partition_for
from trainer.ranks.exchange import Ranks
from trainer.step.recipe import in_recipe
from trainer.versions import adopt_version, checkpoint
from trainer.versions.announce import answering_agents, in_order, reason_of
from trainer.versions.checkpoint import ADAPTER_FOLDER, State
from trainer.versions.learner import BatchGroups, Learner, coordinates_of, cut, out_of_turn

log = logging.getLogger(__name__)
KEPT_CHECKPOINTS = 2
"""Of the newest versions, on this disk; older versions are made again from the log."""

BatchCheck = Callable[[str, Sequence[AdvantagedGroup]], Mapping[str, str]]
"""Given a policy and a batch's groups, returns what `trained` records. Raises RefusedError if training is forbidden."""


def check_nothing(_: str, __: Sequence[AdvantagedGroup]) -> Mapping[str, str]:
    """Check nothing, and record nothing."""
    return {}


@dataclass(frozen=True, slots=True)
class TrainerIO:
    """The clients of a trainer."""

    producer: Producer
    outage: BrokerOutage
    meter: Meter = OFF
    tracer: Tracer = NO_TRACER
    others: Ranks | None = None
    """The other ranks, if any."""
    is_fleet: bool = False
    """Whether this process trains other policies, too: one of another base model is then left to another fleet."""
    check: BatchCheck = check_nothing


class OvertakenError(Exception):
    """Another process has made a version that the learner does not have: `resume` again, and continue from that one."""


class _BatchOrigin(NamedTuple):
    """The part of a `trained` event that follows from the groups of its batch."""

    permission: Mapping[str, str]
    """The user who allowed held-out questions, if the batch has any."""
    agents: tuple[AnsweringAgent, ...]
    oldest_ms: float
    """When the first of the groups was made; infinite without any."""


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
        read_versions: Callable[[], Mapping[int, Version]],
    ) -> None:
        """`read_versions` returns those that the log has by now; `folder` is held."""
        self._settings, self._folder, self._learner, self._io = settings, folder, learner, io
        self._read_versions = read_versions
        versions = read_versions()
        self._announced = {number: version.files for number, version in versions.items()}
        """Files of the versions that the log had at the start, and of those announced since."""
        self._adopted = adopt_version.newest(versions)
        self._weights = None if self._adopted is None else weights_of(versions, self._adopted.version)
        self.newest_base = weights_of(versions, max(versions)).base_digest
        """The digest of the base model of the newest version in the log; None if unknown."""
        self._tp = partition_for(settings, settings.policy.name)
        self._waited_since = time.perf_counter()

    @property
    def version(self) -> int:
        """The learner's version."""
        return self._learner.version

    @property
    def next_offset(self) -> int:
        """A lower bound for the offset of the next batch in `batches`."""
        return self._learner.next_offset

    @property
    def next_sequence(self) -> int:
        """Sequence of the next batch to train."""
        return self._learner.next_sequence

    def resume(self) -> None:
        """Resume from the newest complete checkpoint, and announce its version if that was not done; or from a version
        that was tuned or imported, if no checkpoint is newer.

        Raises SettingsError if it is of another model, RefusedError if it is of another log or has other bytes than the
        log says, OvertakenError if another process announced a version at the same time.
        """
        newest, policy = max(self._announced), self._settings.policy.name
        saved = checkpoint.latest(self._folder)
        adopted, weights = self._adopted, self._weights
        if adopted is not None and weights is not None and (saved is None or saved[1].version <= adopted.version):
            adopt_version.begin(self._settings, policy, self._learner, weights, adopted.version)
            metrics.version(self._io.meter, policy, adopted.version)
        elif saved is None:
            metrics.version(self._io.meter, policy, 0)
            log.info("policy %s: no checkpoint, so it starts with batch 0", policy)
        else:
            self._resume_from(*saved, newest)

    def _resume_from(self, path: Path, state: State, newest: int) -> None:
        """Resume from a checkpoint; `newest` is the newest version in the log. Raises as `resume`."""
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
        for change in in_recipe(state.version + 1, state.recipe, self._learner.recipe):
            log.warning(
                "%s is %s from version %d on; it was %s",
                change.name, change.reproduced, change.version, change.recorded,
            )  # fmt: skip
        metrics.version(self._io.meter, state.policy, state.version)
        log.info("policy %s: version %d, next batch at offset %d", state.policy, state.version, state.next_offset)
        if state.version not in self._announced:
            record = self._record_of(state)
            trace = None if record is None else trace_context.of_headers(record.headers)
            self._announce(path, state, self._read_origin(record), trace)

    def batches_before(self, end: int) -> Iterator[Record]:
        """Yield the records of `batches` from our next batch on, below `end`, that retention has left."""
        first, _ = self.bounds("batches")
        start = max(first, self.next_offset)
        yield from read(self._settings, {self._tp: start}, {self._tp: max(start, end)}, outage=self._io.outage)

    def bounds(self, label: str) -> tuple[int, int]:
        """Return the bounds of this policy's partition in `batches` or `groups`."""
        bounds = self._io.outage.ask(lambda: admin.offsets(self._settings, [label]), f"to where {label} begin")
        return bounds[topics(self._settings.topics)[label].name, self._tp[1]]

    def refuse_gap(self, coordinates: Coordinates, batch: Batch) -> None:
        """Raise RefusedError if `batch`, which is due, is not the next."""
        if batch.sequence == self.next_sequence:
            return
        problem = out_of_turn(coordinates, batch, self.next_sequence, self.bounds("batches")[0])
        raise RefusedError(
            f"{problem}. Restore the checkpoints that reach further, or the records; and keep "
            "them longer (topics.retention_days) than a trainer may be down"
        )

    def train(self, coordinates: Coordinates, batch: Batch, trace: Context | None = None) -> None:
        """Turn the newest version into the next: step, checkpoint, publish, announce.

        `trace` is that of the batch's record. Raises OvertakenError if another process makes the next version, before
        the step or during it; RefusedError if a group of the batch may not be trained on.
        """
        meter, began_ms = self._io.meter, time.time() * 1000
        self._refuse_overtaken()
        meter.begin(f"trains version {self.version + 1}")
        marks = [self._waited_since, started := time.perf_counter()]
        groups = self._groups_of(batch)
        origin = self._origin_of(batch.policy, groups.good)
        marks.append(time.perf_counter())
        state, measured = self._learner.step(
            coordinates, batch, groups, {"fetch_s": marks[2] - started}, meter.heartbeat
        )
        state = adopt_version.with_fresh_optimizer(state, self._adopted)
        marks.append(time.perf_counter())
        path = self._learner.save(self._folder, state, KEPT_CHECKPOINTS)
        marks.append(time.perf_counter())
        self._announce(path, state, origin, trace, began_ms)
        marks.append(time.perf_counter())
        metrics.step(meter, state, measured, groups.good, marks)
        self._waited_since = time.perf_counter()
        log.info(
            "%s: version %d: reward %.3f, loss %.4f, %d groups, %d tokens, %.1f s",
            state.policy, state.version, measured.get("reward", 0.0), measured.get("loss", 0.0), len(groups.good),
            measured["tokens"], time.perf_counter() - started,
            extra={"at": coordinates},
        )  # fmt: skip
        if state.metrics.get(UNCHANGED):
            log.warning("%s: version %d: %s", state.policy, state.version, _reason_of(state), extra={"at": coordinates})

    def _groups_of(self, batch: Batch) -> BatchGroups:
        """Return the groups of `batch`; those refused are dead-lettered."""
        topic = topics(self._settings.topics)["groups"].name
        bounds = self._io.outage.ask(lambda: admin.offsets(self._settings, ["groups"]), "to where groups begin")
        if problem := cut(batch, topic, bounds[topic, batch.groups_partition][0]):
            raise RefusedError(
                f"{problem}. Restore the checkpoints that reach further, or the records; or train on under another "
                "policy.name. Then keep groups longer (topics.retention_days) than a trainer may be down"
            )
        coordinates = coordinates_of(batch, topic)
        fetched = fetch(self._settings, coordinates, outage=self._io.outage)
        records = [fetched[place] for place in coordinates]
        if self._io.is_fleet and self.version == 0:
            self._refuse_other_base(batch, records)
        groups = self._learner.groups_of(batch, records, LogHistory(self._settings, self._io.outage))
        for record, reason, error in groups.refused:
            log.warning("left out of the step: %s", error, extra=record.log_extra)
            self._io.producer.send(dead_letter(record, stage=STAGE, reason=reason, error=error))
        if groups.refused:
            self._io.producer.flush()  # before the checkpoint, after which this batch is not read again
        return groups

    def _refuse_other_base(self, batch: Batch, records: Sequence[Record]) -> None:
        """Raise OtherBaseError if every group of the first batch was sampled on another base model."""
        decoded = (record.decode(AdvantagedGroup) for record in records)
        bases = {group.base_digest for group in decoded if not isinstance(group, Poison)}
        if bases and self._learner.base_digest not in bases:
            raise other_base(batch.policy, min(bases), self._learner.base_digest)

    def _record_of(self, state: State) -> Record | None:
        """Return the record of the batch that made a checkpoint, if it still exists."""
        coordinates = Coordinates(*self._tp, state.next_offset - 1)
        first, end = self.bounds("batches")
        if not first <= coordinates.offset < end:
            return None
        return fetch(self._settings, [coordinates], outage=self._io.outage)[coordinates]

    def _origin_of(self, policy: str, groups: Sequence[AdvantagedGroup]) -> _BatchOrigin:
        """Return the provenance of these groups. Raises as the check."""
        responses = (response for group in groups for response in group.responses)
        oldest_ms = min((group.created_at for group in groups), default=math.inf)
        return _BatchOrigin(self._io.check(policy, groups), in_order(answering_agents(responses)), oldest_ms)

    def _read_origin(self, record: Record | None) -> _BatchOrigin:
        """Return the provenance of a batch that was trained before this process started."""
        batch = None if record is None else record.decode(Batch)
        if not isinstance(batch, Batch):
            return _BatchOrigin({}, (), math.inf)
        places = coordinates_of(batch, topics(self._settings.topics)["groups"].name)
        groups = [
            record.decode(AdvantagedGroup) for record in fetch(self._settings, places, outage=self._io.outage).values()
        ]
        return self._origin_of(batch.policy, [group for group in groups if isinstance(group, AdvantagedGroup)])

    def _announce(
        self,
        path: Path,
        state: State,
        origin: _BatchOrigin,
        trace: Context | None,
        began_ms: float | None = None,
    ) -> None:
        """Publish the adapter in checkpoint `path`, and write its event. Each is a no-op the second time.

        Raises OvertakenError if another process has announced the version before.
        """
        self._refuse_other_bytes(path, state)
        uri, files = store.publish(
            path / ADAPTER_FOLDER,
            self._settings.adapters.store,
            state.policy,
            state.version,
            self._settings.adapters.signing_key,
        )
        event = None
        if state.version not in self._announced:
            event = AdapterEvent(
                event_id=derive_id(state.policy, state.version, "trained"),
                policy=state.policy,
                created_at=times.now_ms(),
                metadata=dict(origin.permission),
                version=state.version,
                kind="trained",
                actor=STAGE,
                reason=_reason_of(state),
                parent_version=state.version - 1,
                uri=uri,
                base_digest=state.base_digest,
                first_batch=0,
                last_batch=state.next_sequence - 1,
                recipe=state.recipe,
                metrics=state.metrics,
                files=files,
                agents=origin.agents,
            )
            span = self._io.tracer.follows(trace, event.event_id)
            on_ack = self._io.tracer.on_ack(event, span, began_ms=began_ms)
            self._io.producer.send(event, on_ack=on_ack, headers=tracing.headers_of(span))
        self._io.producer.flush()
        if event is not None:
            self._io.tracer.report_loop(event, trace, min(origin.oldest_ms, event.created_at))
        try:
            first = self._read_versions().get(state.version)
        except StoppedWaiting:
            log.info("policy %s: stopping; the next start sees whether version %d counts", state.policy, state.version)
            return
        if first is not None and adopt_version.origin(first) is not None:
            raise OvertakenError
        self._announced[state.version] = files if first is None else first.files
        self._refuse_other_bytes(path, state)

    def _refuse_overtaken(self) -> None:
        """Read what the log has by now; raise OvertakenError if a version was tuned or imported since `resume`."""
        adopted = adopt_version.newest(self._read_versions())
        if adopted is not None and (self._adopted is None or adopted.version > self._adopted.version):
            log.info(
                "policy %s: version %d was %s",
                self._settings.policy.name,
                adopted.version,
                adopt_version.origin(adopted),
            )
            raise OvertakenError

    def _refuse_other_bytes(self, path: Path, state: State) -> None:
        """Raise RefusedError if the log has the version of this checkpoint with other bytes."""
        announced = self._announced.get(state.version)
        if announced is not None and announced != store.manifest_of(path / ADAPTER_FOLDER):
            raise RefusedError(
                f"{path}: version {state.version} trained again has other bytes than in the log. The "
                "recipe differs (`streamward adapters show` has the old one), or the checkpoint is of another log: "
                "restore libraries, threads, device and settings, or train under another policy.name"
            )


def _reason_of(state: State) -> str:
    return reason_of(f"batch {state.next_sequence - 1}", state.metrics)


def other_base(policy: str, digest: str, expected: str) -> OtherBaseError:
    """Return why a fleet skips this policy; the arguments are digests of base models."""
    return OtherBaseError(
        f"policy {policy} is of base model {digest[:12]}, and this fleet has {expected[:12]}: it is left alone. Run a "
        "fleet of that model under another fleet.name, and tell them apart by fleet.policies"
    )
