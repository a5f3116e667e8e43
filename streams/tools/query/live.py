"""Records of the log as a table that is read lazily by queries.

    bounds ──► raw rows ──► chunks, decoded when pulled ──► the columns and rows of the statement ──► DuckDB

DuckDB's Python client hands the columns and the filters of a statement to a `pyarrow.dataset.Dataset`. This one has
no files: its rows are records between two offsets. A chunk is decoded once and kept for the next statement, and for the
session after this one (`DecodedTopic`); reading stops when a statement needs no more.

The live part must fit into memory. `streamward admin archive sync` keeps it short.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import dataset

from schemas.events import Event
from streams.arrow import decode
from streams.arrow.decode import Bad, DecodedRows
from streams.kafka.record import TopicPartition


class Troubles:
    """The error that was raised while DuckDB was pulling: DuckDB keeps its message, and loses the exception."""

    def __init__(self) -> None:
        self.last: BaseException | None = None

    def take(self) -> BaseException | None:
        """Return the error, once."""
        last, self.last = self.last, None
        return last


class DecodedTopic(NamedTuple):
    """All records of a topic between some offsets, decoded."""

    starts: Mapping[TopicPartition, int] = {}
    ends: Mapping[TopicPartition, int] = {}
    tables: tuple[pa.Table, ...] = ()
    bad: tuple[Bad, ...] = ()


NOTHING = DecodedTopic()


class Chunks:
    """Tables of records, decoded one by one as they are asked for, and kept."""

    def __init__(
        self,
        event: type[Event],
        read: Callable[[], Iterator[DecodedRows]],
        on_bad: Callable[[tuple[Bad, ...]], None] | None = None,
        before: DecodedTopic = NOTHING,
    ) -> None:
        """`before`: what comes first, and is not in `read`."""
        self._event, self._before = event, before
        self._read = read
        self._on_bad = on_bad
        self._rows: Iterator[DecodedRows] | None = None
        self._tables: list[pa.Table] = []
        self._whole = False
        self._lock = threading.Lock()
        self.bad: list[Bad] = []

    def __iter__(self) -> Iterator[pa.Table]:
        number = 0
        while (table := self._nth(number)) is not None:
            yield table
            number += 1

    def contents(self, starts: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]) -> DecodedTopic | None:
        """Return everything, which is between these offsets, in few tables; None if not all was asked for."""
        with self._lock:
            return DecodedTopic(starts, ends, _merge(self._tables), tuple(self.bad)) if self._whole else None

    def close(self) -> None:
        """Close the reader."""
        with self._lock:
            self._let_go()

    def _nth(self, number: int) -> pa.Table | None:
        with self._lock:  # two scans of one statement may pull at once
            while number >= len(self._tables) and not self._whole:
                self._decode_next()
            return self._tables[number] if number < len(self._tables) else None

    def _decode_next(self) -> None:
        if self._rows is None:
            self._rows = iter(self._read())
            self._tables, self.bad = [*self._before.tables], [*self._before.bad]
        try:
            rows = next(self._rows, None)
        except BaseException:  # KeyboardInterrupt too: the next statement starts over
            self._let_go()
            raise
        if rows is None:
            self._whole = True
            self._let_go()
            return
        decoded = decode.decode_rows(self._event, rows, reading="either")
        self._tables.append(decoded.table)
        self.bad += decoded.bad
        if decoded.bad and self._on_bad is not None:
            self._on_bad(decoded.bad)

    def _let_go(self) -> None:
        rows, self._rows = self._rows, None
        close = getattr(rows, "close", None)
        if close is not None:
            close()
        if not self._whole:
            self._tables.clear()


def _merge(tables: Iterable[pa.Table]) -> tuple[pa.Table, ...]:
    """Return the same rows in tables of which each is twice as long as the next, or of CHUNK_RECORDS rows."""
    merged: list[pa.Table] = []
    for table in tables:
        merged.append(table)
        while len(merged) > 1 and merged[-2].num_rows < 2 * merged[-1].num_rows:
            if merged[-2].num_rows + merged[-1].num_rows > decode.CHUNK_RECORDS:
                break
            merged[-2:] = [pa.concat_tables(merged[-2:]).combine_chunks()]
    return tuple(merged)


class Live(dataset.Dataset):  # type: ignore[misc]  # pyarrow has no types
    """The records of a topic between two offsets, as DuckDB's Arrow scan reads them."""

    def __init__(self, event: type[Event], chunks: Chunks, troubles: Troubles) -> None:
        self._schema = decode.arrow_schema(event)
        self._chunks = chunks
        self._troubles = troubles

    @property
    def schema(self) -> pa.Schema:
        """The columns."""
        return self._schema

    def scanner(self, columns: list[str] | None = None, filter: pc.Expression | None = None, **_: Any) -> Scan:
        """Return what reads these columns of the rows that pass."""
        names = self._schema.names if columns is None else columns
        return Scan(pa.schema([self._schema.field(name) for name in names]), self._batches(names, filter))

    def _batches(self, names: list[str], chosen: pc.Expression | None) -> Iterator[pa.RecordBatch]:
        try:
            for table in self._chunks:
                rows = table if chosen is None else table.filter(chosen)
                yield from rows.select(names).to_batches()
        except GeneratorExit:
            raise
        except BaseException as exc:  # DuckDB hides what a reader raises, KeyboardInterrupt too: it is kept here
            self._troubles.last = exc
            raise


class Scan:
    """One reading of a `Live`: the part of a pyarrow Scanner that DuckDB uses."""

    def __init__(self, schema: pa.Schema, batches: Iterator[pa.RecordBatch]) -> None:
        self._schema = schema
        self._batches = batches

    def to_reader(self) -> pa.RecordBatchReader:
        """Return the batches."""
        return pa.RecordBatchReader.from_batches(self._schema, self._batches)
