"""Where every group is, folded from records in whatever order the topics are read side by side."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from schemas.events import (
    AdvantagedGroup,
    Batch,
    Coordinates,
    DeadLetter,
    DroppedGroup,
    Event,
    Task,
)
from schemas.serde import encode
from streams.demo import loop_run as run
from streams.demo.progress import Progress, waits
from streams.kafka.record import Record, dead_letter
from streams.kafka.topics import topic_of, topics
from streams.settings.model import Batches, Settings
from streams.stages.scoring.breaker import PAUSED, PAUSED_REASON
from tests.support import factories
from tests.support.factories import T0, evaluated, group, promoted, response, reward, scoreless, task, trained
from tests.support.thoroughness import examples

SETTINGS = Settings(batches=Batches(groups=2, max_policy_lag=0))
SIZE = 2


class Log:
    """Gives each event the next offset of its topic."""

    def __init__(self) -> None:
        self.next: dict[str, int] = defaultdict(int)
        self.records: list[Record] = []

    def write(self, *events: Event) -> None:
        for event in events:
            name = topic_of(type(event), SETTINGS.topics).name
            self.records.append(Record(Coordinates(name, 0, self.next[name]), 1, b"k", encode(event)))
            self.next[name] += 1


def folded(*events: Event) -> Progress:
    log = Log()
    log.write(*events)
    return read(log.records)


def read(records: list[Record]) -> Progress:
    progress = Progress(SETTINGS)
    for record in records:
        progress.fold(record)
    return progress


def places(progress: Progress) -> dict[str, int]:
    return {place: count for place, count in progress.places.items() if count}


def asked(task_id: str = "t1", **changes: Any) -> list[Event]:
    return [task(task_id=task_id, group_size=SIZE, **changes)]


def answered(task_id: str = "t1") -> list[Event]:
    return [response(task_id=task_id, sampling_id=task_id, slot=slot, group_size=SIZE) for slot in range(SIZE)]


def scored(task_id: str = "t1") -> list[Event]:
    slots = (response(task_id=task_id, sampling_id=task_id, slot=slot, group_size=SIZE) for slot in range(SIZE))
    return [reward(slot) for slot in slots]


def grouped(task_id: str = "t1", **changes: Any) -> AdvantagedGroup:
    return group(task_id=task_id, **changes)


def batch(sequence: int, *offsets: int, **changes: Any) -> Batch:
    return factories.batch(sequence, groups_offsets=offsets, max_policy_lag=0, **changes)


def flat(task_id: str) -> AdvantagedGroup:
    """Return a group whose rewards are all equal."""
    made = grouped(task_id)
    return replace(made, responses=tuple(replace(member, advantage=0.0) for member in made.responses))


# --- the way of a task ------------------------------------------------------------------------------------------------


def test_a_train_task_passes_every_place_in_turn() -> None:
    log, seen = Log(), []
    steps: list[list[Event]] = [
        asked(), answered(), scored(), [grouped()], [batch(0, 0)], [trained(1)]
    ]  # fmt: skip
    for step in steps:
        log.write(*step)
        seen.append(places(read(log.records)))
    assert seen == [
        {place: 1} for place in ("waiting", "sampled", "scored", "grouped", "batched", "trained")
    ]  # fmt: skip


def test_a_group_that_teaches_nothing_leaves_with_its_reason() -> None:
    progress = folded(*asked("a"), *asked("b"), flat("a"), grouped("b", dropped_reason="unscored", responses=()))
    assert places(progress) == {"left out": 2}
    assert progress.reasons == {"zero_variance": 1, "unscored": 1}


def test_a_group_that_its_batch_drops_leaves_with_the_reason_of_the_batch() -> None:
    stale = DroppedGroup(group_id="g", offset=0, reason="stale")
    progress = folded(*asked("a"), *asked("b"), grouped("a"), grouped("b"), batch(0, 1, dropped=(stale,)))
    assert places(progress) == {"left out": 1, "batched": 1}
    assert progress.reasons == {"stale": 1}


def test_the_window_holds_the_groups_of_the_next_batch() -> None:
    log = Log()
    log.write(grouped("a"), grouped("b"), grouped("c", adapter_version=1), batch(0, 0, 1))
    assert read(log.records).window() == 1


def test_a_group_that_is_too_old_for_the_next_batch_leaves_before_that_is_cut() -> None:
    progress = folded(*asked("a"), *asked("b"), grouped("a"), batch(0, 0), grouped("b"))
    assert (progress.window(), progress.reasons) == (0, {"stale": 1}), "or a run waits for a batch that never fills"


# --- what comes twice, or in another order ----------------------------------------------------------------------------


def test_a_group_written_twice_counts_once() -> None:
    # A worker that is killed between a group and its commit writes it again, and the batch names the second as dropped.
    twice = DroppedGroup(group_id=grouped("a").group_id, offset=1, reason="duplicate")
    once = [*asked("a"), grouped("a"), batch(0, 0), trained(1)]
    doubled = [*asked("a"), grouped("a"), grouped("a"), batch(0, 0, dropped=(twice,)), trained(1)]
    for events in (once, doubled):
        progress = folded(*events)
        assert places(progress) == {"trained": 1}
        assert (progress.learning.versions[0].reward_sum, progress.learning.versions[0].answers) == (1.0, 2)
        assert not progress.reasons


def test_a_batch_delivered_twice_counts_once() -> None:
    progress = folded(grouped("a"), batch(0, 0), batch(0, 0), grouped("b", adapter_version=1))
    assert (progress.batches, places(progress)) == (1, {"batched": 1, "grouped": 1})


def whole_log() -> list[Record]:
    """Return a log with a task at every place, in the order in which it came to be."""
    log = Log()
    for name in ("trained", "batched", "flat", "stale", "grouped", "scored", "sampled", "waiting"):
        log.write(*asked(name))
    for name in ("trained", "batched", "flat", "stale", "grouped", "scored", "sampled"):
        log.write(*answered(name))
    for name in ("trained", "batched", "flat", "stale", "grouped", "scored"):
        log.write(*scored(name))
    log.write(grouped("trained"), batch(0, 0), trained(1), trained(9), promoted(1))  # 9 is forged
    stale = DroppedGroup(group_id="g", offset=2, reason="stale")
    newer = [grouped(name, adapter_version=number) for number, name in enumerate(("batched", "grouped"), start=1)]
    log.write(flat("flat"), grouped("stale"), newer[0], batch(1, 3, dropped=(stale,)), newer[1])
    log.write(task(task_id="held out", purpose="eval", group_size=1, adapter_version=1))
    log.write(grouped("held out", purpose="eval"))
    return log.records


CAUGHT_UP = {
    "waiting": 1, "sampled": 1, "scored": 1, "grouped": 1, "batched": 1, "trained": 1, "left out": 2
}  # fmt: skip


def picture(progress: Progress) -> Any:
    return (
        places(progress),
        progress.reasons,
        progress.learning.versions,
        (progress.batches, progress.versions, progress.primary, progress.eval_open, progress.window()),
        waits(progress),
    )


def test_the_picture_of_a_log_is_right_when_it_is_read_as_it_was_written() -> None:
    progress = read(whole_log())
    assert places(progress) == CAUGHT_UP
    assert progress.reasons == {"zero_variance": 1, "stale": 1}
    assert (progress.batches, progress.versions, progress.primary, progress.eval_open) == (2, 1, 1, 0)


@settings(max_examples=examples(50))
@given(st.data())
def test_the_picture_is_the_same_however_the_topics_are_read_side_by_side(data: st.DataObject) -> None:
    # A demo that goes on reads the whole log again, and all topics at once.
    records = whole_log()
    by_topic: dict[str, list[Record]] = defaultdict(list)
    for record in records:
        by_topic[record.at.topic].append(record)
    mixed: list[Record] = []
    while any(by_topic.values()):
        name = data.draw(st.sampled_from([name for name, left in by_topic.items() if left]))
        mixed.append(by_topic[name].pop(0))
    assert picture(read(mixed)) == picture(read(records))


# --- what is counted beside -------------------------------------------------------------------------------------------


def test_what_is_of_another_policy_or_cannot_be_read_is_not_counted() -> None:
    progress = folded(*asked(policy="another"))
    name = topic_of(AdvantagedGroup, SETTINGS.topics).name
    assert progress.fold(Record(Coordinates(name, 0, 0), 1, b"k", b"not avro")) is None
    assert not progress.counts and not places(progress)


def test_open_dead_letters_are_counted_by_reason() -> None:
    letter = next(event for event in factories.one_of_each() if isinstance(event, DeadLetter))
    assert [*folded(letter).letters.values()] == ["not_avro"]
    assert not folded(letter, replace(letter, stage="dlq", reason="dropped")).letters


def paused(scorer: str, last: str = "exception: it raised") -> DeadLetter:
    record = Record(Coordinates("streamward.responses", 0, 0), 1, b"k", b"")
    error = PAUSED.format(scorer=scorer, last=last, cause="It failed 20 times in a row", pause_s=30)
    return dead_letter(record, stage="scoring", reason=PAUSED_REASON, error=error)


def at_times(*events: tuple[int, Event]) -> Progress:
    """Fold events that were recorded at these times."""
    log = Log()
    log.write(*(event for _, event in events))
    return read([record._replace(timestamp_ms=ms) for record, (ms, _) in zip(log.records, events, strict=True)])


@pytest.mark.parametrize("source", ["caps:caps", "mix"])
def test_a_scorer_is_paused_until_it_gives_a_score_again_and_has_dropped_nothing(source: str) -> None:
    answer = response(group_size=SIZE)
    works, fails = reward(answer, source=source), reward(answer, source=source, error="it raised")
    log: list[tuple[int, Event]] = [
        (1, works),
        (2, paused("caps:caps", "old")),
        (3, paused("caps:caps")),
        (4, fails),
        (9, paused("b:b")),
    ]
    progress = at_times(*log)
    assert [error.partition(". ")[0] for error in progress.pause_reasons()] == [
        "caps:caps is paused: exception: it raised", "b:b is paused: exception: it raised"
    ]  # fmt: skip
    assert dict(waits(progress))["scoring"].startswith("caps:caps is paused: exception: it raised. It failed 20 times")
    assert not progress.letters
    assert len(at_times((5, works), *log).pause_reasons()) == 1, "in whatever order the topics are read"


def test_the_score_of_a_version_is_what_its_evaluation_says() -> None:
    metrics = {"exact": 0.75, "mean_reward": 0.8, "n": 40.0}
    scores = folded(trained(1), evaluated(1, suite="sums", metrics=metrics)).held_out
    assert {version: (score.exact, score.mean_reward, score.n) for version, score in scores.items()} == {
        1: (0.75, 0.8, 40)
    }


def test_versions_that_were_asked_held_out_questions_are_known() -> None:
    progress = folded(task(purpose="eval", group_size=1, adapter_version=4))
    assert (progress.evaluations, progress.eval_open, places(progress)) == ({4}, 1, {})


def test_a_suite_that_was_cut_short_as_it_was_sent_is_still_to_be_asked() -> None:
    def of_suite(number: int) -> Task:
        size = {"suite": "held-out", "suite_size": "2"}
        return task(task_id=f"q{number}", purpose="eval", group_size=1, adapter_version=4, metadata=size)

    cut, whole = folded(of_suite(0), of_suite(0)), folded(of_suite(0), of_suite(1))
    assert (cut.evaluations, cut.submitted[4, "held-out"]) == (set(), {"q0"})
    assert whole.evaluations == {4}


def test_train_tasks_are_counted_by_family() -> None:
    assert folded(*asked("a"), *asked("b", scenario="sums"), *asked("c", scenario="sums")).train_tasks == {
        "default": 1, "sums": 2
    }  # fmt: skip


# --- what waits for what ----------------------------------------------------------------------------------------------

TWO_AHEAD = [*asked("a"), *asked("b"), *answered("a"), *answered("b"), *scored("a"), *scored("b")]


@pytest.mark.parametrize(
    ("events", "process", "says"),
    [
        ([], "policy", "waits for tasks"),
        (asked(), "policy", "loads the model, then answers"),
        ([*asked("a"), *answered("a"), *asked("b")], "policy", "answers; 1 tasks wait"),
        ([*TWO_AHEAD, *asked("c")], "policy", "held back: 2 tasks in flight are not trained on yet"),
        ([task(purpose="eval", group_size=1)], "policy", "loads the model, then answers"),
        ([*answered(), task(purpose="eval", group_size=1)], "policy", "answers 1 held-out questions"),
        ([], "scoring", "waits for responses"),
        ([*asked(), *answered()], "scoring", "2 responses to score"),
        ([*asked(), *answered(), *scored()], "scoring", "waits for responses"),
        ([grouped("a")], "trainer", "waits for batch 0: 1 of 2 groups since 1970-01-01 00:00:00 UTC"),
        ([grouped("a"), grouped("b"), batch(0, 0, 1)], "trainer", "trains version 1"),
    ],
)
def test_each_process_is_said_to_work_or_to_wait(events: list[Event], process: str, says: str) -> None:
    assert dict(waits(folded(*events)))[process] == says


def test_a_group_that_lacks_a_score_is_named_and_counts_no_longer_as_in_flight() -> None:
    answers = [response(task_id="a", sampling_id="a", slot=slot, group_size=SIZE) for slot in range(SIZE)]
    letters = [scoreless(answer, offset) for offset, answer in enumerate(answers)]
    events = [*asked("a"), *answers, *letters, *asked("b"), grouped("b"), *asked("c")]
    progress = folded(*events)
    assert progress.stalled_tasks() == 1
    said = dict(waits(progress))
    assert said["policy"] == "answers; 1 tasks wait"
    assert said["trainer"] == (
        "waits for batch 0: 1 of 2 groups since 1970-01-01 00:00:00 UTC; group of task a lacks a score since "
        "2027-01-15 08:00:00 UTC (own:own: exception: own:own raised KeyError: 'answer'), and other tasks take their "
        "place; it still counts if it comes before 2027-01-15 08:10:00 UTC: repair the scorer, then `streamward "
        "admin rescore --failed`; once the groups have timed out, `streamward tasks resubmit --unscored` sends "
        "their tasks again"
    )
    for after in ([*events, grouped("a")], [grouped("a"), *events]):
        assert folded(*after).stalled_tasks() == 0
        assert "lacks" not in dict(waits(folded(*after)))["trainer"]
    decided = [replace(letter, stage="dlq", reason="requeued") for letter in letters]
    assert folded(*events, *decided).stalled.of("default") == []


class SlowReader:
    """A partition of two tasks, of a node that takes its time: most polls bring nothing."""

    def __init__(self, name: str) -> None:
        self.position, self.bound = {(name, 0): 0}, {(name, 0): 0}
        self.polls = 0

    def assign(self, starts: dict[tuple[str, int], int], ends: dict[tuple[str, int], int] | None = None) -> None:
        self.position, self.bound = dict(starts), ends or self.bound

    def batches(self, outage: object) -> Iterator[list[Record]]:
        while self.position != self.bound:
            yield self.poll()

    def poll(self, *_: object) -> list[Record]:
        self.polls += 1
        ((name, partition), offset) = next(iter(self.position.items()))
        if self.polls % 4 or offset == 2:
            return []
        self.position[name, partition] += 1
        asked = task(task_id=f"t{offset}")
        return [Record(Coordinates(name, partition, offset), T0, asked.task_id.encode(), encode(asked))]


def test_a_run_that_goes_on_knows_all_of_its_log_however_slowly_it_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    own = Settings()
    reader, progress = SlowReader(topics(own.topics)["tasks"].name), Progress(own)
    monkeypatch.setattr(run.admin, "offsets", lambda *_: {tp: (0, 2) for tp in reader.position})
    run._catch_up(reader, progress)  # type: ignore[arg-type]
    assert progress.counts["tasks"] == 2
