"""Data sets for other trainers: which examples, which split, which bytes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import duckdb
import pytest
from pyarrow import parquet

from schemas import key_source
from schemas.events import (
    AdvantagedGroup,
    Coordinates,
    EpisodeStart,
    Event,
    GroupResponse,
    Message,
    Response,
    Task,
    ToolCall,
)
from schemas.serde import encode
from streams.arrow import decode
from streams.errors import LogError, NotFoundError, RefusedError, SettingsError
from streams.kafka.record import Record
from streams.rows.row_texts import RowTexts, file_texts
from streams.rows.training_gate import ReasonFinder
from streams.stages.tasks.resubmit import ORIGIN
from streams.tools.query import export
from streams.tools.query.examples import ExportOptions, Row, check
from streams.tools.query.export import MANIFEST, Counts, statement
from streams.tools.query.splits import ExampleOrigin
from tests.support.factories import group, response, task
from tests.support.subject_keys import SubjectKeys

RANGES = [{"topic": "groups", "partition": 0, "first": 0, "next": 3}]


def _log(of: Sequence[tuple[str, Sequence[tuple[str, float]]]], **task_changes: Any) -> duckdb.DuckDBPyConnection:
    """Return a connection that knows tasks, responses and groups: each task with its answers and their rewards.

    A change that is a function is called with the id of the task.
    """
    events: dict[type[Event], list[Any]] = {Task: [], Response: [], AdvantagedGroup: []}
    for task_id, answers in of:
        changes = {name: value(task_id) if callable(value) else value for name, value in task_changes.items()}
        events[Task].append(task(task_id=task_id, **changes))
        members = []
        for slot, (text, reward) in enumerate(answers):
            said = response(task_id=task_id, sampling_id=task_id, slot=slot, text=text)
            members.append(
                GroupResponse(
                    slot=slot, response_id=said.response_id, partition=0, offset=len(events[Response]),
                    finish_reason="stop", latency_ms=1.0, reward=reward, advantage=reward - 0.5,
                )
            )  # fmt: skip
            events[Response].append(said)
        events[AdvantagedGroup].append(
            replace(
                group(),
                task_id=task_id,
                group_id=f"group of {task_id}",
                responses=tuple(members),
                purpose=events[Task][-1].purpose,
                subject=events[Task][-1].subject,
            )
        )
    return _connected(events)


def _connected(events: dict[type[Event], list[Any]]) -> duckdb.DuckDBPyConnection:
    con = duckdb.connect()
    con.execute("CREATE SCHEMA whole")
    for kind, name in ((Task, "tasks"), (Response, "responses"), (AdvantagedGroup, "groups")):
        records = [
            Record(Coordinates(name, 0, offset), 0, b"k", encode(event)) for offset, event in enumerate(events[kind])
        ]
        con.register(f"{name} here", decode.decode(kind, records).table)
        con.execute(f'CREATE VIEW {"main" if name == "groups" else "whole"}.{name} AS FROM "{name} here"')
    return con


def write(
    con: duckdb.DuckDBPyConnection, options: ExportOptions, folder: Path, held_out: ReasonFinder | None = None
) -> Counts:
    rows = con.sql(statement(options)).to_arrow_table().to_pylist()
    return export.write(rows, options, folder, ranges=RANGES, held_out=held_out)


def asks(text: str) -> tuple[Message, ...]:
    return (Message(role="user", content=text),)


def own_question(task_id: str) -> tuple[Message, ...]:
    return asks(f"{task_id[1:]} + 7 =")


def _lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


TWO = [("t1", [("11", 1.0), ("12", 0.2), ("no", 0.0)]), ("t2", [("5", 0.3), ("6", 0.3)])]
ALL_TRAIN = {"policy": "default", "test_share": 0.0}


def test_the_best_answer_of_each_group_is_an_example_to_imitate(tmp_path: Path) -> None:
    write(_log(TWO), ExportOptions(**ALL_TRAIN), tmp_path / "d")
    assert [(line["messages"], line["reward"], line["task_id"]) for line in _lines(tmp_path / "d/train.jsonl")] == [
        ([{"role": "user", "content": "4 + 7 ="}, {"role": "assistant", "content": "11"}], 1.0, "t1"),
    ]


@pytest.mark.parametrize("form", ["sft", "openai", "preference", "openai-preference"])
def test_a_group_of_equal_rewards_has_no_best_answer_as_in_tuning(tmp_path: Path, form: Any) -> None:
    alone = [*TWO, ("t3", [("7", 1.0)]), ("t4", [("wrong", 0.0), ("worse", 0.0)])]
    alone += [("t5", [("7", 0.3), ("8", 0.30000001192092896)])]  # 0.3 in float32
    counts = write(_log(alone), ExportOptions(**ALL_TRAIN, format=form), tmp_path / "d")
    assert (counts.examples, counts.left_out) == (1, {"all rewards are equal": 4})


def test_a_least_reward_says_which_answer_of_equal_ones_is_good(tmp_path: Path) -> None:
    write(_log(TWO), ExportOptions(**ALL_TRAIN, min_reward=0.3), tmp_path / "d")
    assert [line["messages"][-1]["content"] for line in _lines(tmp_path / "d/train.jsonl")] == ["11", "5"]


def test_a_least_reward_leaves_groups_out_and_the_manifest_counts_them(tmp_path: Path) -> None:
    counts = write(_log(TWO), ExportOptions(**ALL_TRAIN, min_reward=0.9), tmp_path / "d")
    assert counts.examples == 1
    manifest = json.loads((tmp_path / "d" / MANIFEST).read_text())
    assert manifest["counts"]["left_out"] == {"below the least reward": 1}


def test_every_good_response_is_an_example_when_all_are_asked_for(tmp_path: Path) -> None:
    write(_log(TWO), ExportOptions(**ALL_TRAIN, all_responses=True, min_reward=0.2), tmp_path / "d")
    assert [line["messages"][-1]["content"] for line in _lines(tmp_path / "d/train.jsonl")] == ["11", "12", "5", "6"]


def test_a_preference_pair_is_best_against_worst_and_a_group_without_difference_gives_none(tmp_path: Path) -> None:
    counts = write(_log(TWO), ExportOptions(**ALL_TRAIN, format="preference"), tmp_path / "d")
    (line,) = _lines(tmp_path / "d/train.jsonl")
    assert (line["chosen"][0]["content"], line["rejected"][0]["content"]) == ("11", "no")
    assert (line["chosen_reward"], line["rejected_reward"], line["rejected_at"]) == (1.0, 0.0, "responses[0]@2")
    assert counts.left_out == {"all rewards are equal": 1}


def test_a_margin_leaves_out_pairs_that_are_too_close(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match=r"\(1 best and worst are too close, 1 all rewards are equal\)"):
        write(_log(TWO), ExportOptions(**ALL_TRAIN, format="preference", margin=1.0), tmp_path / "d")


def test_prompts_carry_every_completion_with_its_reward(tmp_path: Path) -> None:
    write(_log(TWO), ExportOptions(**ALL_TRAIN, format="prompts"), tmp_path / "d")
    first = _lines(tmp_path / "d/train.jsonl")[0]
    assert (first["completions"], first["rewards"]) == (["11", "12", "no"], [1.0, 0.2, 0.0])


def test_openai_lines_hold_messages_and_nothing_else(tmp_path: Path) -> None:
    call = ToolCall(id="c1", name="add", arguments='{"a": 4}')
    asked = (Message(role="user", content="?"), Message(role="assistant", content="", tool_calls=(call,)))
    write(_log(TWO, messages=asked), ExportOptions(**ALL_TRAIN, format="openai"), tmp_path / "d")
    line = _lines(tmp_path / "d/train.jsonl")[0]
    assert list(line) == ["messages"]
    assert line["messages"][1]["tool_calls"] == [
        {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 4}'}}
    ]


def test_openai_preferences_have_the_three_keys_of_their_format(tmp_path: Path) -> None:
    write(_log(TWO), ExportOptions(**ALL_TRAIN, format="openai-preference"), tmp_path / "d")
    assert _lines(tmp_path / "d/train.jsonl") == [
        {
            "input": {"messages": [{"role": "user", "content": "4 + 7 ="}]},
            "preferred_output": [{"role": "assistant", "content": "11"}],
            "non_preferred_output": [{"role": "assistant", "content": "no"}],
        }
    ]


def test_a_line_of_a_data_set_is_one_line_to_every_reader(tmp_path: Path) -> None:
    """Python's splitlines, and readers made of it, take more characters than the line feed for the end of a line."""
    said = "".join(map(chr, range(0x21))) + "\x7f\x85\xa0\u2028\u2029\ufeff \U0001f600"
    write(_log([("t1", [(said, 1.0), ("no", 0.0)])]), ExportOptions(**ALL_TRAIN), tmp_path / "d")
    text = (tmp_path / "d/train.jsonl").read_text(encoding="utf-8")
    (line,) = text.splitlines()
    assert json.loads(line)["messages"][-1]["content"] == said and "\U0001f600" in line


def test_a_group_that_came_twice_gives_its_examples_once(tmp_path: Path) -> None:
    counts = write(_log([TWO[0], TWO[0]]), ExportOptions(**ALL_TRAIN), tmp_path / "d")
    assert (counts.groups, counts.examples) == (1, 1)


MANY = [(f"t{number}", [("a", 1.0), ("b", 0.9), ("c", 0.0)]) for number in range(200)]


def _sides(folder: Path, key: str = "task_id") -> dict[str, set[str]]:
    return {path.stem: {json.dumps(line[key]) for line in _lines(path)} for path in folder.glob("*.jsonl")}


def test_no_task_is_on_both_sides_and_the_shares_are_about_right(tmp_path: Path) -> None:
    options = ExportOptions(policy="default", test_share=0.2, all_responses=True)
    write(_log(MANY, messages=own_question), options, tmp_path / "d")
    sides = _sides(tmp_path / "d")
    assert not sides["train"] & sides["test"] and len(sides["train"] | sides["test"]) == 200
    assert 20 <= len(sides["test"]) <= 60


WRITTEN = ("{} + 7 =", "{}+7")


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"messages": lambda task_id: asks(f"{int(task_id[1:]) % 20} + 7 =")}, "prompt"),
        (
            {"messages": lambda task_id: asks(WRITTEN[int(task_id[1:]) % 2].format(int(task_id[1:]) // 2))},
            "",
        ),
        ({"messages": own_question, "metadata": lambda task_id: {ORIGIN: f"lost {int(task_id[1:]) // 10}"}}, "origin"),
        ({"messages": own_question, "thread": lambda task_id: f"thread {int(task_id[1:]) // 10}"}, "thread"),
    ],
    ids=["asked again", "written otherwise", "sent again", "of a thread"],
)
def test_a_question_that_is_asked_again_is_on_one_side(tmp_path: Path, changes: dict[str, Any], key: str) -> None:
    """Each epoch asks every question again, under another task."""
    write(_log(MANY, **changes), ExportOptions(policy="default", format="prompts", test_share=0.3), tmp_path / "d")
    numbers = {name: {int(json.loads(one)[1:]) for one in ids} for name, ids in _sides(tmp_path / "d").items()}
    same = {"prompt": lambda n: n % 20, "": lambda n: n // 2}.get(key, lambda n: n // 10)
    train, test = ({same(number) for number in numbers[name]} for name in ("train", "test"))
    assert train and test and not train & test


def test_episodes_are_told_apart_by_their_parameters_and_not_by_the_text_of_all(tmp_path: Path) -> None:
    def start(task_id: str) -> EpisodeStart:
        return EpisodeStart(name="guess", settings="{}", seed=int(task_id[1:]) % 50)

    options = ExportOptions(policy="default", format="prompts", test_share=0.3)
    write(
        _log(MANY, messages=asks("Guess my number."), environment=start, max_turns=2, agent="guesser"),
        options,
        tmp_path / "d",
    )
    sides = {name: {int(json.loads(one)[1:]) % 50 for one in ids} for name, ids in _sides(tmp_path / "d").items()}
    assert sides["train"] and sides["test"] and not sides["train"] & sides["test"]


# --- what is held out -------------------------------------------------------------------------------------------------

FORMS = ("sft", "preference", "prompts", "openai", "openai-preference")


def of_sums(row: RowTexts) -> str | None:
    """Hold out two questions."""
    return "suite sums@1" if {"5 + 7 =", "Who wrote Faust?"} & {*row.texts} else None


@pytest.mark.parametrize("form", FORMS)
def test_a_held_out_question_is_in_no_file_and_its_suite_is_named(tmp_path: Path, form: Any) -> None:
    options = ExportOptions(policy="default", format=form, test_share=0.3)
    counts = write(_log(MANY, messages=own_question), options, tmp_path / "d", of_sums)
    assert counts.held_out == {"suite sums@1": 1} and counts.examples == 199
    for path in (tmp_path / "d").glob("*.jsonl"):
        assert not any(map(of_sums, file_texts(path))), "the gate of `tune sft` takes the file"
    assert sum(len(_lines(tmp_path / f"d/{name}.jsonl")) for name in ("train", "test")) == 199
    manifest = json.loads((tmp_path / "d" / MANIFEST).read_text())
    assert manifest["counts"]["held_out"] == {"suite sums@1": 1}


def test_an_answer_that_gives_a_held_out_question_away_is_left_out(tmp_path: Path) -> None:
    said = [("t1", [("Who wrote Faust?", 1.0), ("11", 0.0)]), ("t2", [("9", 1.0), ("no", 0.0)])]
    counts = write(_log(said, messages=own_question), ExportOptions(**ALL_TRAIN), tmp_path / "d", of_sums)
    assert (counts.examples, counts.held_out) == (1, {"suite sums@1": 1})


@pytest.mark.parametrize(("form", "files"), [("sft", "jsonl"), ("openai", "jsonl"), ("prompts", "parquet")])
def test_held_out_examples_have_a_split_of_their_own_if_they_are_asked_for(
    tmp_path: Path, form: Any, files: Any
) -> None:
    from datasets import load_dataset

    options = ExportOptions(policy="default", format=form, files=files, test_share=0.3, with_held_out=True)
    counts = write(_log(MANY, messages=own_question), options, tmp_path / "d", of_sums)
    read = load_dataset(str(tmp_path / "d"), cache_dir=str(tmp_path / "cache"))
    assert counts.examples == 200 and {name: split.num_rows for name, split in read.items()}["held_out"] == 1
    assert read["train"].num_rows + read["test"].num_rows == 199


def test_tasks_of_purpose_eval_are_never_in_train_though_they_are_asked_for(tmp_path: Path) -> None:
    options = ExportOptions(policy="default", format="prompts", purpose="eval")
    con = _log(MANY[:3], messages=own_question, purpose="eval")
    with pytest.raises(NotFoundError, match=r"every example is held out \(3 purpose eval\)"):
        write(con, options, tmp_path / "d")
    counts = write(con, replace(options, with_held_out=True), tmp_path / "d")
    assert counts.held_out == {"purpose eval": 3}
    assert [line["purpose"] for line in _lines(tmp_path / "d/held_out.jsonl")] == ["eval"] * 3
    assert not (tmp_path / "d/train.jsonl").exists()


def test_answers_to_a_person_who_does_not_allow_training_are_held_out(tmp_path: Path) -> None:
    keys = SubjectKeys()
    keys.restricted.add(MANY[0][0])
    key_source.use(keys)
    try:
        con = _log(MANY[:3], messages=own_question, subject=lambda task_id: task_id)
        counts = write(con, ExportOptions(policy="default", format="prompts"), tmp_path / "d")
    finally:
        key_source.use(key_source.NoKeys())
    assert (counts.examples, counts.held_out) == (2, {"no_training": 1})


def test_the_same_records_give_the_same_bytes_and_the_manifest_their_hash(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        write(_log(TWO), ExportOptions(policy="default"), tmp_path / folder)
    names = sorted(path.name for path in (tmp_path / "a").iterdir())
    assert [(tmp_path / "a" / name).read_bytes() for name in names] == [
        (tmp_path / "b" / name).read_bytes() for name in names
    ]
    manifest = json.loads((tmp_path / "a" / MANIFEST).read_text())
    assert manifest["source"] == RANGES
    for file in manifest["files"]:
        assert file["sha256"] == hashlib.sha256((tmp_path / "a" / file["path"]).read_bytes()).hexdigest()


@pytest.mark.parametrize("files", ["jsonl", "parquet"])
@pytest.mark.parametrize("form", ["sft", "preference", "prompts"])
def test_hugging_face_datasets_reads_the_folder_as_it_is(tmp_path: Path, form: Any, files: Any) -> None:
    from datasets import load_dataset

    many = [(f"t{number}", [("a", 1.0), ("b", 0.0)]) for number in range(40)]
    write(
        _log(many, messages=own_question),
        ExportOptions(policy="default", format=form, files=files, test_share=0.3),
        tmp_path / "d",
    )
    read = load_dataset(str(tmp_path / "d"), cache_dir=str(tmp_path / "cache"))
    assert read["train"].num_rows + read["test"].num_rows == 40
    first = read["train"][0]
    asked = first["messages"] if form == "sft" else first["prompt"]
    assert (asked[0]["role"], asked[0]["content"][-4:]) == ("user", " 7 =")


@pytest.mark.parametrize("form", ["sft", "preference", "prompts"])
def test_parquet_holds_what_the_lines_hold_and_the_same_bytes_each_time(tmp_path: Path, form: Any) -> None:
    call = ToolCall(id="c1", name="add", arguments='{"a": 4}')
    asked = (
        Message(role="user", content="odd: \0 \u00e9 \U0001f600"),
        Message(role="assistant", content="", tool_calls=(call,)),
    )
    many = [
        (f"t{number}", [("a" * (number % 99), 0.1 + 0.2), ("\\n", -1e-300)]) for number in range(2050)
    ]  # two batches
    con = _log(many, messages=asked)
    for name in ("a", "b"):
        write(con, ExportOptions(**ALL_TRAIN, format=form, files="parquet"), tmp_path / name)
    write(con, ExportOptions(**ALL_TRAIN, format=form), tmp_path / "lines")
    assert (tmp_path / "a/train.parquet").read_bytes() == (tmp_path / "b/train.parquet").read_bytes()
    unset = dict.fromkeys(("name", "tool_call_id", "tool_calls"))
    lines = _lines(tmp_path / "lines/train.jsonl")
    for line in lines:
        for field in line.keys() & {"messages", "prompt", "chosen", "rejected"}:
            line[field] = [{**unset, **message} for message in line[field]]
    assert parquet.read_table(tmp_path / "a/train.parquet").to_pylist() == lines


@pytest.mark.parametrize("is_new", [True, False])
def test_a_failure_halfway_leaves_the_folder_as_it_was(is_new: bool, tmp_path: Path) -> None:
    def rows() -> Iterator[Row]:
        yield from _log(TWO).sql(statement(ExportOptions(**ALL_TRAIN))).to_arrow_table().to_pylist()
        raise LogError("the broker left")

    folder = tmp_path / "d"
    if not is_new:
        folder.mkdir()
    with pytest.raises(LogError):
        export.write(rows(), ExportOptions(**ALL_TRAIN), folder, ranges=RANGES)
    assert (folder.exists(), list(folder.glob("*"))) == (not is_new, [])


def test_a_folder_that_holds_something_is_not_written_to(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("x")
    with pytest.raises(RefusedError, match="not empty"):
        write(_log(TWO), ExportOptions(policy="default"), tmp_path)


def test_a_policy_without_groups_is_named(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="policy nobody has no train groups"):
        write(_log(TWO), ExportOptions(policy="nobody"), tmp_path / "d")


def test_nothing_good_enough_says_why(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match=r"2 groups were read .* \(2 below the least reward\)"):
        write(_log(TWO), ExportOptions(policy="default", min_reward=7.0), tmp_path / "d")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"format": "preference", "min_reward": 0.5}, "--min-reward"),
        ({"margin": 0.5}, "--margin"),
        ({"test_share": 1.0}, "--test 1"),
        ({"format": "openai", "files": "parquet"}, "JSON lines"),
    ],
)
def test_options_without_effect_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        check(ExportOptions(policy="default", **changes))


def _examples_with_late_calls(form: Any) -> Iterator[tuple[str, ExampleOrigin]]:
    """Yield lines of which only the last have tool calls, feedback and an agent, each with its origin."""
    call = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": {"a": 4, "b": [1]}}}
    late = [
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "11", "tool_call_id": "c1"},
    ]
    parameters = {"type": "object", "properties": {"a": {"type": "integer"}}}
    tool = {"type": "function", "function": {"name": "add", "description": "", "parameters": parameters}}
    for number in range(400):
        messages = [{"role": "user", "content": f"{number} + 7 ="}, {"role": "assistant", "content": "11"}]
        messages[1:1] = late if number >= 300 else []
        example: dict[str, Any] = {"messages": messages}
        if form == "conversations":
            example["tools"] = [tool] if number >= 300 else []
            example |= {"reward": 1.0 if number >= 320 else None, "feedback": 0.5 if number >= 350 else None}
            example |= {"task_id": str(number), "agent_id": "calc" if number >= 300 else None, "chain": 0}
        if form == "openai-preference":
            example = {
                "input": {"messages": messages[:-1]},
                "preferred_output": messages[-1:],
                "non_preferred_output": [{"role": "assistant", "content": "12"}],
            }
        yield json.dumps(example), ExampleOrigin((f"task {number}",), f"{number} + 7 =", "train")


@pytest.mark.parametrize("chunksize", [1, 10_000, 10 << 20])
@pytest.mark.parametrize("form", ["sft", "conversations", "openai", "openai-preference"])
def test_hugging_face_datasets_reads_calls_that_come_late_in_any_chunks(
    tmp_path: Path, form: Any, chunksize: int
) -> None:
    from datasets import load_dataset

    folder, counts = tmp_path / "d", Counts(examples=400)
    lines = _examples_with_late_calls(form)
    export.write_lines(lines, ExportOptions(**ALL_TRAIN, format=form), folder, counts, ranges=lambda: RANGES)
    loaded = load_dataset(str(folder), cache_dir=str(tmp_path / "cache"), chunksize=chunksize)["train"]
    assert loaded.to_list() == _lines(folder / "train.jsonl")


def test_a_data_set_whose_lines_are_alike_needs_no_card(tmp_path: Path) -> None:
    write(_log(TWO), ExportOptions(**ALL_TRAIN), tmp_path / "d")
    assert sorted(path.name for path in (tmp_path / "d").iterdir()) == [MANIFEST, "train.jsonl"]
