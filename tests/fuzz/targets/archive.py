"""What an archive holds: the logs of its tables, and segments whose names say what is in them."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path

from streams.settings.model import Settings
from tests.fuzz.target import Check, target


@target("table-logs", "json", light=100)
def table_logs(folder: Path) -> Check:
    """A log is the state of a table, the same each time, or a LogError."""
    from streams.tools.archive.segments import ArchiveReader
    from streams.tools.archive.verify import verify

    settings = Settings.model_validate({"archive": {"store": str(folder)}})
    there = folder / "streamward.rewards" / "_delta_log"
    there.mkdir(parents=True)

    def check(data: bytes) -> str | None:
        (there / f"{0:020d}.json").write_bytes(data)
        verify(settings, ["rewards"])
        found = ArchiveReader(settings).state("rewards")
        assert found is not None
        assert ArchiveReader(settings).state("rewards") == found
        return None

    return check


@target("segments", light=50)
def segments(folder: Path) -> Check:
    """A segment whose digests are right is records, or a LogError, whatever wrote it."""
    from schemas.events import Reward
    from streams.tools.archive.columns import table_schema
    from streams.tools.archive.segments import ArchiveReader, footer_sha256
    from streams.tools.archive.store import Store
    from streams.tools.archive.tables import ArchiveTable, Change, Segment, segment_name, stats_json
    from streams.tools.archive.verify import verify

    settings = Settings.model_validate({"archive": {"store": str(folder)}})
    there = folder / "streamward.rewards"

    def check(data: bytes) -> str | None:
        shutil.rmtree(there, ignore_errors=True)
        raw = folder / "raw"
        raw.write_bytes(data)
        with raw.open("rb") as file:
            footer = footer_sha256(file, len(data))
        digest = hashlib.sha256(data).hexdigest()
        name = segment_name(0, "1970-01-01", (0, 5), digest, footer)
        path = there / name
        path.parent.mkdir(parents=True)
        raw.rename(path)
        table = ArchiveTable(Store(str(folder)), there.name, "rewards", table_schema(Reward))
        table.create({0: 0})
        state = table.load()
        assert state is not None
        segment = Segment(
            "rewards", 0, "1970-01-01", 0, 5, name, str(path), digest, footer, 5, 0, len(data), 0, 10**13, (1,)
        )
        stats = stats_json(5, {}, {}, {"_bad": 5})
        assert table.commit(state, Change(added=((segment, stats),), nexts={0: 5}))
        verify(settings, ["rewards"])
        reader = ArchiveReader(settings)
        (held,) = reader.segments("rewards", 0)
        reader.sound(held)
        found = list(reader.read({(there.name, 0): 0}, {(there.name, 0): 5}))
        if found:
            assert reader.fetch([found[0].at])[found[0].at] == found[0]
        return None

    return check
