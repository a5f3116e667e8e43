"""The audit counts the runs of data sets, and names a build or a submission that the log does not bear out."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from plugins.improve.datasets.dataset_audit import recount_rows
from plugins.improve.datasets.dataset_log import PlacedDataset
from schemas.events import Coordinates, DatasetEvent, Event, OutsideTuning, SourceRange, derive_id
from streams.adapters.versions import manifest_digest
from streams.tools.audit.facts import Reach
from streams.tools.audit.recount import recount
from streams.tools.audit.report import Report
from tests.plugins.improve.test_datasets import asked, composed, verdict
from tests.unit.test_finished import SETTINGS, Appended, end


def judged_log() -> Appended:
    """Return a log of two promoted runs and one that was rejected."""
    log = Appended()
    for name, decision in (("run-0", "promote"), ("run-1", "promote"), ("run-2", "reject")):
        run = asked(name, f"a question of {name}")
        log.write(*run.turns, end(run))
        verdict(log, name, decision)  # type: ignore[arg-type]
    return log


def recounted(*changes: Any, after: tuple[Event, ...] = ()) -> Report:
    """Recount a log with one build, after these changes to its event; `after`: further events."""
    log = judged_log()
    event = composed(log).event
    for change in changes:
        event = change(event)
    log.write(event, *after)
    records = [record for of_topic in log.records.values() for record in of_topic]
    ends = {(name, 0): len(of_topic) for name, of_topic in log.records.items()}
    return recount(records, SETTINGS, Reach(ends=ends, settled=True))


def wrong(*changes: Any, after: tuple[Event, ...] = ()) -> list[str]:
    report = recounted(*changes, after=after)
    return [finding.what for finding in report.wrong if finding.at.topic == "streamward.datasets"]


def with_fields(**fields: Any) -> Any:
    return lambda event: replace(event, **fields)


def with_own_id(event: DatasetEvent) -> DatasetEvent:
    return replace(event, event_id=derive_id(event.dataset, event.kind, event.digest))


def outside(kind: Any, event: DatasetEvent, job: str = "ftjob-1") -> DatasetEvent:
    return replace(
        event,
        event_id=derive_id(event.dataset, kind, event.digest, job),
        kind=kind,
        manifest_sha256=None,
        outside=OutsideTuning(endpoint="https://tuner/v1", job=job, model="m"),
    )


def test_a_build_of_the_verdicts_that_are_there_is_counted_and_nothing_is_wrong() -> None:
    report = recounted()
    assert wrong() == []
    assert (report.counts["datasets"], report.counts["dataset rows"]) == (1, 2)


def test_an_id_or_a_digest_of_something_else_is_named() -> None:
    assert wrong(with_fields(event_id="x")) == ["its id is not that of its data set, kind, digest and job"]
    assert wrong(with_fields(digest="0" * 64), with_own_id) == ["its digest is not that of its files"]


def test_a_build_of_records_that_are_not_there_is_a_phantom() -> None:
    def longer(event: DatasetEvent) -> DatasetEvent:
        ranges = tuple(
            SourceRange(topic=part.topic, partition=0, first=0, next=part.next + 7 * ("turns" in part.topic))
            for part in event.ranges
        )
        return replace(event, ranges=ranges)

    assert wrong(longer) == ["it was made of streamward.turns[0] up to offset 10, and the log ends at 3"]


def test_runs_that_were_judged_and_not_counted_are_named() -> None:
    def forgets(event: DatasetEvent) -> DatasetEvent:
        return replace(event, counts={name: count for name, count in event.counts.items() if "left" not in name})

    (problem,) = wrong(forgets)
    assert problem == "it counts 2 judged runs, rows and left out, and 3 have a verdict in its ranges"


def test_rows_that_nobody_promoted_so_are_named() -> None:
    assert wrong(with_fields(labellers={"judge": 2})) == ["it has 2 rows by judge, and 0 runs were promoted so"]
    assert wrong(with_fields(labellers={"person": 1})) == ["it has 2 rows, 2 by scenario, 1 by labeller"]


def test_what_was_sent_elsewhere_had_been_built_and_submitted() -> None:
    event = composed(judged_log()).event
    assert wrong(after=(outside("submitted", event), outside("succeeded", event))) == []
    assert wrong(after=(outside("succeeded", event),)) == [
        "it is the end of job ftjob-1, which was not submitted before it"
    ]
    other = outside("submitted", replace(event, digest="0" * 64))
    assert wrong(after=(other,)) == ["it is about a build with digest 000000000000, which is not before it"]


def test_a_build_that_was_written_twice_is_one() -> None:
    event = composed(judged_log()).event
    assert wrong(after=(event,)) == []
    assert recounted(after=(event,)).counts["dataset events repeated"] == 1


# --- rows -------------------------------------------------------------------------------------------------------------


def rows_of(log: Appended, event: DatasetEvent, code: str = "0 abc") -> tuple[list[str], dict[str, int]]:
    """Return what is wrong with the rows of a set in this log, and what was counted."""
    findings, counts = recount_rows(SETTINGS, [PlacedDataset(Coordinates("datasets", 0, 0), event)], log, code)
    return [finding.what for finding in findings], dict(counts)


def test_the_rows_of_a_set_are_made_again_from_its_ranges() -> None:
    log = judged_log()
    assert rows_of(log, composed(log).event) == ([], {"data sets made again": 1})


def test_a_set_whose_rows_are_not_those_of_the_log_is_named_and_one_of_other_code_is_counted() -> None:
    log = judged_log()
    event = composed(log).event
    first, *rest = event.files
    files = (replace(first, sha256="f" * 64), *rest)
    forged = with_own_id(replace(event, files=files, digest=manifest_digest(files)))
    ((what,), counts) = rows_of(log, forged)
    assert first.path in what and "differ" in what and not counts
    assert rows_of(log, forged, code="1 def") == ([], {"data sets of other code that differ": 1})
    assert len(rows_of(log, replace(event, policy="other"))[0]) == 1, "no run fits"
    no_rule = replace(event, selection=event.selection | {"mood": "good"})
    assert "its rule" in rows_of(log, no_rule)[0][0]


def test_a_set_whose_records_are_gone_is_counted() -> None:
    log = judged_log()
    event = composed(log).event
    ranges = tuple(replace(part, next=part.next + 1) for part in event.ranges)
    assert rows_of(log, replace(event, ranges=ranges)) == ([], {"data sets whose records are gone": 1})
