"""Examples of tuning: which answers of a group, which tokens bear loss, and lines of files that are none."""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from pyarrow import parquet

from schemas.events import AdvantagedGroup
from streams.engines.rendering.chat_template import ChatTemplate
from streams.errors import NotFoundError, SettingsError
from tests.support.factories import changed, group, member
from tests.support.models.chat_tiny import chat_tokenizer
from trainer.examples import from_file
from trainer.examples.curation import Curation
from trainer.examples.tuned_examples import TunedAnswer, TunedExample, answer_of, digest

CONTEXT = 64


def message(role: str, content: str, **more: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **more}


def read(lines: Sequence[dict[str, Any]], method: Any = "sft") -> list[TunedExample]:
    template = ChatTemplate(chat_tokenizer())
    return [from_file.example_of(json.dumps(line), method, template, CONTEXT) for line in lines]


def rewards(*values: float, **changes: Any) -> AdvantagedGroup:
    """A group whose slots have these rewards, each with tokens of its own."""
    responses = tuple(
        member(slot, reward=value, completion_token_ids=(4, 5 + slot)) for slot, value in enumerate(values)
    )
    return group(group_size=len(values), responses=responses, **changes)


# --- which answers ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rule", "given", "chosen"),
    [
        ({}, (0.0, 1.0, 1.0), (1,)),  # of equals the first slot
        ({}, (0.0, 0.0), "all rewards are equal"),  # none is the best
        ({}, (0.3, 0.30000001192092896), "all rewards are equal"),  # but for float32
        ({"min_reward": 0.5}, (0.5, 0.5), (0,)),
        ({"min_reward": 0.5}, (0.2, 0.4), "below the least reward"),
        ({"min_reward": 0.5, "every": True}, (0.9, 0.1, 0.5), (0, 2)),
    ],
)
def test_sft_imitates_the_best_answer_or_all_that_are_good_enough(
    rule: dict[str, Any], given: tuple[float, ...], chosen: tuple[int, ...] | str
) -> None:
    assert Curation(method="sft", **rule).choose(rewards(*given)) == chosen


@pytest.mark.parametrize(
    ("margin", "given", "chosen"),
    [
        (0.0, (0.2, 1.0, 0.2), (1, 0)),
        (0.0, (1.0, 1.0), "all rewards are equal"),
        (0.0, (0.3, 0.30000001192092896), "all rewards are equal"),
        (0.8, (0.2, 1.0), "best and worst are too close"),
        (0.0, (1.0,), "all rewards are equal"),
    ],
)
def test_dpo_sets_the_best_answer_against_the_worst(
    margin: float, given: tuple[float, ...], chosen: tuple[int, ...] | str
) -> None:
    assert Curation(method="dpo", margin=margin).choose(rewards(*given)) == chosen


def test_a_dropped_group_has_no_answers() -> None:
    dropped = changed(rewards(), dropped_reason="expired", responses=())
    assert Curation(method="sft").choose(dropped) == "dropped: expired"


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        ({"method": "dpo", "min_reward": 0.5}, "dpo compares the best with the worst"),
        ({"method": "dpo", "every": True, "min_reward": 0.5}, "dpo compares"),
        ({"method": "sft", "margin": 0.5}, "it needs dpo"),
        ({"method": "dpo", "margin": -1.0}, "expected 0 or more"),
        ({"method": "sft", "every": True}, "say with --min-reward"),
    ],
)
def test_a_rule_without_effect_is_refused(rule: dict[str, Any], said: str) -> None:
    with pytest.raises(SettingsError, match=said):
        Curation(**rule).check()


# --- which tokens -----------------------------------------------------------------------------------------------------


def tokens_with_loss(answer: TunedAnswer) -> list[int]:
    return [
        token
        for chain in answer.chains
        for token, trained in zip(chain.tokens, chain.loss_mask, strict=True)
        if trained
    ]


def test_of_a_sampled_answer_only_what_the_policy_wrote_bears_loss() -> None:
    """A tool's tokens lie between two turns."""
    response = member(
        0, completion_token_ids=(20, 21, 30, 31, 22), logprobs=(-1.0, -1.0, 0.0, 0.0, -1.0),
        loss_mask=(True, True, False, False, True), prompt_token_ids=(4,),
    )  # fmt: skip
    answer = answer_of(group(responses=(response,)), response)
    assert tokens_with_loss(answer) == [20, 21, 22]
    (chain,) = answer.chains
    assert (list(chain.context), list(chain.tokens)) == ([1, 2, 3, 4], [20, 21, 30, 31, 22])
    assert (answer.loss_tokens, answer.tokens, answer.longest) == (3, 9, 9)


CALL = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": "{}"}}
CONVERSATION = [
    message("system", "20"),
    message("user", "21 22"),
    message("assistant", "23"),
    message("tool", "24", tool_call_id="c1"),
    message("assistant", "25 26"),
]


def test_of_a_conversation_what_the_assistant_says_bears_loss_and_nothing_else() -> None:
    ((answer,),) = read([{"messages": CONVERSATION}])
    tokenizer = chat_tokenizer()
    theirs = tokenizer.apply_chat_template(CONVERSATION, return_dict=True, return_assistant_tokens_mask=True)
    (chain,) = answer.chains
    assert [*chain.context, *chain.tokens] == theirs["input_ids"]
    assert [*[0] * len(chain.context), *map(int, chain.loss_mask)] == theirs["assistant_masks"]
    assert tokenizer.decode(tokens_with_loss(answer)) == tokenizer.decode(
        tokenizer("23 </s> 10 25 26 </s> 10", add_special_tokens=False)["input_ids"]
    )


def test_a_message_of_weight_0_is_context() -> None:
    messages = [one | ({"weight": 0} if one["content"] == "23" else {}) for one in CONVERSATION]
    ((answer,),) = read([{"messages": messages}])
    assert answer.loss_tokens == len(chat_tokenizer()("25 26 </s> 10", add_special_tokens=False)["input_ids"])


def test_both_formats_of_preferences_are_the_same_pair() -> None:
    prompt, good, bad = [message("user", "21")], [message("assistant", "22 23")], [message("assistant", "22 24")]
    trl, openai = read(
        [
            {"prompt": prompt, "chosen": good, "rejected": bad, "chosen_reward": 1.0},
            {"input": {"messages": prompt}, "preferred_output": good, "non_preferred_output": bad},
        ],
        "dpo",
    )
    assert trl == openai
    assert [one.loss_tokens for one in trl] == [4, 4]


def test_the_digest_tells_examples_apart_that_differ_in_any_token_mask_or_order() -> None:
    unheard = [one | ({"weight": 0} if one["content"] == "23" else {}) for one in CONVERSATION]
    masked = [one | ({"weight": 0} if one["content"] == "25 26" else {}) for one in CONVERSATION]
    other = [*CONVERSATION[:-1], message("assistant", "25 27")]
    one, *others = read([{"messages": messages} for messages in (CONVERSATION, unheard, masked, other)])
    every = [[one], *([another] for another in others), [one, others[0]], [others[0], one]]
    assert len({digest(examples) for examples in every}) == len(every)


# --- bad lines --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "line", "said"),
    [
        ("sft", "{", r"f.jsonl:2: not JSON"),
        ("sft", "[1]", r"f.jsonl:2: expected an object, .*got \[1\]"),
        ("sft", '{"text": "hello"}', r"messages: expected a list of messages, as in .*; the line has text"),
        ("sft", '{"messages": []}', r"messages: it is empty; expected at least one message"),
        ("sft", '{"messages": "hello"}', r"messages: expected a list \(got 'hello'\)"),
        ("sft", '{"messages": [{"role": "user", "content": ""}, {"role": "assistant", "content": 7}]}',
         r"messages\[1\].content: expected a text"),
        ("sft", '{"messages": [{"role": "user", "content": "21", "mood": "good"}]}', r"no field messages\[0\].mood"),
        ("sft", '{"messages": [], "messages": []}', 'the key "messages" is there twice'),
        ("sft", json.dumps({"messages": [message("user", "21"), message("assistant", "")]}),
         r"messages\[1\]: the answer is empty, and the model would learn to say nothing; write one, or give it weight"),
        ("sft", json.dumps({"messages": [message("user", "1"), message("assistant", " \n"), message("user", "2"),
                                         message("assistant", "3")]}), r"messages\[1\]: the answer is empty"),
        ("sft", '{"messages": [{"role": "user", "content": "21"}, {"role": "assistant"}]}', r"the answer is empty"),
        ("sft", '{"messages": [{"role": "user", "content": "21"}]}', r"no message of role assistant bears loss"),
        ("sft", '{"messages": [{"role": "judge", "content": "21"}, {"role": "assistant", "content": "22"}]}',
         r"messages\[0\].role: Input should be"),
        ("sft", '{"messages": [{"role": "assistant", "content": "22"}]}', r"nothing comes before the answer"),
        ("sft", json.dumps({"messages": [message("user", "21 " * 70), message("assistant", "22")]}),
         r"it has 77 tokens, and the model's context 64"),
        ("sft", '{"tools": [{"type": "function"}], "messages": [{"role": "user", "content": "21"}]}', r"tools\[0\]"),
        ("dpo", '{"prompt": [{"role": "user", "content": "21"}], "rejected": []}', r"chosen: expected a list"),
        ("dpo", '{"prompt": "21", "chosen": "22", "rejected": "23"}', r"prompt: expected a list \(got '21'\)"),
        ("dpo", '{"input": 5, "preferred_output": [], "non_preferred_output": []}', r"input.messages: expected"),
        ("dpo", json.dumps({"prompt": [message("user", "21")], "chosen": [message("assistant", "22")],
                            "rejected": [message("assistant", "22")]}), r"chosen and rejected are the same tokens"),
        ("dpo", json.dumps({"prompt": [message("user", "21")], "chosen": [message("assistant", "")],
                            "rejected": [message("assistant", "22")]}), r"chosen: the answer is empty"),
        ("sft", json.dumps({"messages": [message("user", "21"), message("assistant", "22", tool_calls=[CALL])]}),
         "the model's chat template leaves out the tool call add; leave out the tools"),
        ("sft", json.dumps({"messages": [message("user", "21"), message("assistant", "22")],
                            "tools": [{"type": "function", "function": {"name": "add"}}]}), "leaves out the tool add"),
        ("dpo", json.dumps({"prompt": [message("user", "21")], "chosen": [message("assistant", "", tool_calls=[CALL])],
                            "rejected": [message("assistant", "22")]}), "leaves out the tool call add"),
    ],
)  # fmt: skip
def test_a_line_that_is_no_example_is_named_with_its_number(tmp_path: Path, method: Any, line: str, said: str) -> None:
    good = {
        "sft": {"messages": [message("user", "21"), message("assistant", "22")]},
        "dpo": {"prompt": [message("user", "21")], "chosen": [message("assistant", "22")],
                "rejected": [message("assistant", "23")]},
    }[method]  # fmt: skip
    path = tmp_path / "f.jsonl"
    path.write_text(f"{json.dumps(good)}\n{line}\n\n{json.dumps(good)}\n")
    with pytest.raises(SettingsError, match=said) as caught:
        from_file.read(path, method, ChatTemplate(chat_tokenizer()), CONTEXT)
    assert f"{path}:2: " in str(caught.value)
    path.write_text(f"{json.dumps(good)}\n\n{json.dumps(good)}\n")
    assert len(from_file.read(path, method, ChatTemplate(chat_tokenizer()), CONTEXT).examples) == 2


def test_interactions_are_answers_to_imitate_except_lines_that_are_no_examples(tmp_path: Path) -> None:
    def line(text: str, answer: Any, **metadata: Any) -> str:
        about = {"id": "r1", "purpose": "train", "finish_reason": "stop", "at": "responses[0]@1"} | metadata
        return json.dumps({"task_id": "t1", "input": text, "response": answer, "score": 1.0, "metadata": about})

    rows = [
        line("one", "two"),
        line("three", "four", purpose="serve"),
        line("five", "six", purpose="eval"),
        line("seven", "eight", trajectory_id="x", turn=2),
        line("nine", "", finish_reason="error"),
        line("nine", ""),
    ]
    file = tmp_path / "agent_interactions.jsonl"
    file.write_text("".join(f"{row}\n" for row in rows))
    template = ChatTemplate(chat_tokenizer())
    found = from_file.read(file, "sft", template, CONTEXT)
    assert found.examples == read(
        [
            {"messages": [message("user", question), message("assistant", answer)]}
            for question, answer in (("one", "two"), ("three", "four"))
        ]
    )
    assert found.left_out == {"held_out": 1, "call_of_run": 1, "no_answer": 2}
    file.write_text(f"{rows[2]}\n{rows[3]}\n")
    with pytest.raises(NotFoundError, match="no line with an example, 1 held_out, 1 call_of_run; expected"):
        from_file.read(file, "sft", template, CONTEXT)
    file.write_text(line("one", 7) + "\n")
    with pytest.raises(SettingsError, match=r"agent_interactions\.jsonl:1: .*content"):
        from_file.read(file, "sft", template, CONTEXT)


def test_of_many_bad_lines_some_are_named_and_the_others_counted(tmp_path: Path) -> None:
    path = tmp_path / "f.jsonl"
    path.write_text("{,}\n" * 9)
    with pytest.raises(SettingsError, match=r"f.jsonl:5: .*\nand 4 more lines\nNothing was trained"):
        from_file.read(path, "sft", ChatTemplate(chat_tokenizer()), CONTEXT)


def test_a_file_without_a_line_and_one_that_is_not_there_are_said_so(tmp_path: Path) -> None:
    template = ChatTemplate(chat_tokenizer())
    (tmp_path / "f.jsonl").write_text("\n\n")
    with pytest.raises(NotFoundError, match="no line with an example; expected"):
        from_file.read(tmp_path / "f.jsonl", "sft", template, CONTEXT)
    with pytest.raises(NotFoundError, match="No such file"):
        from_file.read(tmp_path / "g.jsonl", "sft", template, CONTEXT)


def test_a_template_that_rewrites_what_was_said_before_is_not_trained_on() -> None:
    """As one that drops the reasoning of earlier turns: the tokens would not be those that the model writes."""
    tokenizer = chat_tokenizer()
    tokenizer.chat_template = (
        "{% for m in messages %}{{ '8 ' + (m['content'] if loop.last else '11') + ' ' }}{% endfor %}"
    )
    spoken = [one for one in CONVERSATION if one["role"] != "tool"]
    line = json.dumps({"messages": spoken}).encode()
    with pytest.raises(ValueError, match=r"messages\[2\]: the chat template renders it otherwise"):
        from_file.example_of(line, "sft", ChatTemplate(tokenizer), CONTEXT)


# --- tables -----------------------------------------------------------------------------------------------------------


def test_a_table_of_examples_is_the_examples_of_its_lines(tmp_path: Path) -> None:
    sft = [{"messages": CONVERSATION}, {"messages": [message("user", "21"), message("assistant", "22")]}]
    pair = {"prompt": [message("user", "21")], "chosen": [message("assistant", "22")],
            "rejected": [message("assistant", "23")]}  # fmt: skip
    template = ChatTemplate(chat_tokenizer())
    for method, lines in (("sft", sft), ("dpo", [pair])):
        (tmp_path / "a.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
        with (tmp_path / "a.csv").open("w") as file:
            table = csv.writer(file)
            table.writerows([list(lines[0]), *([json.dumps(cell) for cell in line.values()] for line in lines)])
        parquet.write_table(pyarrow.Table.from_pylist(lines), tmp_path / "a.parquet")
        expected = from_file.read(tmp_path / "a.jsonl", method, template, CONTEXT).examples  # type: ignore[arg-type]
        for name in ("a.csv", "a.parquet"):
            read_file = from_file.read(tmp_path / name, method, template, CONTEXT)  # type: ignore[arg-type]
            assert read_file.examples == expected
    (tmp_path / "a.csv").write_text('messages\n"[{""role"": ""user"", ""content"": 7}]"\n')
    with pytest.raises(SettingsError, match=r"a.csv:2: messages\[0\].content: expected a text, or a list of parts"):
        from_file.read(tmp_path / "a.csv", "sft", template, CONTEXT)
