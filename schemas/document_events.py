"""Documents that are searched: their texts, as they were added, replaced and removed."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal

from schemas.event_types import MIB, Int, Millis, Personal, Sealed, Subject

DocumentKind = Literal["added", "replaced", "removed"]
INDEX_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,62}")
DOCUMENT_ID = re.compile(rf"({INDEX_NAME.pattern}\.)?{INDEX_NAME.pattern}/\S(.{{0,510}}\S)?")
"""An index, whose name begins with its tenant's, and the name of a document in it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentEvent:
    """A document of an index: its text was added or replaced, or it was removed.

    The state of a document is the fold of these; an index is a projection of all of them.
    """

    MOST_BYTES: ClassVar[int] = MIB
    event_id: Annotated[str, "uuid5(document_id, kind, sequence)"]
    document_id: Annotated[str, "key of the record: INDEX/NAME; a tenant's index begins with the tenant and a dot"]
    created_at: Millis
    traceparent: str | None = None
    metadata: Annotated[dict[str, str], "of the document, by which searches are filtered", Personal] = field(
        default_factory=dict
    )
    subject: Subject = None
    kind: DocumentKind
    sequence: Annotated[Int, "compare and swap: how many events of the document took effect before this one"]
    actor: str
    reason: Annotated[str, Personal]
    source: Annotated[str | None, "added, replaced: the file or URL that it was read from", Personal] = None
    media_type: Annotated[str | None, "added, replaced: of that file"] = None
    digest: Annotated[str | None, "sha256 of text; removed: null", Personal] = None
    text: Annotated[str | None, "added, replaced: as it is searched; removed: null", Personal] = None
    sealed: Sealed = None


def text_digest(text: str) -> str:
    """Return the digest of a document's text."""
    return hashlib.sha256(text.encode()).hexdigest()


def document_problems(event: DocumentEvent) -> Iterator[str]:
    """Return one sentence for each rule that a document breaks."""
    if DOCUMENT_ID.fullmatch(event.document_id) is None:
        expected = (
            "INDEX/NAME, where INDEX has at most 63 of A-Z a-z 0-9 _ -, and NAME at most 512 characters in a line"
        )
        yield f"document_id is {event.document_id[:140]!r}; expected {expected}"
    if event.sequence < 0:
        yield f"sequence is {event.sequence}; expected 0 or more"
    for name in ("text", "digest", "media_type"):
        if (getattr(event, name) is None) != (event.kind == "removed"):
            yield f"kind is {event.kind} and {name} is {str(getattr(event, name))[:40]!r}; all but removed have one"
    if event.sealed:
        return  # what is left of the text is empty
    if event.text is not None and not event.text.strip():
        yield "text is blank; expected words to search for"
    elif event.text is not None and event.digest != text_digest(event.text):
        yield f"digest is {event.digest}, which is not that of its text"
