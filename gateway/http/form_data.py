"""Read multipart/form-data (RFC 7578), as clients upload files with it.

bytes ──► split at the boundary ──► each part: its name, its file's name, its bytes

The whole body is in memory; its length was bounded where it was read. Names may be quoted or not, and are UTF-8.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from streams.errors import CallError

MOST_PARTS = 32
HEAD_BYTES = 8 * 1024
"""Longest headers of a field."""
BOUNDARY = re.compile(r'multipart/form-data\s*;.*?\bboundary=(?:"([^"]{1,200})"|([^\s;"]{1,200}))', re.IGNORECASE)
DISPOSITION = re.compile(r"^content-disposition:\s*form-data\s*(;.*)$", re.IGNORECASE | re.MULTILINE)
PARAMETER = re.compile(r';\s*(name|filename)=(?:"([^"]*)"|([^\s;"]*))', re.IGNORECASE)
ESCAPED = {"%22": '"', "%0D": "\r", "%0A": "\n"}
"""How browsers and clients write a quotation mark and line breaks in a name (HTML, section 4.10.22.8)."""


class FormPart(NamedTuple):
    """One field of a form."""

    name: str
    filename: str | None
    """None: it is no file."""
    content: bytes


def parts(content_type: str, raw: bytes) -> list[FormPart]:
    """Return the fields in their order. Raises CallError if this is no form."""
    match = BOUNDARY.match(content_type)
    if match is None:
        kind = content_type[:80] or "no content type"
        raise CallError("invalid", f"expected multipart/form-data with a boundary, as clients upload files; got {kind}")
    boundary = b"\r\n--" + (match[1] or match[2]).encode()
    pieces = (b"\r\n" + raw).split(boundary, MOST_PARTS + 1)
    if len(pieces) < 2 or not pieces[-1].startswith(b"--"):
        raise CallError("invalid", f"the form has no end within {MOST_PARTS} fields; it was cut off, or has too many")
    return [_part(piece) for piece in pieces[1:-1]]


def _part(piece: bytes) -> FormPart:
    head, separator, content = piece.partition(b"\r\n\r\n")
    if len(head) > HEAD_BYTES:
        raise CallError("invalid", f"the headers of a field of the form are longer than {HEAD_BYTES} bytes")
    try:
        headers = head.decode()
    except UnicodeDecodeError as exc:
        raise CallError("invalid", f"the headers of a field of the form are not UTF-8: {exc.reason}") from exc
    disposition = DISPOSITION.search(headers.replace("\r\n", "\n"))
    if not separator or disposition is None:
        raise CallError("invalid", "a field of the form has no header `Content-Disposition: form-data; name=…`")
    named = {name.lower(): _plain(quoted or bare) for name, quoted, bare in PARAMETER.findall(disposition[1])}
    if "name" not in named:
        raise CallError("invalid", "a field of the form has no name")
    return FormPart(named["name"], named.get("filename"), content)


def _plain(text: str) -> str:
    for escaped, plain in ESCAPED.items():
        text = text.replace(escaped, plain)
    return text
