"""What an archive holds: manifests and segments; the one with the digests that it should have, the other as it is."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from streams.settings.model import Settings
from tests.fuzz.target import Check, target

SEGMENT = "segment.parquet"


@target("manifests", "json", light=300)
def manifests(folder: Path) -> Check:
    """A manifest is one that is written again as the same, or a LogError; also if its own digest is right."""
    from streams.tools.archive.manifests import manifest_bytes
    from streams.tools.archive.segments import ArchiveReader
    from streams.tools.archive.verify import verify

    settings = Settings.model_validate({"archive": {"store": str(folder)}})
    there = folder / "streamward.rewards" / "0"
    there.mkdir(parents=True)

    def read(data: bytes) -> None:
        (there / "00000001.json").write_bytes(data)
        verify(settings, ["rewards"])
        reader = ArchiveReader(settings)
        found = reader.manifest("rewards", 0)
        assert found is not None
        (there / "00000001.json").write_bytes(manifest_bytes(found))
        assert ArchiveReader(settings).manifest("rewards", 0) == found

    def check(data: bytes) -> str | None:
        try:
            body = json.loads(data)
            body.pop("sha256", None)
            text = json.dumps(body, sort_keys=True).encode()
            data = json.dumps({**body, "sha256": hashlib.sha256(text).hexdigest()}).encode()
        except (ValueError, AttributeError, TypeError, RecursionError):
            pass  # read as it is
        read(data)
        return None

    return check


@target("segments", light=100)
def segments(folder: Path) -> Check:
    """A segment whose digests are right is records, or a LogError, whatever wrote it."""
    from streams.tools.archive.manifests import Manifest, Segment, manifest_bytes
    from streams.tools.archive.segments import ArchiveReader, footer_sha256
    from streams.tools.archive.verify import verify

    settings = Settings.model_validate({"archive": {"store": str(folder)}})
    there = folder / "streamward.rewards" / "0"
    there.mkdir(parents=True)
    path = there / SEGMENT

    def check(data: bytes) -> str | None:
        path.write_bytes(data)
        with path.open("rb") as file:
            footer = footer_sha256(file, len(data))
        digest = hashlib.sha256(data).hexdigest()
        segment = Segment(
            "rewards", 0, 0, 5, str(path), digest, footer, "0" * 64, 5, 0, len(data), 100, 0, 10**13, (1,)
        )  # fmt: skip
        (there / "00000001.json").write_bytes(manifest_bytes(Manifest(1, 1, 0, (segment,))))
        verify(settings, ["rewards"])
        reader = ArchiveReader(settings)
        reader.sound(segment)
        found = list(reader.read({("streamward.rewards", 0): 0}, {("streamward.rewards", 0): 5}))
        if found:
            assert reader.fetch([found[0].at])[found[0].at] == found[0]
        return None

    return check
