"""Eight families of models, from their files to a tuned answer: what ends one, what may be drawn, what bears loss."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from contextlib import closing
from functools import cache
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from transformers import AutoModelForCausalLM

from schemas.events import Message, RewardSource, Sampling, Task
from streams.cli.root import cli
from streams.engines.base_model import Base, load_base, load_token_table
from streams.engines.local.continuous import ContinuousEngine
from streams.engines.local.transformers_engine import TransformersEngine
from streams.engines.protocol import Completion, SamplingRequest
from streams.engines.rendering.chat_template import ChatTemplate
from streams.engines.token_stream import Generation
from streams.settings.model import Model
from tests.support.models.families import FAMILIES, QUESTION, REPLY, Family
from trainer.examples.from_file import example_of
from trainer.step import prefix_tree
from trainer.step.prefix_tree import Row, unshareable

each_family = pytest.mark.parametrize("name", FAMILIES)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Folders]:
    yield Folders(tmp_path_factory.mktemp("families"))


class Folders:
    """A folder for each family, written when a test first wants it."""

    def __init__(self, parent: Path) -> None:
        self.folder = cache(lambda name: FAMILIES[name].save(parent / name))
        self.base = cache(lambda name: load_base(Model(base=str(self.folder(name)))))


def request(sampling: Sampling, slots: int) -> SamplingRequest:
    task = Task(
        task_id="t",
        created_at=0,
        policy="default",
        group_size=slots,
        sampling=sampling,
        reward_sources=(RewardSource(name="exact"),),
        messages=(Message(role="user", content=QUESTION),),
    )
    return SamplingRequest(sampling_id="s", task=task)


def sampled(base: Base, sampling: Sampling, slots: int = 1) -> list[Completion]:
    with closing(TransformersEngine(base)) as engine:
        (answers,) = engine.sample([request(sampling, slots)])
    return answers


def generation(answer: Completion, sampling: Sampling) -> Generation:
    """The stream of the same slot."""
    key = request(sampling, 1).draw_key
    return Generation(
        prompt_token_ids=answer.prompt_token_ids, sampling=sampling, draw_key=key, slot=answer.slot, version=0
    )


def logprobs_in_training(base: Base, answers: list[Completion], temperature: float) -> tuple[list[float], list[float]]:
    """What the trainer computes for the tokens of these answers, one after another, each prefix run once."""
    assert unshareable(base.model) is None
    rows, place = [], 0
    for answer in answers:
        tokens, count = [*answer.prompt_token_ids, *answer.completion_token_ids], len(answer.completion_token_ids)
        rows.append(Row(tokens, len(answer.prompt_token_ids), range(count), place))
        place += count
    with torch.no_grad():
        logprobs, entropies, _ = prefix_tree.logprobs(base.model, rows, (1, place), temperature)
    return logprobs[0].tolist(), entropies[0].tolist()


def ids(base: Base, *names: str) -> list[int]:
    return [base.tokenizer.convert_tokens_to_ids(name) for name in names]


@each_family
def test_an_answer_ends_where_the_family_ends_one_and_its_text_has_nothing_of_that(name: str, folders: Folders) -> None:
    family, base = FAMILIES[name], folders.base(name)
    assert sorted(base.token_table.ends) == sorted(ids(base, *family.ends))
    asked = [{"role": "user", "content": QUESTION}]
    prompt = base.tokenizer.apply_chat_template(asked, add_generation_prompt=True, return_dict=True)["input_ids"]
    (answer,) = sampled(base, Sampling(temperature=0.0, max_tokens=12))
    assert (answer.text, answer.finish_reason, list(answer.prompt_token_ids)) == (REPLY, "stop", prompt), answer
    assert list(answer.completion_token_ids)[-1:] == ids(base, family.end)


@each_family
def test_only_ids_with_a_token_are_drawn_by_both_engines_and_only_they_have_a_share(
    name: str, folders: Folders
) -> None:
    base, sampling = folders.base(name), Sampling(temperature=1.5, max_tokens=24)
    with torch.random.fork_rng():
        torch.manual_seed(1)
        noise = torch.randn(base.model.get_output_embeddings().weight.shape)
    base.model.get_output_embeddings().weight.data += noise  # so that it draws everything
    stored = AutoModelForCausalLM.from_pretrained(folders.folder(name))
    weight = stored.get_output_embeddings().weight.data
    weight[: len(noise)] += noise
    known = sorted(base.tokenizer.get_vocab().values())
    try:
        answers = sampled(base, sampling, slots=12)
        with closing(ContinuousEngine(base)) as engine:
            streams = [engine.submit(generation(answer, sampling)) for answer in answers]
            drawn = [[token for token, _ in stream] for stream in streams]
        trained, entropies = logprobs_in_training(base, answers, 1.5)
    finally:
        base.model.get_output_embeddings().weight.data -= noise
    assert drawn == [list(answer.completion_token_ids) for answer in answers]
    assert trained == pytest.approx([logprob for answer in answers for logprob in answer.logprobs], abs=1e-4)
    assert all(0 <= entropy <= math.log(len(known)) for entropy in entropies)
    assert {token for tokens in drawn for token in tokens} <= set(known)
    for answer in answers:
        tokens = list(answer.completion_token_ids)
        assert not base.token_table.ends.keys() & set(tokens[:-1]), "an answer has tokens after its end"
        row = torch.tensor([[*answer.prompt_token_ids, *tokens]])
        logits = stored(input_ids=row).logits[0, len(answer.prompt_token_ids) - 1 : -1, known] / 1.5
        places = [known.index(token) for token in tokens]
        expected = logits.log_softmax(-1).gather(-1, torch.tensor(places)[:, None])[:, 0]
        assert answer.logprobs == pytest.approx(expected.tolist(), abs=1e-4)


@each_family
def test_the_answer_and_its_end_bear_loss_and_nothing_else_does(name: str, folders: Folders) -> None:
    family, tokenizer = FAMILIES[name], folders.base(name).tokenizer
    line = {"messages": [{"role": "user", "content": QUESTION}, {"role": "assistant", "content": REPLY}]}
    ((answer,),) = [example_of(json.dumps(line).encode(), "sft", ChatTemplate(tokenizer), 4096)]
    (chain,) = answer.chains
    with_loss = [token for token, has_loss in zip(chain.tokens, chain.loss_mask, strict=True) if has_loss]
    written = tokenizer(REPLY + family.end, add_special_tokens=False)["input_ids"]
    ends = name not in ("strict", "without_system")  # which write none after the last answer
    assert with_loss[: len(written)] == (written if ends else written[:-1])
    assert tokenizer.decode(with_loss[len(written) :]).strip() in ("", "<|endoftext|>")


@each_family
def test_doctor_shows_the_table_and_every_oddity_without_settings_and_broker(name: str, folders: Folders) -> None:
    family = FAMILIES[name]
    result = CliRunner().invoke(
        cli, ["--set", "kafka.nothing=1", "doctor", "--model", str(folders.folder(name)), "--output", "jsonl"]
    )
    assert result.exit_code == 0, result.output
    rows = [json.loads(line) for line in result.stdout.splitlines()]
    says = {row["check"]: row["what"] for row in rows if row["state"] == "ok"}
    _, table = load_token_table(str(folders.folder(name)))
    assert all(mark in says["ends"] for mark in family.ends)
    assert ("chat template" in says["ends"]) is (name != "without_system")
    assert f"{len(family.marks)} are never text: 0 {family.marks[0]}" in says["special"]
    assert says["ids"] == f"{table.drawable} may be drawn, of those from 0 to {table.size - 1}"
    assert ("also ends an answer" in says["pad"]) is (name not in ("gemma", "strict"))
    odd = [row["what"] for row in rows if row["state"] == "warning"]
    assert len(odd) == len(family.oddities), odd
    for what, said in zip(family.oddities, odd, strict=True):
        assert what in said


def test_a_table_read_from_files_is_that_of_the_loaded_model(folders: Folders) -> None:
    for name in FAMILIES:
        assert load_token_table(str(folders.folder(name)))[1] == folders.base(name).token_table


def test_eight_families_are_tried() -> None:
    assert len(FAMILIES) >= 8 and all(isinstance(family, Family) for family in FAMILIES.values())
