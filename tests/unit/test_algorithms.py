"""Algorithms of the user's own: found by module:function, recorded with their source, and refused with the way out."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from trl import GRPOTrainer

from schemas.events import AdvantagedGroup
from streams import references
from streams.advantage_formulas import FORMULAS, FormulaError, advantages
from streams.errors import SettingsError
from streams.settings import model
from streams.settings.model import Advantages, Settings, Trainer
from streams.stages.advantages.credit import CREDIT, CreditError, Episode, credit_turns, source_digests
from tests.support.models.tiny import tiny_group, tiny_model, tiny_tokenizer
from trainer.step import loss as losses
from trainer.step.collate import collate, side_by_side
from trainer.step.grpo import LogGRPOTrainer
from trainer.step.model import LOSS_SOURCE, recipe, wrap
from trainer.step.recipe import as_recorded, in_recipe

ROOT = Path(__file__).parents[2]
DOCS = (ROOT / "docs" / "algorithms.md").read_text()
LOSS, RULES = re.findall(r"```python\n(.*?)```", DOCS, re.DOTALL)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with the modules that docs/algorithms.md shows."""
    (tmp_path / "my_losses.py").write_text(LOSS)
    (tmp_path / "my_rules.py").write_text(RULES)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    for name in ("my_losses", "my_rules"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    references.load.cache_clear()
    source_digests.cache_clear()
    return tmp_path


def trainer_with(tmp_path: Path, **changes: Any) -> LogGRPOTrainer:
    settings = Trainer(checkpoints=tmp_path, max_grad_norm=0, **changes)
    trainer = LogGRPOTrainer(wrap(tiny_model(), settings), tiny_tokenizer(), settings)
    draw = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for parameter in trainer.parameters:
            parameter.add_(torch.randn(parameter.shape, generator=draw) * 0.05)
    return trainer


def trls(trainer: LogGRPOTrainer, group: AdvantagedGroup, loss_type: str, level: str = "token") -> float:
    """The loss that TRL computes for one group, by its own pass and its own formula."""
    micro = collate([group], pad_id=0)
    rows = side_by_side(micro.rows, pad_id=0, device="cpu")
    prompt = len(group.prompt_token_ids)
    trainer.loss_type, trainer.importance_sampling_level = loss_type, level
    trainer.epsilon_low, trainer.epsilon_high = trainer.settings.epsilon_low, trainer.settings.epsilon_high
    trainer.current_gradient_accumulation_steps = trainer.args.steps_per_generation = 1
    trainer.max_completion_length = group.sampling.max_tokens
    inputs = {
        "prompt_ids": rows.input_ids[:, :prompt],
        "prompt_mask": rows.attention_mask[:, :prompt],
        "completion_ids": micro.completion_ids,
        "completion_mask": micro.completion_mask,
        "tool_mask": micro.loss_mask,
        "advantages": micro.advantages,
        "old_per_token_logps": micro.sampled_logps,
        "num_items_in_batch": micro.loss_mask.sum(),
    }
    loss: float = GRPOTrainer._compute_loss(trainer, trainer.model, inputs).item()
    return loss


# --- what is built in ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", losses.LOSSES)
def test_each_built_in_loss_is_trls(tmp_path: Path, name: str) -> None:
    trainer = trainer_with(tmp_path, loss=name, epsilon_high=1.2 if name == "cispo" else 0.28)
    group = tiny_group(tiny_model(), 3, slots=4)
    theirs = trls(trainer, group, *(("grpo", "sequence") if name == "gspo" else (name,)))
    assert trainer.train_batch([group])["loss"] == pytest.approx(theirs, rel=1e-5, abs=1e-7)


def test_the_names_that_settings_take_are_those_that_exist() -> None:
    assert set(model.LOSSES) == set(losses.LOSSES)
    assert set(model.CREDITS) == {"trajectory", *CREDIT}


def test_the_page_names_every_algorithm() -> None:
    named = set(re.findall(r"`(\w+)`", DOCS))
    assert {*losses.LOSSES, *FORMULAS, *CREDIT, "trajectory"} <= named


# --- a loss of the user's own ----------------------------------------------------------------------------------------


def test_the_loss_of_the_page_trains(folder: Path) -> None:
    """It is the formula that TRL calls sapo, with the same temperatures."""
    trainer = trainer_with(folder, loss="my_losses:soft")
    group = tiny_group(tiny_model(), 3, slots=4)
    theirs = trls(trainer, group, "sapo")
    before = [parameter.detach().clone() for parameter in trainer.parameters]
    metrics = trainer.train_batch([group])
    assert metrics["loss"] == pytest.approx(theirs, rel=1e-5)
    assert metrics["grad_norm"] > 0 and not any(map(torch.equal, before, trainer.parameters))


def test_a_loss_without_a_mark_is_a_mean_over_tokens_however_the_batch_is_cut(folder: Path) -> None:
    (folder / "my_losses.py").write_text(
        "import torch\n\ndef plain(tokens):\n    return -(tokens.ratio * tokens.advantages)\n"
    )
    groups = [tiny_group(tiny_model(), seed, slots=3) for seed in range(3)]
    whole = trainer_with(folder, loss="my_losses:plain").train_batch(groups)
    cut = trainer_with(folder, loss="my_losses:plain", micro_groups=1).train_batch(groups)
    shared = trainer_with(folder, loss="my_losses:plain", processes=2).train_batch(groups)
    assert whole["loss"] == pytest.approx(cut["loss"], rel=1e-5) == pytest.approx(shared["loss"], rel=1e-5)
    assert whole["grad_norm"] == pytest.approx(cut["grad_norm"], rel=1e-5)


def test_a_loss_that_returns_another_shape_is_refused(folder: Path) -> None:
    (folder / "my_losses.py").write_text("def total(tokens):\n    return -(tokens.ratio * tokens.advantages).sum()\n")
    with pytest.raises(SettingsError, match=r"my_losses:total returned a tensor of shape \[\], expected a loss"):
        trainer_with(folder, loss="my_losses:total").train_batch([tiny_group(tiny_model(), 3)])


def test_a_recipe_has_the_checksum_of_the_source_and_names_a_change(folder: Path) -> None:
    settings = Settings(trainer=Trainer(loss="my_losses:soft"))
    recorded = recipe(settings)
    assert len(recorded[LOSS_SOURCE]) == 64 and recorded["trainer.loss"] == "my_losses:soft"
    assert LOSS_SOURCE not in recipe(Settings())
    (folder / "my_losses.py").write_text(LOSS.replace("1.05", "1.5"))
    (difference,) = in_recipe(1, recorded, recipe(settings))
    assert (difference.kind, difference.name) == ("recipe", "sha256.trainer.loss")


def test_a_record_alone_makes_nobody_run_its_code() -> None:
    with pytest.raises(SettingsError, match=r"set trainer\.loss=os:system"):
        as_recorded(Settings(), {"trainer.loss": "os:system"})


# --- formulas and credit rules of the user's own ---------------------------------------------------------------------


def test_the_formula_of_the_page_is_used(folder: Path) -> None:
    assert advantages("my_rules:distance_to_median", [0.0, 1.0, 3.0], eps=0, ddof=1) == [-1.0, 0.0, 2.0]
    assert advantages("my_rules:distance_to_median", [2.0, 2.0], eps=0, ddof=1) == [0.0, 0.0]


def test_the_credit_rule_of_the_page_is_used(folder: Path) -> None:
    rule = Advantages(credit="my_rules:last_turn_alone", gamma=0.5)
    episodes = [Episode([0.0, 2.0], [None] * 2), Episode([0.0], [None])]
    assert credit_turns(episodes, rule) == [[0.0, 1.0], [-1.0]]


@pytest.mark.parametrize("body", ["return [1.0]", "return [float('nan')] * len(rewards)", "return 1 / 0"])
def test_a_formula_that_fails_drops_the_group_and_not_the_worker(folder: Path, body: str) -> None:
    (folder / "my_rules.py").write_text(f"def mine(rewards, *, eps, ddof):\n    {body}\n")
    with pytest.raises(FormulaError):
        advantages("my_rules:mine", [0.0, 1.0], eps=0, ddof=1)


@pytest.mark.parametrize("body", ["return [[1.0]]", "return [[float('inf')], [0.0]]", "raise KeyError"])
def test_a_credit_rule_that_fails_drops_the_group_and_not_the_worker(folder: Path, body: str) -> None:
    (folder / "my_rules.py").write_text(f"def mine(episodes, rule):\n    {body}\n")
    episodes = [Episode([0.0], [None]), Episode([1.0], [None])]
    with pytest.raises(CreditError) as error:
        credit_turns(episodes, Advantages(credit="my_rules:mine"))
    assert error.value.reason == "credit_failed"


def test_groups_record_the_checksums_of_a_users_own_rules(folder: Path) -> None:
    assert source_digests("grpo", "trajectory") == {}
    digests = source_digests("my_rules:distance_to_median", "my_rules:last_turn_alone")
    assert digests.keys() == {"formula_sha256", "credit_sha256"}
    assert len(set(digests.values())) == 1  # one file


# --- names that are none ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("section", "changes", "way_out"),
    [
        (Trainer, {"loss": "drgpo"}, "did you mean dr_grpo"),
        (Advantages, {"formula": "roo"}, "did you mean rloo"),
        (Advantages, {"credit": "my rules:mine"}, "or module:function of your own"),
        (Trainer, {"loss": "my_losses"}, "or module:function of your own"),
    ],
)
def test_a_name_that_does_not_exist_is_refused_with_those_that_do(section: Any, changes: Any, way_out: str) -> None:
    with pytest.raises(ValidationError, match=way_out):
        section(**changes)


@pytest.mark.parametrize(
    ("reference", "says"),
    [
        (
            "no_such_module:mine",
            "cannot be imported from .*set trainer.loss to a built-in name",
        ),
        ("my_losses:hard", "has no function 'hard'; it has loss, soft"),
        ("broken:mine", "SyntaxError"),
    ],
)
def test_a_function_that_cannot_be_imported_is_refused_with_the_way_out(
    folder: Path, reference: str, says: str
) -> None:
    (folder / "broken.py").write_text("def mine(:\n")
    with pytest.raises(SettingsError, match=says):
        losses.loss_of(reference)


def test_values_of_the_chart_may_name_a_function_and_no_other_text() -> None:
    schema = json.dumps(json.loads((ROOT / "helm" / "values.schema.json").read_text()))
    (pattern,) = {found for found in re.findall(r'"pattern": "([^"]*)"', schema) if "dapo" in found}
    pattern = json.loads(f'"{pattern}"')
    assert [bool(re.fullmatch(pattern, name)) for name in ("dapo", "my_losses:mine", "dap")] == [True, True, False]
