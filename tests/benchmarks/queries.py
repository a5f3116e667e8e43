"""The eleven questions of docs/queries.md over an archive, and one of them against DuckDB on the same Parquet files.

    python -m tests.benchmarks queries                    STREAMWARD_BENCH_RESPONSES=1000000 for a long archive

The log is written, archived and then asked with `--source archive`: what the live tail adds is its own reading. A group
has eight responses of 32 tokens, scored by two sources; 16 groups make a batch, and a tenth are held-out questions. The
peer of the last lines is a bare DuckDB connection and the same statement over read_parquet of the same files.

Not covered: a cold disk. The files are in the page cache, for both.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb

from streams.settings.model import Archive, Settings
from streams.tools.archive import sync
from streams.tools.query.session import Session
from tests.benchmarks.long_log import LongLog
from tests.benchmarks.loop import node
from tests.benchmarks.side_by_side import by_turns, line, median_s, say
from tests.benchmarks.whole_groups import SLOTS

RESPONSES = int(os.environ.get("STREAMWARD_BENCH_RESPONSES", "40000"))
FULL = 1_000_000
"""Responses from which on the targets are meant: a statement costs a few milliseconds, however little it reads."""
TARGETS = RESPONSES >= FULL
LIMIT_S = 1.0
"""For each question, at a million responses on two cores."""
OF_PLAIN = 1 / 1.2
PAGE = Path(__file__).parents[2] / "docs" / "queries.md"
QUESTION = re.compile(r"^## (\d+)\. (.*?)$.*?^```sql\n(.*?)^```", re.MULTILINE | re.DOTALL)
PLAIN = """
SELECT adapter_version, count(*) AS answers, count(*) FILTER (finish_reason = 'length') AS truncated,
       avg(completion_tokens), max(latency_ms)
FROM {} WHERE policy = 'demo' AND error IS NULL GROUP BY adapter_version ORDER BY adapter_version
"""


def run() -> Iterator[dict[str, Any]]:
    """Yield a line per question, in seconds, and two against plain DuckDB."""
    with tempfile.TemporaryDirectory(prefix="streamward-bench-") as folder, node() as settings:
        settings = settings.model_copy(update={"archive": Archive(store=folder)})
        say(f"queries: {RESPONSES} responses are written and archived")
        LongLog(settings).write(RESPONSES // SLOTS)
        sync.sync(settings)
        yield from _questions(settings)
        yield from _against_plain(settings)


def _questions(settings: Settings) -> Iterator[dict[str, Any]]:
    with Session(settings, source="archive") as session:
        for number, title, sql in QUESTION.findall(PAGE.read_text(encoding="utf-8")):
            measured = by_turns({"ours": lambda sql=sql: _rows(session, sql)}, rounds=3)["ours"]
            took_s = median_s(measured)
            yield line(
                "queries", f"{number}. {title} ({RESPONSES} responses)", ours=took_s, peer=LIMIT_S, unit="s",
                ratio=LIMIT_S / took_s, target=1.0 if TARGETS else None,
                peer_is="the limit for 1000000 responses, 2 cores", rows=measured[0][1],
            )  # fmt: skip


def _against_plain(settings: Settings) -> Iterator[dict[str, Any]]:
    say("queries: one statement, by turns with plain DuckDB")
    with Session(settings, source="archive") as session, duckdb.connect() as con:
        files = [segment.path for part in range(settings.topics.partitions) for segment in _segments(settings, part)]
        plain = PLAIN.format(f"read_parquet({files})")

        def opened() -> int:
            with Session(settings, source="archive") as fresh:
                return _rows(fresh, PLAIN.format("responses"))

        def bare() -> int:
            with duckdb.connect() as fresh:
                return len(fresh.execute(plain).fetchall())

        runs = {
            "ours": lambda: _rows(session, PLAIN.format("responses")),
            "peer": lambda: len(con.execute(plain).fetchall()),
            "ours, opened": opened,
            "peer, opened": bare,
        }
        seconds = {name: median_s(each) for name, each in by_turns(runs, rounds=9).items()}
    shared: dict[str, Any] = {"unit": "s", "peer_is": "DuckDB, read_parquet of the same files"}
    for case, suffix, target in (("one statement", "", OF_PLAIN), ("with opening the session", ", opened", None)):
        ours, peer = seconds["ours" + suffix], seconds["peer" + suffix]
        yield line(
            "queries", f"{case} ({RESPONSES} responses)", ours=ours, peer=peer, ratio=peer / ours,
            target=target if TARGETS else None,
            **shared,
        )  # fmt: skip


def _segments(settings: Settings, partition: int) -> list[Any]:
    from streams.tools.archive.segments import ArchiveReader as Kept

    return Kept(settings).segments("responses", partition)


def _rows(session: Session, sql: str) -> int:
    statement = session.parse(sql)
    session.check(session.labels(statement))
    return sum(map(len, session.run(sql).batches))
