"""Which records of a queue count, and what they come to."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, strategies as st

from plugins.verl.queue_state import QueueSpan, QueueState, fold
from plugins.verl.sample_fold import SampleFold
from schemas.events import QueueEvent, SampleField
from schemas.tokens import Octets
from tests.support.factories import queue_event, sample_event


def state_of(*events: QueueEvent) -> QueueState:
    state = QueueState(queue="q")
    for event in events:
        state = fold(state, event)
    return state


def restored(epoch: int, end: int, checkpoint: str | None = None) -> QueueEvent:
    return queue_event(kind="restored", epoch=epoch, ends=(end,), digest="d", checkpoint=checkpoint)


def saved(epoch: int, end: int) -> QueueEvent:
    return queue_event(kind="saved", epoch=epoch, ends=(end,), digest="d")


def counting(state: QueueState, *, epoch: int) -> list[int]:
    """Return which of the first ten offsets count if a record of this epoch is there."""
    return [offset for offset in range(10) if state.covers(0, offset, epoch)]


def test_records_of_an_epoch_count_up_to_where_the_next_opening_found_the_end() -> None:
    state = state_of(queue_event(), restored(1, 0), queue_event(epoch=2), restored(2, 4))
    assert counting(state, epoch=1) == [0, 1, 2, 3]
    assert counting(state, epoch=2) == [4, 5, 6, 7, 8, 9]


def test_the_first_of_two_openings_with_one_number_has_the_queue() -> None:
    state = state_of(queue_event(writer="a"), queue_event(writer="b"))
    assert (state.epoch, state.writer, state.superseded) == (1, "a", 1)


def test_what_a_superseded_process_restores_or_saves_changes_nothing() -> None:
    state = state_of(queue_event(), restored(1, 0), queue_event(epoch=2), saved(1, 3), restored(1, 5))
    assert state.superseded == 2 and state.saved == {}
    assert state.spans == (QueueSpan(1, (0,), None),)


def test_a_checkpoint_leaves_out_what_came_between_it_and_its_restore() -> None:
    step = saved(1, 3)
    state = state_of(queue_event(), restored(1, 0), step, queue_event(epoch=2), restored(2, 6))
    state = fold(state, restored(2, 8, step.event_id))
    assert counting(state, epoch=1) == [0, 1, 2] and counting(state, epoch=2) == [8, 9]


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1), (1, 1, 0, 2, 0)])
def test_a_put_of_several_parts_counts_once_they_are_all_there_in_any_order(order: tuple[int, ...]) -> None:
    parts = [
        sample_event(
            part=number, parts=3, fields=(SampleField(name="a", encoding="json", data=Octets(b"%d" % number)),)
        )
        for number in range(3)
    ]
    samples, known = SampleFold(), []
    for offset, number in enumerate(order):
        samples.take(parts[number], (0, offset))
        known.append(len(samples.samples))
    assert known.index(1) == max(order.index(number) for number in range(3))
    (field,) = samples.samples["q/1.0"].fields.values()
    assert field.places == tuple((0, order.index(number)) for number in range(3))


def test_a_put_whose_writer_was_killed_between_two_parts_does_not_count_and_is_told() -> None:
    samples = SampleFold()
    samples.take(sample_event(parts=2), (0, 0))
    assert samples.samples == {} and +samples.counts == {"incomplete": 1}


def piece(name: str) -> SampleField:
    return SampleField(name=name, encoding="json", data=Octets(b"1"))


def test_a_state_needs_the_records_of_its_tags_and_of_puts_that_are_not_whole_yet() -> None:
    samples = SampleFold()
    samples.take(sample_event(fields=(piece("a"),)), (0, 3))
    samples.take(sample_event(fields=(piece("a"),), sequence=1, tags=None), (0, 5))
    assert samples.starts((9,)) == (3,), "its tags are of the first put"
    samples.take(sample_event(fields=(piece("a"),), sequence=2), (0, 6))
    assert samples.starts((9,)) == (6,)
    samples.take(sample_event(sample_id="q/1.1", writer="v", parts=2), (1, 4))
    assert samples.starts((9, 5)) == (6, 4), "the other part may come after a checkpoint"


def test_an_id_that_is_used_again_for_another_key_has_nothing_of_the_sample_before() -> None:
    samples = SampleFold()
    samples.take(sample_event(fields=(piece("a"),)), (0, 0))
    samples.take(sample_event(fields=(piece("b"),), sequence=1, key="other", tags=None), (0, 1))
    (sample,) = samples.samples.values()
    assert (sample.key, sample.tags, list(sample.fields)) == ("other", None, ["b"])
    samples.take(sample_event(fields=(piece("c"),), sequence=2, key="other", partition="val"), (0, 2))
    assert list(samples.samples["q/1.0"].fields) == ["c"]


@given(st.lists(st.tuples(st.sampled_from(("put", "tagged", "cleared")), st.integers(0, 3)), max_size=30))
def test_samples_are_those_put_after_they_were_last_cleared(operations: list[tuple[Any, int]]) -> None:
    samples = SampleFold()
    expected: dict[str, str | None] = {}
    for offset, (kind, number) in enumerate(operations):
        content = {} if kind == "put" else {"fields": ()}
        event = sample_event(sample_id=f"q/1.{number}", sequence=offset, kind=kind, tags=f'{{"n":{offset}}}', **content)
        samples.take(event, (0, offset))
        if kind == "cleared":
            expected.pop(event.sample_id, None)
        else:
            expected[event.sample_id] = event.tags
    assert {name: sample.tags for name, sample in samples.samples.items()} == expected
