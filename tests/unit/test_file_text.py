"""One reader of text: the same file means the same from every entrance, and what is no text is named."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from schemas.file_text import FileTextError, json_objects, text_lines, whole_text
from streams.adapters.training_files import lines_of
from streams.arrow.file_rows import read_objects, rows
from streams.errors import StreamwardError
from streams.settings.load import load
from streams.settings.model import Topics
from streams.stages.tasks import suites
from streams.stages.tasks.line_task import Reading
from streams.stages.tasks.lines import check_rows

LINE = b'{"prompt": "What is 1 + 3?", "answer": 4}'
MARK = b"\xef\xbb\xbf"


def tasks_of(path: Path) -> list[str]:
    checked = check_rows(rows(path), path.name, Reading(now_ms=0, topic_settings=Topics(), defaults={"policy": "p"}))
    assert checked.problems == []
    return [task.task_id for task in checked.tasks]


ENTRANCES: dict[str, Callable[[Path], Any]] = {
    "tasks": tasks_of,
    "jobs": lambda path: read_objects(path, "--queries", "training_queries"),
    "uploads": lambda path: lines_of(path.read_bytes()),
    "examples": lambda path: list(json_objects(path.read_bytes())),
}


@pytest.mark.parametrize("read", ENTRANCES.values(), ids=ENTRANCES)
@pytest.mark.parametrize(
    "content",
    [
        MARK + LINE + b"\n" + LINE + b"\n",
        LINE + b"\r\n" + LINE + b"\r\n",
        LINE + b"\r" + LINE + b"\r",
        LINE + b"\n" + MARK + LINE,
    ],
    ids=["mark", "windows", "old mac", "two marked files in one"],
)
def test_marks_and_line_ends_change_nothing(read: Callable[[Path], Any], content: bytes, tmp_path: Path) -> None:
    plain, odd = tmp_path / "plain.jsonl", tmp_path / "odd.jsonl"
    plain.write_bytes(LINE + b"\n" + LINE + b"\n")
    odd.write_bytes(content)
    assert read(odd) == read(plain)


@pytest.mark.parametrize("read", ENTRANCES.values(), ids=ENTRANCES)
@pytest.mark.parametrize(
    ("content", "message"),
    [
        (LINE.decode().encode("utf-16"), "it is UTF-16; save it as UTF-8, or `iconv -f UTF-16 -t UTF-8"),
        (LINE.decode().encode("utf-16-le"), "it is UTF-16 without a byte order mark"),
        (LINE.decode().encode("utf-32"), "it is UTF-32"),
        (b"\x1f\x8b\x08", "it is packed by gzip; unpack it with gunzip"),
        (b"PK\x03\x04", "it is a ZIP archive or a spreadsheet"),
        (b"PAR1\x15", "it is Parquet"),
        (b"\0\1\2\3", "it is no text: it begins with a zero byte"),
        (b"\n[\n {\n", "it is JSON over several lines; `jq -c . FILE`"),
        (b'{\n  "prompt": "x",\n', "it is JSON over several lines; `jq -c . FILE`"),
    ],
)
def test_a_file_that_is_no_text_is_one_error_that_names_it(
    read: Callable[[Path], Any], content: bytes, message: str, tmp_path: Path
) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(content + b"\n" + content)
    with pytest.raises((StreamwardError, FileTextError), match=message) as raised:
        read(path)
    assert str(raised.value).count("\n") == 0


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b'{"prompt": "caf\xe9"}\n', "not UTF-8: byte 0xe9, byte 15 of its line"),
        (
            b'{"prompt": "x',
            "not JSON: Unterminated string starting at character 12; the file is cut off in its last line",
        ),
        (b"[\n", "JSON over several lines; `jq -c . FILE`"),
        (LINE + b",\n", "not JSON: Extra data at character 42; write one object a line, without a comma between them"),
        (b"[1]\n", "got \\[1\\]; write one object a line; of an array, `jq -c '.\\[\\]' FILE` makes lines"),
        (b'{"prompt": "x", "answer": {"a": 1, "a": 2}}\n', 'the key "a" is there twice; remove one'),
        (
            b"prompt,answer\n",
            "not JSON: Expecting value at character 1; .*if it is a table, its name has to end in .csv",
        ),
    ],
)
def test_a_line_that_has_no_object_is_named_in_the_same_words_everywhere(
    line: bytes, message: str, tmp_path: Path
) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(LINE + b"\n\n" + line)
    checked = check_rows(rows(path), "a.jsonl", Reading(now_ms=0, topic_settings=Topics(), defaults={"policy": "p"}))
    [bad] = checked.problems
    assert bad.line == 3
    for name in ("jobs", "uploads", "examples"):
        with pytest.raises((StreamwardError, FileTextError), match=message) as raised:
            ENTRANCES[name](path)
        assert str(raised.value).endswith(bad.error)


def test_a_separator_of_unicode_ends_no_line() -> None:
    line = json.dumps({"query": "a\u2028b\x85c"}, ensure_ascii=False).encode()
    assert list(text_lines(line)) == [(1, line)]


def test_settings_and_suites_are_read_with_a_mark_and_stray_bytes_are_named_with_their_line(tmp_path: Path) -> None:
    config, suite = tmp_path / "a.toml", tmp_path / "suite.yaml"
    config.write_bytes(MARK + b'policy.name = "marked"\r\n')
    assert load(file=config, env={}).policy.name == "marked"
    config.write_bytes(b'[policy]\nname = "caf\xe9"\n')
    with pytest.raises(StreamwardError, match=r"a.toml:2: not UTF-8: byte 0xe9, byte 11 of its line"):
        load(file=config, env={})
    config.write_bytes("[policy]".encode("utf-16"))
    with pytest.raises(StreamwardError, match=r"a.toml: it is UTF-16"):
        load(file=config, env={})
    example = Path("docs/examples/suite.yaml").read_bytes()
    suite.write_bytes(MARK + example)
    assert suites._read(suite) == example.decode()


def test_the_line_of_a_stray_byte_counts_every_kind_of_line_end() -> None:
    with pytest.raises(FileTextError) as raised:
        whole_text(b"a\r\nb\rc\n\xff")
    assert raised.value.at("f").startswith("f:4: not UTF-8: byte 0xff, byte 0 of its line")
