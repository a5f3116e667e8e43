"""The protocol of an engine that spreads work over machines, the same for Spark and for Ray.

    numbers 0 to n ──► map_numbers ──► Rows ─┬─► map_tables   a table at a time, in pieces that the engine chooses
                                             ├─► map_groups   all rows of one bucket in one call
                                             ├─► in_order     in the order of the numbers, to this process
                                             └─► sorted_by    sorted, to this process

spark_engine.py and ray_engine.py implement it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Protocol

import pyarrow as pa

from streams import errors
from streams.errors import LogError, SettingsError, StreamwardError

NodeProbe = Callable[[], dict[str, Any]]
"""Describes the node that it runs on."""
Piecework = Callable[[int], Iterator[pa.RecordBatch]]
"""Makes the rows of a numbered piece."""
Tablework = Callable[[pa.Table], Iterator[pa.RecordBatch]]
"""Makes rows of rows."""
_RAISED = re.compile(r"\bstreams\.errors\.(\w+): (.+)")
_MISSING = re.compile(r"ModuleNotFoundError: (No module named '[^']+')")


class SharedValue(Protocol):
    """A large value that every executor gets once."""

    @property
    def value(self) -> Any:
        """The value."""


class Rows(Protocol):
    """Rows that an engine holds, or will make when they are needed."""

    def persist(self) -> Rows:
        """Compute them now, once; return them."""

    def map_tables(self, work: Tablework, schema: pa.Schema) -> Rows:
        """Return what `work` makes of them, piece by piece; the engine chooses the pieces."""

    def map_groups(self, column: str, parts: int, work: Tablework, schema: pa.Schema) -> Rows:
        """Return what `work` makes of them, given all rows with the same value in `column` at once, in any order.

        The table may hold the rows of several values. `parts`: the approximate number of values.
        """

    def in_order(self) -> Iterator[pa.Table]:
        """Yield them in the order of the pieces that they were made of."""

    def sorted_by(self, columns: Sequence[str]) -> Iterator[pa.Table]:
        """Yield them sorted."""


class DataEngine(Protocol):
    """Spark, or Ray."""

    name: str
    """As `--on` has it."""

    @property
    def parallelism(self) -> int:
        """The number of tasks that run at once."""

    def probe_nodes(self, probe: NodeProbe) -> list[dict[str, Any]]:
        """Return what `probe`, which is sent as source, returns on each node, as far as the engine shows nodes."""

    def share(self, value: Any) -> SharedValue:
        """Send a value to every executor that asks for it."""

    def map_numbers(self, count: int, parts: int, work: Piecework, schema: pa.Schema) -> Rows:
        """Return what `work` makes of the numbers below `count`, in their order, by `parts` tasks."""


def executor_error(name: str, exc: BaseException) -> StreamwardError:
    """Return the error that an executor raised, taken out of the engine's own."""
    cause: BaseException | None = exc
    while cause is not None:
        if isinstance(cause, StreamwardError):
            return cause
        cause = getattr(cause, "cause", None) or cause.__cause__
    text = str(exc)
    for name_of_class, message in reversed(_RAISED.findall(text)):
        kind = getattr(errors, name_of_class, None)
        if isinstance(kind, type) and issubclass(kind, StreamwardError):
            return kind(message)
    if missing := _MISSING.findall(text):
        return SettingsError(f"--on {name}: an executor cannot run Streamward: {missing[-1]}; install it there")
    last = next((line.strip() for line in reversed(text.splitlines()) if line.strip()), type(exc).__name__)
    return LogError(f"--on {name}: {type(exc).__name__}: {last}; see the engine's own log")


def as_batches(rows: Iterable[tuple[Any, ...]], schema: pa.Schema, size: int) -> Iterator[pa.RecordBatch]:
    """Yield rows as record batches of at most `size` of them."""
    pending: list[tuple[Any, ...]] = []
    for row in rows:
        pending.append(row)
        if len(pending) == size:
            yield _batch(pending, schema)
            pending = []
    if pending:
        yield _batch(pending, schema)


def _batch(rows: list[tuple[Any, ...]], schema: pa.Schema) -> pa.RecordBatch:
    columns = zip(*rows, strict=True)
    arrays = [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
