"""The text of a document, as it is searched: what a file of each media type says.

    text, Markdown ──► as it is     HTML ──► its text, a line per block     PDF ──► the text of its pages (pypdf)
    JSON lines ──► a document per line: {"text": …, "name": …, and what else becomes metadata}

Not covered: pictures of text, as in scanned pages; such a file has no text, and is refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from html.parser import HTMLParser
from importlib.util import find_spec
from pathlib import PurePath
from typing import Any

from plugins.knowledge.log.document_log import DocumentDraft
from plugins.knowledge.log.pdf_process import text_of_pdf
from schemas import json_text
from streams.errors import EventError

PLAIN, MARKDOWN, HTML, PDF, LINES = (
    "text/plain",
    "text/markdown",
    "text/html",
    "application/pdf",
    "application/jsonl",
)
MEDIA_TYPES = {".txt": PLAIN, ".md": MARKDOWN, ".html": HTML, ".htm": HTML, ".pdf": PDF, ".jsonl": LINES}
"""By the end of a file's name; any other is text."""
_UNSEEN = {"script", "style", "template", "noscript", "head"}
_INLINE = {"a", "abbr", "b", "code", "em", "i", "kbd", "mark", "q", "s", "small", "span", "strong", "sub", "sup", "u"}


def media_type_of(name: str) -> str:
    """Return the media type of a file by its name.

    >>> media_type_of("tides.MD"), media_type_of("LICENSE")
    ('text/markdown', 'text/plain')
    """
    return MEDIA_TYPES.get(PurePath(name).suffix.lower(), PLAIN)


def read_documents(data: bytes, draft: DocumentDraft) -> Iterator[DocumentDraft]:
    """Yield the documents of a file; `draft` has all but the text. Raises EventError that says where."""
    if draft.media_type == PDF:
        yield draft._replace(text=_of_pdf(data, draft.document_id))
        return
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as exc:
        raise EventError(f"document {draft.document_id}: it is no text in UTF-8 ({exc}); convert it") from exc
    if draft.media_type not in MEDIA_TYPES.values():
        expected = ", ".join(sorted({*MEDIA_TYPES.values()}))
        raise EventError(f"document {draft.document_id}: media_type is {draft.media_type!r}; expected {expected}")
    if draft.media_type != LINES:
        yield draft._replace(text=_of_html(text) if draft.media_type == HTML else text)
        return
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            yield _of_line(line, number, draft)


def _of_line(line: str, number: int, draft: DocumentDraft) -> DocumentDraft:
    place = f"{draft.source or draft.document_id}:{number}"
    try:
        fields: Any = json_text.parse(line)
    except ValueError as exc:
        raise EventError(f"{place}: is no JSON: {exc}") from exc
    if not isinstance(fields, Mapping) or not isinstance(fields.get("text"), str):
        raise EventError(f"{place}: expected an object with a text, got {line[:80]!r}")
    metadata = {
        name: value if isinstance(value, str) else json_text.one_line(value)
        for name, value in fields.items()
        if name not in ("text", "name")
    }
    name = fields.get("name", str(number))
    if not isinstance(name, str):
        raise EventError(f"{place}: name is {json_text.one_line(name)[:80]}; expected a text")
    return draft._replace(
        document_id=f"{draft.document_id}/{name}",
        text=fields["text"],
        media_type=PLAIN,
        metadata={**draft.metadata, **metadata},
    )


def _of_pdf(data: bytes, document_id: str) -> str:
    if find_spec("pypdf") is None:
        raise EventError(
            f"document {document_id}: PDF is read by pypdf, which is not installed; pip install 'streamward[pdf]'"
        )
    try:
        return text_of_pdf(data)
    except ValueError as exc:
        raise EventError(f"document {document_id}: cannot be read as PDF ({exc})") from exc


class _TextOfHtml(HTMLParser):
    """Collects what a reader of the page sees."""

    def __init__(self) -> None:
        super().__init__()
        self.parts: list[str] = []
        self._unseen = 0

    def handle_starttag(self, tag: str, attrs: object) -> None:
        """Begin a line for a block."""
        if tag in _UNSEEN:
            self._unseen += 1
        elif tag == "body":
            self._unseen = 0  # a head without its end
        if tag not in _INLINE:
            self.parts.append("\n")

    def handle_endtag(self, tag: str) -> None:
        """End the line of a block."""
        if tag in _UNSEEN:
            self._unseen = max(0, self._unseen - 1)
        if tag not in _INLINE:
            self.parts.append("\n")

    def handle_data(self, data: str) -> None:
        """Keep a text."""
        if not self._unseen:
            self.parts.append(data)


def _of_html(text: str) -> str:
    parser = _TextOfHtml()
    parser.feed(text)
    parser.close()
    lines = (" ".join(line.split()) for line in "".join(parser.parts).split("\n"))
    return "\n".join(filter(None, lines))
