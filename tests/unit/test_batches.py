"""Batches: cut by count, every drop named, and the same groups always cut the same."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from hypothesis import given, strategies as st

from schemas.events import AdvantagedGroup, Batch, Coordinates, LagCount, derive_id
from schemas.serde import encode
from streams.settings.model import Batches
from streams.stages.batches import MAX_NAMED, BatchWindow, Cutter, dump, load
from tests.support.factories import T0, counted_outside, group, member


class Line:
    """One policy's groups, read in order, with the table row written and read again at every step."""

    def __init__(self, **rule: Any) -> None:
        self.cutter = Cutter(Batches(**{"groups": 2, "max_policy_lag": 1, **rule}))
        self.window, self.offset = BatchWindow(), 0
        self.seen: dict[str, int] = {}

    def read(self, one: AdvantagedGroup, *, offset: int | None = None) -> list[Batch]:
        if offset is None:
            offset, self.offset = self.offset, self.offset + 1
        doubled = self.seen.setdefault(one.group_id, offset) != offset
        self.window, made = self.cutter.reduce(
            load(dump(self.window)), one, Coordinates("groups", 3, offset), doubled=doubled
        )
        return list(made)


def numbered(number: int, **changes: Any) -> AdvantagedGroup:
    return group(task_id=f"t{number}", created_at=T0 + number, **changes)


def flat(one: AdvantagedGroup) -> AdvantagedGroup:
    """The same group, all rewards equal."""
    return dataclasses.replace(
        one, responses=tuple(dataclasses.replace(response, advantage=0.0) for response in one.responses)
    )


def test_a_window_closes_when_it_holds_enough_groups() -> None:
    line = Line(groups=3)
    assert [len(line.read(numbered(n))) for n in range(7)] == [0, 0, 1, 0, 0, 1, 0]


def test_a_batch_names_its_groups_by_where_they_lie() -> None:
    line = Line()
    line.read(numbered(0))
    (batch,) = line.read(numbered(1))
    assert batch == Batch(
        batch_id=derive_id("default", "batch", 0),
        policy="default",
        created_at=T0 + 1,
        sequence=0,
        closed_by="count",
        max_policy_lag=1,
        groups=2,
        responses=4,
        loss_tokens=8,
        groups_partition=3,
        groups_offsets=(0, 1),
        lags=(LagCount(lag=0, groups=2),),
    )


def test_batches_are_numbered_without_gaps() -> None:
    line = Line(groups=1)
    made = [batch for n in range(4) for batch in line.read(numbered(n, adapter_version=n))]
    assert [batch.sequence for batch in made] == [0, 1, 2, 3]


def test_only_what_the_policy_wrote_counts_as_loss_tokens() -> None:
    tool_use = member(0, advantage=-0.7, loss_mask=(True, False))
    (batch,) = Line(groups=1).read(group(responses=(tool_use, group().responses[1])))
    assert (batch.responses, batch.loss_tokens) == (2, 3)


def drop_of(line: Line, *groups: AdvantagedGroup) -> list[tuple[str, int, str]]:
    """Read `groups`, then as many good ones as fill the batch, and return what that says was dropped."""
    made = [batch for one in groups for batch in line.read(one)]
    fresh = 100
    while not made:
        made = line.read(numbered(fresh, adapter_version=line.window.sequence))
        fresh += 1
    return [(dropped.group_id, dropped.offset, dropped.reason) for dropped in made[-1].dropped]


def test_a_group_without_spread_is_dropped_as_zero_variance() -> None:
    assert drop_of(Line(), flat(numbered(0))) == [(numbered(0).group_id, 0, "zero_variance")]


def test_a_group_without_spread_takes_its_place_where_the_rule_keeps_it() -> None:
    line = Line(groups=2, zero_variance="keep")
    assert line.read(flat(numbered(0))) == []
    (batch,) = line.read(numbered(1))
    assert (batch.groups_offsets, batch.dropped) == ((0, 1), ())


def test_a_group_that_the_join_dropped_keeps_its_reason() -> None:
    empty = numbered(0, dropped_reason="too_few_scored", responses=())
    assert drop_of(Line(), empty) == [(empty.group_id, 0, "too_few_scored")]


def test_a_group_that_an_outside_model_answered_is_dropped_by_that_name() -> None:
    theirs = [counted_outside(slot, reward=float(slot), advantage=slot - 0.5) for slot in (0, 1)]
    assert drop_of(Line(), numbered(0, responses=tuple(theirs))) == [(numbered(0).group_id, 0, "outside_model")]


def test_a_group_that_came_before_is_dropped_as_duplicate() -> None:
    assert drop_of(Line(groups=3), numbered(0), numbered(0)) == [(numbered(0).group_id, 1, "duplicate")]


def test_a_double_is_known_across_batches() -> None:
    line = Line(groups=1)
    line.read(numbered(0))
    assert drop_of(line, numbered(0)) == [(numbered(0).group_id, 1, "duplicate")]


def test_a_tuned_version_takes_no_batch_so_groups_do_not_grow_older_by_it() -> None:
    """Versions 1 and 2 were tuned; batch 0 made version 3, and version 4 was tuned from that."""
    line = Line(groups=1, max_policy_lag=0)
    of = {1: 0, 2: 0, 3: 1, 4: 1}
    (first,) = line.read(numbered(0, adapter_version=2, trained_batches=of[2]))
    assert (first.sequence, first.lags) == (0, (LagCount(lag=0, groups=1),))
    assert line.read(numbered(1, adapter_version=1, trained_batches=of[1])) == []
    (second,) = line.read(numbered(2, adapter_version=4, trained_batches=of[4]))
    assert [dropped.reason for dropped in second.dropped] == ["stale"]
    assert (second.sequence, second.lags) == (1, (LagCount(lag=0, groups=1),))


def test_a_group_of_a_version_too_old_is_dropped_as_stale() -> None:
    line = Line(groups=1, max_policy_lag=1)
    for n in range(2):
        line.read(numbered(n, adapter_version=n))
    stale, just = numbered(10, adapter_version=0), numbered(11, adapter_version=1)
    assert line.read(stale) == []
    (batch,) = line.read(just)
    assert (batch.sequence, batch.lags) == (2, (LagCount(lag=1, groups=1),))
    assert [dropped.reason for dropped in batch.dropped] == ["stale"]


def test_without_any_lag_allowed_only_the_batch_s_own_parent_counts() -> None:
    line = Line(groups=1, max_policy_lag=0)
    line.read(numbered(0))
    assert line.read(numbered(1, adapter_version=0)) == []
    assert len(line.read(numbered(2, adapter_version=1))) == 1


def test_a_group_of_a_version_that_cannot_exist_yet_is_dropped() -> None:
    future = numbered(0, adapter_version=1)
    assert drop_of(Line(), future) == [(future.group_id, 0, "unknown_version")]


def test_lags_are_counted_oldest_last() -> None:
    line = Line(groups=1, max_policy_lag=2)
    for n in range(2):
        line.read(numbered(n, adapter_version=n))
    line.cutter = Cutter(Batches(groups=4, max_policy_lag=2))
    made = [b for n, version in enumerate((0, 2, 1, 2)) for b in line.read(numbered(10 + n, adapter_version=version))]
    assert made[0].lags == (LagCount(lag=0, groups=2), LagCount(lag=1, groups=1), LagCount(lag=2, groups=1))


@pytest.mark.parametrize("purpose", ["eval", "serve"])
def test_only_train_groups_are_for_the_trainer(purpose: str) -> None:
    line = Line(groups=1)
    assert line.read(numbered(0, purpose=purpose)) == []
    (batch,) = line.read(numbered(1))
    assert (batch.groups_offsets, batch.dropped) == ((1,), ())


def test_a_record_delivered_again_changes_nothing() -> None:
    line = Line(groups=2)
    line.read(numbered(0))
    before = line.window
    assert line.read(numbered(0), offset=0) == []
    assert line.window == before


def test_a_batch_cut_again_after_a_kill_has_the_same_id_and_bytes() -> None:
    # the kill comes after the batch was written and before the window was: the row is old, the record comes again
    line = Line(groups=2)
    line.read(numbered(0))
    row = dump(line.window)
    (first,) = line.read(numbered(1))
    line.window = load(row)
    (again,) = line.read(numbered(1), offset=1)
    assert encode(again) == encode(first)


def test_what_a_learned_policy_drops_does_not_grow_without_bound() -> None:
    line = Line(groups=1)
    cutter, window = line.cutter, BatchWindow()
    for n in range(MAX_NAMED + 5):
        window, made = cutter.reduce(window, flat(numbered(n)), Coordinates("groups", 3, n), doubled=False)
        assert made == ()
    window = load(dump(window))
    _, (batch,) = cutter.reduce(window, numbered(9999), Coordinates("groups", 3, 9999), doubled=False)
    assert (len(batch.dropped), batch.metadata) == (MAX_NAMED, {"dropped_unnamed": "5"})


def test_a_row_of_another_version_is_refused_with_the_way_out() -> None:
    with pytest.raises(ValueError, match=r"row has version 0, expected 2.*start under another consumer group"):
        load(dump(BatchWindow()).replace(b'"v":2', b'"v":0'))


some_groups = st.lists(
    st.builds(
        lambda number, version, kind: (
            flat(numbered(number, adapter_version=version))
            if kind == "flat"
            else numbered(number, adapter_version=version, purpose=kind)
        ),
        st.integers(0, 9),
        st.integers(0, 3),
        st.sampled_from(["train", "train", "train", "flat", "eval"]),
    ),
    max_size=30,
)


@given(some_groups, st.integers(1, 3), st.integers(0, 2))
def test_every_train_group_is_in_one_batch_or_named_as_dropped(
    groups: list[AdvantagedGroup], size: int, lag: int
) -> None:
    line = Line(groups=size, max_policy_lag=lag)
    made = [batch for one in groups for batch in line.read(one)]
    placed = [offset for batch in made for offset in batch.groups_offsets]
    named = [dropped.offset for batch in made for dropped in batch.dropped]
    waiting = [entry.offset for entry in line.window.entries] + [dropped.offset for dropped in line.window.dropped]
    expected = [offset for offset, one in enumerate(groups) if one.purpose == "train"]
    assert sorted(placed + named + waiting) == expected
    used = [groups[offset].group_id for offset in placed]
    assert len(set(used)) == len(used)


@given(some_groups, st.integers(0, 30), st.integers(0, 30))
def test_a_restart_anywhere_cuts_the_same_batches(groups: list[AdvantagedGroup], stop: int, back: int) -> None:
    # read to `stop`, die, begin again `back` records earlier with the rows as they were written
    straight, restarted = Line(), Line()
    expected = [encode(batch) for one in groups for batch in straight.read(one)]
    stop = min(stop, len(groups))
    made = [encode(batch) for one in groups[:stop] for batch in restarted.read(one)]
    begin = max(0, stop - back)
    restarted.offset = begin
    made += [encode(batch) for one in groups[begin:] for batch in restarted.read(one)]
    assert made == expected


def trained_on(batches: list[Batch]) -> list[int]:
    """The offsets of the groups that were trained on, in their order."""
    return [offset for batch in batches for offset in batch.groups_offsets]


@pytest.mark.parametrize("stop", range(9))
def test_of_eight_groups_sampled_ahead_a_restart_skips_none_and_repeats_none(stop: int) -> None:
    # elsewhere the place in the data was saved, and not the answers sampled ahead: 0 and 1, and then 4 to 7
    line = Line(groups=2, max_policy_lag=4)
    made = [batch for n in range(stop) for batch in line.read(numbered(n))]
    row, seen = dump(line.window), dict(line.seen)
    again = Line(groups=2, max_policy_lag=4)
    again.window, again.offset, again.seen = load(row), stop, seen
    made += [batch for n in range(stop, 8) for batch in again.read(numbered(n))]
    assert trained_on(made) == [*range(8)] and [batch.groups for batch in made] == [2] * 4


def test_a_stale_group_does_not_hold_back_the_place_at_which_a_restart_continues() -> None:
    """Of 150 groups the third takes long: when it comes, its version is too old. Nothing before it is made again."""
    line, late, order = Line(groups=2, max_policy_lag=4), 2, [*range(150)]
    order.insert(100, order.pop(late))
    made = [batch for n in order[:120] for batch in line.read(numbered(n, adapter_version=_of(n, order, late)))]
    restarted = Line(groups=2, max_policy_lag=4)
    restarted.window, restarted.offset, restarted.seen = load(dump(line.window)), line.offset, line.seen
    made += [batch for n in order[120:] for batch in restarted.read(numbered(n, adapter_version=_of(n, order, late)))]
    assert [(one.offset, one.reason) for batch in made for one in batch.dropped] == [(order.index(late), "stale")]
    assert trained_on(made) == [at for at, n in enumerate(order) if n != late][:148]
    assert [batch.sequence for batch in made] == [*range(74)]


def _of(number: int, order: list[int], late: int) -> int:
    """The version that samples a group: the newest one, but for the late group the first."""
    return 0 if number == late else order.index(number) // 2 - 1 if order.index(number) > 1 else 0
