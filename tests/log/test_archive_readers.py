"""An archive is a Delta table: what others read from it is what the log holds."""

from __future__ import annotations

from pathlib import Path

import duckdb
import polars
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable

from schemas.events import Reward
from streams.arrow.decode import decode
from streams.settings.model import Settings
from streams.tools.archive.compact import compact
from streams.tools.archive.segments import ArchiveReader
from streams.tools.archive.sync import sync
from tests.support.log.archived import ONE, in_the_log, settings, small, write, write_odd
from tests.support.spark import environment
from tests.support.spark.environment import Filters

__all__ = ["settings"]
pytestmark = pytest.mark.kafka

COLUMNS = ["_partition", "_offset", "reward_id", "value", "task_id"]


def where(settings: Settings) -> str:
    return ArchiveReader(settings).store.uri(ArchiveReader(settings).folder("rewards"))


@pytest.fixture
def expected(made: Settings) -> list[tuple[object, ...]]:
    """What the rewards of two partitions hold, some of them merged into fewer files since."""
    write(made, 25)
    write(made, 5, partition=2)
    sync(small(made), ["rewards"])
    write_odd(made)
    sync(made, ["rewards"])
    compact(made, ["rewards"])
    table = decode(Reward, in_the_log(made)).table
    return sorted(zip(*(table[name].to_pylist() for name in COLUMNS), strict=True))


def test_polars_reads_the_same_rows(made: Settings, expected: list[tuple[object, ...]]) -> None:
    rows = polars.scan_delta(where(made)).filter(polars.col("_bad").is_null()).select(COLUMNS).collect().rows()
    assert sorted(rows) == expected


def test_duckdb_reads_the_same_rows_over_arrow(made: Settings, expected: list[tuple[object, ...]]) -> None:
    with duckdb.connect() as con:
        con.register("rewards", DeltaTable(where(made)).to_pyarrow_dataset())
        rows = con.table("rewards").filter("_bad IS NULL").select(*COLUMNS).fetchall()
    assert sorted(rows) == expected


def test_pandas_reads_the_same_rows(made: Settings, expected: list[tuple[object, ...]]) -> None:
    frame = DeltaTable(where(made)).to_pandas(columns=[*COLUMNS, "_bad"])
    rows = frame[frame["_bad"].isna()][COLUMNS].itertuples(index=False, name=None)
    assert sorted(tuple(row) for row in rows) == expected


@pytest.mark.spark
def test_spark_reads_the_same_rows(made: Settings, expected: list[tuple[object, ...]], tmp_path: Path) -> None:
    question = Filters(where(made), tuple(COLUMNS), ("_bad IS NULL",))
    with environment.promised():
        ((rows,),) = environment.answers([question], tmp_path)
    assert sorted(map(tuple, rows)) == expected


def test_a_day_and_a_partition_leave_other_files_out(made: Settings, expected: list[tuple[object, ...]]) -> None:
    table = DeltaTable(where(made))
    files = table.file_uris(file_pruning_predicate=f"_partition = {ONE}")
    assert files and len(files) < len(table.file_uris())
    rows = table.to_pyarrow_dataset().to_table(filter=pc.field("_partition") == ONE)
    assert set(rows["_partition"].to_pylist()) == {ONE}
    assert set(map(str, rows["_day"].to_pylist())) == {str(each)[:10] for each in rows["_timestamp"].to_pylist()}
