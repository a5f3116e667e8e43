"""The texts of what a policy is trained on: a task, a row of a file, a line of a data set.

task ───────────────────────────────┐
row of a file, line of a data set ──┴──► every text in it, without the system's instructions ──► RowTexts
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from schemas.events import EpisodeStart, Task
from schemas.json_text import parse
from streams.arrow.file_rows import OF_EXAMPLES, fields_of, rows

SYSTEM_ROLES = ("system", "developer")
VARIANT_OF = "variant_of"
"""Metadata of a row or a task: the question that its own is asked instead of, in other words."""


class RowTexts(NamedTuple):
    """What a row of training data says."""

    place: str
    texts: tuple[str, ...]
    parameters: str | None = None
    """Identity of an episode, whose texts are those of all episodes."""
    allowed_by: str | None = None
    """The user who allows it to be trained on, whatever a gate says; None: no user does."""


def row_of_task(task: Task, place: str) -> RowTexts:
    """Return what a train task says."""
    texts = [message.content for message in task.messages if message.role not in SYSTEM_ROLES]
    if (original := task.metadata.get(VARIANT_OF)) is not None:
        texts.append(original)
    return RowTexts(place, tuple(texts), parameters_of(task.environment))


def parameters_of(start: EpisodeStart | None) -> str | None:
    """Return the identity of an episode: its environment, settings and seed; None for a task that its text identifies.

    >>> parameters_of(EpisodeStart(name="guess", settings='{"high": 9, "low": 1}', seed=7))
    '["guess", {"high": 9, "low": 1}, 7]'
    """
    if start is None:
        return None
    return json.dumps([start.name, parse(start.settings), start.seed], sort_keys=True)


def file_texts(path: Path) -> Iterator[RowTexts]:
    """Yield the texts of a file's rows; unreadable rows are skipped here and refused by another reader."""
    for number, row in rows(path, json_columns=OF_EXAMPLES):
        try:
            yield RowTexts(f"{path.name}:{number}", texts_of(fields_of(row)))
        except ValueError:
            continue


def texts_of(fields: Mapping[str, Any]) -> tuple[str, ...]:
    """Return every text in a row, whatever its columns, without the instructions of the system.

    >>> texts_of({"messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "1 + 1?"}]})
    ('1 + 1?',)
    """
    return tuple(_leaves(fields))


def variant_of(fields: Mapping[str, Any]) -> str | None:
    """Return the question that a row is a variant of; None: of none."""
    metadata = fields.get("metadata")
    question = metadata.get(VARIANT_OF) if isinstance(metadata, Mapping) else None
    return question if isinstance(question, str) else None


def _leaves(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        if value.get("role") not in SYSTEM_ROLES:
            for name, inner in value.items():
                if name != "role":
                    yield from _leaves(inner)
    elif isinstance(value, Sequence):
        for inner in value:
            yield from _leaves(inner)
