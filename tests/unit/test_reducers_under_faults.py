"""The join over an in-memory log: read in any order, killed anywhere, moved between workers, it decides the same.

What is compared is what lies in the log at the end, by id and byte for byte: what the batch driver makes of the records
in the order of their time, and what two workers wrote who crashed, were rebalanced and read many records again.
"""

from __future__ import annotations

import random
from typing import Any

from hypothesis import settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from schemas.events import AdvantagedGroup, DeadLetter
from schemas.serde import decode
from tests.support.log.in_memory import NAMES, PARTITIONS, TROUBLES, Cluster, Killed, Log
from tests.support.thoroughness import examples

seeds = st.integers(0, 2**16)
workers, partitions = st.integers(0, 1), st.integers(0, PARTITIONS - 1)


class JoinUnderFaults(RuleBasedStateMachine):
    """Two workers over one log."""

    @initialize(
        tasks=st.lists(st.lists(st.sampled_from(TROUBLES), max_size=6), min_size=1, max_size=4),
        seed=seeds,
        last=seeds,
    )
    def begin(self, tasks: list[list[str]], seed: int, last: int) -> None:
        self.last = random.Random(last)
        self.cluster = Cluster(Log(tasks, seed))
        self.expected = self.cluster.log.ordered()

    @rule(count=st.integers(1, 60), seed=seeds)
    def read(self, count: int, seed: int) -> None:
        self.cluster.read_some(count, random.Random(seed))

    @rule(name=st.sampled_from(NAMES), partition=partitions)
    def read_ahead_in_one_topic(self, name: str, partition: int) -> None:
        while (name, partition) in self.cluster.readable():
            self.cluster.read(name, partition)

    @rule(partition=partitions, names=st.sets(st.sampled_from(NAMES), min_size=1))
    def commit(self, partition: int, names: set[str]) -> None:
        self.cluster.commit(partition, names)

    @rule(worker=workers, heirs=st.lists(workers, min_size=PARTITIONS, max_size=PARTITIONS), kept=st.floats(0, 1))
    def crash(self, worker: int, heirs: list[int], kept: float) -> None:
        self.cluster.crash(worker, heirs, kept)

    @precondition(lambda self: any(self.cluster.readable()))
    @rule(data=st.data(), written=st.integers(0, 3), heirs=st.lists(workers, min_size=2, max_size=2))
    def crash_in_the_middle_of_an_event(self, data: st.DataObject, written: int, heirs: list[int]) -> None:
        name, partition = data.draw(st.sampled_from(list(self.cluster.readable())))
        try:
            self.cluster.read(name, partition, killed_after=written)
        except Killed:
            self.cluster.crash(self.cluster.owner[partition], heirs, 1.0)

    @rule(partition=partitions, worker=workers, drained=st.booleans())
    def rebalance(self, partition: int, worker: int, drained: bool) -> None:
        if drained:
            self.cluster.commit(partition, NAMES)
        self.cluster.assign(partition, worker)

    @rule(partition=partitions, count=st.integers(1, 40), seed=seeds, drained=st.booleans())
    def lend_to_the_other_worker_and_take_back(self, partition: int, count: int, seed: int, drained: bool) -> None:
        # what a worker remembers of rows that another has written meanwhile must not count
        owner = self.cluster.owner[partition]
        for worker in (1 - owner, owner):
            self.rebalance(partition, worker, drained)
            self.cluster.read_some(count, random.Random(seed))

    @invariant()
    def nothing_was_written_that_the_ordered_run_does_not_write(self) -> None:
        cluster: Any = getattr(self, "cluster", None)
        if cluster is not None and not cluster.outputs <= self.expected:
            raise AssertionError("\n".join(told(cluster.outputs - self.expected, self.expected)))

    def teardown(self) -> None:
        if hasattr(self, "cluster"):
            self.cluster.finish(self.last)
            self.nothing_was_written_that_the_ordered_run_does_not_write()
            missing = self.expected - self.cluster.outputs
            assert not missing, "never written:\n" + "\n".join(told(missing, self.cluster.outputs))


def told(strange: set[tuple[str, bytes]], others: set[tuple[str, bytes]]) -> list[str]:
    """Say what these records are, and what lies under their ids instead."""
    by_id = dict(others)
    return [f"{read(payload)}\n  instead of {read(by_id.get(name))}" for name, payload in sorted(strange)]


def read(payload: bytes | None) -> object:
    if payload is None:
        return None
    letter = decode(payload, DeadLetter)
    return f"{letter.reason}: {letter.error}" if isinstance(letter, DeadLetter) else decode(payload, AdvantagedGroup)


TestJoinUnderFaults = JoinUnderFaults.TestCase
TestJoinUnderFaults.settings = settings(max_examples=examples(100), stateful_step_count=20)
