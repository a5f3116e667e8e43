"""Read the text of a file from outside: UTF-8, with or without a byte order mark, with any line ends.

    bytes ──► whole_text  ──► text                          TOML, YAML, secrets
    bytes ──► text_lines  ──► (number, line), …             JSON lines: files, stdin, uploads
    line  ──► json_object ──► {…}
    path  ──► open_table  ──► a file for the csv module

A mark is removed, so that it makes no difference. Another encoding or a compressed file is one error for the file,
which names it and the way out; a stray byte is an error of its line.
"""

from __future__ import annotations

import codecs
import json
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any, TextIO

from schemas import json_text

MARK = codecs.BOM_UTF8
_SAVE_AS_UTF_8 = "save the file as UTF-8 (`iconv -f WINDOWS-1252 -t UTF-8 FILE > NEW`, if it is from Windows)"
_UTF_16 = "it is UTF-16; save it as UTF-8, or `iconv -f UTF-16 -t UTF-8 FILE > NEW`"
_PACKED = {
    codecs.BOM_UTF32_LE: "it is UTF-32; save it as UTF-8, or `iconv -f UTF-32 -t UTF-8 FILE > NEW`",
    codecs.BOM_UTF32_BE: "it is UTF-32; save it as UTF-8, or `iconv -f UTF-32 -t UTF-8 FILE > NEW`",
    codecs.BOM_UTF16_LE: _UTF_16,
    codecs.BOM_UTF16_BE: _UTF_16,
    b"\x1f\x8b": "it is packed by gzip; unpack it with gunzip",
    b"\x28\xb5\x2f\xfd": "it is packed by zstd; unpack it with unzstd",
    b"BZh": "it is packed by bzip2; unpack it with bunzip2",
    b"\xfd7zXZ\0": "it is packed by xz; unpack it with unxz",
    b"PK\x03\x04": "it is a ZIP archive or a spreadsheet; unpack it, or save the sheet as CSV",
    b"PAR1": "it is Parquet; a table of tasks needs a name that ends in .parquet, and all else is text",
}
"""Types of files by their first bytes; longer ones come first."""

_OPENINGS = (b"{", b"[", b"[{")
"""Lines that begin a JSON value which ends in another line."""
_SEVERAL_LINES = "JSON over several lines; `jq -c . FILE` (of an array, `jq -c '.[]' FILE`) makes lines"


class FileTextError(ValueError):
    """A file that is not UTF-8 text; `line` is the line of the fault, None if it is another type of file."""

    def __init__(self, message: str, line: int | None = None) -> None:
        super().__init__(message)
        self.line = line

    def at(self, file: object) -> str:
        """Return the message with its place in a file of this name."""
        return f"{file}: {self}" if self.line is None else f"{file}:{self.line}: {self}"


def whole_text(raw: bytes) -> str:
    """Return the text of a file. Raises FileTextError."""
    check_encoding(raw)
    try:
        return raw.removeprefix(MARK).decode()
    except UnicodeDecodeError as exc:
        before = exc.object[: exc.start]
        start_of_line = max(before.rfind(b"\n"), before.rfind(b"\r")) + 1
        raise FileTextError(_stray_byte(exc, start_of_line), len(before[:start_of_line].splitlines()) + 1) from exc


def text_lines(parts: bytes | Iterable[bytes | str]) -> Iterator[tuple[int, bytes]]:
    """Yield (number, line) of each line that is not blank, with its end. `parts` is a file's content, or its lines.

    Raises FileTextError for a file in another encoding, or of JSON over several lines; a stray byte is found by
    `json_object`.
    """
    remaining = iter([parts] if isinstance(parts, bytes) else parts)
    head = _as_bytes(next(remaining, b""))
    check_encoding(head)
    is_first = True
    lines = (line for part in chain([head], remaining) for line in _as_bytes(part).splitlines(keepends=True) or [b""])
    for number, line in enumerate(lines, 1):
        line = line.removeprefix(MARK)  # in a file made of several, each part may begin with one
        if content := line.strip():
            if is_first and content in _OPENINGS:
                raise FileTextError(f"it is {_SEVERAL_LINES}")
            is_first = False
            yield number, line


def json_objects(raw: bytes, *, most_values: int | None = None) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield (number, object) of each line of a file. Raises FileTextError for the first line without one, or with too
    many values.
    """
    for number, line in text_lines(raw):
        try:
            fields = json_object(line, most_values=most_values)
        except ValueError as exc:
            raise FileTextError(str(exc), number) from exc
        yield number, fields


def json_object(line: bytes | str, *, most_values: int | None = None) -> dict[str, Any]:
    """Return the object in a line of JSON lines. Raises ValueError, which names the line's actual content."""
    try:
        text = line if isinstance(line, str) else line.decode()
        value = json_text.parse(text, most_values=most_values)
    except UnicodeDecodeError as exc:
        raise ValueError(_stray_byte(exc)) from exc
    except (json_text.RepeatedKeyError, json_text.ExtentError):
        raise
    except json.JSONDecodeError as exc:
        raise ValueError(
            f"not JSON: {exc.msg.removesuffix(' at')} at character {exc.pos + 1}; {_json_way_out(text, exc.pos)}"
        ) from exc
    except ValueError as exc:
        raise ValueError(f"not JSON: {exc}") from exc
    if not isinstance(value, dict):
        shown = text.strip()[:60]
        way_out = "; of an array, `jq -c '.[]' FILE` makes lines" if isinstance(value, list) else ""
        raise ValueError(f"expected an object, {{...}}, and got {shown}; write one object a line{way_out}")
    return value


def open_table(path: Path) -> TextIO:
    """Return a file of cells, open for the csv module; `stray_byte_of` finds what it left in. Raises FileTextError."""
    with path.open("rb") as file:
        check_encoding(file.read(8))
    return path.open(encoding="utf-8-sig", errors="surrogateescape", newline="")


def stray_byte_of(text: str) -> str | None:
    """Return the fault of text from `open_table` with a stray byte."""
    stray = next((char for char in text if "\udc80" <= char <= "\udcff"), None)
    return None if stray is None else f"not UTF-8: byte 0x{ord(stray) - 0xDC00:x}; {_SAVE_AS_UTF_8}"


def check_encoding(head: bytes) -> None:
    """Raise FileTextError if the first bytes show another encoding or no text."""
    for beginning, message in _PACKED.items():
        if head.startswith(beginning):
            raise FileTextError(message)
    if b"\0" in head[:2]:
        is_utf_16 = head[:2].replace(b"\0", b"").isascii() and len(head[:4].replace(b"\0", b"")) == 2
        with_mark = _UTF_16.replace("UTF-16;", "UTF-16 without a byte order mark;")
        raise FileTextError(
            with_mark if is_utf_16 else "it is no text: it begins with a zero byte; give a file of text"
        )


def _as_bytes(part: bytes | str) -> bytes:
    return part if isinstance(part, bytes) else part.encode(errors="surrogatepass")


def _stray_byte(exc: UnicodeDecodeError, start_of_line: int = 0) -> str:
    return (
        f"not UTF-8: byte 0x{exc.object[exc.start]:x}, byte {exc.start - start_of_line} of its line ({exc.reason}); "
        f"{_SAVE_AS_UTF_8}"
    )


def _json_way_out(text: str, fault: int) -> str:
    """Return the way out for a line with wrong JSON from the character `fault` on."""
    content = text.strip()
    if content.encode(errors="surrogatepass") in _OPENINGS:
        return f"it seems to be {_SEVERAL_LINES}"
    if content.endswith("},"):
        return "write one object a line, without a comma between them"
    if not content.startswith(("{", "[")) and any(separator in content for separator in ",;\t|"):
        return "write one object a line; if it is a table, its name has to end in .csv"
    has_no_end = fault >= len(text.rstrip()) or not content.endswith("}")
    if has_no_end and content.startswith("{") and not text.endswith(("\n", "\r")):
        return "the file is cut off in its last line; write one object a line"
    return "write one object a line"
