"""What is read of documents: the text of HTML, of JSON lines and of PDF."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from tests.fuzz.mutation import Grammar
from tests.fuzz.target import Check, Target, target

NAME = "sea/file"
_OBJECTS = (
    b"<</Type/Catalog/Pages 2 0 R>>",
    b"<</Type/Pages/Kids[3 0 R]/Count 1>>",
    b"<</Type/Page/Parent 2 0 R/MediaBox[0 0 99 99]/Contents 4 0 R/Resources<</Font<</F1 5 0 R>>>>>>",
    b"<</Length 33>>stream\nBT /F1 9 Tf 9 9 Td (Tides.) Tj ET \nendstream",
    b"<</Type/Font/Subtype/Type1/BaseFont/Helvetica>>",
)


def _reader(name: str, media_type: str, grammar: Grammar, light: int) -> Target:
    def open_reader(folder: Path) -> Check:
        from plugins.knowledge.index.chunks import chunks_of
        from plugins.knowledge.log.document_log import DocumentDraft
        from plugins.knowledge.log.document_text import read_documents

        def check(data: bytes) -> str | None:
            for document in read_documents(data, DocumentDraft(NAME, "", media_type)):
                ends = [0]
                for chunk in chunks_of(document.text, 800):
                    assert ends[-1] <= chunk.start < chunk.end <= chunk.start + 800, chunk
                    ends.append(chunk.end)
                assert document.document_id.startswith(NAME)
            return None

        return check

    return target(name, grammar, light=light)(open_reader)


HTML = _reader("html_document", "text/html", "bytes", 150)
LINES = _reader("document_lines", "application/jsonl", "lines", 150)
PDF = _reader("pdf_document", "application/pdf", "bytes", 100)


def seeds() -> Iterator[tuple[str, str, bytes]]:
    """Yield (reader, file name, content)."""
    yield (
        "html_document",
        "page",
        b"<head><title>no</title></head><body><h1>Rope</h1><p>It is <b>hemp</b> &amp; tar.</p>",
    )
    yield (
        "document_lines",
        "lines",
        b'{"name": "ann", "text": "Ann steers.", "rank": "captain"}\n{"text": "two", "n": [1]}\n',
    )
    yield "pdf_document", "page", _pdf()


def _pdf() -> bytes:
    data, places = b"%PDF-1.4\n", list[int]()
    for number, content in enumerate(_OBJECTS, start=1):
        places.append(len(data))
        data += b"%d 0 obj%b endobj\n" % (number, content)
    table = b"".join(b"%010d 00000 n \n" % place for place in places)
    end = b"trailer<</Size 6/Root 1 0 R>>\nstartxref\n%d\n%%%%EOF\n" % len(data)
    return data + b"xref\n0 6\n0000000000 65535 f \n" + table + end
