"""Documents over HTTP: they are added to indexes, listed, shown and removed.

    POST /rag/index {documents} ──► their texts ──► DocumentLog ──► added, replaced, or as before
    GET /rag/documents, GET /rag/document ──► what is there now         POST /rag/documents/remove ──► removed

A tenant's indexes have the tenant's name before their own; it sees no others.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import Field, model_validator
from starlette.requests import Request

from gateway.http.body import Answer, Body, PathQuery, Whole
from gateway.http.principal import actor_of, tenant_of
from gateway.http.route import LARGE_BODY, REST
from gateway.log.open_log import AT_ONCE, OpenLog
from plugins.knowledge.index.generation import index_of
from plugins.knowledge.index.knowledge_index import KnowledgeIndex
from plugins.knowledge.log.document_log import LISTED, DocumentAuthor, DocumentDraft, DocumentLog
from plugins.knowledge.log.document_text import PLAIN, read_documents
from schemas.events import DocumentEvent, DocumentKind
from streams.access.roles import PluginAction
from streams.access.tenants.tenant_names import named, own_of
from streams.errors import CallError, EventError
from streams.output import moment
from streams.settings.model import Settings

READ, WRITE = PluginAction("documents.read"), PluginAction("documents.write")
MOST_DOCUMENTS = 1000
"""Of one request or page."""
DocumentName = Annotated[str, Field(min_length=1, max_length=700, description="INDEX/NAME")]
Reason = Annotated[str, Field("asked for", min_length=1, max_length=1000, description="why; it is recorded")]


class DocumentBody(Body):
    """A document to add, or to put in the place of the one of its name."""

    document_id: DocumentName
    text: str | None = Field(None, description="what the document says")
    data: str | None = Field(None, description="instead of text: the bytes of a file, in base64")
    media_type: str = Field(PLAIN, description="of text or data; JSON lines are a document each")
    source: str | None = Field(None, max_length=2000, description="the file or URL that it was read from")
    metadata: dict[str, str] = Field(default_factory=dict, description="by which searches are filtered")

    @model_validator(mode="after")
    def _has_one_content(self) -> DocumentBody:
        if (self.text is None) == (self.data is None):
            raise ValueError("text and data are both given or both missing; give one")
        return self

    def drafts(self, tenant: str | None) -> list[DocumentDraft]:
        """Return the documents that it is. Raises EventError."""
        draft = DocumentDraft(named(tenant, self.document_id), "", self.media_type, self.source, self.metadata)
        try:
            data = base64.b64decode(self.data, validate=True) if self.data is not None else (self.text or "").encode()
        except (binascii.Error, ValueError) as exc:
            raise EventError(f"document {self.document_id[:140]}: data is no base64: {exc}") from exc
        return [*read_documents(data, draft)]


class IndexBody(Body):
    """Documents to index."""

    documents: list[DocumentBody] = Field(min_length=1, max_length=MOST_DOCUMENTS)
    reason: Reason = "asked for"


class IndexedDocument(Answer):
    """What became of a document."""

    document_id: str
    outcome: DocumentKind | Literal["unchanged"]


class IndexedDocuments(Answer):
    """What became of documents; those that are in the log are found within a second, once their index is whole."""

    object: Literal["list"]
    data: list[IndexedDocument]


class DocumentQuery(PathQuery):
    """Which documents."""

    index: str | None = Field(None, description="of this index; default: all")
    after: str | None = Field(None, description="document_id of the last one of the page before")
    limit: Whole = Field(100, ge=1, le=MOST_DOCUMENTS, description="documents at most")


class DocumentNamed(PathQuery):
    """One document."""

    document_id: DocumentName


class DocumentRow(Answer):
    """A document without its text."""

    document_id: str
    media_type: str | None
    source: str | None
    characters: int
    metadata: dict[str, str]
    actor: str
    changed_at: str = Field(description="when it was added or replaced")


class DocumentRows(Answer):
    """Documents by their names."""

    object: Literal["list"]
    data: list[DocumentRow]
    has_more: bool


class WholeDocument(DocumentRow):
    """A document with its text."""

    object: Literal["document"]
    reason: str
    text: str


class RemoveBody(Body):
    """The document to remove."""

    document_id: DocumentName
    reason: Reason = "asked for"


class RemovedDocument(Answer):
    """A document that is gone."""

    object: Literal["document"]
    document_id: str
    deleted: bool


ROW = DocumentRow(
    document_id="sea/tides",
    media_type="text/plain",
    source="tides.txt",
    characters=24,
    metadata={"topic": "moon"},
    actor="ann",
    changed_at="2027-01-15T08:00:00.000Z",
)
EXAMPLE = {"documents": [{"document_id": "sea/tides", "text": "The moon makes the tides."}]}


class DocumentRoutes:
    """The documents of the log. Methods wait for the broker."""

    def __init__(self, settings: Settings, log: OpenLog) -> None:
        self._log = log

    @property
    def _documents(self) -> DocumentLog:
        return self._log.registry(KnowledgeIndex)

    @REST.post(
        "/rag/index",
        may=WRITE,
        **LARGE_BODY,
        refuses=(409,),
        at_once=AT_ONCE,
        sends=EXAMPLE,
        example=IndexedDocuments(object="list", data=[IndexedDocument(document_id="sea/tides", outcome="added")]),
    )
    def index_documents(self, request: Request, body: IndexBody) -> IndexedDocuments:
        """Add documents, or replace those of their names. The same again changes nothing."""
        tenant = tenant_of(request)
        try:
            drafts = [draft for document in body.documents for draft in document.drafts(tenant)]
            return outcomes(drafts, self._documents.put(drafts, DocumentAuthor(actor_of(request), body.reason)))
        except EventError as exc:
            raise CallError("invalid", str(exc), "documents") from exc

    @REST.get(
        "/rag/documents",
        may=READ,
        refuses=(),
        at_once=AT_ONCE,
        example=DocumentRows(object="list", data=[ROW], has_more=False),
    )
    def list_documents(self, request: Request, query: DocumentQuery) -> DocumentRows:
        """List documents by their names."""
        tenant = tenant_of(request)
        index = None if query.index is None else named(tenant, query.index)
        after = "" if query.after is None else named(tenant, query.after)
        rows = [
            _row(state.current)
            for name, state in own_of(tenant, self._documents.states).items()
            if state.current is not None and name > after and index in (None, index_of(name))
        ]
        return DocumentRows(object="list", data=rows[: query.limit], has_more=len(rows) > query.limit)

    @REST.get(
        "/rag/document",
        may=READ,
        ids=LISTED,
        at_once=AT_ONCE,
        example=WholeDocument(
            object="document", reason="asked for", text="The moon makes the tides.", **ROW.model_dump()
        ),
    )
    def show_document(self, request: Request, query: DocumentNamed) -> WholeDocument:
        """Show a document with its text."""
        event = self._documents.get(named(tenant_of(request), query.document_id))
        return WholeDocument(object="document", reason=event.reason, text=event.text or "", **_row(event).model_dump())

    @REST.post(
        "/rag/documents/remove",
        may=WRITE,
        ids=LISTED,
        at_once=AT_ONCE,
        refuses=(404, 409),
        sends={"document_id": "sea/tides"},
        example=RemovedDocument(object="document", document_id="sea/tides", deleted=True),
    )
    def remove_document(self, request: Request, body: RemoveBody) -> RemovedDocument:
        """Remove a document; no search finds it from then on."""
        name = named(tenant_of(request), body.document_id)
        self._documents.remove(name, DocumentAuthor(actor_of(request), body.reason))
        return RemovedDocument(object="document", document_id=name, deleted=True)


def outcomes(drafts: Sequence[DocumentDraft], kinds: Sequence[DocumentKind | None]) -> IndexedDocuments:
    """Return what became of documents."""
    rows = zip((draft.document_id for draft in drafts), kinds, strict=True)
    data = [IndexedDocument(document_id=name, outcome=kind or "unchanged") for name, kind in rows]
    return IndexedDocuments(object="list", data=data)


def _row(event: DocumentEvent) -> DocumentRow:
    return DocumentRow(
        document_id=event.document_id,
        media_type=event.media_type,
        source=event.source,
        characters=len(event.text or ""),
        metadata=dict(event.metadata),
        actor=event.actor,
        changed_at=moment(event.created_at),
    )
