"""The audit counts the samples of queues, and names the state that is not what its records come to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings as hypothesis_settings, strategies as st

from plugins.verl.queue_state import QueueState, close_spans, fold
from plugins.verl.sample_fold import SampleFold
from schemas.events import Coordinates, QueueEvent, SampleEvent, SampleField
from schemas.tokens import Octets
from streams.tools.audit.facts import Reach
from streams.tools.audit.recount import recount
from streams.tools.audit.report import Report
from tests.support.factories import T0, changed, queue_event, sample_event
from tests.support.log.whole_run import SETTINGS, TOPICS, Written, ends, rewritten, without
from tests.support.thoroughness import examples

PARTITIONS = range(TOPICS["samples"].partitions)


class Program:
    """A queue as programs use it, one after another, with the fold of the product for what a state has."""

    def __init__(self) -> None:
        self.log, self.state = Written(), QueueState(queue="q")
        self.sequence = 0
        self.saves: list[str] = []

    def write(self, event: QueueEvent | SampleEvent) -> None:
        self.log.write(event, T0 + len(self.log.records))
        if isinstance(event, QueueEvent):
            self.state = fold(self.state, event)

    def open(self) -> None:
        self.write(queue_event(epoch=self.state.epoch + 1))
        self.note("restored")

    def note(self, kind: str, checkpoint: str | None = None) -> None:
        """Write that a state was restored or saved."""
        stops = tuple(self.log.ends.get((TOPICS["samples"].name, partition), 0) for partition in PARTITIONS)
        samples = self.fold(close_spans(self.state.spans, stops))
        counts = {}
        if checkpoint is not None:
            now, samples = samples, self.fold(self.state.saved[checkpoint].spans)
            counts = {
                "returned": len(samples.samples.keys() - now.samples.keys()),
                "dropped": len(now.samples.keys() - samples.samples.keys()),
            }
        held = {"samples": len(samples.samples), "digest": samples.digest(), "starts": samples.starts(stops)}
        about = {"epoch": self.state.epoch, "ends": stops, "counts": counts, "checkpoint": checkpoint}
        event = queue_event(kind=kind, **held, **about)
        self.write(event)
        if kind == "saved":
            self.saves.append(event.event_id)

    def fold(self, spans: Any) -> SampleFold:
        samples = SampleFold()
        for record in self.log.of("samples"):
            event = record.decode(SampleEvent)
            assert isinstance(event, SampleEvent)
            if any(span.covers(record.at.partition, record.at.offset, event.epoch) for span in spans):
                samples.take(event, (record.at.partition, record.at.offset))
        return samples

    def sample(self, number: int, kind: str = "put", **changes: Any) -> None:
        self.sequence += 1
        whole = {"key": f"k{number}", "epoch": self.state.epoch, "sequence": self.sequence, **changes}
        if kind != "put":
            whole |= {"fields": ()}
        self.write(sample_event(sample_id=f"q/1.{number}", kind=kind, **whole))

    def load(self) -> None:
        if self.saves:
            self.note("restored", self.saves[-1])


def program() -> Program:
    """Return two programs, the second of which went back to a checkpoint of the first."""
    made = Program()
    made.open()
    for number in range(5):
        made.sample(number, tags=f'{{"n":{number}}}' if number % 2 else None)
    made.sample(1, "cleared")
    made.sample(2, "tagged", tags='{"status":"finished"}')
    made.note("saved")
    made.sample(3, "cleared")
    made.sample(5)
    made.sample(6, parts=2)  # its writer was killed
    made.open()
    made.sample(7, epoch=1)  # of the first program, which still runs
    made.load()
    made.sample(8)
    made.open()
    return made


def report_of(records: list[Any], *, settled: bool = True, **reach: Any) -> Report:
    return recount(records, SETTINGS, Reach(ends=ends(records), settled=settled, **reach))


def wrong(records: list[Any], **reach: Any) -> list[tuple[str, str]]:
    labels = {topic.name: label for label, topic in TOPICS.items()}
    return [(labels[finding.at.topic], finding.what) for finding in report_of(records, **reach).wrong]


def test_a_whole_queue_is_counted_and_nothing_is_wrong_with_it() -> None:
    made = program()
    assert wrong(made.log.records) == []
    report = report_of(made.log.records)
    expected = ("samples put, returned", "8 = 5 in their queues + 2 cleared + 1 gone back", True)
    assert expected in report.equations()
    assert report.counts["sample records superseded"] == 1


@hypothesis_settings(max_examples=examples(40))
@given(
    st.lists(
        st.one_of(
            st.sampled_from(["open", "save", "load"]),
            st.tuples(st.sampled_from(["put", "tagged", "cleared"]), st.integers(0, 5), st.integers(0, 1)),
        ),
        max_size=40,
    )
)
def test_the_recount_agrees_with_whatever_programs_did(operations: list[Any]) -> None:
    made = Program()
    made.open()
    for operation in operations:
        match operation:
            case "open":
                made.open()
            case "save":
                made.note("saved")
            case "load":
                made.load()
            case kind, number, late:
                made.sample(number, kind, epoch=max(1, made.state.epoch - late))
    made.note("saved")
    report = report_of(made.log.records)
    assert report.wrong == []
    assert all(comes_out for _, _, comes_out in report.equations())


def test_any_record_that_was_never_written_is_missed() -> None:
    made = program()
    for record in made.log.records[:-1]:
        assert report_of(without(made.log.records, record.at)).wrong, record.at


@pytest.mark.parametrize(
    ("change", "label"),
    [
        (lambda event: changed(event, tags='{"n":9}'), "queues"),
        (lambda event: replace(event, fields=(SampleField(name="b", encoding="json", data=Octets(b"1")),)), "queues"),
        (lambda event: replace(event, kind="cleared", fields=()), "queues"),
        (lambda event: replace(event, epoch=9), "queues"),
        (lambda event: replace(event, sequence=99), "samples"),
    ],
)
def test_a_sample_that_was_changed_is_named(change: Callable[[Any], Any], label: str) -> None:
    made = program()
    records = rewritten(made.log.records, made.log.of("samples")[0].at, change)
    assert label in {label for label, _ in wrong(records)}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"samples": 3}, "it has 3 samples, and by the log it is 4"),
        ({"digest": "f" * 64}, "it has 4 samples, as by the log, but others, or with other fields or tags"),
        ({"counts": {"returned": 2, "dropped": 1}}, "it counts {'returned': 2, 'dropped': 1}, and by the log it is"),
        ({"checkpoint": "x"}, "it goes back to x, which the queue did not save"),
        ({"epoch": 5}, "its id is not that of its queue"),
    ],
)
def test_a_state_that_was_changed_is_named(changes: dict[str, Any], expected: str) -> None:
    made = program()
    back = next(record for record in made.log.of("queues") if b"dropped" in (record.payload or b""))
    records = rewritten(made.log.records, back.at, lambda event: replace(event, **changes))
    assert expected in str([what for label, what in wrong(records) if label == "queues"])


def test_a_queue_that_was_opened_twice_with_one_number_belongs_to_the_first_and_a_gap_is_named() -> None:
    made = program()
    late = Program()
    late.log = made.log
    late.log.write(queue_event(epoch=2, writer="another"), T0)
    assert wrong(late.log.records) == []
    late.log.write(queue_event(epoch=9), T0)
    assert wrong(late.log.records) == [("queues", "it is epoch 9, and epoch 8 is not before it")]


def test_a_sample_of_no_opening_is_a_phantom_once_all_is_settled_and_before_in_flight() -> None:
    made = program()
    made.sample(0, epoch=7)
    assert wrong(made.log.records) == [("samples", "its queue was not opened as epoch 7")]
    assert wrong(made.log.records, settled=False) == []
    assert report_of(made.log.records, settled=False).in_flight["samples"] == 1


def test_a_copy_of_a_sample_repeats_it_and_states_after_retention_are_not_compared() -> None:
    made = program()
    first = made.log.of("samples")[0]
    event = first.decode(SampleEvent)
    assert isinstance(event, SampleEvent)
    made.log.write(event, T0)
    assert wrong(made.log.records) == [] and len(report_of(made.log.records).of("repeated")) == 1
    kept = [record for record in made.log.records if record is not first]
    begins = {(first.at.topic, first.at.partition): first.at.offset + 1}
    report = report_of(kept, begins=begins)
    assert report.wrong == [] and report.counts["queue states outside"] > 0


def test_an_end_that_the_log_does_not_reach_is_a_phantom() -> None:
    made = program()
    last = made.log.of("samples")[-1]
    topic, partition, offset = last.at
    cut = [record for record in made.log.records if record.at != Coordinates(topic, partition, offset)]
    assert any("ended at" in what for _, what in wrong(cut))
