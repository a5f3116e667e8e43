"""Recount one policy: trained groups, dropped groups, and the sources of each version.

    groups in order ──► in exactly one batch, or named dropped ──► batches 0, 1, 2, … ──► versions 1, 2, 3, …

Each batch makes one version, in order; tuned versions may be in between. A group records how many batches the policy
had trained on up to the version that sampled it, which is recounted. Every train group up to the last one of the last
batch is accounted for; then comes the unfinished window of the next.

Whether a group of equal rewards belongs in a batch is not checked: the deciding setting is not in the log.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Hashable, Iterable
from typing import Protocol, TypeVar

from schemas.events import Coordinates, derive_id
from streams.kafka import group_names
from streams.kafka.group_names import STREAMS
from streams.kafka.record import partition_of
from streams.tools.audit.facts import AdapterFact, BatchFact, Category, GroupFact, RecountOutcome
from streams.tools.audit.view import AuditView, PolicyLedger

MOST_UNNAMED = 1000
"""A batch names this many of its dropped groups, and counts the rest."""


class _Marked(Protocol):
    @property
    def at(self) -> Coordinates: ...
    @property
    def mark(self) -> int: ...


M = TypeVar("M", bound=_Marked)


def recount_policy(ledger: PolicyLedger, view: AuditView) -> RecountOutcome:
    """Return what is wrong with the groups, batches and adapters of one policy, and what is still to come."""
    recount = _PolicyRecount(ledger, view)
    recount.batches()
    recount.groups()
    recount.adapters()
    return recount.out


class _PolicyRecount:
    def __init__(self, ledger: PolicyLedger, view: AuditView) -> None:
        self._ledger, self._view, self.out = ledger, view, RecountOutcome()
        self._offsets = [group.at.offset for group in ledger.groups]
        self._by_offset = {group.at.offset: group for group in ledger.groups}
        self._partition = partition_of(ledger.policy, view.settings.topics.policy_partitions)
        self._first: dict[str, GroupFact] = {}
        for group in ledger.groups:
            self._first.setdefault(group.group_id, group)
        self._batches = self._distinct(ledger.batches, lambda batch: batch.sequence)
        self._sequences = {batch.sequence for batch in self._batches}
        self._trained_on: dict[int, Coordinates] = {}
        """By group offset: the batch it is in."""
        self._dropped: dict[int, Coordinates] = {}
        self._is_cut = view.reach.cut(view.names["batches"], self._partition)
        self._taken = {0: 0}
        """Batches that the line had taken by each version."""
        for event in ledger.adapters:
            if event.kind == "trained" and event.version == len(self._taken):
                self._taken[event.version] = self._taken[event.version - 1] + event.takes_batch

    def _distinct(self, facts: Iterable[M], name: Callable[[M], Hashable]) -> list[M]:
        """Return the first fact of each name, in order; copies of it are repeated, others doubled."""
        first: dict[Hashable, M] = {}
        for fact in facts:
            known = first.setdefault(name(fact), fact)
            if known is not fact and known.mark == fact.mark:
                self._found("repeated", fact.at, f"it repeats {known.at}", accounted=True)
            elif known is not fact:
                self._found("doubled", fact.at, f"{known.at} has the same name and other content")
        return list(first.values())

    # --- batches ------------------------------------------------------------------------------------------------------

    def batches(self) -> None:
        """Check every batch, and that none is missing."""
        expected = self._batches[0].sequence if self._batches and self._is_cut else 0
        begin = self._view.reach.begins.get((self._view.names["groups"], self._partition), 0) if self._is_cut else 0
        for batch in self._batches:
            if batch.sequence < expected:
                self._found("out_of_order", batch.at, f"batch {batch.sequence} comes after batch {expected - 1}")
                continue
            if batch.sequence > expected:
                self._found("lost", batch.at, f"it is batch {batch.sequence}, and batch {expected} is not before it")
            expected = batch.sequence + 1
            self._batch(batch)
            end = max(batch.offsets, default=begin - 1) + 1
            self._span(batch, begin, end, first=batch is self._batches[0])
            begin = max(begin, end)

    def _batch(self, batch: BatchFact) -> None:
        if batch.batch_id != derive_id(self._ledger.policy, "batch", batch.sequence):
            self._wrong(batch, "its batch_id is not that of its policy and sequence")
        if list(batch.offsets) != sorted(set(batch.offsets)):
            self._found("out_of_order", batch.at, "its group offsets are not in order")
        groups = [group for offset in batch.offsets if (group := self._referred(batch, offset)) is not None]
        for group in groups:
            self._enters(batch, group)
        for group_id, offset, reason in batch.dropped:
            self._leaves(batch, group_id, offset, reason)
        if len(groups) < len(batch.offsets):
            return  # some of its groups are missing, so the sums cannot be checked
        counted = (len(groups), sum(len(one.members) for one in groups), sum(one.loss_tokens for one in groups))
        if counted != batch.counted:
            self._wrong(
                batch, f"it counts {batch.counted} groups, responses and loss tokens; its groups have {counted}"
            )
        lags: dict[int, int] = {}
        for group in groups:
            lag = self._view.lag(group, batch.sequence)
            lags[lag] = lags.get(lag, 0) + 1
        if lags != batch.lags:
            self._wrong(batch, f"its lags are {dict(batch.lags)}, those of its groups {lags}")
        if batch.created_at != (newest := max((group.created_at for group in groups), default=batch.created_at)):
            self._wrong(batch, f"created_at is {batch.created_at}, but its newest group has {newest}")

    def _referred(self, batch: BatchFact, offset: int) -> GroupFact | None:
        group = self._by_offset.get(offset) if batch.partition == self._partition else None
        if group is None:
            at = Coordinates(self._view.names["groups"], batch.partition, offset)
            if self._view.gone("groups", batch.partition, offset):
                self.out.counts["outside"] += 1
            elif self._view.never("groups", batch.partition, offset):
                self._found("phantom", batch.at, f"it refers to {at}, but the topic ends before that")
            elif self._view.exists(at):
                self._found("phantom", batch.at, f"it refers to {at}, which is not a group of {self._ledger.policy}")
            else:
                self._found("lost", at, f"{batch.at} refers to it, but there is no such record")
        return group

    def _enters(self, batch: BatchFact, group: GroupFact) -> None:
        before = self._trained_on.get(group.at.offset) or self._dropped.get(group.at.offset)
        if before is not None:
            self._found("doubled", batch.at, f"{group.at} is in it, but {before} has it already")
            return
        self._trained_on[group.at.offset] = batch.at
        lag = self._view.lag(group, batch.sequence)
        if self._first[group.group_id] is not group:
            self._found("doubled", batch.at, f"{group.at} is in it, a copy of {self._first[group.group_id].at}")
        if not group.is_train or group.dropped_reason is not None:
            self._wrong(batch, f"{group.at} is in it, which is not for the trainer")
        elif not 0 <= lag <= batch.max_policy_lag:
            self._wrong(batch, f"{group.at} is {lag} batches older than it, expected 0 to {batch.max_policy_lag}")

    def _leaves(self, batch: BatchFact, group_id: str, offset: int, reason: str) -> None:
        group = self._referred(batch, offset)
        if group is None:
            return
        before = self._trained_on.get(offset) or self._dropped.get(offset)
        if before is not None:
            self._found("doubled", batch.at, f"{group.at} is dropped by it, but {before} has it already")
            return
        self._dropped[offset] = batch.at
        lag = self._view.lag(group, batch.sequence)
        holds = {
            "duplicate": self._first[group.group_id] is not group or self._is_cut,
            "zero_variance": group.is_flat,
            "stale": lag > batch.max_policy_lag,
            "unknown_version": lag < 0,
            "outside_model": group.is_outside,
        }.get(reason, reason == group.dropped_reason)
        if group.group_id != group_id or not group.is_train or not holds:
            self._wrong(
                batch, f"it drops {group_id} at {group.at} as {reason}, which does not apply to the group there"
            )

    def _span(self, batch: BatchFact, begin: int, end: int, *, first: bool) -> None:
        """Check that every train group that this batch has passed is in it, or dropped by it, or by number."""
        between = slice(bisect_left(self._offsets, begin), bisect_left(self._offsets, end))
        missing = [
            group
            for group in self._ledger.groups[between]
            if group.is_train and group.at.offset not in self._trained_on and group.at.offset not in self._dropped
        ]
        if first and self._is_cut:
            return  # where the batch before it ended is unknown
        self.out.counts["groups dropped"] += min(batch.unnamed, len(missing))
        if batch.unnamed and len(batch.dropped) < MOST_UNNAMED:
            self._wrong(batch, f"it leaves {batch.unnamed} dropped groups unnamed, but names {len(batch.dropped)}")
        if len(missing) < batch.unnamed:
            self._wrong(batch, f"it counts {batch.unnamed} more dropped groups; the log has {len(missing)}")
        missing.sort(key=lambda group: group.is_flat)  # a group that teaches nothing may well be among the unnamed
        for group in missing[: max(0, len(missing) - batch.unnamed)]:
            self._found("lost", group.at, f"{batch.at} has passed it, but neither contains nor drops it")

    # --- groups after the last batch ----------------------------------------------------------------------------------

    def groups(self) -> None:
        """Add up where every train group is, and find a window that is full and was not cut."""
        rule, view = self._view.settings.batches, self._view
        self._line()
        reached = max((max(batch.offsets, default=-1) for batch in self._batches), default=-1)
        trained = max(self._taken.values())
        sequence = max(self._sequences, default=-1) + 1
        is_known = bool(self._batches) or not self._is_cut  # which batch is the next one
        window: list[GroupFact] = []
        for group in self._ledger.groups:
            if group.at.offset <= reached or not group.is_train:
                continue
            is_useful = (
                group.dropped_reason is None
                and group.created_at >= (view.reach.since_ms or 0)  # else a copy of one from before, perhaps
                and self._first[group.group_id] is group
                and not group.is_outside
                and (not is_known or 0 <= view.lag(group, sequence) <= rule.max_policy_lag)
                and not (rule.zero_variance == "drop" and group.is_flat)
            )
            window += [group] if is_useful else []
            self.out.counts["groups waiting" if is_useful else "groups dropped"] += 1
        if window:
            self.out.in_flight["groups"] = len(window)
        if is_known and len(window) >= rule.groups and view.reach.passed(STREAMS, window[rule.groups - 1].at):
            at = window[rule.groups - 1].at
            self._found("lost", at, f"it fills batch {sequence} of {self._ledger.policy}, which is not in batches")
        in_trained = {batch.at for batch in self._batches if batch.sequence < trained}
        counts = self.out.counts
        counts["train groups"] += sum(group.is_train for group in self._ledger.groups)
        counts["groups trained"] += sum(at in in_trained for at in self._trained_on.values())
        counts["groups in batches"] += sum(at not in in_trained for at in self._trained_on.values())
        counts["groups dropped"] += len(self._dropped)
        counts["batches"] += len(self._batches)

    def _line(self) -> None:
        """Check the number of batches that groups record for their versions."""
        names, settings = self._view.names, self._view.settings
        if settings.trainer.off_policy or self._view.reach.cut(names["adapters"], self._partition):
            return  # versions of another run, or not all of them
        for group in self._ledger.groups:
            taken = self._taken.get(group.version, group.batches)
            if group.members and group.batches != taken:
                what = f"it says that version {group.version} had taken {group.batches} batches, and it had {taken}"
                self._found("contradictory", group.at, what)

    # --- adapters -----------------------------------------------------------------------------------------------------

    def adapters(self) -> None:
        """Check that versions follow each other, each from its batch, and that only these are decided about."""
        ledger = self._ledger
        trained: dict[int, AdapterFact] = {}
        expected = 1
        for event in ledger.adapters:
            if event.kind != "trained":
                continue
            if event.version > expected:  # to every reader it is no version, so a later one may have this number
                self._found("lost", event.at, f"it is version {event.version}, and version {expected} is not before it")
                continue
            first = trained.setdefault(event.version, event)
            if first is not event:
                self._account_for_second(event, first)
                continue
            expected += 1
            self._trained(event)
        self._decisions(trained)
        self.out.counts["adapters"] += len(trained)
        of_batches = {event.batches[1]: event for event in trained.values() if event.takes_batch}
        for batch in self._batches:
            if batch.sequence in of_batches:
                continue
            group = group_names.begin("trainer") + ledger.policy
            has_trainer = any(map(self._has_its_id, of_batches.values())) or any(
                name == group for name, _, _ in self._view.reach.committed
            )
            # a trainer's commit follows its version, so what it has passed must be there
            if has_trainer and self._view.reach.passed(group, batch.at):
                self._found("lost", batch.at, "the version that it makes is not in adapters")
            else:
                self.out.in_flight["batches"] += 1

    def _account_for_second(self, event: AdapterFact, first: AdapterFact) -> None:
        """Account for a `trained` event with the number of another: a copy, or a concurrent version.

        A trainer and a tuner, or two tuners, may claim a number at once; the second repeats its step on top.
        """
        if first.files == event.files:
            self._found("repeated", event.at, f"it repeats {first.at}", accounted=True)
        elif not (first.takes_batch and event.takes_batch):
            self._found("superseded", event.at, f"{first.at} was announced before it, as this version", accounted=True)
        else:
            self._found("doubled", event.at, f"{first.at} is the same version with other files")

    def _trained(self, event: AdapterFact) -> None:
        if not self._has_its_id(event):
            self._wrong(event, "its event_id is not that of its policy and version")
        if event.tuned_on is not None:
            self._tuned(event, *event.tuned_on)
        if not event.takes_batch:
            return
        sequence = self._taken[event.version - 1]
        recorded, expected = (event.parent, *event.batches), (event.version - 1, 0, sequence)
        if recorded != expected:
            self._wrong(event, f"parent, first and last batch are {recorded}, expected {expected}")
        if sequence not in self._sequences and not self._is_cut:
            self._found("phantom", event.at, f"batch {sequence}, which made it, is not in batches")

    def _tuned(self, event: AdapterFact, partition: int, offsets: Iterable[int]) -> None:
        """Check that the groups exist which a version was tuned on; they may be another policy's."""
        for offset in offsets:
            at = Coordinates(self._view.names["groups"], partition, offset)
            if self._view.gone("groups", partition, offset):
                self.out.counts["outside"] += 1
            elif self._view.never("groups", partition, offset):
                self._found("phantom", event.at, f"it was tuned on {at}, but the topic ends before that")
            elif not self._view.exists(at):
                self._found("lost", at, f"{event.at} was tuned on it, but there is no such record")

    def _has_its_id(self, event: AdapterFact) -> bool:
        """Whether a `trained` event has the id that the trainer gives it."""
        return event.event_id == derive_id(self._ledger.policy, event.version, "trained")

    def _decisions(self, trained: dict[int, AdapterFact]) -> None:
        decisions = [event for event in self._ledger.adapters if event.kind != "trained"]
        for event in self._distinct(decisions, lambda event: event.event_id):
            made = trained.get(event.version)
            if event.kind == "evaluated" or event.version == 0:
                continue  # a version that cannot be served may be evaluated; the base model always exists
            if made is None:
                self._found("phantom", event.at, f"{event.kind}: version {event.version} was never trained")
            elif made.at.offset > event.at.offset:
                self._found("out_of_order", event.at, f"{event.kind}: version {event.version} comes at {made.at}")

    # --- findings -----------------------------------------------------------------------------------------------------

    def _found(self, category: Category, at: Coordinates, what: str, *, accounted: bool = False) -> None:
        self.out.find(category, at, what, accounted=accounted)

    def _wrong(self, fact: BatchFact | AdapterFact, what: str) -> None:
        self._found("contradictory", fact.at, what)
