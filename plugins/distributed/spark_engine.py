"""Spark: rows are a DataFrame, and work is `mapInArrow`.

    map_numbers ──► spark.range(n), a partition each ──► mapInArrow
    map_groups ──► repartition by bucket ──► mapInArrow over the whole partition
    in_order, sorted_by ──► IPC streams of Arrow, a partition after the other, to this process

A session that exists is used (`spark-submit`); otherwise one is started as Spark's own configuration says.

Not covered: Spark Connect, which has no broadcast variables.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from plugins.distributed import node_probe
from plugins.distributed.data_engine import (
    NodeProbe,
    Piecework,
    SharedValue,
    Tablework,
    executor_error,
)
from streams.errors import SettingsError

BATCH_RECORDS = 1000
"""Rows of one Arrow batch between Spark and Python: a response may have many kilobytes."""


@contextmanager
def spark() -> Iterator[SparkEngine]:
    """Yield Spark while the block runs. Raises SettingsError without PySpark, or if Spark does not start."""
    if os.environ.get("SPARK_REMOTE"):
        raise SettingsError(
            "--on spark: SPARK_REMOTE names a Spark Connect server, which has no broadcast variables; unset it"
        )
    from pyspark import cloudpickle
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    cloudpickle.register_pickle_by_value(node_probe)
    running, interrupt_handler = SparkSession.getActiveSession(), signal.getsignal(signal.SIGINT)
    try:
        builder = SparkSession.builder.appName("streamward").config("spark.ui.showConsoleProgress", "false")
        session = running or builder.getOrCreate()
    except (PySparkException, OSError) as exc:
        raise SettingsError(f"--on spark: Spark does not start: {exc}; it needs a Java 17 or 21 in JAVA_HOME") from exc
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, interrupt_handler)  # Spark has set its own, which raises wherever the program is
    session.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", BATCH_RECORDS)
    try:
        yield SparkEngine(session)
    finally:
        if running is None:
            session.stop()


class SparkEngine:
    """A Spark session."""

    name = "spark"

    def __init__(self, session: Any) -> None:
        self._session = session

    @property
    def parallelism(self) -> int:
        """The number of tasks that run at once, as Spark counts them."""
        return int(self._session.sparkContext.defaultParallelism)

    def probe_nodes(self, probe: NodeProbe) -> list[dict[str, Any]]:
        """Return what `probe` returns in twice as many tasks as run at once: Spark does not name their nodes."""
        tasks = 2 * self.parallelism
        with _errors():
            results = self._session.sparkContext.parallelize(range(tasks), tasks).map(lambda _: probe()).collect()
        return list({str(sorted(result.items())): result for result in results}.values())

    def share(self, value: Any) -> SharedValue:
        """Broadcast a value."""
        shared: SharedValue = self._session.sparkContext.broadcast(value)
        return shared

    def map_numbers(self, count: int, parts: int, work: Piecework, schema: pa.Schema) -> SparkRows:
        """Return what `work` makes of the numbers below `count`, in their order, by `parts` tasks."""
        numbers = self._session.range(0, count, 1, parts)
        return SparkRows(numbers.mapInArrow(_NumberWork(work), _as_spark(schema)))


@dataclass(frozen=True, slots=True)
class SparkRows:
    """A DataFrame."""

    frame: Any

    def persist(self) -> SparkRows:
        """Compute it, and keep it in memory and on the disks of the executors."""
        from pyspark import StorageLevel

        with _errors():
            self.frame.persist(StorageLevel.MEMORY_AND_DISK).count()
        return self

    def map_tables(self, work: Tablework, schema: pa.Schema) -> SparkRows:
        """Return what `work` makes of each batch."""
        return SparkRows(self.frame.mapInArrow(_BatchWork(work), _as_spark(schema)))

    def map_groups(self, column: str, parts: int, work: Tablework, schema: pa.Schema) -> SparkRows:
        """Return what `work` makes of each partition, after a repartition by `column`."""
        return SparkRows(self.frame.repartition(parts, column).mapInArrow(_PartitionWork(work), _as_spark(schema)))

    def in_order(self) -> Iterator[pa.Table]:
        """Yield the partitions one after the other."""
        packed = self.frame.mapInArrow(_pack, "packed binary")
        with _errors():
            for row in packed.toLocalIterator():
                yield pa.ipc.open_stream(row.packed).read_all()

    def sorted_by(self, columns: Sequence[str]) -> Iterator[pa.Table]:
        """Yield them sorted."""
        yield from SparkRows(self.frame.orderBy(*columns)).in_order()


@contextmanager
def _errors() -> Iterator[None]:
    """Raise what an executor raised."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    try:
        yield
    except (PySparkException, Py4JError) as exc:
        raise executor_error("spark", exc) from exc


def _as_spark(schema: pa.Schema) -> Any:
    from pyspark.sql.pandas.types import from_arrow_schema

    return from_arrow_schema(schema)


# --- on the executors -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _NumberWork:
    work: Piecework

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column("id").to_pylist():
                yield from self.work(number)


@dataclass(frozen=True, slots=True)
class _BatchWork:
    work: Tablework

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield from self.work(pa.Table.from_batches([batch]))


@dataclass(frozen=True, slots=True)
class _PartitionWork:
    work: Tablework

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        partition = list(batches)
        if partition:
            yield from self.work(pa.Table.from_batches(partition))


def _pack(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Pack each batch into one cell, which Spark hands to this process as it is, instead of row by row."""
    for batch in batches:
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, batch.schema) as stream:
            stream.write_batch(batch)
        yield pa.RecordBatch.from_arrays([pa.array([sink.getvalue().to_pybytes()], pa.binary())], names=["packed"])
