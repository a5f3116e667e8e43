"""Assign examples to the files of a data set: no question is in two files, and no held-out one in train.

    examples ──► keys (task, the task it was sent again for, thread), question ──► near duplicates ──► clusters
       │    a variant of a question: in the cluster of that question
       │    purpose eval: its whole cluster; a held-out question in its text: it alone ──► held_out ──┐
       └──► by a hash of the question that a cluster begins with ──► train, test ─────────────────────┴──► splits

Near-duplicate questions are in one cluster (streams/rows/near_duplicates.py). Held-out questions are found as in
training (streams/rows/training_gate.py).

Not covered: more questions than fit in memory.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from schemas.events import EpisodeStart
from schemas.key_source import NO_TRAINING, may_train
from streams.rows.near_duplicates import NEAR, Clusters, compared_text, join_similar
from streams.rows.row_texts import SYSTEM_ROLES, VARIANT_OF, RowTexts, parameters_of, texts_of
from streams.rows.training_gate import ReasonFinder
from streams.stages.tasks.resubmit import ORIGIN
from streams.tools.query.examples import ExampleSplit, ExportOptions, split_of
from streams.tools.query.finished import Finished

OF_EVAL = "purpose eval"
"""Why an example is held out, if no suite is the reason."""


class ExampleOrigin(NamedTuple):
    """Fields that examples of one split have in common."""

    keys: tuple[str, ...]
    question: str
    """Without the instructions of the system; of an episode its parameters, since its text is that of all episodes."""
    purpose: str
    parameters: str | None = None
    variant_of: str | None = None
    """The question that this one is a variant of."""
    subject: str | None = None
    """The person that it is of."""


def origin_of_group(row: Mapping[str, Any]) -> ExampleOrigin:
    """Return the origin of a group; `row` is one of streams/tools/query/export.py."""
    start = parameters_of(None if row["environment"] is None else EpisodeStart(**row["environment"]))
    texts = [message["content"] for message in row["messages"] if message["role"] not in SYSTEM_ROLES]
    metadata = dict(row["metadata"] or ())
    keys = _keys(row["task_id"], metadata, row["thread"])
    return ExampleOrigin(
        keys, start or "\n".join(texts), row["purpose"], start, metadata.get(VARIANT_OF), row["subject"]
    )


def origin_of(answer: Finished) -> ExampleOrigin:
    """Return the origin of a finished answer."""
    task = answer.task
    start = parameters_of(None if task is None else task.environment)
    metadata = {} if task is None else task.metadata
    keys = _keys(answer.task_id, metadata, answer.thread)
    for run in answer.runs:
        keys += _keys(run.task_id, {} if run.task is None else run.task.metadata, run.thread)
    return ExampleOrigin(
        keys, start or answer.question, answer.purpose, start, metadata.get(VARIANT_OF), answer.subject
    )


def _keys(task_id: str, metadata: Mapping[str, str], thread: str | None) -> tuple[str, ...]:
    """Return what all examples of a cluster have in common, one by one."""
    names = ("task", task_id), ("task", metadata.get(ORIGIN)), ("thread", thread)
    return tuple(f"{kind} {name}" for kind, name in names if name is not None)


def clusters_of(origins: list[ExampleOrigin], near_duplicate: float) -> Clusters:
    """Return the clusters of these origins, by their place among them."""
    clusters, first = Clusters(len(origins)), dict[str, int]()
    for place, origin in enumerate(origins):
        for key in origin.keys:
            clusters.join(place, first.setdefault(key, place))
    if any(origin.variant_of for origin in origins):
        _join_variants(origins, clusters)
    join_similar([origin.question for origin in origins], near_duplicate, clusters)
    return clusters


def _join_variants(origins: list[ExampleOrigin], clusters: Clusters) -> None:
    """Join the clusters of a question and its variants, also if the question itself is not there."""
    first: dict[tuple[str, ...], int] = {}
    for place, origin in enumerate(origins):
        clusters.join(place, first.setdefault(compared_text(origin.variant_of or origin.question).words, place))


class Splits:
    """Takes the examples of a data set one by one, and says when all are there where each belongs."""

    def __init__(self, options: ExportOptions, reason_in: ReasonFinder | None) -> None:
        """`reason_in`: why an example is held out, by what it says; None: no example is."""
        self._options, self._reason_in = options, reason_in
        self._origins: dict[ExampleOrigin, int] = {}
        self._examples: list[tuple[int, str | None]] = []
        """The origin of each example, and why what it says is held out."""

    def add(self, line: str, origin: ExampleOrigin) -> None:
        """Take the line of an example."""
        place = self._origins.setdefault(origin, len(self._origins))
        reason = None
        if not may_train(origin.subject):
            reason = NO_TRAINING
        elif self._reason_in is not None:
            reason = self._reason_in(RowTexts("", texts_of(json.loads(line)), origin.parameters))
        self._examples.append((place, reason))

    def decide(self) -> Iterator[tuple[ExampleSplit, str | None]]:
        """Yield the split of each example, in their order, and why it is held out."""
        origins = list(self._origins)
        clusters = clusters_of(origins, NEAR)
        roots = [clusters.root(place) for place in range(len(origins))]
        of_eval = {root for root, origin in zip(roots, origins, strict=True) if origin.purpose == "eval"}
        for place, reason in self._examples:
            root = roots[place]
            if reason is not None or root in of_eval:
                yield "held_out", reason or OF_EVAL
            else:
                yield split_of(" ".join(compared_text(origins[root].question).words), self._options), None
