"""Rows of training data: files and folders of any shape, checked, cleaned, and read again."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tests.fuzz.target import Check, target

CHAT_NAMES = frozenset({"weight", "tool_call_id", "role_order", "tools"})


def _cleaned(path: Path, written: Path, at: Path | None = None) -> Check:
    """Return the check of a file: its bytes are written to `written`, and `at` is read, the same or its folder."""
    from plugins.data.cleaning.check import check as check_rows
    from plugins.data.cleaning.clean import ROWS, clean, files_of, read_steps
    from plugins.data.cleaning.data_rows import read_source
    from plugins.data.cleaning.input_drift import drift, profile
    from plugins.data.cleaning.steps import DEFAULT, DataRow

    steps, again = read_steps([*DEFAULT, 'language={"scripts": ["latin", "han"], "share": 0.01}']), path / "again.jsonl"

    def check(data: bytes) -> str | None:
        written.write_bytes(data)
        rows = list(read_source(at or written))
        whole = [row for row in rows if isinstance(row, DataRow)]
        check_rows(rows).plain()
        cleaned = clean(rows, steps)
        counts = cleaned.counts
        assert counts["read"] == len(rows) == counts["kept"] + counts["changed"] + counts["dropped"]
        files = files_of(cleaned, (), steps, "")
        assert files == files_of(clean(rows, steps), (), steps, "")
        again.write_bytes(files[ROWS])
        second = list(read_source(again))
        assert [row.fields for row in second if isinstance(row, DataRow)] == [dict(row.fields) for row in cleaned.rows]
        assert len(second) == len(cleaned.rows), "a row that was written cannot be read"
        assert not any(column.has_moved for column in drift(*[profile((row.fields, None) for row in whole)] * 2))
        return None if counts["kept"] + counts["changed"] else "no row is left"

    return check


@target("data-lines", "lines", light=120)
def data_lines(folder: Path) -> Check:
    """A file of JSON lines is rows, each with one fate; what is left is read again as it was written."""
    return _cleaned(folder, folder / "rows.jsonl")


@target("data-csv", light=120)
def data_csv(folder: Path) -> Check:
    """The same of a CSV file."""
    return _cleaned(folder, folder / "rows.csv")


@target("data-parquet", light=60)
def data_parquet(folder: Path) -> Check:
    """The same of a Parquet file."""
    return _cleaned(folder, folder / "rows.parquet")


@target("data-folders", light=15)
def data_folders(folder: Path) -> Check:
    """The same of the folder of a data set, whose card is fuzzed."""
    data_set = folder / "set"
    data_set.mkdir()
    (data_set / "train.jsonl").write_text('{"question": "Who wrote Faust?", "answer": "Goethe"}\n')
    check = _cleaned(folder, data_set / "README.md", data_set)
    check(b"")  # what the library takes once is not what a card takes
    return check


@target("chat-files", "lines", light=200)
def chat_files(folder: Path) -> Check:
    """A chat file has faults of known names, and a row without one has a conversation with an answer in it."""
    from plugins.data.cleaning.chat_faults import COOKBOOK, chat_problems
    from plugins.data.cleaning.data_rows import read_source
    from plugins.data.cleaning.steps import DataRow

    path, names = folder / "chats.jsonl", CHAT_NAMES | {*COOKBOOK}

    def check(data: bytes) -> str | None:
        path.write_bytes(data)
        problems = []
        for row in read_source(path):
            if not isinstance(row, DataRow):
                problems.append(row.why)
                continue
            of_row = list(chat_problems(row.fields))
            assert {problem.name for problem in of_row} <= names
            if not of_row:
                assert any(message["role"] == "assistant" for message in row.fields["messages"])
            problems += [problem.text for problem in of_row]
        return "; ".join(problems) or None

    return check


def seeds() -> Iterator[tuple[str, str, bytes]]:
    """Yield (reader, file name, content)."""
    user, assistant = {"role": "user", "content": "Who wrote Faust?"}, {"role": "assistant", "content": "Goethe"}
    call = {"id": "c", "type": "function", "function": {"name": "look_up", "arguments": '{"work": "Faust"}'}}
    tool = {"type": "function", "function": {"name": "look_up", "parameters": {"type": "object", "properties": {}}}}
    called = {"role": "assistant", "content": None, "tool_calls": [call], "weight": 0}
    found = {"role": "tool", "content": "Mail ann@example.org", "tool_call_id": "c"}
    chat = {"messages": [{"role": "system", "content": "Answer."}, user, called, found, assistant], "tools": [tool]}
    truth = {"reward_model": {"style": "rule", "ground_truth": "4"}, "extra_info": {"index": 0, "split": "train"}}
    shapes: list[dict[str, Any]] = [
        chat,
        {"messages": [user, assistant | {"weight": 1}]},
        {"data_source": "sums", "prompt": [{"role": "user", "content": "2 + 2 ="}], "ability": "math", **truth},
        {"prompt": "2 + 2 =", "chosen": "4", "rejected": "5"},
        {"input": {"messages": [user]}, "preferred_output": [assistant], "non_preferred_output": [user]},
        {"instruction": "Translate.", "input": "gut\u200b \u1e9b", "output": "good"},
        {"question": "Wie geht es dir heute, mein Freund?", "answer": "gut"},
        {"text": "Once upon a time there was a king."},
    ]
    for number, row in enumerate(shapes):
        line = json.dumps(row).encode()
        yield "data-lines", f"shape-{number}", line
        if "messages" in row:
            yield "chat-files", f"chat-{number}", line
    yield "data-lines", "mixed", b"\n".join(json.dumps(row).encode() for row in (*shapes, chat))
    yield "data-csv", "questions", b'question,answer\n"Who wrote ""Faust""?",Goethe\nwho wrote faust,Goethe\n,\n'
    yield (
        "data-csv",
        "chats",
        b'messages;extra_info\n"' + json.dumps(chat["messages"]).replace('"', '""').encode() + b'";{}\n',
    )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows.parquet"
        pq.write_table(pa.Table.from_pylist([shapes[2]]), path)
        yield "data-parquet", "verl", path.read_bytes()
    split = "configs:\n- config_name: default\n  data_files:\n  - {split: train, path: train.jsonl}\n"
    features = "dataset_info:\n  features:\n  - {name: question, dtype: string}\n  - {name: answer, dtype: string}\n"
    yield "data-folders", "card", f"---\n{split}{features}---\n\nA set.\n".encode()
    yield "data-folders", "none", b"A set.\n"
