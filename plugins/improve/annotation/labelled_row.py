"""A row of a file as it is labelled: its identity, its text for judge and people, its answer for a scorer.

    DataRow ──► row_id: sha256 over its columns ──► the same row has its labels in every file
           ├──► transcript: one JSON object a line, for a column or a message of a conversation
           └──► task and answer: what a scorer compares

Not covered: images and files that messages name.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from plugins.data.cleaning.row_shapes import ANSWERS, question_of, texts_in
from plugins.data.cleaning.steps import DataRow
from plugins.data.synthetic_rows import answer_to_verify, question_task
from plugins.improve.curation.transcript import Transcript, TranscriptEntry
from schemas.event_types import KIB
from schemas.events import AnnotationEvent, Task
from schemas.file_text import json_object

ANNOTATION = "annotation"
"""The column with the label of a row."""
MOST_ROW_BYTES = 768 * KIB
"""Of a row as JSON, which each of its labels has."""
RESPONSES = ("response", "completion", "output")
"""Columns with the answer that a row gives, next to one to verify by."""


@dataclass(frozen=True, slots=True)
class LabelledRow:
    """A row that is to have a label."""

    row_id: str
    place: str
    fields: Mapping[str, Any]
    """Without an earlier label."""
    text: str
    """As JSON, with the columns in the order of their names."""

    @classmethod
    def of(cls, row: DataRow) -> LabelledRow:
        """Return a row of a file."""
        fields = {name: value for name, value in row.fields.items() if name != ANNOTATION}
        text = json.dumps(fields, sort_keys=True, separators=(",", ":"))
        return cls(text_digest(text), row.place, fields, text)

    @property
    def transcript(self) -> Transcript:
        """What its judge reads, never cut."""
        text = "".join(f"{entry.line}\n" for entry in _entries(self.fields))
        return Transcript(text=text, digest=text_digest(text), quotable="\n".join(texts_in(self.fields)))

    def scored_answer(self) -> tuple[Task, str] | None:
        """Return the task of the row, and the answer that it gives to it; None: it gives none."""
        messages, fields = self.fields.get("messages"), self.fields
        if isinstance(messages, list):
            answers = [part for part in messages if isinstance(part, Mapping) and part.get("role") == "assistant"]
            response = answers[-1].get("content") if answers else None
        else:
            column = next((name for name in (*RESPONSES, *ANSWERS) if fields.get(name) is not None), "")
            response, fields = fields.get(column), {name: value for name, value in fields.items() if name != column}
        if response is None:
            return None
        return question_task(self.row_id, question_of(self.fields), answer_to_verify(fields)), str(response)


def text_digest(text: str) -> str:
    """Return the sha256 of a text."""
    return hashlib.sha256(text.encode()).hexdigest()


def recorded_fields(event: AnnotationEvent) -> dict[str, Any]:
    """Return the columns of the row in an event; none of one that is no JSON."""
    try:
        return json_object(event.row)
    except ValueError:
        return {}


def model_of(event: AnnotationEvent) -> str | None:
    """Return the model that made a row, as its `origin` says; None: none did."""
    origin = recorded_fields(event).get("origin")
    return origin.get("model") if isinstance(origin, Mapping) else None


def _entries(fields: Mapping[str, Any]) -> Iterator[TranscriptEntry]:
    for column, value in fields.items():
        if isinstance(value, list) and value and all(isinstance(part, Mapping) and "role" in part for part in value):
            for message in value:
                rest = {name: part for name, part in message.items() if name not in ("role", "content")}
                head = {"column": column, "role": str(message["role"])}
                yield TranscriptEntry(head | rest, "content", _text(message.get("content")))
        else:
            yield TranscriptEntry({"column": column}, "value", _text(value))


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
