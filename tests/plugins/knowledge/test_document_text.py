"""Files of each media type become the text that is searched."""

from __future__ import annotations

import io

import pytest

from plugins.knowledge.log import pdf_process
from plugins.knowledge.log.document_log import DocumentDraft
from plugins.knowledge.log.document_text import HTML, LINES, PDF, PLAIN, read_documents
from streams.errors import EventError


def texts(data: bytes, media_type: str) -> list[str]:
    return [document.text for document in read_documents(data, DocumentDraft("sea/file", "", media_type, "file"))]


def test_html_is_what_a_reader_sees() -> None:
    page = """<!doctype html><html><head><title>No</title><style>p {color: red}</style></head>
    <body><script>if (1 < 2) no()</script><h1>Tides &amp; waves</h1><p>They <b>ro</b>se,
    and fell.</p><ul><li>one<li>two</ul><!-- no --><table><tr><td>three</td></tr></table></body></html>"""
    assert texts(page.encode(), HTML) == ["Tides & waves\nThey rose,\nand fell.\none\ntwo\nthree"]
    assert texts(b"<head><title>No</title><body>Yes", HTML) == ["Yes"]
    assert texts(b"a < b &lt c <p", HTML)[0].startswith("a < b < c")


def test_pdf_is_the_text_of_its_pages() -> None:
    pytest.importorskip("pypdf", reason="pip install 'streamward[pdf]'")
    from matplotlib import rc_context
    from matplotlib.backends.backend_pdf import PdfPages
    from matplotlib.figure import Figure

    file = io.BytesIO()
    with rc_context({"pdf.fonttype": 42}), PdfPages(file) as pages:
        for text in ("The moon makes the tides.", "The wind makes the waves."):
            figure = Figure()
            figure.text(0.1, 0.5, text)
            pages.savefig(figure)
    assert texts(file.getvalue(), PDF) == ["The moon makes the tides.\n\nThe wind makes the waves."]
    for broken in (b"", b"no pdf", file.getvalue()[:900]):
        with pytest.raises(EventError, match=r"^document sea/file: cannot be read as PDF"):
            texts(broken, PDF)


def test_json_lines_are_documents_with_the_rest_as_metadata() -> None:
    lines = '\ufeff{"text": "one", "name": "first", "year": 1901, "tags": ["a"]}\r\n\n{"text": "two"}\n'.encode()
    drafts = [*read_documents(lines, DocumentDraft("sea/file", "", LINES, "file", {"kind": "note"}))]
    assert [(draft.document_id, draft.text, draft.metadata) for draft in drafts] == [
        ("sea/file/first", "one", {"kind": "note", "year": "1901", "tags": '["a"]'}),
        ("sea/file/3", "two", {"kind": "note"}),
    ]


@pytest.mark.parametrize(
    ("data", "media_type", "problem"),
    [
        (b'{"text": "a"}\nno', LINES, "^file:2: is no JSON"),
        (b"[1]", LINES, "^file:1: expected an object with a text"),
        (b'{"text": "a", "name": 1}', LINES, "^file:1: name is 1; expected a text"),
        (b"[" * 100_000, LINES, "^file:1: is no JSON"),
        (b"\xff\xfe", PLAIN, "it is no text in UTF-8"),
        (b"x", "image/png", "media_type is 'image/png'; expected application/jsonl"),
    ],
)
def test_what_cannot_be_read_is_refused_with_its_place(data: bytes, media_type: str, problem: str) -> None:
    with pytest.raises(EventError, match=problem):
        texts(data, media_type)


def test_a_pdf_that_takes_too_long_is_refused_and_the_next_one_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of 34 KB with many trailers held its reader for half a minute."""
    pytest.importorskip("pypdf", reason="pip install 'streamward[pdf]'")
    monkeypatch.setattr(pdf_process, "PDF_S", 0.05)
    trailers = b"trailer<</Size 6/Root 1 00000212 00000 n\0\nnull0000000292 00000 n \n" * 20_000
    with pytest.raises(EventError, match=r"^document sea/file: cannot be read as PDF \(it takes longer than 0\.05 s"):
        texts(trailers + b"startxref\n1\n%%EOF", PDF)
    monkeypatch.undo()
    with pytest.raises(EventError, match=r"cannot be read as PDF .*Error"):
        texts(b"no pdf", PDF)
