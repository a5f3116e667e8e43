"""Batches and promotions over an in-memory log: killed anywhere, and read again, they come out the same.

Both drivers here write as the live stages do: first what the event asks for, then the rows, each table into a changelog
of its own; so a crash may keep the one and lose the other. Offsets are committed some time after.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Sequence

from hypothesis import given, settings, strategies as st

from schemas.events import AdapterEvent, AdvantagedGroup, Batch, Coordinates
from schemas.serde import encode
from streams.adapters.versions import empty, fold
from streams.kafka.record import Record
from streams.settings.model import Batches, Settings, Topics
from streams.stages.batches import Cutter, dump, dump_offset, is_double, load
from streams.stages.rollouts import rollout_stage as rollouts
from streams.tools.replay import driver
from tests.support.factories import T0, adapter_event, group, state_after, trained
from tests.support.thoroughness import examples

RULE = Batches(groups=2, max_policy_lag=1)
ONE_PARTITION = Settings(batches=RULE, topics=Topics(policy_partitions=1))
seeds = st.integers(0, 2**16)


# --- batches ----------------------------------------------------------------------------------------------------------


@st.composite
def groups(draw: st.DrawFn) -> list[AdvantagedGroup]:
    """Draw the groups of two policies in one partition: good ones, some that are dropped, and doubles."""
    made = [
        group(
            task_id=f"t{number}",
            created_at=T0 + number,
            policy=draw(st.sampled_from(["one", "two"])),
            adapter_version=draw(st.integers(0, 3)),
            purpose=draw(st.sampled_from(["train", "train", "train", "eval"])),
        )
        for number in range(draw(st.integers(1, 14)))
    ]
    made = [
        dataclasses.replace(one, dropped_reason=reason, responses=()) if reason else one
        for one in made
        for reason in [draw(st.sampled_from([None, None, None, "unscored", "too_large"]))]
    ]
    order = [*made, *draw(st.lists(st.sampled_from(made), max_size=6))]
    return draw(st.permutations(order))


class CutterUnderFaults:
    """The batch stage over one partition: two tables, their changelogs, and what was committed."""

    def __init__(self, log: Sequence[AdvantagedGroup]) -> None:
        self.log, self.cutter = log, Cutter(RULE)
        self.written: list[list[tuple[bytes, bytes]]] = [[], []]
        self.safe, self.committed = [0, 0], 0
        self.batches: list[bytes] = []
        self.start()

    def start(self) -> None:
        self.windows, self.seen = (dict(rows) for rows in self.written)
        self.position = self.committed

    def read(self, *, killed_after: str = "") -> None:
        one, at = self.log[self.position], Coordinates("groups", 0, self.position)
        key, group_key = one.policy.encode(), one.group_id.encode()
        first_at = self.seen.get(group_key)
        window, made = self.cutter.reduce(
            load(self.windows.get(key)), one, at, doubled=is_double(first_at, self.position)
        )
        self.batches += [encode(batch) for batch in made]
        if killed_after == "batch":
            return
        self.windows[key] = dump(window)
        self.written[0].append((key, self.windows[key]))
        if killed_after == "window":
            return
        if first_at is None:
            self.seen[group_key] = dump_offset(self.position)
            self.written[1].append((group_key, self.seen[group_key]))
        self.position += 1

    def commit(self) -> None:
        self.committed, self.safe = self.position, [len(rows) for rows in self.written]

    def crash(self, draw: random.Random) -> None:
        for rows, safe in zip(self.written, self.safe, strict=True):
            del rows[draw.randint(safe, len(rows)) :]
        self.start()


def cut_in_order(log: Sequence[AdvantagedGroup]) -> list[bytes]:
    records = [
        Record(Coordinates("groups", 0, offset), one.created_at, one.policy.encode(), encode(one))
        for offset, one in enumerate(log)
    ]
    return [encode(batch) for batch in driver.cut(ONE_PARTITION, records) if isinstance(batch, Batch)]


@settings(max_examples=examples(150))
@given(groups(), seeds)
def test_batches_cut_by_a_worker_that_is_killed_again_and_again_are_the_same_bytes(
    log: list[AdvantagedGroup], seed: int
) -> None:
    draw, worker = random.Random(seed), CutterUnderFaults(log)
    kills = draw.randint(1, 12)
    while worker.position < len(log):
        what = draw.random()
        if what < 0.2:
            worker.commit()
        elif what < 0.4 and kills:
            kills -= 1
            worker.read(killed_after=draw.choice(("batch", "window", "row")))
            worker.crash(draw)
        else:
            worker.read()
    assert list(dict.fromkeys(worker.batches)) == cut_in_order(log)


def test_a_double_that_is_read_again_after_a_crash_is_still_a_double() -> None:
    # its group_id's row survived and the window's did not: had it been moved to the double, that would be the first
    log = [group(policy="one", task_id="a"), group(policy="one", task_id="a"), group(policy="one", task_id="b")]
    worker = CutterUnderFaults(log)
    worker.read()
    worker.commit()
    worker.read()
    del worker.written[0][worker.safe[0] :]
    worker.start()
    worker.read()
    worker.read()
    assert worker.batches == cut_in_order(log)


# --- promotions -------------------------------------------------------------------------------------------------------


class RolloutsUnderFaults:
    """The rollouts stage over a log that it writes to itself."""

    def __init__(self) -> None:
        self.log: list[AdapterEvent] = []
        self.rows: list[bytes] = []
        self.safe = self.committed = self.position = 0

    def read(self, *, killed: bool = False) -> None:
        line, made = rollouts.reduce(rollouts.load(self.rows[-1] if self.rows else None), self.log[self.position])
        self.log += made
        if not killed:
            self.rows.append(rollouts.dump(line))
            self.position += 1

    def commit(self) -> None:
        self.committed, self.safe = self.position, len(self.rows)

    def crash(self, draw: random.Random) -> None:
        del self.rows[draw.randint(self.safe, len(self.rows)) :]
        self.position = self.committed


def followed(versions: int, seed: int, *, faults: bool, person: bool) -> RolloutsUnderFaults:
    """Train `versions`, each once or twice, while rollouts follows; return it when all is read."""
    draw, stage = random.Random(seed), RolloutsUnderFaults()
    to_come = [trained(version) for version in range(1, versions + 1)]
    if faults:  # the trainer, killed behind its event, writes it again
        to_come = [one for one in to_come for _ in range(draw.choice((1, 1, 2)))]
    if person:
        to_come.insert(draw.randrange(len(to_come) + 1), adapter_event("rejected", 1))
        back = adapter_event("rolled_back", 0, expected_version=draw.randint(1, versions), actor="bob")
        to_come.insert(draw.randrange(len(to_come) + 1), back)
    kills = draw.randint(1, 10) if faults else 0
    while to_come or stage.position < len(stage.log):
        what = draw.random()
        if to_come and what < 0.3:
            stage.log.append(to_come.pop(0))
        elif what < 0.4:
            stage.commit()
        elif stage.position < len(stage.log):
            if kills and what < 0.6:
                kills -= 1
                stage.read(killed=draw.random() < 0.5)
                stage.crash(draw)
            else:
                stage.read()
    return stage


@settings(max_examples=examples(150))
@given(st.integers(1, 5), seeds)
def test_after_any_crashes_of_rollouts_the_newest_version_is_primary_and_was_promoted_as_without(
    versions: int, seed: int
) -> None:
    stage = followed(versions, seed, faults=True, person=False)
    state = state_after(stage.log, "default")
    undisturbed = state_after(followed(versions, seed, faults=False, person=False).log, "default")
    assert (state.primary, state.newest) == (undisturbed.primary, undisturbed.newest) == (versions, versions)


@settings(max_examples=examples(150))
@given(st.integers(1, 5), seeds)
def test_whatever_rollouts_writes_twice_after_crashes_acts_once(versions: int, seed: int) -> None:
    stage = followed(versions, seed, faults=True, person=True)
    once: dict[str, AdapterEvent] = {}
    for one in stage.log:
        once.setdefault(one.event_id, one)
    as_written, deduplicated = empty("default"), empty("default")
    for one in stage.log:
        as_written = fold(as_written, one)
    for one in once.values():
        deduplicated = fold(deduplicated, one)
    assert as_written == deduplicated
    line = rollouts.load(stage.rows[-1])
    assert line.serving == as_written.serving
    by_id = {encode(one) for one in stage.log if one.actor == rollouts.STAGE}
    assert len(by_id) == len({one.event_id for one in stage.log if one.actor == rollouts.STAGE})
