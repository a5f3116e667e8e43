"""Data sets of the log, as the plugin that builds them has others read them.

NAME[@DIGEST] ──► DatasetReader of the plugin ──► its event, its examples        audit ──► rows that differ
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache
from typing import Protocol

from schemas.events import DatasetEvent, TuningMethod
from streams.errors import RefusedError
from streams.kafka.history import History
from streams.plugins.installed import load_only
from streams.settings.model import Settings
from streams.tools.audit.facts import AuditFinding
from trainer.examples.tuned_examples import DatasetExamples

DatasetTexts = Callable[[str, TuningMethod], Sequence[tuple[str, ...]]]
"""NAME@DIGEST and method to what each row says. Raises RefusedError if the log no longer gives it."""
NOT_BUILT = "no plugin that builds data sets is loaded; add it to plugins.load"


class DatasetReader(Protocol):
    """Reads data sets. A plugin names its own as `datasets`."""

    def find(self, settings: Settings, reference: str, tenants: Sequence[str | None] | None = None) -> DatasetEvent:
        """Return the build that NAME, or NAME@DIGEST, names; of a digest its beginning will do.

        `tenants`: only those of these tenants; None: all. Raises NotFoundError, RefusedError if several begin so.
        """

    def examples(self, settings: Settings, reference: str, method: TuningMethod, history: History) -> DatasetExamples:
        """Return what a build has for a tuning, out of this history.

        Raises NotFoundError for an unknown build, RefusedError if the log no longer gives it, LogError.
        """

    def recount(self, settings: Settings, policy: str | None) -> tuple[list[AuditFinding], Counter[str]]:
        """Return what is wrong with the rows of data sets of a policy, None: of all, and counts. Raises LogError."""


class _NoDatasets:
    def find(self, settings: Settings, reference: str, tenants: Sequence[str | None] | None = None) -> DatasetEvent:
        raise RefusedError(f"data set {reference[:80]!r}: {NOT_BUILT}")

    def examples(self, settings: Settings, reference: str, method: TuningMethod, history: History) -> DatasetExamples:
        raise RefusedError(f"data set {reference[:80]!r}: {NOT_BUILT}")

    def recount(self, settings: Settings, policy: str | None) -> tuple[list[AuditFinding], Counter[str]]:
        return [], Counter()


@cache
def dataset_reader() -> DatasetReader:
    """Return that of the loaded plugins; without one, it refuses every data set. Raises SettingsError for two."""
    reader: DatasetReader = (load_only(lambda plugin: plugin.datasets, "read data sets") or _NoDatasets)()
    return reader


def texts_of(settings: Settings, history: History) -> DatasetTexts:
    """Return what reads the texts of the rows of a build, out of this history."""
    return lambda reference, method: dataset_reader().examples(settings, reference, method, history).texts
