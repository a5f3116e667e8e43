"""Build a data set again from its event, and read its examples for a tuning.

    DatasetEvent ──► its ranges, its rule ──► compose ──► digest of the event? ──► files, or SampledExample

Nothing is written to the log.
"""

from __future__ import annotations

from collections.abc import Mapping

from plugins.improve.datasets import dataset_log, dataset_rows as rows
from plugins.improve.datasets.dataset_build import ComposedDataset, DatasetOrder, compose
from plugins.improve.datasets.dataset_rule import DatasetRule
from plugins.improve.datasets.source_ranges import check_ranges
from schemas.events import DatasetEvent, TuningMethod
from schemas.key_source import NO_TRAINING
from streams.errors import RefusedError
from streams.kafka.history import History
from streams.settings.model import Settings
from trainer.examples.tuned_examples import DatasetExamples, SampledExample


def rebuild(settings: Settings, event: DatasetEvent, history: History) -> ComposedDataset:
    """Return the data set that an event describes, from the records that it was made of.

    Raises RefusedError if they are no longer there, LogError. Compare the digests: the code may have changed.
    """
    check_ranges(event.ranges, history)
    rule = DatasetRule.of_event(event)
    order = DatasetOrder(name=event.dataset, rule=rule, actor=event.actor, reason=event.reason)
    restricted = event.metadata.get(NO_TRAINING, "").split()  # those of then, not those of now
    return compose(
        settings, order, event.ranges, history, event.code_version, lambda subject: subject not in restricted
    )


def contents(settings: Settings, event: DatasetEvent, history: History) -> Mapping[str, bytes]:
    """Return the files of a data set, as they were built. Raises RefusedError if they come out otherwise, LogError."""
    composed = rebuild(settings, event, history)
    if (problem := difference(event, composed.event)) is not None:
        raise RefusedError(problem)
    return composed.contents


def difference(event: DatasetEvent, rebuilt: DatasetEvent) -> str | None:
    """Return what differs if a data set was not built again as it was."""
    if rebuilt.digest == event.digest:
        if event.inputs and rebuilt.inputs != event.inputs:
            return f"data set {event.dataset}: its rows make another profile of questions than the event has"
        return None
    there = {file.path: file.sha256 for file in rebuilt.files}
    names = [file.path for file in event.files if there.get(file.path) != file.sha256]
    return (
        f"data set {event.dataset}: digest {rebuilt.digest[:12]}, expected {event.digest[:12]} ({', '.join(names)} "
        f"differ): it was built by {event.code_version}. Build it again with that version, or look for changed records "
        "(`streamward audit`)"
    )


def examples(settings: Settings, reference: str, method: TuningMethod, history: History) -> DatasetExamples:
    """Return what the build NAME or NAME@DIGEST of a data set has for a tuning, out of this history.

    Raises NotFoundError for an unknown build, RefusedError if the log no longer gives it, LogError.
    """
    event = dataset_log.read(settings).find(reference)
    composed = rebuild(settings, event, history)
    if (problem := difference(event, composed.event)) is not None:
        raise RefusedError(problem)
    train = [row.run for row in composed.placed if row.split == "train"]
    texts = tuple(map(rows.texts, train))
    agents = frozenset(run.agent for run in train if run.agent is not None)
    return DatasetExamples(event.dataset, event.digest, tuple(_examples(composed, method)), texts, agents)


def _examples(composed: ComposedDataset, method: TuningMethod) -> list[SampledExample]:
    """Return the rows of the train split as sampled."""
    train = [row for row in composed.placed if row.split == "train"]
    if method == "sft":
        sampled = [rows.tokens(row.run) for row in train]
    else:
        sampled = [None if row.rejected is None else rows.pair_tokens(row.run, row.rejected) for row in train]
    return [example for example in sampled if example is not None]
