"""What other trainers read of a batch: each token with its mask, logprob and advantage, in their own shapes."""

from __future__ import annotations

import random
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from plugins.bridges import foreign, prime_rl, verl
from schemas.events import AdvantagedGroup, Coordinates, CreditSpan, GroupResponse, Sampling
from schemas.tokens import Logprobs, LossMask, TokenIds
from streams.errors import RefusedError, SettingsError
from streams.settings.model import Settings, Trainer
from tests.skips import needs
from tests.support.models import stranger
from tests.support.models.tiny import tiny_group, tiny_model
from tests.support.models.tiny_log import batch_of
from tests.unit.test_engines import base
from tests.unit.test_tree_of_turns import trajectories, with_branches
from trainer.export.batch_rows import TrainingBatch
from trainer.step.collate import scale_advantages
from trainer.step.model import wrap
from trainer.step.token_chains import chains

AT = Coordinates("batches", 0, 0)
BRIDGES = needs("msgspec", "make setup-test")


def whole_batch(*groups: AdvantagedGroup) -> TrainingBatch:
    return TrainingBatch(AT, batch_of(4, [AT]), scale_advantages(groups), (), {})


def answer(slot: int, tokens: list[int], mask: list[int], advantage: float, **more: Any) -> GroupResponse:
    first = tiny_group(tiny_model(), 0).responses[0]
    return replace(
        first, slot=slot, response_id=f"answer {slot}", reward=float(slot), advantage=advantage,
        completion_token_ids=TokenIds.of(tokens), loss_mask=LossMask(bytes(mask)),
        logprobs=Logprobs.of([-0.5 * n for n in range(1, len(tokens) + 1)]), **more,
    )  # fmt: skip


def by_hand() -> TrainingBatch:
    """Two answers: one of three tokens of which the middle one is a tool's, one of two behind a longer prompt."""
    group = replace(tiny_group(tiny_model(), 0), prompt_token_ids=TokenIds.of([1, 5]), scenario="sums")
    span = CreditSpan(chain=0, start=2, end=3, advantage=0.25)
    own = answer(0, [11, 12, 13], [1, 0, 1], 1.0, spans=(span,))
    other = answer(1, [21, 22], [1, 1], -1.0, prompt_token_ids=TokenIds.of([6]))
    return whole_batch(replace(group, responses=(own, other)))


# --- verl -------------------------------------------------------------------------------------------------------------


def test_verl_gets_prompts_padded_left_responses_right_and_the_rest_beside_the_responses(tmp_path: Path) -> None:
    (tmp_path / "batch.pkl").write_bytes(verl.encode(by_hand(), {"batch": 4}))
    proto = stranger.load(tmp_path / "batch.pkl")
    found = {name: tensor.tolist() for name, tensor in proto.batch.items()}
    assert found == {
        "prompts": [[0, 1, 5], [1, 5, 6]],
        "responses": [[11, 12, 13], [21, 22, 0]],
        "input_ids": [[0, 1, 5, 11, 12, 13], [1, 5, 6, 21, 22, 0]],
        "attention_mask": [[0, 1, 1, 1, 1, 1], [1, 1, 1, 1, 1, 0]],
        "position_ids": [[0, 0, 1, 2, 3, 4], [0, 1, 2, 3, 4, 4]],
        "response_mask": [[1, 0, 1], [1, 1, 0]],
        "old_log_probs": [[-0.5, 0.0, -1.5], [-0.5, -1.0, 0.0]],
        "rollout_log_probs": [[-0.5, 0.0, -1.5], [-0.5, -1.0, 0.0]],
        "advantages": [[1.0, 0.0, 0.25], [-1.0, -1.0, 0.0]],
        "returns": [[1.0, 0.0, 0.25], [-1.0, -1.0, 0.0]],
        "token_level_scores": [[0.0, 0.0, 0.0], [0.0, 1.0, 0.0]],
        "token_level_rewards": [[0.0, 0.0, 0.0], [0.0, 1.0, 0.0]],
    }
    assert proto.meta_info == {"temperature": 1.0, "global_token_num": [5, 5], "streamward": {"batch": 4}}
    assert {name: values.tolist() for name, values in proto.non_tensor_batch.items()} == {
        "uid": [by_hand().groups[0].group_id] * 2,
        "data_source": ["sums", "sums"],
        "task_id": [by_hand().groups[0].task_id] * 2,
        "response_id": ["answer 0", "answer 1"],
        "slot": [0, 1],
        "chain": [0, 0],
        "adapter_version": [0, 0],
    }


def test_the_file_names_two_classes_and_nothing_else_that_is_not_numpys_or_torchs(tmp_path: Path) -> None:
    (tmp_path / "batch.pkl").write_bytes(verl.encode(by_hand(), {}))
    named: set[str] = set()

    class Watched(stranger.Unpickler):
        def find_class(self, module: str, name: str) -> Any:
            named.add(f"{module}.{name}")
            return super().find_class(module, name)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stranger, "Unpickler", Watched)
        stranger.load(tmp_path / "batch.pkl")
    theirs = {name for name in named if name.partition(".")[0] not in ("numpy", "torch", "collections")}
    assert theirs == {"verl.protocol.DataProto", "tensordict.TensorDict"}


def test_an_agents_answer_has_a_row_for_each_of_its_chains() -> None:
    group = with_branches(random.Random(1), trajectories(1))
    of_group = whole_batch(group)
    assert len(of_group.rows) == sum(len(chains(group, one)) for one in group.responses) > len(group.responses)
    batch = verl.tensors(of_group.rows)
    assert int(batch["response_mask"].sum()) == of_group.totals.loss_tokens
    micros = [prime_rl.micro_batch(row) for row in of_group.rows]
    assert sum(sum(micro.loss_mask) for micro in micros) == of_group.totals.loss_tokens
    for row, micro in zip(range(len(micros)), micros, strict=True):
        there = batch["attention_mask"][row].bool()
        assert batch["input_ids"][row][there].tolist() == micro.input_ids


def test_advantages_of_the_whole_batchs_spread_are_divided_by_it() -> None:
    groups = [replace(tiny_group(tiny_model(), seed), formula="batch_std") for seed in range(2)]
    spread = np.std([0.0, 1.0, 2.0, 3.0] * 2, ddof=1) + groups[0].formula_eps
    batch = verl.tensors(whole_batch(*groups).rows)
    expected = [one.advantage / spread for group in groups for one in group.responses]
    assert batch["advantages"][:, 0].tolist() == pytest.approx(expected, rel=1e-6)


def test_verl_has_one_temperature_for_a_batch_and_prime_rl_one_for_a_token() -> None:
    groups = [tiny_group(tiny_model(), n, sampling=Sampling(temperature=one)) for n, one in enumerate((1.0, 0.5))]
    with pytest.raises(RefusedError, match=r"batches\[0\]@0: batch 4 was sampled at temperatures 0.5, 1, and verl has"):
        verl.encode(whole_batch(*groups), {})
    assert {one for row in whole_batch(*groups).rows for one in prime_rl.micro_batch(row).temperatures} == {0.5, 1.0}


# --- prime-rl ---------------------------------------------------------------------------------------------------------


def test_prime_rl_gets_rows_one_behind_the_other_with_all_that_is_per_token() -> None:
    (micro,) = prime_rl.pack(by_hand().rows)
    assert micro._asdict() == {
        "input_ids": [1, 5, 11, 12, 13, 1, 5, 6, 21, 22],
        "loss_mask": [False, False, True, False, True, False, False, False, True, True],
        "advantages": [0.0, 0.0, 1.0, 0.0, 0.25, 0.0, 0.0, 0.0, -1.0, -1.0],
        "inference_logprobs": [0.0, 0.0, -0.5, 0.0, -1.5, 0.0, 0.0, 0.0, -0.5, -1.0],
        "position_ids": [0, 1, 2, 3, 4, 0, 1, 2, 3, 4],
        "sequence_lengths": [5, 5],
        "temperatures": [1.0] * 10,
        "env_names": ["sums"] * 10,
        "seq_lens": [5, 5],
    }


def test_ranks_have_as_many_micro_batches_as_each_other_and_each_token_bears_loss_once() -> None:
    made = whole_batch(*(tiny_group(tiny_model(), seed, prompt=200, completion=50) for seed in range(5)))
    micros = list(prime_rl.pack(made.rows))
    assert len(micros) == 3 and all(len(one.input_ids) <= prime_rl.MICRO_TOKENS for one in micros)
    dealt = prime_rl.deal(micros, 2)
    assert [len(mine) for mine in dealt] == [2, 2]
    whole = [one for mine in dealt for one in mine]
    assert sum(sum(one.loss_mask) for one in whole) == made.totals.loss_tokens
    for one in whole:
        of_tokens = {
            len(value) for name, value in one._asdict().items() if name not in ("seq_lens", "sequence_lengths")
        }
        assert of_tokens == {sum(one.seq_lens)}


@pytest.mark.parametrize("scenario", ["", "all"])
def test_a_name_that_prime_rl_keeps_for_itself_is_replaced(scenario: str) -> None:
    row = whole_batch(replace(tiny_group(tiny_model(), 0), scenario=scenario)).rows[0]
    assert set(prime_rl.micro_batch(row).env_names) == {"streamward"}


def test_the_files_are_msgpack_of_arrays_with_a_field_after_the_other() -> None:
    msgspec = pytest.importorskip("msgspec", reason=BRIDGES)
    wire = msgspec.defstruct(
        "Wire",
        [
            *(("input_ids", list[int]), ("loss_mask", list[bool]), ("advantages", list[float])),
            *(("inference_logprobs", list[float]), ("position_ids", list[int]), ("sequence_lengths", list[int])),
            *(("temperatures", list[float]), ("env_names", list[str]), ("seq_lens", list[int])),
            *(("ref_logprobs", list[float] | None, None), ("rl_weights", list[float] | None, None)),
        ],
        array_like=True,
        omit_defaults=True,
    )
    files = prime_rl.files(by_hand(), {}, ranks=2)
    assert sorted(files) == ["rollouts/step_4/rank_0.bin", "rollouts/step_4/rank_1.bin"]
    decoder = msgspec.msgpack.Decoder(type=list[wire])
    (first,), (second,) = (decoder.decode(files[name]) for name in sorted(files))
    assert tuple(getattr(first, name) for name in prime_rl.MicroBatch._fields) == next(prime_rl.pack(by_hand().rows))
    assert first.ref_logprobs is None and not any(second.loss_mask) and second.input_ids == first.input_ids


def test_without_msgspec_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "msgspec", None)
    with pytest.raises(SettingsError, match=r"--format prime-rl: .* pip install 'streamward\[bridges\]'"):
        prime_rl.files(by_hand(), {}, ranks=1)


# --- what comes back --------------------------------------------------------------------------------------------------


class Said(NamedTuple):
    """A file of a recipe, and the error it gives."""

    text: str
    error: str


@pytest.mark.parametrize(
    "said",
    [
        Said("[]", "the whole: Input should be a valid dictionary"),
        Said(
            '{"framework": "verl", "framework_version": "1", "trained_by": 7}',
            "trained_by: Input should be a valid str",
        ),
        Said(
            '{"framework": "v", "framework_version": "1", "trained_by": "a", "batches": ["0"]}',
            "batches.0: Input should",
        ),
        Said("NaN", "the whole: "),
        Said("\\xff", "no JSON"),
    ],
    ids=lambda said: said.text[:8],
)
def test_a_recipe_that_is_none_says_where(tmp_path: Path, said: Said) -> None:
    (tmp_path / "recipe.json").write_text(said.text)
    with pytest.raises(SettingsError) as caught:
        foreign.read_recipe(tmp_path / "recipe.json")
    assert f"--recipe {tmp_path / 'recipe.json'}: {said.error}" in str(caught.value)


def test_an_adapter_whose_numbers_are_finite_and_whose_answers_are_not_is_refused(tmp_path: Path) -> None:
    settings = Settings(trainer=Trainer(lora_rank=4, lora_alpha=8))
    wrap(tiny_model(), settings.trainer).save_pretrained(tmp_path / "sound")
    sound = foreign.read(tmp_path / "sound")
    foreign.write(settings, base(), sound, tmp_path / "written")
    large = {name: torch.full_like(tensor, 3e38) for name, tensor in sound.weights.items()}
    with pytest.raises(
        RefusedError, match=r"sound/adapter_model.safetensors: the model's logits with it are not finite"
    ):
        foreign.write(settings, base(), sound._replace(weights=large), tmp_path / "refused")
    assert not (tmp_path / "refused").exists()


def test_numbers_that_are_not_finite_are_found_in_every_type_of_float(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    (tmp_path / "adapter_config.json").write_text('{"peft_type": "LORA"}')
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        save_file({"a": torch.tensor([1.0, float("nan")]).to(dtype)}, tmp_path / "adapter_model.safetensors")
        with pytest.raises(RefusedError, match="a is not finite in every number"):
            foreign.read(tmp_path)
