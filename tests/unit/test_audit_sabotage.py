"""The audit under sabotage: one record is dropped, doubled, moved, forged or changed, and it names that record.

Each harm is done to a log through every stage that balances before. What is named is named by its coordinates.
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import hypothesis
import pytest
from hypothesis import given, strategies as st

from schemas.events import AdapterFile, Batch, Coordinates, DroppedGroup, Event, derive_id
from streams.kafka.record import Record
from tests.support.factories import T0, changed, control, group, reward, task
from tests.support.log.whole_run import (
    BY_NAME,
    TOPICS,
    answers,
    appended,
    event_of,
    named,
    promoted,
    rewritten,
    settled,
    trained,
    whole_log,
    without,
)
from tests.support.thoroughness import examples


@cache
def whole() -> tuple[Record, ...]:
    return tuple(whole_log().records)


READ = sorted({BY_NAME[record.at.topic].label for record in whole()})
"""Topics of which `whole()` has something."""
MISKEYED = next(record.at for record in whole() if record.key == b"another")
"""The one record whose key is another than its event's."""


def one(label: str, like: Callable[[Any], bool] = lambda _: True, number: int = 0) -> Record:
    """Return a record of a topic whose event is like that."""
    found = [record for record in whole() if record.at.topic == TOPICS[label].name and is_event(record)]
    return [record for record in found if like(event_of(record))][number]


def is_event(record: Record) -> bool:
    return hasattr(event_of(record), "created_at") and record.at != MISKEYED


def of_task(number: int) -> Callable[[Any], bool]:
    return lambda event: bool(event.task_id == f"task-{number}")


def member_changed(group: Any, **changes: Any) -> Any:
    first, *rest = group.responses
    return replace(group, responses=(changed(first, **changes), *rest))


# --- dropped ----------------------------------------------------------------------------------------------------------


def test_a_record_that_is_dropped_is_named_whatever_it_is() -> None:
    many = ("responses", "rewards")  # of which one is like the other
    for number, record in enumerate(whole()):
        if BY_NAME[record.at.topic].label in many and number % 9:
            continue
        report = settled([other for other in whole() if other is not record], of=whole())
        assert ("lost", record.at) in [(found.category, found.at) for found in report.wrong], record.at


@pytest.mark.parametrize("label", [label for label in READ if label != "dead-letters"])
def test_a_topic_that_is_emptied_is_named_record_by_record(label: str) -> None:
    gone = [record for record in whole() if BY_NAME[record.at.topic].label == label]
    report = settled([record for record in whole() if record not in gone], of=whole())
    lost = [found.at for found in report.of("lost")]
    if len(gone) <= 40:  # beyond, a range of offsets is named by its first
        assert {record.at for record in gone} <= set(lost)
    assert not report.balanced


def test_a_group_that_was_never_written_is_missed_at_its_task() -> None:
    last = [record for record in whole() if record.at.topic == TOPICS["groups"].name and record.at.partition == 0][-1]
    assert "is not in groups" not in named(settled(list(whole())))
    report = settled(without(list(whole()), last.at))
    assert f"lost {one('tasks', of_task(int(event_of(last).task_id[5:]))).at}: " in named(report)


def test_a_reward_that_was_never_written_is_missed_at_its_response() -> None:
    asked, slots = one("tasks", of_task(0)), [one("responses", of_task(0), slot) for slot in range(3)]
    rewards = [one("rewards", of_task(0), number) for number in range(6)]
    records, _ = appended([], event_of(asked))
    for record in (*slots, *rewards[:-1]):
        records, _ = appended(records, event_of(record))
    last = next(record for record in records if record.key == b"task-0" and getattr(event_of(record), "slot", 0) == 2)
    assert f"lost {last.at}: the reward of format is not in rewards" in named(settled(records))


def test_a_dead_letter_that_was_never_written_is_missed_at_its_record() -> None:
    for reason, category in (("superseded", "superseded"), ("late", "late"), ("unasked", "contradictory"),
                             ("contradictory", "contradictory"), ("wrong_key", "misplaced"), ("not_avro", "phantom"),
                             ("unknown_response", "superseded")):  # fmt: skip
        letter = one("dead-letters", lambda event, reason=reason: event.reason == reason)
        told = event_of(letter)
        source = Coordinates(told.source_topic, told.source_partition, told.source_offset)
        report = settled(without(list(whole()), letter.at))
        assert [(found.category, found.at) for found in report.wrong] == [(category, source)], reason


def test_a_batch_that_was_never_written_leaves_its_groups_and_its_version() -> None:
    record = one("batches", lambda batch: batch.policy == "default" and batch.sequence == 1)
    report = settled(without(list(whole()), record.at))
    told = named(report)
    assert "it is batch 2, and batch 1 is not before it" in told
    assert "batch 1, which made it, is not in batches" in told
    for offset in event_of(record).groups_offsets:
        assert f"lost log.groups[{event_of(record).groups_partition}]@{offset}: " in told


def test_a_version_that_is_skipped_is_missed() -> None:
    record = one("adapters", lambda event: event.kind == "trained" and event.version == 2)
    told = named(settled(without(list(whole()), record.at)))
    assert "it is version 3, and version 2 is not before it" in told
    assert "promoted: version 2 was never trained" in told


# --- doubled ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("label", READ)
def test_a_copy_is_a_repetition_and_harms_nothing(label: str) -> None:
    records, at = appended(list(whole()), event_of(one(label)))
    report = settled(records)
    assert named(report) == ""
    assert label == "group-control" or at in [found.at for found in report.of("repeated")]


OTHER: dict[str, Callable[[Any], Event]] = {
    "tasks": lambda event: replace(event, scenario="other"),
    "responses": lambda event: replace(event, text="another answer"),
    "rewards": lambda event: replace(event, value=99.0),
    "groups": lambda event: replace(event, reward_mean=99.0),
    "batches": lambda event: replace(event, loss_tokens=99),
    "adapters": lambda event: replace(event, files=(AdapterFile(path="a", sha256="f" * 64, bytes=1),)),
    "dead-letters": lambda event: replace(event, payload=base64.b64encode(b"other").decode()),
}


@pytest.mark.parametrize("label", OTHER)
def test_a_second_record_of_one_id_with_other_content_is_named(label: str) -> None:
    records, at = appended(list(whole()), OTHER[label](event_of(one(label))))
    assert at in [found.at for found in settled(records).wrong]


def test_a_group_in_two_batches_is_doubled() -> None:
    first, second = (one("batches", lambda batch: batch.policy == "default", number) for number in (0, 1))
    taken = event_of(first).groups_offsets[-1]
    offsets = (taken, *event_of(second).groups_offsets[1:])
    report = settled(rewritten(list(whole()), second.at, lambda event: replace(event, groups_offsets=offsets)))
    group = Coordinates(TOPICS["groups"].name, event_of(second).groups_partition, taken)
    assert f"doubled {second.at}: {group} is in it, but {first.at} has it already" in named(report)
    left = event_of(second).groups_offsets[0]
    assert f"lost {group._replace(offset=left)}: " in named(report)


def test_a_group_in_a_batch_and_dropped_by_one_is_doubled() -> None:
    first, second = (one("batches", lambda batch: batch.policy == "default", number) for number in (0, 1))
    of = one("groups", lambda group: group.policy == "default")
    drop = DroppedGroup(group_id=event_of(of).group_id, offset=of.at.offset, reason="stale")
    report = settled(rewritten(list(whole()), second.at, lambda event: replace(event, dropped=(*event.dropped, drop))))
    assert f"doubled {second.at}: {of.at} is dropped by it, but {first.at} has it already" in named(report)


def test_a_record_in_a_group_and_in_dead_letters_is_doubled() -> None:
    slot = one("responses", of_task(0))
    letter = replace(
        event_of(one("dead-letters", lambda event: event.reason == "late")),
        dead_letter_id=derive_id("advantages", *slot.at),
        source_topic=slot.at.topic,
        source_partition=slot.at.partition,
        source_offset=slot.at.offset,
        key=base64.b64encode(slot.key or b"").decode(),
        payload=base64.b64encode(slot.payload or b"").decode(),
    )
    assert ("doubled", slot.at) in [(one.category, one.at) for one in settled(appended(list(whole()), letter)[0]).wrong]


# --- moved ------------------------------------------------------------------------------------------------------------


def swapped(first: Record, second: Record) -> list[Record]:
    places = {first.at: second, second.at: first}
    return [places[record.at]._replace(at=record.at) if record.at in places else record for record in whole()]


def test_two_records_that_changed_places_are_named() -> None:
    batches = [one("batches", lambda event: event.policy == "default", number) for number in (0, 1)]
    assert f"out_of_order {batches[1].at}: batch 0 comes after batch 1" in named(settled(swapped(*batches)))
    versions = [one("adapters", lambda event: event.policy == "default", number) for number in (0, 2)]
    found = named(settled(swapped(*versions)))
    assert f"lost {versions[0].at}: it is version 2, and version 1 is not before it" in found
    early = [one("adapters", lambda event: event.policy == "default", number) for number in (0, 1)]
    assert f"out_of_order {early[0].at}: promoted: version 1 comes at {early[1].at}" in named(settled(swapped(*early)))
    slots = [one("responses", of_task(0), number) for number in (0, 1)]
    told = named(settled(swapped(*slots)))
    assert str(slots[0].at) in told
    assert str(slots[1].at) in told


def test_group_offsets_that_do_not_ascend_are_named() -> None:
    record = one("batches", lambda batch: batch.policy == "default")
    offsets = event_of(record).groups_offsets[::-1]
    report = settled(rewritten(list(whole()), record.at, lambda event: replace(event, groups_offsets=offsets)))
    assert ("out_of_order", record.at) in [(found.category, found.at) for found in report.wrong]


# --- forged -----------------------------------------------------------------------------------------------------------


def forgeries() -> dict[str, Event]:
    asked = task(task_id="forged")
    last = event_of(one("batches", lambda batch: batch.policy == "other"))
    return {
        "tasks": asked,
        "responses": answers(asked)[0],
        "rewards": reward(answers(asked)[0]),
        "a reward for no response": reward(answers(task(task_id="task-0"), "forged")[0], task_id="task-0"),
        "group-control": control(task_id="forged"),
        "groups": group(task_id="forged"),
        "batches": replace(last, sequence=1, batch_id=derive_id("other", "batch", 1), groups_offsets=(100, 101, 102)),
        "adapters": trained(9),
        "a promotion": promoted(9),
        "dead-letters": replace(
            event_of(one("dead-letters")), source_offset=999,
            dead_letter_id=derive_id("advantages", event_of(one("dead-letters")).source_topic,
                                     event_of(one("dead-letters")).source_partition, 999),
        ),
    }  # fmt: skip


@pytest.mark.parametrize("what", forgeries())
def test_a_forged_record_is_named(what: str) -> None:
    records, at = appended(list(whole()), forgeries()[what])
    assert at in [found.at for found in settled(records).wrong]


# --- changed ----------------------------------------------------------------------------------------------------------

CHANGES: list[tuple[str, str, Callable[[Any], bool], Callable[[Any], Event], str]] = [
    ("one reward's value", "rewards", of_task(0), lambda event: replace(event, value=0.123), "contradictory"),
    ("one component", "rewards", of_task(0), lambda event: replace(event, components={"match": 0.5}), "contradictory"),
    ("one advantage", "groups", of_task(0), lambda event: member_changed(event, advantage=0.5), "contradictory"),
    ("one reward of a group", "groups", of_task(0), lambda event: member_changed(event, reward=0.5), "contradictory"),
    ("the mean", "groups", of_task(0), lambda event: replace(event, reward_mean=0.5), "contradictory"),
    ("the spread", "groups", of_task(0), lambda event: replace(event, reward_std=0.5), "contradictory"),
    ("the formula", "groups", of_task(0), lambda event: replace(event, formula="dr_grpo"), "contradictory"),
    ("one token", "groups", of_task(0), lambda event: member_changed(event, completion_token_ids=(0, 9)),
     "contradictory"),
    ("one logprob", "groups", of_task(0), lambda event: member_changed(event, logprobs=(-0.5, -0.25)), "contradictory"),
    ("the mask", "groups", of_task(0), lambda event: member_changed(event, loss_mask=(True, True)), "contradictory"),
    ("the prompt", "groups", of_task(0), lambda event: changed(event, prompt_token_ids=(7,)), "contradictory"),
    ("the version", "groups", of_task(0), lambda event: replace(event, adapter_version=1), "contradictory"),
    ("a slot left out", "groups", of_task(12), lambda event: replace(event, left_out=()), "contradictory"),
    ("why it is left out", "groups", of_task(3), lambda event: replace(
        event, left_out=(replace(event.left_out[0], reason="unscored"),)), "contradictory"),
    ("who won", "groups", of_task(9), lambda event: replace(event, sampling_id="task-9/second"), "contradictory"),
    ("completeness", "groups", of_task(0), lambda event: replace(event, complete=False), "contradictory"),
    ("its time", "groups", of_task(0), lambda event: replace(event, created_at=T0), "contradictory"),
    ("its purpose", "groups", of_task(0), lambda event: replace(event, purpose="eval"), "contradictory"),
    ("why it was dropped", "groups", of_task(0), lambda event: replace(
        event, dropped_reason="unscored", responses=()), "contradictory"),
    ("loss tokens of a batch", "batches", lambda _: True, lambda event: replace(event, loss_tokens=1), "contradictory"),
    ("lags of a batch", "batches", lambda event: event.sequence > 0, lambda event: replace(event, lags=()),
     "contradictory"),
    ("the lag allowed", "batches", lambda event: event.sequence > 0, lambda event: replace(event, max_policy_lag=0),
     "contradictory"),
    ("why a group was dropped", "batches", lambda event: bool(event.dropped), lambda event: replace(
        event, dropped=(replace(event.dropped[0], reason="stale"), *event.dropped[1:])), "contradictory"),
    ("the parent", "adapters", lambda event: event.kind == "trained", lambda event: replace(
        event, parent_version=None), "contradictory"),
    ("the batch range", "adapters", lambda event: event.kind == "trained", lambda event: replace(
        event, first_batch=None, last_batch=None), "contradictory"),
]  # fmt: skip


@pytest.mark.parametrize(("what", "label", "like", "change", "category"), CHANGES, ids=[one[0] for one in CHANGES])
def test_one_detail_that_was_changed_is_named(
    what: str, label: str, like: Callable[[Any], bool], change: Callable[[Any], Event], category: str
) -> None:
    record = one(label, like)
    report = settled(rewritten(list(whole()), record.at, change))
    assert (category, record.at) in [(found.category, found.at) for found in report.wrong], named(report)


def test_a_group_whose_answer_lies_behind_the_end_is_a_phantom() -> None:
    record = one("groups", of_task(0))
    report = settled(rewritten(list(whole()), record.at, lambda event: member_changed(event, offset=999)))
    assert ("phantom", record.at) in [(found.category, found.at) for found in report.wrong]


@pytest.mark.parametrize(
    "change",
    [
        lambda event: changed(event, completion_token_ids=(0, 9)),
        lambda event: changed(event, logprobs=(-0.5, -0.25)),
        lambda event: replace(event, adapter_version=1),
        lambda event: replace(event, slot=1, response_id=derive_id(event.sampling_id, 1)),
        lambda event: replace(event, group_size=2),
        lambda event: replace(event, policy="other"),
        lambda event: changed(event, prompt_token_ids=(9,)),
    ],
)
def test_a_response_that_was_changed_is_named_with_its_group(change: Callable[[Any], Event]) -> None:
    record = one("responses", of_task(0))
    assert str(record.at) in named(settled(rewritten(list(whole()), record.at, change)))


# --- anything ---------------------------------------------------------------------------------------------------------


@given(st.data())
@hypothesis.settings(max_examples=examples(40))
def test_any_single_harm_to_any_record_is_named(data: st.DataObject) -> None:
    usable = [record for record in whole() if is_event(record)]
    record = data.draw(st.sampled_from(usable), label="record")
    label = BY_NAME[record.at.topic].label
    harms = ["drop", "garble"]
    harms += ["other"] if label in OTHER and label != "adapters" else []
    harm = data.draw(st.sampled_from(harms), label="harm")
    if harm == "drop":
        records, at = [other for other in whole() if other is not record], record.at
    elif harm == "garble":
        records = [other._replace(payload=b"\0garbled") if other is record else other for other in whole()]
        at = record.at
    else:
        records, at = appended(list(whole()), OTHER[label](event_of(record)))
    assert f"{at}" in named(settled(records, of=[*whole(), *records]))


def test_a_batch_knows_its_own_policy_only() -> None:
    record = one("batches", lambda batch: batch.policy == "default")
    batch = event_of(record)
    assert isinstance(batch, Batch)
    wrong = settled(rewritten(list(whole()), record.at, lambda event: replace(event, groups_partition=0)))
    assert record.at in [found.at for found in wrong.wrong]
