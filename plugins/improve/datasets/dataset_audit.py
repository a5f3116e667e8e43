"""Rebuild the rows of every recorded data set, and report those that differ from the log.

    DatasetEvent `built` ──► are its ranges in the log? ──► composed once more ──► the same digest? ──► Report

The audit recounts events with separate code (streams/tools/audit). Rows are rebuilt by the code that built them, so
this finds changed records and forged sets, not bugs in that code. A difference in a set that another version of the
code built is counted, but is not a finding.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from plugins.improve.datasets import dataset_rebuild
from plugins.improve.datasets.dataset_log import PlacedDataset
from streams.errors import NotFoundError, RefusedError, SettingsError
from streams.kafka.history import History
from streams.settings.model import Settings
from streams.tools.audit.facts import AuditFinding


def recount_rows(
    settings: Settings, placed: Iterable[PlacedDataset], history: History, code: str
) -> tuple[list[AuditFinding], Counter[str]]:
    """Return what is wrong with the rows of these data sets, and how many were made again; `code`: the version here."""
    findings, counts = list[AuditFinding](), Counter[str]()
    for at, event in placed:
        if event.kind != "built":
            continue
        try:
            problem = dataset_rebuild.difference(event, dataset_rebuild.rebuild(settings, event, history).event)
        except RefusedError:
            counts["data sets whose records are gone"] += 1
            continue
        except (NotFoundError, SettingsError) as exc:  # no run fits, or a rule that no build has
            problem = str(exc)
        if problem is None:
            counts["data sets made again"] += 1
        elif event.code_version != code:
            counts["data sets of other code that differ"] += 1
        else:
            findings.append(AuditFinding("contradictory", at, problem))
    return findings, counts
