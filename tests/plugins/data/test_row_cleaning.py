"""Rows before they are trained on: read from any file, checked, cleaned; every row has a fate, and the sum adds up."""

from __future__ import annotations

import csv
import hashlib
import json
import random
import re
import threading
import unicodedata
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner, Result
from faker import Faker
from hypothesis import given, strategies as st
from pyarrow import parquet
from starlette.testclient import TestClient

from gateway.http.application import Application
from gateway.log.open_log import OpenLog
from plugins.data.cleaning.chat_faults import COOKBOOK, chat_problems
from plugins.data.cleaning.check import check
from plugins.data.cleaning.clean import clean, read_steps
from plugins.data.cleaning.data_rows import LONGEST_ROW, UnreadableRow, read_rows, read_source
from plugins.data.cleaning.row_shapes import ANSWERS, question_of, shape_of
from plugins.data.cleaning.steps import DEFAULT, STEPS, DataRow
from plugins.data.contamination.suite_index import SuiteIndex, SuiteQuestion
from plugins.data.synthetic_rows import VerifiedModel, answer_questions
from plugins.data.training_rows import TrainingRows
from schemas.events import RewardSource
from streams.cli.root import cli
from streams.errors import SettingsError
from streams.rows.question_text import words_of
from streams.scorers.personal_data import find, redact
from streams.settings.model import Adapters, Scoring, Settings
from streams.stages.tasks.generators import is_held_out
from streams.stages.tasks.suites import load

USER = {"role": "user", "content": "What is the capital of France?"}
PARIS = {"role": "assistant", "content": "Paris"}
CALL = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}}


def run(*arguments: object) -> Result:
    return CliRunner().invoke(cli, [str(argument) for argument in arguments])


def lines(path: Path, *rows: Any) -> Path:
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return path


def rows_of(*fields: dict[str, Any]) -> list[DataRow]:
    return [DataRow(f"rows:{number}", row) for number, row in enumerate(fields, 1)]


# --- the names of faults ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "row"),
    [
        ("data_type", {"messages": ["hello", PARIS]}),
        ("missing_messages_list", {"messages": []}),
        ("message_missing_key", {"messages": [{"role": "user"}, PARIS]}),
        ("message_unrecognized_key", {"messages": [{**USER, "mood": "good"}, PARIS]}),
        ("unrecognized_role", {"messages": [{"role": "wizard", "content": "hi"}, PARIS]}),
        ("missing_content", {"messages": [{"role": "user", "content": ""}, PARIS]}),
        ("example_missing_assistant_message", {"messages": [USER]}),
        ("weight", {"messages": [USER, {**PARIS, "weight": 0.5}]}),
        ("weight", {"messages": [{**USER, "weight": 1}, PARIS]}),
        ("tool_call_id", {"messages": [USER, {"role": "tool", "tool_call_id": "c9", "content": "x"}, PARIS]}),
        ("tool_call_id", {"messages": [USER, {"role": "assistant", "tool_calls": [CALL]}, PARIS]}),
        ("role_order", {"messages": [USER, PARIS, {"role": "system", "content": "Be brief."}, PARIS]}),
        ("role_order", {"messages": [USER, PARIS, USER]}),
        ("tools", {"messages": [USER, PARIS], "tools": [{"name": "look"}]}),
    ],
)
def test_a_fault_of_a_chat_has_the_name_that_users_know(name: str, row: dict[str, Any]) -> None:
    assert [problem.name for problem in chat_problems(row)] == [name]


def test_a_good_chat_has_no_fault_and_the_seven_names_are_those_of_the_cookbook() -> None:
    result = {"role": "tool", "tool_call_id": "c1", "content": "Paris"}
    good = {"messages": [USER, {"role": "assistant", "content": None, "tool_calls": [CALL]}, result, PARIS]}
    assert list(chat_problems(good)) == [] and len(COOKBOOK) == 7
    assert list(chat_problems({"messages": [USER, {**PARIS, "weight": 0}, USER, PARIS]})) == []


# --- shapes that are public -------------------------------------------------------------------------------------------

PUBLIC: dict[str, dict[str, Any]] = {
    "chat": {"messages": [USER, PARIS]},
    "preference": {"prompt": [USER], "chosen": [PARIS], "rejected": [{"role": "assistant", "content": "France"}]},
    "verl": {
        "data_source": "cities",
        "prompt": [USER],
        "ability": "geography",
        "reward_model": {"style": "rule", "ground_truth": "Paris"},
        "extra_info": {"index": 0, "split": "train"},
    },
    "instruction": {"instruction": USER["content"], "input": "", "output": "Paris"},
    "question": {"question": USER["content"], "answer": "Paris"},
}


@pytest.mark.parametrize("shape", PUBLIC)
def test_a_public_shape_is_told_by_its_columns_and_its_question_is_found(shape: str, tmp_path: Path) -> None:
    row = PUBLIC[shape]
    assert shape_of(row) == shape and question_of(row) == USER["content"]
    faulty = {
        name: value for name, value in row.items() if name not in ("messages", "chosen", "reward_model", "output")
    }
    file = lines(tmp_path / "rows.jsonl", row, row | {"extra": 1}, faulty)
    checked = check(read_source(file))
    assert (checked.read, checked.shape) == (3, shape)
    assert checked.findings["duplicates"].first == "rows.jsonl:2: as rows.jsonl:1" if shape != "question" else True


def test_the_same_rows_in_four_formats_are_the_same_rows(tmp_path: Path) -> None:
    rows = [{"question": f"What is {n} + {n}?", "answer": str(2 * n)} for n in range(5)]
    files = [lines(tmp_path / "rows.jsonl", *rows), tmp_path / "rows.csv", tmp_path / "rows.parquet"]
    with files[1].open("w", newline="") as file:
        writer = csv.DictWriter(file, ["question", "answer"])
        writer.writeheader()
        writer.writerows(rows)
    parquet.write_table(pa.Table.from_pylist(rows), files[2])
    written = set()
    for number, file in enumerate(files):
        assert run("improve", "data", "ingest", file, "--to", tmp_path / str(number)).exit_code == 0
        written.add((tmp_path / str(number) / "rows.jsonl").read_bytes())
    assert len(written) == 1


# --- files as they come -----------------------------------------------------------------------------------------------


def test_a_mark_other_line_ends_one_bad_line_of_ten_thousand_and_an_endless_line_are_each_told(tmp_path: Path) -> None:
    good = [json.dumps({"question": f"What is {n}?", "answer": str(n)}) for n in range(10_000)]
    good[4711] += ","
    endless = json.dumps({"question": "x" * LONGEST_ROW, "answer": "1"})
    raw = b"\xef\xbb\xbf" + "\r\n".join([*good, endless]).encode()
    (tmp_path / "rows.jsonl").write_bytes(raw)
    result = run("improve", "data", "ingest", tmp_path / "rows.jsonl", "--to", tmp_path / "out", "--output", "jsonl")
    assert json.loads(result.stdout) | {"folder": ""} == {
        "folder": "", "read": 10_001, "kept": 9_999, "changed": 0, "dropped": 2,
        "changed_by": {}, "dropped_by": {"read": 2}, "shapes": {"question": 9_999},
    }  # fmt: skip
    fates = [json.loads(line) for line in (tmp_path / "out" / "fates.jsonl").read_text().splitlines()]
    bad = [fate for fate in fates if fate["fate"] == "dropped"]
    assert [fate["row"] for fate in bad] == ["rows.jsonl:4712", "rows.jsonl:10001"]
    assert "without a comma between them" in bad[0]["why"] and "expected at most" in bad[1]["why"]


def test_file_command_and_server_say_the_same_of_the_same_rows(tmp_path: Path) -> None:
    rows = [{"messages": [USER]}, {"messages": [USER, PARIS]}, {"messages": [USER, PARIS]}]
    file = lines(tmp_path / "rows", *rows)
    checked = check(read_source(file)).plain()
    by_command = run("improve", "data", "check", file, "--output", "jsonl")
    assert by_command.exit_code == 4 and json.loads(by_command.stdout) == checked
    room = TrainingRows(Settings(adapters=Adapters(store=str(tmp_path / "store"))), OpenLog(Settings()))
    with TestClient(Application([room], version="0", max_body_bytes=1_000_000)) as client:
        answer = client.post("/data/check", json={"rows": rows}).json()
        assert answer == {"object": "data_check", "contamination": None, "drift": None, **checked}
        cleaned = client.post("/data/clean", json={"rows": rows})
        wrong = client.post("/data/clean", json={"rows": rows, "steps": ["duplicate"]})
        assert client.post("/data/check", json={"file": cleaned.json()["file"]}).json()["wrong"] is False
    assert cleaned.status_code == 201
    folder = tmp_path / "out"
    assert run("improve", "data", "clean", file, "--to", folder).exit_code == 0
    manifest = json.loads((folder / "manifest.json").read_text())
    fates = [json.loads(line) for line in (folder / "fates.jsonl").read_text().splitlines()]
    assert {name: cleaned.json()[name] for name in ("counts", "dropped_by")} == {
        name: manifest[name] for name in ("counts", "dropped_by")
    }
    assert cleaned.json()["fates"] == [fate for fate in fates if fate["fate"] != "kept"]
    with pytest.raises(SettingsError) as refused:
        read_steps(["duplicate"])
    assert wrong.status_code == 400 and wrong.json()["error"]["message"] == str(refused.value)
    assert (
        str(refused.value)
        in run("improve", "data", "clean", file, "--to", tmp_path / "b", "--step", "duplicate").stderr
    )


# --- steps ------------------------------------------------------------------------------------------------------------


def test_each_step_says_why_it_drops_and_how_it_changes() -> None:
    rows = rows_of(
        {"question": "  Who wrote Fau\u200bst? \r\n", "answer": "Goethe"},
        {"question": "who wrote faust", "answer": "GOETHE"},
        {"question": " ", "answer": "?"},
        {"question": "What is my card 4111 1111 1111 1111 good for?", "answer": "ann@example.org"},
        {"question": "Кто написал Фауста и почему?", "answer": "Гёте"},
        {"question": "What did the quick brown fox do over the lazy dog in the old yard today?", "answer": "jump"},
        {"question": "What did the quick brown fox do over the lazy dog in the old yard today, sir?", "answer": "run"},
        {"answer": "42"},
    )
    steps = read_steps([*DEFAULT[:4], 'language={"scripts": ["latin"]}', *DEFAULT[4:]])
    cleaned = clean(rows, steps)
    assert [fate.plain() for fate in cleaned.fates] == [
        {"row": "rows:1", "fate": "changed", "how": ["normalise: texts are written in one form"]},
        {"row": "rows:2", "fate": "dropped", "why": "duplicates: as rows:1"},
        {
            "row": "rows:3",
            "fate": "dropped",
            "how": ["normalise: texts are written in one form"],
            "why": "drop_empty: it asks nothing",
        },
        {"row": "rows:4", "fate": "changed", "how": ["personal_data: it has card, email"]},
        {"row": "rows:5", "fate": "dropped", "why": "language: its script is cyrillic"},
        {"row": "rows:6", "fate": "kept"},
        {"row": "rows:7", "fate": "dropped", "why": "near_duplicates: almost as rows:6"},
        {
            "row": "rows:8",
            "fate": "dropped",
            "why": "schema: missing_columns: expected question or prompt or problem or query, as rows of shape "
            "question have; it has answer",
        },
    ]
    assert cleaned.rows[0].fields["question"] == "Who wrote Faust?"
    assert cleaned.rows[1].fields == {"question": "What is my card [card] good for?", "answer": "[email]"}


MAPPED = {"When": "Wer schrieb Faust?", "ISO": {"text": "Goethe"}, "left": 1}


@pytest.mark.parametrize("kind", ["jsonl", "csv", "parquet"])
def test_a_file_with_other_column_names_is_read_with_the_map_of_tasks_submit(tmp_path: Path, kind: str) -> None:
    file = lines(tmp_path / "rows.jsonl", MAPPED, {**MAPPED, "When": "Wer schrieb Emma?", "ISO": {"text": "Austen"}})
    if kind == "parquet":
        parquet.write_table(
            pa.Table.from_pylist([json.loads(line) for line in file.read_text().splitlines()]),
            file := file.with_suffix(".parquet"),
        )
    elif kind == "csv":
        (file := file.with_suffix(".csv")).write_text('When,ISO\nWer schrieb Faust?,"{""text"": ""Goethe""}"\n')
    names = ("--map", "prompt=When", "--map", "answer=ISO.text")
    assert run("improve", "data", "check", file, "--output", "jsonl").exit_code == 4
    checked = run("improve", "data", "check", file, *names, "--output", "jsonl")
    assert (checked.exit_code, json.loads(checked.stdout)["shape"]) == (0, "question"), checked.output
    for command in ("clean", "ingest"):
        assert run("improve", "data", command, file, *names, "--to", tmp_path / command).exit_code == 0
        first = json.loads((tmp_path / command / "rows.jsonl").read_text().splitlines()[0])
        assert (first["prompt"], first["answer"]) == ("Wer schrieb Faust?", "Goethe") and "When" not in first


def test_a_question_that_is_empty_is_named_as_tasks_submit_names_it(tmp_path: Path) -> None:
    (file := tmp_path / "rows.csv").write_text(
        "Question,Answer\n,7\n" + "".join(f"{n} + 1,{n + 1}\n" for n in range(9))
    )
    names = ("--map", "prompt=Question", "--map", "answer=Answer")
    checked = json.loads(run("improve", "data", "check", file, *names, "--output", "jsonl").stdout)
    (finding,) = (one for one in checked["findings"] if one["finding"] == "missing_columns")
    assert finding["first"].startswith("rows.csv:2: ") and finding["first"].endswith("; empty in this row: prompt")


def test_file_command_and_server_say_the_same_of_a_map(tmp_path: Path) -> None:
    rows = [MAPPED, {"When": "?"}]
    file = lines(tmp_path / "rows", *rows)
    room = TrainingRows(Settings(adapters=Adapters(store=str(tmp_path / "store"))), OpenLog(Settings()))
    with TestClient(Application([room], version="0", max_body_bytes=1_000_000)) as client:
        mapped = {"prompt": "When", "answer": "ISO.text"}
        answer = client.post("/data/check", json={"rows": rows, "map": mapped}).json()
        by_command = json.loads(
            run(
                "improve",
                "data",
                "check",
                file,
                "--map",
                "prompt=When",
                "--map",
                "answer=ISO.text",
                "--output",
                "jsonl",
            ).stdout
        )
        assert {name: answer[name] for name in ("rows", "shape", "wrong", "findings")} == by_command
        assert answer["findings"][0]["first"].startswith("rows:2: --map answer=ISO.text: this line has no ")
        wrong = client.post("/data/clean", json={"rows": rows, "map": {"promt": "When"}})
        message, parameter = (wrong.json()["error"][name] for name in ("message", "param"))
        assert (wrong.status_code, parameter) == (
            400,
            "map",
        ) and "a task has no field promt; did you mean prompt" in message
        assert message in run("improve", "data", "clean", file, "--map", "promt=When", "--to", tmp_path / "x").stderr


@pytest.mark.parametrize("empty", ["", "  ", None])
@pytest.mark.parametrize(
    ("question", "answer"), [("question", "answer"), ("prompt", "solution"), ("instruction", "output")]
)
def test_an_empty_answer_is_a_finding_and_is_dropped_unless_no_row_has_one(
    question: str, answer: str, empty: Any
) -> None:
    rows = rows_of({question: "4 + 7 =", answer: "11"}, {question: "5 + 9 =", answer: empty})
    found = check(rows).findings
    name = "missing_columns" if (question, empty) == ("instruction", None) else "drop_empty"
    assert found[name].first.startswith("rows:2: ") and found[name].rows == 1
    cleaned = clean(rows, read_steps(["drop_empty"]))
    assert cleaned.fates[0].dropped is None
    assert cleaned.fates[1].dropped == "drop_empty: its answer is empty" or name == "missing_columns"
    assert "drop_empty" not in check(rows_of(*({question: f"{n} + 7 =", answer: empty} for n in range(3)))).findings


def test_one_question_with_two_answers_is_a_contradiction_and_neither_row_is_kept() -> None:
    rows = rows_of(
        {"question": "4 + 7 =", "answer": 11},
        {"question": "Who wrote Faust?", "answer": "Goethe"},
        {"question": "who wrote faust", "answer": "Marlowe"},
        {"question": "Who wrote Emma?", "answer": "Austen"},
        {"question": "who wrote emma?", "answer": "AUSTEN"},
    )
    found = check(rows).findings["contradictions"]
    assert (found.rows, found.is_wrong, found.first) == (
        2,
        False,
        "rows:2: rows:3 asks the same and has another answer",
    )
    cleaned = clean(rows, read_steps(DEFAULT))
    assert [row.place for row in cleaned.rows] == ["rows:1", "rows:4"]
    assert cleaned.dropped_by == {"contradictions": 2, "duplicates": 1}
    several = [{"messages": [USER, PARIS]}, {"messages": [USER, {**PARIS, "content": "It is Paris."}]}]
    assert "contradictions" not in check(rows_of(*several)).findings, "a chat may be answered in many ways"


def test_held_out_questions_are_left_out_and_named() -> None:
    index = SuiteIndex([SuiteQuestion("cities@1", 3, "What is the capital of France?")])
    rows = rows_of({"messages": [USER, PARIS]}, {"messages": [{"role": "user", "content": "Who wrote Faust?"}, PARIS]})
    cleaned = clean(rows, read_steps(["contamination"]), index)
    assert cleaned.fates[0].dropped == "contamination: question 3 of suite cities@1 (exact)" and len(cleaned.rows) == 1
    with pytest.raises(SettingsError, match="no suite is known"):
        clean(rows, read_steps(["contamination"]))


TEXTS = st.text(st.sampled_from("ab \u200b\u00e9\u0301.@1"), max_size=12)
ROWS = st.lists(
    st.one_of(
        st.fixed_dictionaries({"question": TEXTS, "answer": TEXTS}),
        st.fixed_dictionaries({"messages": st.just([USER, PARIS])}),
        st.just("{"),
    ),
    max_size=12,
)


@given(ROWS, st.permutations(sorted(STEPS)))
def test_kept_changed_and_dropped_are_all_that_was_read_and_a_second_pass_is_the_same(
    rows: list[Any], names: list[str]
) -> None:
    numbered = [(number, row) for number, row in enumerate(rows, 1)]
    steps = read_steps(names)
    cleaned = clean(read_rows(numbered, "rows"), steps)
    counts = cleaned.counts
    assert counts["read"] == counts["kept"] + counts["changed"] + counts["dropped"] == len(rows)
    assert counts["dropped"] == cleaned.dropped_by.total() and len(cleaned.rows) == counts["read"] - counts["dropped"]
    again = clean(read_rows(numbered, "rows"), steps)
    assert (cleaned.rows, cleaned.fates) == (again.rows, again.fates)


SAME = (str.upper, str.title, lambda text: text.replace(" ", " — "), lambda text: unicodedata.normalize("NFKD", text))
TEXTS = st.text(st.sampled_from('aBß₂éİŉ\u0345İ1,.=+-_ {"[]}:\u3000日가'), max_size=12)


@given(st.lists(TEXTS | st.tuples(TEXTS, st.sampled_from(SAME)).map(lambda pair: pair[1](pair[0])), max_size=8))
def test_duplicates_are_those_of_their_words_though_most_rows_are_told_apart_by_their_letters(texts: list[str]) -> None:
    first: dict[object, int] = {}
    expected = [first.setdefault(words_of(text).exact, number) == number for number, text in enumerate(texts)]
    outcomes = STEPS["duplicates"].run(rows_of(*({"text": text} for text in texts)), STEPS["duplicates"].options())
    assert [outcome.fields is not None for outcome in outcomes] == expected


@given(st.text(st.sampled_from("ab \t\r\n\u00a0\u200b\x00\x7f\u2028éé"), max_size=12))
def test_a_text_is_normalised_to_one_form_also_if_it_is_plain(text: str) -> None:
    (outcome,) = STEPS["normalise"].run(rows_of({"text": text}), STEPS["normalise"].options())
    assert outcome.fields is not None
    plain = outcome.fields["text"]
    by_line = re.sub(r"\r\n?|[\x85\u2028\u2029]", "\n", text.replace("\u00a0", " "))
    without = unicodedata.normalize("NFC", re.sub("[\x00\x7f\u200b]", "", by_line))
    assert plain == re.sub("[ \t]+(?=\n|$)", "", without).strip()


def test_the_same_input_and_steps_give_the_same_bytes_and_the_manifest_has_their_digests(tmp_path: Path) -> None:
    rng = random.Random(1)
    rows = [{"question": f"What is {rng.randint(0, 9)}?", "answer": "ann@example.org"} for _ in range(50)]
    file = lines(tmp_path / "rows.jsonl", *rows)
    for name in ("a", "b"):
        assert run("improve", "data", "clean", file, "--to", tmp_path / name).exit_code == 0
    for path in (tmp_path / "a").iterdir():
        assert path.read_bytes() == (tmp_path / "b" / path.name).read_bytes()
    manifest = json.loads((tmp_path / "a" / "manifest.json").read_text())
    assert manifest["sources"] == [
        {"name": "rows.jsonl", "sha256": hashlib.sha256(file.read_bytes()).hexdigest(), "rows": 50}
    ]
    for part in manifest["files"]:
        assert hashlib.sha256((tmp_path / "a" / part["path"]).read_bytes()).hexdigest() == part["sha256"]
    assert manifest["steps"][0] == {"name": "normalise", "form": "NFC"}
    again = run("improve", "data", "clean", file, "--to", tmp_path / "a")
    assert again.exit_code == 4 and "is not empty" in again.stderr


def test_an_unknown_option_of_a_step_is_refused_by_name(tmp_path: Path) -> None:
    for step, expected in (
        ("near_duplicate", "did you mean near_duplicates"),
        ('length={"most": 3}', "most"),
        ('length={"max_characters": "3"}', "max_characters"),
        ("length={", "not JSON"),
    ):
        with pytest.raises(SettingsError, match=expected):
            read_steps([step])


# --- personal data ----------------------------------------------------------------------------------------------------


def test_what_has_a_checksum_is_found_by_it_and_order_numbers_are_not() -> None:
    text = (
        "Mail ann.b+c@mail.example.co.uk, card 5500-0000-0000-0004, IBAN DE89 3704 0044 0532 0130 00, phone "
        "+49 (30) 901820, host 192.168.0.17, number 078-05-1120, key sk-proj-abcdefghijklmnopqrstuvwx."
    )
    assert [span.kind for span in find(text)] == ["email", "card", "iban", "phone", "ip", "ssn", "secret"]
    assert redact("ann@example.org", find("ann@example.org")) == "[email]"
    for harmless in (
        "order 4111 1111 1111 1112", "version 1.2.3.400", "IBAN DE00 3704 0044 0532 0130 00", "2026-11-26 10:00",
        "What is 1,234,567,890,123 + 1?", "a @ b", "0000 0000 0000 0000", "sk-ip this", "pi is 3.14159265358979",
    ):  # fmt: skip
        assert find(harmless) == [], harmless


def with_checksum(digits: str) -> str:
    """The digits, and a last one: for each even place from the right, the sum of the digits of twice the digit."""
    total = sum(sum(map(int, str(int(digit) * (2 - at % 2)))) for at, digit in enumerate(reversed(digits)))
    return f"{digits}{-total % 10}"


def test_generated_items_with_checksums_are_found_and_free_texts_are_not() -> None:
    rng = random.Random(20261126)

    def digits(count: int) -> str:
        return "".join(rng.choices("0123456789", k=count))

    for _ in range(500):
        account = digits(18)
        iban = f"DE{98 - int(account + '131400') % 97:02}{account}"
        items = {
            "card": with_checksum(f"4{digits(14)}"),
            "iban": iban,
            "email": f"b.c{digits(2)}@{rng.choice(['example.org', 'mail.example.com'])}",
            "ip": ".".join(str(rng.randint(0, 255)) for _ in range(4)),
        }
        for kind, item in items.items():
            assert [span.kind for span in find(f"Please note {item} for later.")] == [kind], item
    assert (
        find(f"The {digits(5)} men sold {digits(4)} apples at {digits(2)}.{digits(2)} each in {digits(4)}-{digits(2)}.")
        == []
    )


LOCALES = ("en_US", "en_GB", "de_DE", "fr_FR")


def test_what_looks_like_a_persons_data_in_another_librarys_words_is_found_and_its_texts_are_not() -> None:
    for locale in LOCALES:
        fake = Faker(locale)
        fake.seed_instance(20261126)
        for _ in range(100):
            items = {"email": fake.email(), "iban": fake.iban(), "card": fake.credit_card_number("visa16")}
            items |= {"ip": fake.ipv4()} | ({"ssn": fake.ssn()} if locale == "en_US" else {})
            for kind, item in items.items():
                (outcome,) = STEPS["personal_data"].run(
                    rows_of({"question": f"Write to {item}, please."}), STEPS["personal_data"].options()
                )
                assert outcome.fields == {"question": f"Write to [{kind}], please."}, item
            assert find(fake.paragraph()) == []


def test_an_unreadable_row_is_a_row_of_the_check() -> None:
    checked = check([UnreadableRow("rows:1", "not JSON")])
    assert checked.is_wrong and checked.findings["read"].first == "rows:1: not JSON"


# --- rows that are made -----------------------------------------------------------------------------------------------


def test_rows_of_a_generator_are_right_say_where_they_come_from_and_give_no_held_out_question_away(
    tmp_path: Path,
) -> None:
    assert (
        run("improve", "data", "synthesize", "--generator", "sums", "--count", 50, "--to", tmp_path / "a").exit_code
        == 0
    )
    rows = [json.loads(line) for line in (tmp_path / "a" / "rows.jsonl").read_text().splitlines()]
    for number, row in enumerate(rows):
        question = row["messages"][-2]["content"]
        terms = question.removesuffix(" =").rpartition(": ")[2].split(" + ")
        assert row["messages"][-1]["content"] == row["answer"] == str(sum(map(int, terms)))
        assert row["origin"] == {"by": "generator", "generator": "sums", "seed": 0, "index": number, "options": {}}
        assert not is_held_out(question)
    assert check(read_source(tmp_path / "a" / "rows.jsonl")).is_wrong is False
    room = TrainingRows(Settings(adapters=Adapters(store=str(tmp_path / "store"))), OpenLog(Settings()))
    with TestClient(Application([room], version="0", max_body_bytes=1_000_000)) as client:
        made = client.post("/data/synthetic/generate", json={"generator": "sums", "count": 50})
        assert made.json()["counts"] == {"read": 50, "kept": 50, "changed": 0, "dropped": 0}
        unknown = client.post("/data/synthetic/generate", json={"generator": "sum", "count": 5})
    by_command = run("improve", "data", "synthesize", "--generator", "sum", "--to", tmp_path / "b")
    assert by_command.exit_code == 3 and unknown.json()["error"]["message"] in by_command.stderr
    episodes = run("improve", "data", "synthesize", "--generator", "guess", "--to", tmp_path / "c")
    assert episodes.exit_code == 2 and "no answer is known" in episodes.stderr


def test_of_what_a_model_answers_only_what_a_scorer_verifies_is_kept() -> None:
    rows = rows_of(
        {"question": "4 + 7 =", "answer": "11"}, {"question": "1 + 1 =", "answer": "2"}, {"question": "9 + 9 ="}
    )
    replies = iter(["11", "three"])
    origin = {"model": "m", "url": "http://127.0.0.1/v1"}
    model = VerifiedModel(lambda _: next(replies), origin, RewardSource(name="exact"), Scoring())
    made = answer_questions(rows, model)
    assert made.counts == {"read": 3, "kept": 1, "changed": 0, "dropped": 2}
    assert made.rows[0].fields["origin"] == {"by": "model", **origin, "scorer": "exact"}
    assert [fate.dropped for fate in made.fates[1:]] == [
        "verify: exact gives 0 to 'three'",
        "verify: it has no answer to verify by; expected one of " + ", ".join(ANSWERS),
    ]


class Model(BaseHTTPRequestHandler):
    """It answers everything with 11."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        body = b'{"choices": [{"message": {"content": "11"}}]}'
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


def test_a_model_answers_every_row_of_a_file(tmp_path: Path) -> None:
    file = lines(tmp_path / "questions.jsonl", *({"question": f"{n} + {11 - n} =", "answer": "11"} for n in range(3)))
    with ThreadingHTTPServer(("127.0.0.1", 0), Model) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        model = ("--model-url", f"http://127.0.0.1:{server.server_port}/v1/", "--model", "m")
        made = run("improve", "data", "synthesize", file, *model, "--to", tmp_path / "a", "--output", "jsonl")
        server.shutdown()
    assert (made.exit_code, json.loads(made.stdout)["kept"]) == (0, 3)


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ('{"question": "Why?", "score": NaN}', "score has nan, which is no number of JSON"),
        ('{"question": "Why?", "info": {"scores": [1, 1e999]}}', "info has inf"),
        ('{"question": ' + "[" * 900 + "]" * 900 + "}", "question is nested deeper than 100 levels"),
        ('{"question": "Why?", "info": ' + '{"a": ' * 400 + "1" + "}" * 400 + "}", "info is nested deeper than"),
        ('{"question": ' + "[" * 10**6, "nested too deeply"),
    ],
)
def test_a_value_that_no_file_of_rows_can_have_is_the_fate_of_its_row_alone(
    tmp_path: Path, line: str, why: str
) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text(line + '\n{"question": "What is that?", "answer": "x"}\n')
    checked = run("improve", "data", "check", file, "--output", "jsonl")
    [finding] = json.loads(checked.stdout)["findings"]
    assert checked.exit_code == 4 and finding["rows"] == 1 and why in finding["first"]
    assert run("improve", "data", "clean", file, "--to", tmp_path / "clean").exit_code == 0
    [row] = (tmp_path / "clean" / "rows.jsonl").read_text().splitlines()
    assert json.loads(row)["question"] == "What is that?"


@pytest.mark.parametrize(
    ("name", "text"), [("empty.jsonl", ""), ("blank.jsonl", "\n\n"), ("head.csv", "prompt,answer\n")]
)
def test_a_file_without_a_row_is_worthless_to_train_on(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    checked = run("improve", "data", "check", tmp_path / name, "--output", "jsonl")
    assert checked.exit_code == 4
    assert [finding["finding"] for finding in json.loads(checked.stdout)["findings"]] == ["no_rows"]


def test_rows_of_no_shape_are_named_with_what_they_have(tmp_path: Path) -> None:
    file = lines(tmp_path / "rows.jsonl", {"frage": "Warum?", "antwort": "Darum."})
    [finding] = json.loads(run("improve", "data", "check", file, "--output", "jsonl").stdout)["findings"]
    assert finding["first"] == (
        "rows.jsonl:1: most rows have the columns of no shape; it has frage, antwort; "
        "name those of questions: --map prompt=COLUMN --map answer=COLUMN"
    )


# --- expectations -----------------------------------------------------------------------------------------------------


def test_what_a_suite_expects_of_columns_is_checked_and_no_part_of_its_name(tmp_path: Path) -> None:
    (tmp_path / "held-out.jsonl").write_text('{"prompt": "Why?", "answer": "x", "reward_sources": ["exact"]}\n')
    plain = "name: s\nscenarios:\n  all:\n    file: held-out.jsonl\n"
    expected = (
        "expectations:\n  answer: {nulls: 0.1}\n  question: {characters: [3, 20]}\n"
        "  info.index: {unique: true, range: [0, 9]}\n  info.kind: {one_of: [a, b]}\n"
    )
    (tmp_path / "plain.yaml").write_text(plain)
    (tmp_path / "suite.yaml").write_text(plain + expected)
    assert load(tmp_path / "suite.yaml").name == load(tmp_path / "plain.yaml").name
    rows = [{"question": f"What is {n}?", "answer": "x", "info": {"index": n, "kind": "a"}} for n in range(8)]
    file = lines(
        tmp_path / "rows.jsonl",
        *rows,
        {"question": "?", "answer": "x", "info": {"index": 7, "kind": "c"}},
        {"question": "What is that?", "info": {"index": "ten", "kind": "b"}},
        {"question": "And what is this?", "answer": None, "info": {"kind": "b"}},
    )
    shown = json.loads(
        run("improve", "data", "check", file, "--suite", tmp_path / "suite.yaml", "--output", "jsonl").stdout
    )
    findings = {finding["finding"]: finding for finding in shown["findings"] if "expectation" in finding["finding"]}
    assert {name: (finding["rows"], finding["first"]) for name, finding in findings.items()} == {
        "expectation answer": (2, "rows.jsonl:10: 2 of 11 rows have none, expected at most 10.0%"),
        "expectation question": (1, 'rows.jsonl:9: expected a text of 3 to 20 characters, got "?"'),
        "expectation info.index": (2, "rows.jsonl:9: 7 is there twice, expected once"),
        "expectation info.kind": (1, 'rows.jsonl:9: expected one of a, b, got "c"'),
    }
    assert shown["wrong"] is True
    for broken, said in (("{nul: 0}", "nulls"), ("{}", "expects nothing"), ("{range: [9, 0]}", "lower bound first")):
        (tmp_path / "bad.yaml").write_text(f"{plain}expectations:\n  answer: {broken}\n")
        with pytest.raises(SettingsError, match=f"bad.yaml:6.*{said}"):
            load(tmp_path / "bad.yaml")
