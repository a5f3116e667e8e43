"""Trajectories go out as ATIF and come back with the same tokens, bit for bit."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from plugins.atif.read_document import Row, read_file
from plugins.atif.trajectory_document import documents
from schemas.tokens import Logprobs, TokenIds
from streams.engines.rendering.chat_template import ChatTemplate
from streams.errors import EventError, NotFoundError, SettingsError
from streams.kafka.record import partition_of
from streams.kafka.topics import topics
from streams.settings.model import Settings
from streams.tools.query.finished import Finished
from tests.plugins.atif.strangers.suite import VERDICTS, digest_of
from tests.support.agent_calls import ADD, Recorded, assistant, system, user
from tests.support.commands import invoke
from tests.support.factories import group, member, response, task
from tests.support.models.chat_tiny import chat_tokenizer
from tests.support.processes import write
from tests.unit.test_run_rows import Tools, direct, of_agent, tool_result
from trainer.examples import from_file


def with_tools() -> Finished:
    """Return a run that calls a tool twice, once with arguments that are no object, and answers."""
    tools = Tools()
    tools.call(("c1", "add", '{"a": 4, "b": 7}'), results=(tool_result("c1"),))
    tools.call(("c2", "add", "4 7"), results=(tool_result("c2", "no object"), tool_result("c9", "of no call")))
    tools.answer()
    return of_agent(tools.run)


def with_branches() -> Finished:
    """Return a conversation that forks after its first call, with an example in its prompt and a forced answer."""
    run = Recorded("chat-2")
    first = run.call([system("You add."), user("1 + 1 ="), assistant("2"), user("4 + 7 =")])
    run.call([*run.history(first), user("sure?")], constraint='{"type": "json"}')
    run.call([*run.history(first), user("and twice that?")])
    return of_agent(run)


def answers() -> dict[str, Finished]:
    return {"an answer": direct(), "tools": with_tools(), "branches": with_branches()}


def kept(made: list[dict[str, Any]], folder: Path) -> Path:
    file = folder / "trajectories.jsonl"
    file.write_text("".join(f"{json.dumps(each)}\n" for each in made), encoding="utf-8")
    return file


def back(answer: Finished, folder: Path) -> list[Row]:
    return read_file(kept(list(documents(answer)), folder), "rows")


def by_hand(answer: Finished) -> Iterator[tuple[list[int], list[int]]]:
    """Yield the tokens and the mask of each chain of a run, added up from its turns."""
    assert answer.run is not None
    for chain in answer.run.chains:
        ids, mask = list[int](), list[int]()
        for place, turn in enumerate(chain.turns):
            loss = int(place >= chain.shared and turn.constraint is None)
            ids += [*turn.prompt_token_ids, *turn.completion_token_ids]
            mask += [0] * len(turn.prompt_token_ids) + [loss] * len(turn.completion_token_ids)
        if any(mask):
            yield ids, mask


# --- there and back ---------------------------------------------------------------------------------------------------


def test_two_hundred_runs_come_back_with_every_token_and_its_loss(tmp_path: Path) -> None:
    dice = random.Random(0)
    for number in range(200):
        run, turns = Recorded(f"run-{number}"), []
        for _ in range(dice.randrange(1, 6)):
            before = run.history(dice.choice(turns)) if turns else [system("You add.")]
            tokens, sampled = (dice.choices(range(2**31), k=dice.randrange(1, 9)) for _ in range(2))
            own: dict[str, Any] = {
                "prompt_token_ids": TokenIds.of(tokens),
                "completion_token_ids": TokenIds.of(sampled),
            }
            own["logprobs"] = Logprobs.of([-dice.random() for _ in sampled])
            turns.append(run.call([*before, user(f"and {dice.random()}?")], **own))
        answer = of_agent(run)
        rows = back(answer, tmp_path)
        assert [(row["input_ids"], row["assistant_masks"]) for row in rows] == list(by_hand(answer))
        assert {row["tokenizer_digest"] for row in rows} == {turns[0].tokenizer_digest}


def test_a_forced_answer_and_a_shared_beginning_bear_no_loss_a_second_time(tmp_path: Path) -> None:
    answer = with_branches()
    assert answer.run is not None and len(answer.run.chains) == 2
    rows = back(answer, tmp_path)
    assert [(row["input_ids"], row["assistant_masks"]) for row in rows] == list(by_hand(answer))
    assert sum(map(sum, (row["assistant_masks"] for row in rows))) == 4, "two calls of two tokens"


def test_what_was_asked_comes_back_as_a_task_with_its_tools(tmp_path: Path) -> None:
    (asked,) = read_file(kept(list(documents(with_tools())), tmp_path), "tasks")
    assert asked["messages"] == [{"role": "system", "content": "You add."}, {"role": "user", "content": "4 + 7 ="}]
    assert asked["tools"][0]["function"]["name"] == ADD.name and asked["metadata"]["trajectory_id"] == "chat-1"
    (asked, _) = read_file(kept(list(documents(with_branches())), tmp_path), "tasks")
    assert [message["role"] for message in asked["messages"]] == ["system", "user", "assistant", "user"]


def test_a_document_without_token_ids_comes_as_messages_and_each_result_with_its_call(tmp_path: Path) -> None:
    (made,) = documents(with_tools())
    for step in made["steps"]:
        step.pop("metrics", None)
    (row,) = read_file(kept([made], tmp_path), "rows")
    said = [(message["role"], message.get("tool_call_id"), message["content"]) for message in row["messages"]]
    assert said[2:] == [
        ("assistant", None, ""),
        ("tool", "c1", "11"),
        ("assistant", None, ""),
        ("tool", "c2", "no object"),
        ("tool", "c9", "of no call"),
        ("assistant", None, "It is 11."),
    ]
    (first, second) = (message["tool_calls"][0] for message in row["messages"] if "tool_calls" in message)
    assert json.loads(first["arguments"]) == {"a": 4, "b": 7} and second["arguments"] == "4 7"


def test_a_history_that_was_rendered_again_begins_a_row_of_its_own(tmp_path: Path) -> None:
    (made,) = documents(with_tools())
    made["steps"][-1]["metrics"]["prompt_token_ids"][0] += 1
    first, second = read_file(kept([made], tmp_path), "rows")
    assert sum(first["assistant_masks"]) == 4 and sum(second["assistant_masks"]) == 2


# --- bad input --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda made: made.update(schema_version="2"), "schema_version"),
        (lambda made: made.update(steps=[]), "steps"),
        (lambda made: made["steps"][2]["metrics"].pop("prompt_token_ids"), "step 3: it has no token ids"),
        (lambda made: made["steps"][0].update(message=[{"type": "image"}]), "type image"),
        (lambda made: made["steps"][2]["metrics"].update(prompt_token_ids=["a"]), "prompt_token_ids"),
    ],
)
def test_a_wrong_document_is_named_with_its_line_and_nothing_is_written(tmp_path: Path, change: Any, said: str) -> None:
    (good,), (bad,) = documents(with_tools()), documents(with_tools())
    change(bad)
    with pytest.raises(EventError, match=said) as caught:
        read_file(kept([good, bad], tmp_path), "rows")
    assert "trajectories.jsonl:2: " in str(caught.value) and "Nothing was written" in str(caught.value)


def test_a_file_without_a_document_is_an_error(tmp_path: Path) -> None:
    for text in ("", "\n"):
        (tmp_path / "f.json").write_text(text)
        with pytest.raises(NotFoundError, match="expected ATIF documents"):
            read_file(tmp_path / "f.json", "rows")


# --- rows are tuned on as they are ------------------------------------------------------------------------------------


def test_rows_are_tuned_on_with_their_own_tokens_and_those_of_another_tokenizer_are_refused(tmp_path: Path) -> None:
    row = {"input_ids": [5, 6, 7, 8, 9], "assistant_masks": [0, 0, 1, 0, 1], "tokenizer_digest": "own"}
    template, file = ChatTemplate(chat_tokenizer()), tmp_path / "rows.jsonl"
    file.write_text(json.dumps(row))
    [(answer,)] = from_file.read(file, "sft", template, 8, "own").examples
    (chain,) = answer.chains
    assert (list(chain.context), list(chain.tokens), list(chain.loss_mask)) == ([5, 6], [7, 8, 9], [1, 0, 1])
    for wrong, said in (
        (row | {"tokenizer_digest": "other"}, "of tokenizer other"),
        (row | {"assistant_masks": [0, 1]}, "2 of them for 5 input_ids"),
        (row | {"assistant_masks": [0] * 5}, "nothing bears loss"),
        (row | {"assistant_masks": [1] * 5}, "nothing comes before"),
        (row | {"input_ids": [5, 6, 7, 8, 10**9]}, "input_ids"),
        (row | {"input_ids": [5] * 9, "assistant_masks": [0] * 8 + [1]}, "context 8"),
    ):
        file.write_text(json.dumps(wrong))
        with pytest.raises(SettingsError, match=said):
            from_file.read(file, "sft", template, 8, "own")


# --- Harbor's validator -----------------------------------------------------------------------------------------------


def test_the_validator_of_harbor_accepted_these_documents_and_refused_what_is_wrong() -> None:
    """Recorded by `make test-strangers`, with the documents' digests: a change of a document asks it again."""
    verdicts = json.loads(VERDICTS.read_text())["verdicts"]
    made = {name: list(documents(answer)) for name, answer in answers().items()}
    assert {name: verdicts[name]["sha256"] for name in made} == {name: digest_of(each) for name, each in made.items()}
    assert [verdicts[name]["errors"] for name in made] == [[]] * len(made)
    assert len(verdicts["broken"]["errors"]) >= 3


# --- over the log -----------------------------------------------------------------------------------------------------


@pytest.mark.kafka
def test_answers_of_the_log_are_exported_and_read_by_the_command(made: Settings, tmp_path: Path) -> None:
    policy = made.policy.name
    answer = response(policy=policy, prompt_token_ids=(5, 6, 7), completion_token_ids=(8, 9), group_size=1)
    partition = partition_of(answer.task_id, topics(made.topics)["responses"].partitions)
    counted = member(response_id=answer.response_id, partition=partition, offset=0)
    whole = group(policy=policy, purpose="serve", task_id=answer.task_id, responses=(counted,), group_size=1)
    write(made, task(policy=policy, purpose="serve", group_size=1, task_id=answer.task_id), answer, whole)
    done = invoke(made, "export", str(tmp_path / "out"), "--format", "atif", "--test", "0")
    assert done.exit_code == 0, done.output
    (row,) = map(json.loads, invoke(made, "atif", str(tmp_path / "out" / "train.jsonl")).output.splitlines())
    assert (row["input_ids"], row["assistant_masks"]) == ([5, 6, 7, 8, 9], [0, 0, 0, 1, 1])
    refused = invoke(made, "export", str(tmp_path / "other"), "--format", "atif", "--files", "parquet")
    assert refused.exit_code == 2 and "is JSON lines" in refused.output
