"""However an export is cut into parts, and in whatever order they come, the files are those of one piece."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from plugins.distributed import spread_export
from plugins.distributed.pieces import pieces_of
from plugins.distributed.spread_export import LINES, READ, Exporting, ReadingByTask
from schemas.events import Response
from schemas.serde import encode
from streams.kafka.record import Record
from streams.settings.model import Archive, Settings
from streams.tools.query import export
from streams.tools.query.examples import ExportOptions
from streams.tools.query.session import Session
from streams.tools.query.source import Scope
from tests.support.log.archive_of import archive_records
from tests.support.log.whole_run import SETTINGS, whole_log

FORMATS = ("sft", "preference", "prompts", "openai", "openai-preference")


@dataclass(frozen=True)
class Sent:
    """A value that an engine would send to its executors."""

    value: Any


@dataclass(frozen=True)
class Made:
    """Rows that an engine would hold."""

    table: pa.Table

    def sorted_by(self, columns: tuple[str, ...]) -> Iterator[pa.Table]:
        yield self.table.sort_by([(name, "ascending") for name in columns])


@pytest.fixture(scope="module")
def archived(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    """An archive of a whole run, some of whose groups are there twice, in segments of any size."""
    settings = SETTINGS.model_copy(update={"archive": Archive(store=str(tmp_path_factory.mktemp("archive")))})
    log: dict[tuple[str, int], list[Record]] = {}
    for label in export.LABELS:
        for record in whole_log().of(label):
            log.setdefault((label, record.at.partition), []).append(_told_apart(record))
    for (label, _), records in log.items():
        if label == "groups":
            for record in records[:2]:
                records.append(record._replace(at=record.at._replace(offset=len(records))))
    draw = random.Random(1)
    archive_records(settings, log, iter(lambda: draw.choice((1, 2, 5, 50)), 0))
    return settings


def _told_apart(record: Record) -> Record:
    """Return a response with a text of its own: best and worst that say the same are no pair."""
    event = record.decode(Response)
    if not isinstance(event, Response):
        return record
    return record._replace(payload=encode(replace(event, text=f"{event.text} {event.slot}")))


def in_one_piece(settings: Settings, options: ExportOptions, scope: Scope, folder: Path) -> export.Counts:
    with Session(settings, source="archive", scope=scope) as session:
        rows = (row for batch in session.run(export.statement(options)).batches for row in batch.to_pylist())
        return export.write(rows, options, folder, ranges=[])


def in_parts(settings: Settings, options: ExportOptions, scope: Scope, folder: Path, seed: int) -> export.Counts:
    draw = random.Random(seed)
    buckets = draw.choice((1, 3, 50))
    pieces = pieces_of(settings, spread_export.ranges_of(settings), export.LABELS)
    reading = ReadingByTask(settings, Sent(pieces), options, scope, buckets)
    batches = [batch for number in range(len(pieces)) for batch in reading(number)]
    rows = pa.Table.from_batches(batches, READ)
    rows = rows.take(pa.array(draw.sample(range(len(rows)), len(rows)), pa.int64()))
    made = [
        batch
        for bucket in draw.sample(range(buckets), buckets)
        for batch in Exporting(settings, options)(rows.filter(pa.compute.equal(rows["bucket"], bucket)))
    ]
    counts = export.Counts()
    lines = spread_export.count_lines(Made(pa.Table.from_batches(made, LINES)), counts)
    export.write_lines(lines, options, folder, counts, ranges=list)
    return counts


def held(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("seed", range(2))
def test_parts_in_any_order_give_the_files_of_one_piece(
    archived: Settings, tmp_path: Path, form: Any, seed: int
) -> None:
    options = ExportOptions(policy="default", format=form, test_share=0.3)
    one, parts = tmp_path / "one", tmp_path / "parts"
    expected = in_one_piece(archived, options, Scope(), one)
    assert in_parts(archived, options, Scope(), parts, seed) == expected
    assert held(parts) == held(one) and len(held(one)) > 1
    assert expected.groups > 3


def test_only_groups_of_the_times_asked_for_give_examples(archived: Settings, tmp_path: Path) -> None:
    times = sorted(record.timestamp_ms for record in whole_log().of("groups"))
    scope = Scope(times[1], times[-1])
    options = ExportOptions(policy="default", format="prompts")
    whole, some = tmp_path / "whole", tmp_path / "some"
    every = in_one_piece(archived, options, Scope(), whole)
    expected = in_one_piece(archived, options, scope, some)
    assert 0 < expected.groups < every.groups
    assert in_parts(archived, options, scope, tmp_path / "parts", 5) == expected
    assert held(tmp_path / "parts") == held(some)
