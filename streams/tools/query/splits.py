"""Assign examples to the files of a data set: no question is in two files, and no held-out one in train.

    examples ──► keys (task, the task it was sent again for, thread), question ──► near duplicates ──► clusters
       │    purpose eval: its whole cluster; a held-out question in its text: it alone ──► held_out ──┐
       └──► by a hash of the question that a cluster begins with ──► train, test ─────────────────────┴──► splits

Near-duplicate questions are in one cluster (streams/rows/near_duplicates.py). Held-out questions are found as in
training (streams/data/contamination).

Not covered: more questions than fit in memory.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from schemas.events import EpisodeStart
from streams.data.contamination.row_texts import texts_of
from streams.data.contamination.suite_index import SYSTEM_ROLES, RowTexts, SuiteIndex, parameters_of
from streams.rows.near_duplicates import NEAR, Clusters, compared_text, join_similar
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


def origin_of_group(row: Mapping[str, Any]) -> ExampleOrigin:
    """Return the origin of a group; `row` is one of streams/tools/query/export.py."""
    start = parameters_of(None if row["environment"] is None else EpisodeStart(**row["environment"]))
    texts = [message["content"] for message in row["messages"] if message["role"] not in SYSTEM_ROLES]
    keys = _keys(row["task_id"], dict(row["metadata"] or ()), row["thread"])
    return ExampleOrigin(keys, start or "\n".join(texts), row["purpose"], start)


def origin_of(answer: Finished) -> ExampleOrigin:
    """Return the origin of a finished answer."""
    task = answer.task
    start = parameters_of(None if task is None else task.environment)
    keys = _keys(answer.task_id, {} if task is None else task.metadata, answer.thread)
    return ExampleOrigin(keys, start or answer.question, answer.purpose, start)


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
    join_similar([origin.question for origin in origins], near_duplicate, clusters)
    return clusters


class Splits:
    """Takes the examples of a data set one by one, and says when all are there where each belongs."""

    def __init__(self, options: ExportOptions, held_out: SuiteIndex | None) -> None:
        self._options = options
        self._held_out = held_out if held_out is not None and len(held_out) else None
        self._origins: dict[ExampleOrigin, int] = {}
        self._examples: list[tuple[int, str | None]] = []
        """The origin of each example, and the suite whose question it gives away."""

    def add(self, line: str, origin: ExampleOrigin) -> None:
        """Take the line of an example."""
        place = self._origins.setdefault(origin, len(self._origins))
        self._examples.append((place, self._suite_in(line, origin)))

    def _suite_in(self, line: str, origin: ExampleOrigin) -> str | None:
        if self._held_out is None:
            return None
        row = RowTexts("", texts_of(json.loads(line)), origin.parameters)
        leak = next((match for match in self._held_out.matches(row) if match.is_leak), None)
        return None if leak is None else f"suite {leak.question.suite}"

    def decide(self) -> Iterator[tuple[ExampleSplit, str | None]]:
        """Yield the split of each example, in their order, and why it is held out."""
        origins = list(self._origins)
        clusters = clusters_of(origins, NEAR)
        roots = [clusters.root(place) for place in range(len(origins))]
        of_eval = {root for root, origin in zip(roots, origins, strict=True) if origin.purpose == "eval"}
        for place, suite in self._examples:
            root = roots[place]
            if suite is not None or root in of_eval:
                yield "held_out", suite or OF_EVAL
            else:
                yield split_of(" ".join(compared_text(origins[root].question).words), self._options), None
