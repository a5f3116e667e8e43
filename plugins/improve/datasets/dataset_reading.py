"""The data sets of the log for the core and for other plugins: a `DatasetReader` (streams/tools/dataset_reader.py)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from plugins.improve.datasets import dataset_log, dataset_rebuild
from plugins.improve.datasets.dataset_audit import recount_rows
from schemas.events import DatasetEvent, TuningMethod
from streams.files import code_version
from streams.kafka.history import History, LogHistory
from streams.settings.model import Settings
from streams.tools.audit.facts import AuditFinding
from trainer.examples.tuned_examples import DatasetExamples


class LogDatasets:
    """Those of the topic `datasets`."""

    def find(self, settings: Settings, reference: str, tenants: Sequence[str | None] | None = None) -> DatasetEvent:
        """Return the build of a reference. Raises as `DatasetLog.find`."""
        return dataset_log.read(settings).find(reference, tenants)

    def examples(self, settings: Settings, reference: str, method: TuningMethod, history: History) -> DatasetExamples:
        """Return what a build has for a tuning. Raises as `dataset_rebuild.examples`."""
        return dataset_rebuild.examples(settings, reference, method, history)

    def recount(self, settings: Settings, policy: str | None) -> tuple[list[AuditFinding], Counter[str]]:
        """Return what is wrong with the rows of data sets, and counts. Raises LogError."""
        placed = [one for one in dataset_log.read(settings).placed if policy in (None, one.event.policy)]
        return recount_rows(settings, placed, LogHistory(settings), code_version())
