"""Follow the documents of the log, and write the events that change them.

    documents[document_id]: added, replaced, removed ──► fold, compare and swap ──► DocumentState
    put, remove ──► event with the sequence it expects ──► documents ──► own fold has passed it ──► answer

Of two events based on the same state, the first in the partition takes effect, and the second changes nothing. A text
that is there already is not written again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from schemas.events import Coordinates, DocumentEvent, DocumentKind, derive_id, problems, text_digest
from streams.errors import EventError, NotFoundError
from streams.kafka import times
from streams.kafka.named_states import Registry, RegistryShape
from streams.settings.model import Settings


@dataclass(frozen=True, slots=True)
class DocumentState:
    """The state of one document, as the fold of its events."""

    document_id: str
    sequence: int = 0
    """How many events took effect: what the next one has to name."""
    current: DocumentEvent | None = None
    """The event with its text; None: never added, or removed."""
    effective: Mapping[str, Coordinates] = field(default_factory=dict)
    """Where each event is that took effect, by its id."""


def refusal(state: DocumentState, event: DocumentEvent) -> str | None:
    """Return why an event changes nothing about a document in this state; None if it takes effect."""
    if event.sequence != state.sequence:
        return (
            f"it was decided when {event.sequence} events of the document had taken effect, and there are "
            f"{state.sequence}; look at it and decide again"
        )
    if (event.kind == "added") != (state.current is None):
        return "there is no such document" if state.current is None else "there is one already"
    return None


def fold(state: DocumentState, event: DocumentEvent, at: Coordinates) -> DocumentState:
    """Return a document after a record; one that is refused changes nothing."""
    if refusal(state, event) is not None:
        return state
    effective = {**state.effective, event.event_id: at}
    return DocumentState(state.document_id, state.sequence + 1, None if event.text is None else event, effective)


DOCUMENTS = RegistryShape(
    "documents",
    "document",
    DocumentEvent,
    DocumentState,
    refusal,
    fold,
    is_there=lambda state: state.current is not None,
)


LISTED = "GET /rag/documents and `streamward documents list` list documents"
"""Where names of documents are found."""


class DocumentDraft(NamedTuple):
    """A document to add, or to put in the place of the one of its name."""

    document_id: str
    text: str
    media_type: str
    source: str | None = None
    metadata: Mapping[str, str] = {}


class DocumentAuthor(NamedTuple):
    """The author of a change, and the reason."""

    actor: str
    reason: str


class DocumentLog(Registry[DocumentEvent, DocumentState]):
    """Every document, followed in a thread. Use as a context manager; methods may be called from any thread."""

    SHAPE = DOCUMENTS

    def __init__(self, settings: Settings) -> None:
        """Raises NotFoundError without the topic, LogError if the broker does not answer."""
        super().__init__(settings, DOCUMENTS)

    def get(self, document_id: str) -> DocumentEvent:
        """Return the event of a document that exists. Raises NotFoundError."""
        current = self.state(document_id).current
        if current is None:
            raise NotFoundError(f"there is no document {document_id[:140]!r}; {LISTED}")
        return current

    def put(self, drafts: Sequence[DocumentDraft], author: DocumentAuthor) -> list[DocumentKind | None]:
        """Write documents at once; return what each became, None: it is there already.

        Raises EventError for the first that cannot be one, before any is written; RefusedError, LogError.
        """
        if twice := [name for name, count in Counter(draft.document_id for draft in drafts).items() if count > 1]:
            raise EventError(f"document {twice[0][:140]} is given twice; give each name once")
        events = [_next(self.state(draft.document_id), draft, author) for draft in drafts]
        for draft, event in zip(drafts, events, strict=True):
            if event is not None and (problem := next(problems(event), None)) is not None:
                raise EventError(f"document {draft.document_id[:140]}: {problem}")
        written = {*self._write_all([event for event in events if event is not None])}
        kinds: list[DocumentKind | None] = []
        for draft, event in zip(drafts, events, strict=True):
            if event is not None and self.state(draft.document_id).effective.get(event.event_id) not in written:
                event = self._put(draft, author)  # another process wrote first
            kinds.append(None if event is None else event.kind)
        return kinds

    def _put(self, draft: DocumentDraft, author: DocumentAuthor) -> DocumentEvent | None:
        state, is_new = self.decide(draft.document_id, lambda state: _next(state, draft, author))
        return state.current if is_new else None

    def remove(self, document_id: str, author: DocumentAuthor) -> None:
        """Remove a document. Raises NotFoundError, RefusedError, LogError."""

        def removal(state: DocumentState) -> DocumentEvent | None:
            return None if state.current is None else _event(state, "removed", author)

        self.get(document_id)
        self.decide(document_id, removal)


def _next(state: DocumentState, draft: DocumentDraft, author: DocumentAuthor) -> DocumentEvent | None:
    """Return the event that makes a document what a draft says; None: it is so already."""
    fields: dict[str, Any] = {"source": draft.source, "media_type": draft.media_type, "metadata": dict(draft.metadata)}
    fields |= {"text": draft.text, "digest": text_digest(draft.text)}
    if state.current is not None and all(getattr(state.current, name) == value for name, value in fields.items()):
        return None
    return replace(_event(state, "added" if state.current is None else "replaced", author), **fields)


def _event(state: DocumentState, kind: DocumentKind, author: DocumentAuthor) -> DocumentEvent:
    return DocumentEvent(
        event_id=derive_id(state.document_id, kind, state.sequence),
        document_id=state.document_id,
        created_at=times.now_ms(),
        kind=kind,
        sequence=state.sequence,
        actor=author.actor,
        reason=author.reason,
    )
