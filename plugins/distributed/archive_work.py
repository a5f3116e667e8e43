"""Replays and exports on an engine: what `--on` calls (streams/tools/spread.py).

    on_ray, on_spark ──► DataEngine ──► ArchiveWork ─┬─► copy_and_join    spread_replay.py
                                                     └─► export_lines     spread_export.py

The engine finds its cluster by its own means (`spark-submit`, `PYSPARK_SUBMIT_ARGS`, `spark-defaults.conf`;
`RAY_ADDRESS`, `ray job submit`); without any it runs on this machine.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from plugins.distributed import spread_export, spread_replay
from plugins.distributed.data_engine import DataEngine
from plugins.distributed.ray_engine import ray
from plugins.distributed.spark_engine import spark
from schemas.events import SourceRange
from streams.settings.model import Settings
from streams.tools.query.examples import ExportOptions
from streams.tools.query.export import Counts
from streams.tools.query.source import Scope
from streams.tools.query.splits import ExampleOrigin
from streams.tools.replay.recorded_lag import Trained
from streams.tools.replay.replay_context import Replay


@contextmanager
def on_ray() -> Iterator[ArchiveWork]:
    """Yield Ray while the block runs. Raises SettingsError if its cluster cannot be reached."""
    with ray() as engine:
        yield ArchiveWork(engine)


@contextmanager
def on_spark() -> Iterator[ArchiveWork]:
    """Yield Spark while the block runs. Raises SettingsError if it does not start."""
    with spark() as engine:
        yield ArchiveWork(engine)


class ArchiveWork:
    """An ArchiveEngine that works on any DataEngine."""

    def __init__(self, engine: DataEngine) -> None:
        self._engine = engine

    def check_replayable(self, source: Settings, ranges: tuple[SourceRange, ...]) -> None:
        """Return if the engine can replay these ranges."""
        spread_replay.check_replayable(self._engine, source, ranges)

    def copy_and_join(self, replay: Replay, trained: Trained) -> Counter[str]:
        """Copy and join; return what they count."""
        return spread_replay.copy_and_join(replay, self._engine, trained)

    def export_lines(
        self, settings: Settings, options: ExportOptions, scope: Scope, counts: Counts
    ) -> Iterator[tuple[str, ExampleOrigin]]:
        """Return the line of each example with its origin."""
        return spread_export.lines(settings, self._engine, options, scope, counts)
