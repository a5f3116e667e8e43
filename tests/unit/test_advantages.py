"""When the advantages stage writes the control records that let time act, and what it does with groups too large."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import given, settings, strategies as st

from schemas.events import AdvantagedGroup, Coordinates, DeadLetter, Event, Sampling
from schemas.serde import decode, encode
from streams.kafka.record import Record
from streams.kafka.topics import DAY_MS
from streams.settings.model import Advantages, Settings, Topics
from streams.stages.advantages.group_event import GroupRecord
from streams.stages.advantages.incoming import Incoming
from streams.stages.advantages.stage import AdvantageStage
from streams.stages.advantages.state import Effect, EmitGroup, GroupMember
from streams.stages.advantages.timers import DeadlineTimers
from streams.tools.replay import driver
from tests.support.factories import T0, changed, control, response, task
from tests.support.log.join_partition import TOPICS, Log, answers, left_out, scores
from tests.support.thoroughness import examples


def timers(now_ms: int = 0, **rule: Any) -> tuple[DeadlineTimers, Log]:
    made = DeadlineTimers(Settings(advantages=Advantages(**rule)))
    made.rebuild(set(range(8)), [], now_ms)
    return made, Log(**rule)


def test_a_group_expires_when_its_deadline_and_the_grace_have_passed() -> None:
    clock, log = timers(grace_s=5)
    log.read(task(deadline_at=T0 + 100))
    clock.note("t1", log.state)
    assert clock.due(T0 + 5099) == []
    (record,) = clock.due(T0 + 5100)
    assert (record.task_id, record.kind) == ("t1", "expire")
    assert clock.due(T0 + 9999) == []


def test_a_train_task_that_is_held_back_does_not_expire_and_one_whose_agent_died_after_a_slot_does() -> None:
    clock, log = timers(deadline_s=60, grace_s=5)
    log.read(task())
    clock.note("t1", log.state)
    assert clock.due(T0 + 10**9) == []
    log.read(response(), T0 + 3_600_000)
    clock.note("t1", log.state)
    assert clock.due(T0 + 3_664_999) == []
    assert [record.kind for record in clock.due(T0 + 3_665_000)] == ["expire"]


def test_a_train_task_that_nobody_sampled_expires_when_its_record_has_left_the_log() -> None:
    clock, log = timers(grace_s=5)
    log.read(task())
    clock.note("t1", log.state)
    left_ms = T0 + 30 * DAY_MS + 5000
    assert clock.due(left_ms - 1) == []
    (record,) = clock.due(left_ms)
    assert (record.kind, record.reason) == ("expire", "never sampled, and its record has left the log")
    log.read(record)
    assert log.group().dropped_reason == "unanswered"


def test_a_closed_group_is_evicted_when_it_was_remembered_long_enough() -> None:
    clock, log = timers(evict_after_s=60)
    log.read_all([task(), control()])
    clock.note("t1", log.state)
    assert clock.due(T0 + 59_999) == []
    assert [record.kind for record in clock.due(T0 + 60_000)] == ["evict"]


def test_a_group_that_left_no_longer_expires() -> None:
    clock, log = timers(evict_after_s=0)
    log.read(task())
    clock.note("t1", log.state)
    log.read(control())
    clock.note("t1", log.state)
    assert clock.due(T0 * 2) == []


def test_no_time_passes_while_a_backlog_is_read() -> None:
    # after an outage the answers that came in time are in the log, and not read yet
    clock, log = timers(grace_s=5)
    log.read(task(deadline_at=T0 + 100))
    clock.note("t1", log.state)
    now = T0 + 3_600_000
    clock.record_read(T0 + 50, now)
    assert clock.due(now + 4999) == []
    clock.record_read(T0 + 60, now + 4000)
    assert clock.due(now + 8999) == []
    assert [record.kind for record in clock.due(now + 9000)] == ["expire"]


def test_a_worker_that_has_just_begun_looks_for_a_backlog_first() -> None:
    log = Log()
    log.read(task(deadline_at=T0 + 100))
    clock = DeadlineTimers(Settings())
    now = T0 + 3_600_000
    clock.rebuild(set(range(8)), [("t1", log.state)], now)
    assert clock.due(now + 1000) == []
    assert len(clock.due(now + 5000)) == 1


def test_rows_of_partitions_owned_by_others_have_no_timers_here() -> None:
    log = Log()
    log.read(task(deadline_at=T0 + 100))
    clock = DeadlineTimers(Settings())
    clock.rebuild(set(), [("t1", log.state)], T0)
    assert clock.due(T0 * 2) == []


# --- groups that their topic does not take ----------------------------------------------------------------------------


def joined(events: list[Event], **topics: Any) -> list[AdvantagedGroup | DeadLetter]:
    """Return what the batch driver makes of these records; `topics` are settings of that name."""
    return [made if isinstance(made, DeadLetter) else made.event() for made in records_of(events, **topics)]


def records_of(events: list[Event], **topics: Any) -> list[GroupRecord | DeadLetter]:
    ends: dict[str, int] = {}
    records = []
    for event in events:
        name = TOPICS[type(event)]
        offset = ends[name] = ends.get(name, -1) + 1
        at = Coordinates(f"p.{name}", 0, offset)
        records.append(Record(at, T0 + len(records), event.task_id.encode(), encode(event)))
    return [made for _, made in driver.join_states(Settings(topics=Topics(prefix="p.", **topics)), records)]


def tokens(many: int) -> dict[str, Any]:
    return {
        "completion_token_ids": tuple(range(many)),
        "logprobs": (-0.5,) * many,
        "loss_mask": (True,) * many,
        "completion_tokens": many,
    }


def bulky(many: int, **changes: Any) -> list[Event]:
    slots = answers(**tokens(many))
    return [task(**changes), *slots, *scores(slots)]


def test_a_group_too_large_for_its_topic_leaves_the_tokens_of_its_largest_members_where_they_are() -> None:
    slots = [changed(one, **tokens(150 + one.slot)) for one in answers()]
    events: list[Event] = [task(), *slots, *scores(slots)]
    (whole,) = joined(events)
    assert isinstance(whole, AdvantagedGroup)
    size = len(encode(whole)) + len(whole.policy)
    for limit, elsewhere in ((size, []), (size - 1, [3]), (size - 153 * 9, [2, 3]), (size - 500 * 9, [0, 1, 2, 3])):
        (made,) = joined(events, max_record_bytes=limit)
        assert isinstance(made, AdvantagedGroup)
        assert [one.slot for one in made.responses if one.elsewhere is not None] == elsewhere
        assert [one.completion_tokens for one in made.responses] == [150, 151, 152, 153]
        assert sum(one.loss_tokens for one in made.responses) == 606
        assert len(encode(made)) + len(made.policy) <= limit
        here = [one for one in made.responses if one.elsewhere is None]
        assert here == [one for one in whole.responses if one.slot not in elsewhere]
        assert [(one.reward, one.advantage) for one in made.responses] == [
            (one.reward, one.advantage) for one in whole.responses
        ]


def test_a_group_too_large_even_without_tokens_leaves_without_its_responses_and_says_so() -> None:
    events = bulky(1, metadata={"note": "x" * 1000})
    (whole,) = joined(events)
    assert isinstance(whole, AdvantagedGroup)
    (made,) = joined(events, max_record_bytes=1700)
    assert isinstance(made, AdvantagedGroup)
    assert (made.dropped_reason, made.responses, made.complete) == ("too_large", (), True)
    assert left_out(made) == [(slot, "too_large") for slot in range(4)]
    assert (made.group_id, made.sampling_id, made.reward_mean) == (whole.group_id, "s1", 1.0)


def test_a_group_that_just_fits_leaves_whole() -> None:
    (whole,) = joined(bulky(200))
    assert isinstance(whole, AdvantagedGroup)
    size = len(encode(whole)) + len(whole.policy)
    assert joined(bulky(200), max_record_bytes=size) == [whole]


def test_slots_that_were_left_out_before_keep_their_own_reason() -> None:
    events = bulky(1, metadata={"note": "x" * 1000})
    (made,) = joined([*events[:-1], control()], max_record_bytes=1600)
    assert isinstance(made, AdvantagedGroup)
    assert left_out(made) == [(0, "too_large"), (1, "too_large"), (2, "too_large"), (3, "unscored")]


def test_metadata_that_alone_is_too_large_is_left_behind_and_the_task_leaves_its_record() -> None:
    (made,) = joined(bulky(1, metadata={"note": "x" * 1500}), max_record_bytes=1700)
    assert isinstance(made, AdvantagedGroup)
    assert (made.dropped_reason, made.metadata) == ("too_large", {})


def test_a_group_whose_slots_alone_are_too_large_leaves_without_them_and_is_closed() -> None:
    # 64 slots take more than 3,000 bytes in a record that holds nothing else
    slots = answers(64)
    events = [task(group_size=64), *slots, *scores(slots, [1.0] * 64), *scores(slots[:1], [1.0])]
    (made,) = joined(events, max_record_bytes=1500)
    assert isinstance(made, AdvantagedGroup)
    assert (made.dropped_reason, made.responses, made.left_out) == ("too_large", (), ())
    assert (made.complete, made.group_size, made.reward_mean) == (True, 64, 1.0)
    assert len(encode(made)) + len(made.policy) <= 1500


def test_a_group_that_cannot_be_recorded_at_all_leaves_a_dead_letter_once_and_is_closed() -> None:
    # a policy's name is in the record twice, as key and as field
    slots = answers(2, policy="p" * 700)
    (made,) = joined(
        [task(group_size=2, policy="p" * 700), *slots, *scores(slots), *scores(slots)], max_record_bytes=1400
    )
    assert isinstance(made, DeadLetter)
    assert (made.reason, made.source_topic, made.source_offset) == ("too_large", "p.rewards", 1)


@settings(max_examples=examples(60))
@given(
    st.integers(0, 30),
    st.integers(1, 8),
    st.dictionaries(st.text(max_size=30), st.text(max_size=60), max_size=5),
    st.dictionaries(st.text(max_size=30), st.floats(-1e9, 1e9), max_size=5),
    st.sampled_from([0.0, -0.0, 0.5]),
    st.sampled_from(["train", "serve"]),
)
def test_a_group_is_written_as_its_event_would_be(
    tokens: int, size: int, metadata: dict[str, str], components: dict[str, float], temperature: float, kind: str
) -> None:
    ids = tuple(2**31 - 1 - n for n in range(tokens))
    drawn = {"completion_token_ids": ids, "logprobs": (-0.5,) * tokens, "loss_mask": (True,) * tokens}
    sampling = Sampling(temperature=temperature, stop=("a", "\x1f"))
    slots = answers(size, prompt_token_ids=ids, sampling=sampling, **drawn)
    named = {"purpose": "serve", "reward_sources": ()} if kind == "serve" else {}
    asked = task(group_size=size, metadata=metadata, adapter_version=slots[0].adapter_version, **named)
    (made,) = records_of([asked, *slots, *(scores(slots, [1.0] * size, components=components) if not named else ())])
    assert isinstance(made, GroupRecord)
    assert decode(made.payload, AdvantagedGroup) == made.event()
    assert made.payload == encode(made.event())
    assert made.key == made.event().policy.encode()


# --- responses kept at hand -------------------------------------------------------------------------------------------


def kept(task_ids: list[str], *, partition: int = 5) -> tuple[AdvantageStage, list[Record]]:
    """Return a stage that has read one response of each of these tasks, and their records."""
    stage, records = AdvantageStage(Settings()), []
    for offset, task_id in enumerate(task_ids):
        said = response(task_id=task_id, sampling_id=task_id)
        at = Coordinates("streamward.responses", partition, offset)
        records.append(Record(at, T0, task_id.encode(), encode(said)))
        stage.reduce(None, decoded(stage, records[-1]), records[-1])
    return stage, records


def decoded(stage: AdvantageStage, record: Record) -> Incoming:
    came = stage.decode(record)
    assert isinstance(came, Incoming)
    return came


def closing(*offsets: int) -> list[Effect]:
    members = tuple(
        GroupMember(slot=slot, response_id="", at=(5, offset), finish_reason="stop", reward=0.0, components={})
        for slot, offset in enumerate(offsets)
    )
    return [replace(_close(), members=members)]


def _close() -> EmitGroup:
    log = Log()
    log.read(task())
    log.read_all(answers())
    log.read_all(scores(answers()))
    return log.closes[0]


def test_responses_to_tasks_that_others_let_leave_are_forgotten_and_the_rest_kept() -> None:
    stage, records = kept(["mine", "theirs", "left"])
    stage.cache.forget_closed(lambda partition, task_id: partition == 5 and task_id == "mine")
    assert stage.missing(closing(0, 1, 2), records[0]) == [records[1].at, records[2].at]


def test_what_is_forgotten_while_a_group_leaves_still_leaves_with_it() -> None:
    stage, records = kept(["a", "b"])
    effects = closing(0, 1)
    assert stage.missing(effects, records[1]) == []
    stage.cache.forget_closed(lambda partition, task_id: False)
    (group,) = stage.outputs(effects, records[1], {})
    assert isinstance(group, GroupRecord) and len(group.event().responses) == 2


def test_a_response_that_is_read_again_takes_its_room_once() -> None:
    stage, records = kept(["a"])
    size = stage.cache.size_bytes
    for _ in range(3):
        stage.reduce(None, decoded(stage, records[0]), records[0])
    assert stage.cache.size_bytes == size > 0
