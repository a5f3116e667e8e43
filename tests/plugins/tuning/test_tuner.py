"""Tuning: which answers, which tokens bear loss, and the losses against TRL's own trainers."""

from __future__ import annotations

import csv
import json
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow
import pytest
import torch
from datasets import Dataset
from pyarrow import parquet
from trl import DPOConfig, DPOTrainer, SFTConfig, SFTTrainer

from plugins.tuning.losses import dpo_loss, dpo_margins
from plugins.tuning.tuned_version import StartVersion
from plugins.tuning.tuner import Tuner, TuningSteps
from schemas.events import AdvantagedGroup, GroupResponse
from streams.engines.base_model import Base
from streams.engines.rendering.chat_template import ChatTemplate
from streams.errors import NotFoundError, SettingsError, StreamwardError
from streams.settings.model import Settings, Trainer
from tests.support.factories import changed, group, member
from tests.support.models.chat_tiny import chat_base, chat_tokenizer
from tests.support.models.tiny import tiny_group, tiny_model
from trainer.examples import from_file
from trainer.examples.curation import Curation
from trainer.examples.tuned_examples import TunedAnswer, TunedExample, answer_of, digest

pytestmark = pytest.mark.usefixtures("torch_as_before")

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


@pytest.mark.parametrize(("text", "found"), [("7", ("p", 7)), ("grpo:7", ("grpo", 7)), ("a:b:0", ("a:b", 0))])
def test_a_start_is_a_version_or_that_of_another_policy(text: str, found: tuple[str, int]) -> None:
    assert StartVersion.parse(text, "p") == found


@pytest.mark.parametrize("text", ["", "newest", "p:", "-1", "1.5"])
def test_a_start_that_is_no_version_is_refused(text: str) -> None:
    with pytest.raises(SettingsError, match="expected a version"):
        StartVersion.parse(text, "p")


# --- the losses, against TRL ------------------------------------------------------------------------------------------

RATE = 1e-2
STEPS = 3


def tuner(method: Any, *, beta: float = 0.1, plain: bool = False, **more: Any) -> Tuner:
    """A tuner whose adapter already does something: B is not zero."""
    settings = Settings(trainer=Trainer(learning_rate=RATE, **more))
    made = Tuner(settings, chat_base(), TuningSteps(method=method, beta=beta, batch=64), None)
    assert made.plain_because is None
    if plain:
        made.plain_because = "this is the oracle"
    disturb(made._model)
    return made


def test_an_end_that_is_the_pad_bears_loss_once_beside_a_longer_example() -> None:
    tokenizer = chat_tokenizer()
    tokenizer.pad_token = tokenizer.eos_token
    base = Base.of(tiny_model(), tokenizer, "base", "tokenizer")
    examples = read([{"messages": [message("user", "21"), message("assistant", said)]} for said in ("22", "23 24 25")])
    answers = [answer for example in examples for answer in example]
    assert [tokens_with_loss(answer).count(tokenizer.eos_token_id) for answer in answers] == [1, 1]
    padded = Tuner(Settings(), base, TuningSteps(method="sft"), None)
    padded.plain_because = "every row is padded"
    assert padded._pad == tokenizer.eos_token_id
    alone = torch.cat([padded.logps([answer]) for answer in answers])
    assert torch.allclose(padded.logps(answers), alone, atol=1e-5)
    assert torch.allclose(tuner("sft").logps(answers), tuner("sft", plain=True).logps(answers), atol=1e-5)


def disturb(model: Any) -> Any:
    draw = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.copy_(torch.randn(parameter.shape, generator=draw) * 0.05)
    return model


def ours(made: Tuner, examples: Sequence[TunedExample]) -> list[float]:
    """The loss of each of the steps, all examples in each."""
    losses = []
    reference = made._reference(examples)
    for _ in range(STEPS):
        losses.append(made.step(examples, reference).loss)
    return losses


def trls(trainer: type[Any], config: type[Any], rows: list[dict[str, Any]], folder: Path, **more: Any) -> list[float]:
    """The loss of each step of TRL's trainer on the same rows, from the same adapter."""
    seen: list[float] = []

    class Recording(trainer):  # type: ignore[misc]
        def compute_loss(self, *arguments: Any, **named: Any) -> Any:
            loss = super().compute_loss(*arguments, **named)
            seen.append(loss.item())
            return loss

    start = tuner("sft")._model  # the same adapter, on a model of its own
    settings = config(
        output_dir=str(folder), per_device_train_batch_size=len(rows), num_train_epochs=STEPS, learning_rate=RATE,
        lr_scheduler_type="constant", weight_decay=0.0, max_grad_norm=1.0, bf16=False, use_cpu=True, max_length=None,
        gradient_checkpointing=False, save_strategy="no", report_to="none", disable_tqdm=True, **more,
    )  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made = Recording(
            model=start, args=settings, train_dataset=Dataset.from_list(rows), processing_class=chat_tokenizer()
        )
        made.train()
    assert len(seen) == STEPS
    return seen


def assert_as_trl(mine: list[float], theirs: list[float]) -> None:
    """Within 1e-6; behind the optimizer, which magnifies the last digits of a gradient, a little less."""
    assert mine[0] == pytest.approx(theirs[0], abs=1e-6)
    assert mine == pytest.approx(theirs, abs=1e-4)
    assert mine[0] - mine[-1] > 0.01, "the steps must have an effect"


QUESTIONS = ("21 22", "23", "24 25 26 27", "21 28")
ANSWERS = ("31 32 33", "34", "35 36", "31 37 38 39")
WORSE = ("41", "42 43 44", "35 45", "31 37 38 40")


def prompts() -> Iterator[tuple[list[dict[str, Any]], list[dict[str, Any]], list[dict[str, Any]]]]:
    for asked, good, bad in zip(QUESTIONS, ANSWERS, WORSE, strict=True):
        yield (
            [message("system", "20"), message("user", asked)],
            [message("assistant", good)],
            [message("assistant", bad)],
        )


@pytest.mark.parametrize("plain", [False, True])
def test_sft_on_an_exported_file_has_the_loss_of_trls_sft_trainer(tmp_path: Path, plain: bool) -> None:
    examples = read([{"messages": [*asked, *good]} for asked, good, _ in prompts()])
    rows = [{"prompt": asked, "completion": good} for asked, good, _ in prompts()]
    theirs = trls(SFTTrainer, SFTConfig, rows, tmp_path)
    assert_as_trl(ours(tuner("sft", plain=plain), examples), theirs)


def test_sft_on_conversations_has_the_loss_of_trls_trainer_on_what_the_assistant_says(tmp_path: Path) -> None:
    plain_call = [{name: value for name, value in one.items() if name in ("role", "content")} for one in CONVERSATION]
    whole = [plain_call, [message("user", "21"), message("assistant", "22 29")]]
    theirs = trls(SFTTrainer, SFTConfig, [{"messages": one} for one in whole], tmp_path, assistant_only_loss=True)
    assert_as_trl(ours(tuner("sft"), read([{"messages": one} for one in whole])), theirs)


def sampled() -> list[AdvantagedGroup]:
    return [tiny_group(tiny_model(), seed, prompt=4 + seed, slots=3) for seed in range(4)]


def best_and_worst(one: AdvantagedGroup) -> tuple[GroupResponse, GroupResponse]:
    slots = Curation(method="dpo").choose(one)
    assert not isinstance(slots, str)
    return one.responses[slots[0]], one.responses[slots[1]]


def test_sft_on_sampled_tokens_has_the_loss_of_trls_sft_trainer_on_the_same_tokens(tmp_path: Path) -> None:
    examples, rows = [], []
    for one in sampled():
        best = best_and_worst(one)[0]
        prompt, completion = list(one.prompt_token_ids), list(best.completion_token_ids)
        examples.append((answer_of(one, best),))
        rows.append({"input_ids": prompt + completion, "labels": [-100] * len(prompt) + completion})
    assert_as_trl(ours(tuner("sft"), examples), trls(SFTTrainer, SFTConfig, rows, tmp_path))


@pytest.mark.parametrize("plain", [False, True])
@pytest.mark.parametrize("beta", [0.1, 0.5])
def test_dpo_on_an_exported_file_has_the_loss_of_trls_dpo_trainer(tmp_path: Path, beta: float, plain: bool) -> None:
    """Its reference is a copy of the adapter before the first step, as ours is, and not the base model."""
    rows = [{"prompt": asked, "chosen": good, "rejected": bad} for asked, good, bad in prompts()]
    theirs = trls(DPOTrainer, DPOConfig, rows, tmp_path, beta=beta)
    mine = ours(tuner("dpo", beta=beta, plain=plain), read(rows, "dpo"))
    assert_as_trl(mine, theirs)


def test_dpo_on_sampled_tokens_has_the_loss_written_down_from_the_paper() -> None:
    """A second implementation: a plain pass for each answer, arXiv:2305.18290 equation 7."""
    pairs = [(one, *best_and_worst(one)) for one in sampled()]
    examples = [(answer_of(one, best), answer_of(one, worst)) for one, best, worst in pairs]
    made = tuner("dpo", beta=0.3)
    with torch.no_grad():
        before = torch.tensor([[logp(made, one, best), logp(made, one, worst)] for one, best, worst in pairs])
    made.step(examples, made._reference(examples))
    after = torch.tensor([[logp(made, one, best), logp(made, one, worst)] for one, best, worst in pairs])
    gained = (after - before).double()
    expected = torch.log1p(torch.exp(-0.3 * (gained[:, 0] - gained[:, 1]))).mean()
    with torch.no_grad():
        answers = [answer for example in examples for answer in example]
        margins = dpo_margins(made.logps(answers).view(-1, 2), before, 0.3)
    assert dpo_loss(margins, len(pairs)).item() == pytest.approx(expected.item(), abs=1e-6)
    assert expected < 0.69


def logp(made: Tuner, one: AdvantagedGroup, response: GroupResponse) -> float:
    prompt, completion = list(one.prompt_token_ids), list(response.completion_token_ids)
    with torch.no_grad():
        logits = made._model(input_ids=torch.tensor([prompt + completion])).logits[0, len(prompt) - 1 : -1]
    return float(logits.log_softmax(-1).gather(-1, torch.tensor(completion)[:, None]).sum())


# --- steps ------------------------------------------------------------------------------------------------------------


def weights(made: Tuner) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in made.parameters])


def tuned(examples: Sequence[TunedExample], **more: Any) -> tuple[torch.Tensor, dict[str, float]]:
    settings = Settings(trainer=Trainer(learning_rate=more.pop("rate", RATE), seed=more.pop("seed", 0)))
    made = Tuner(settings, chat_base(), TuningSteps(**{"method": "sft", "batch": 2, "epochs": 2, **more}), None)
    metrics = made.tune(examples)
    return weights(made), metrics


def many() -> list[TunedExample]:
    return read([{"messages": [*asked, *good]} for asked, good, _ in prompts()])[:3]


def test_the_same_examples_and_seed_give_the_same_bytes_and_another_seed_another_order() -> None:
    one, other, seeded = tuned(many()), tuned(many()), tuned(many(), seed=5)
    assert torch.equal(one[0], other[0])
    assert not torch.equal(one[0], seeded[0])


def test_every_epoch_sees_every_example_once_and_the_metrics_count_them() -> None:
    metrics = tuned(many())[1]
    counted = {name: metrics[name] for name in ("steps", "examples", "tokens", "skipped")}
    tokens = sum(example[0].loss_tokens for example in many())
    assert counted == {"steps": 4, "examples": 3, "tokens": tokens, "skipped": 0}
    assert metrics["loss"] < metrics["loss_first"]


def test_micro_batches_only_bound_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    examples = many()
    whole = tuner("sft").step(examples)
    monkeypatch.setattr("plugins.tuning.tuner.MICRO_TOKENS", 1)
    assert tuner("sft").step(examples).loss == pytest.approx(whole.loss, abs=1e-6)


def test_preferences_learn_to_tell_the_answers_apart() -> None:
    rows = [{"prompt": asked, "chosen": good, "rejected": bad} for asked, good, bad in prompts()]
    metrics = tuned(read(rows, "dpo"), method="dpo", epochs=6)[1]
    assert metrics["loss_first"] == pytest.approx(0.6931, abs=1e-3)
    assert (metrics["accuracy"], metrics["margin"] > 0) == (1.0, True)


def test_a_gradient_that_is_never_finite_is_an_error_and_no_version(monkeypatch: pytest.MonkeyPatch) -> None:
    made = tuner("sft")
    with torch.no_grad():
        made.parameters[0].fill_(float("nan"))
    with pytest.raises(StreamwardError, match="none of 1 steps had a finite gradient"):
        made.tune(many())


def test_a_tuning_that_leaves_every_weight_as_it_is_says_so() -> None:
    assert tuned(many(), rate=1e-50)[1]["unchanged"] == 1.0
    assert tuned(many())[1]["unchanged"] == 0.0


def test_several_processes_are_refused() -> None:
    with pytest.raises(SettingsError, match="tuning has one process"):
        tuner("sft", processes=2)


@pytest.mark.parametrize("recorded", [{}, {"tuning.method": "rl"}, {"tuning.method": "sft", "tuning.epochs": "many"}])
def test_a_recipe_that_is_not_one_of_tuning_is_refused(recorded: dict[str, str]) -> None:
    with pytest.raises(SettingsError, match="the recipe in the log cannot be used here"):
        TuningSteps.of_recipe(recorded)


def test_steps_come_back_from_the_recipe_they_were_written_to() -> None:
    steps = TuningSteps(method="dpo", epochs=3, batch=5, beta=0.25)
    assert TuningSteps.of_recipe(steps.plain()) == steps


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
