"""Work on the archive that a plugin's engine spreads over machines, for `replay run --on` and `export --on`.

connect(name) ──► the plugin's engine ──► copies, groups, lines: the bytes that this machine makes alone
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Protocol

from schemas.events import SourceRange
from streams.plugins.engines import engine_work, require_package
from streams.settings.model import Settings

if TYPE_CHECKING:
    from streams.tools.query.examples import ExportOptions
    from streams.tools.query.export import Counts
    from streams.tools.query.source import Scope
    from streams.tools.query.splits import ExampleOrigin
    from streams.tools.replay.recorded_lag import Trained
    from streams.tools.replay.replay_context import Replay


class ArchiveEngine(Protocol):
    """An engine that works on the archive.

    Each method raises SettingsError, before anything is written, if a node is not as this process.
    """

    def check_replayable(self, source: Settings, ranges: tuple[SourceRange, ...]) -> None:
        """Return if these ranges can be replayed. Raises LogError if the archive has gaps."""

    def copy_and_join(self, replay: Replay, trained: Trained) -> Counter[str]:
        """Copy and join as a replay on this machine; return what they count. Raises Stopped, LogError."""

    def export_lines(
        self, settings: Settings, options: ExportOptions, scope: Scope, counts: Counts
    ) -> Iterator[tuple[str, ExampleOrigin]]:
        """Return the line of each example with its origin, in the order of the groups; they count as they come.

        Raises NotFoundError or LogError if the archive lacks something.
        """


def connect(name: str) -> AbstractContextManager[ArchiveEngine]:
    """Start an engine, or connect to it, for as long as the block runs.

    Raises SettingsError without its plugin or its package, or if it does not start.
    """
    require_package(name, "archive")
    connection: AbstractContextManager[ArchiveEngine] = engine_work(name, "archive")()
    return connection
