"""A recipe becomes settings again, and what differs from it is named with its likely cause."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from schemas.events import AdapterFile
from streams.errors import SettingsError
from streams.settings.model import Model, Settings, Trainer
from trainer.step.model import recipe
from trainer.step.recipe import RecipeDifference, as_recorded, cause, in_data, in_files, in_recipe, threads_of

FILES = (
    AdapterFile(path="adapter_config.json", sha256="c" * 64, bytes=2),
    AdapterFile(path="adapter_model.safetensors", sha256="a" * 64, bytes=9),
)
OTHER = (FILES[0], AdapterFile(path="adapter_model.safetensors", sha256="b" * 64, bytes=9))
UNUSUAL = Settings(
    model=Model(base="/models/other", dtype="bfloat16"),
    trainer=Trainer(
        seed=3, threads=2, loss="cispo", learning_rate=3e-7, epsilon_high=5.0, beta=0.04, max_grad_norm=0, lora_rank=4
    ),
)


def test_the_texts_of_a_recipe_are_the_settings_they_were_made_of(tmp_path: Path) -> None:
    here = Settings(trainer=Trainer(checkpoints=tmp_path))
    made = as_recorded(here, recipe(UNUSUAL))
    assert made.model == UNUSUAL.model
    assert made.trainer == UNUSUAL.trainer.model_copy(update={"checkpoints": tmp_path})
    assert made.topics == here.topics


def test_what_is_changed_on_purpose_is_taken_from_the_settings() -> None:
    here = Settings(trainer=Trainer(seed=8, lora_rank=2))
    made = as_recorded(here, recipe(UNUSUAL), ["trainer.seed"])
    assert (made.trainer.seed, made.trainer.lora_rank) == (8, 4)


def test_a_recipe_of_an_older_version_has_the_defaults_of_settings_that_came_later() -> None:
    old = {key: text for key, text in recipe(UNUSUAL).items() if key != "trainer.importance"}
    assert as_recorded(Settings(), old).trainer.importance == "none"
    assert in_recipe(1, old, recipe(UNUSUAL)) == []


@pytest.mark.parametrize("bad", [{"trainer.unheard_of": "1"}, {"trainer.seed": "many"}])
def test_a_recipe_that_cannot_be_used_here_is_refused_with_what_to_do(bad: dict[str, str]) -> None:
    (key,) = bad
    with pytest.raises(SettingsError, match=f"has {key.partition('.')[2]} .*with the version of Streamward"):
        as_recorded(Settings(), recipe(UNUSUAL) | bad)


@pytest.mark.parametrize(
    ("setting", "counted", "changed", "expected"),
    [(0, "4", (), 4), (2, "2", (), 2), (3, "4", ("trainer.threads",), 3), (1, "", (), 1)],
)
def test_threads_are_as_many_as_were_counted_then_unless_changed_on_purpose(
    setting: int, counted: str, changed: tuple[str, ...], expected: int
) -> None:
    settings = Settings(trainer=Trainer(threads=setting))
    assert threads_of(settings, {"threads": counted}, changed) == expected


def test_equal_things_have_no_differences() -> None:
    assert in_files(1, FILES, FILES) == [] == in_recipe(1, recipe(UNUSUAL), recipe(UNUSUAL))
    assert in_data(1, {"reward": 0.1, "loss": 1.0}, {"reward": 0.1, "loss": 2.0}) == []


def test_each_difference_is_named_with_what_was_recorded() -> None:
    assert [(one.name, one.recorded, one.reproduced) for one in in_files(1, FILES, OTHER[1:])] == [
        ("adapter_config.json", "c" * 64, None),
        ("adapter_model.safetensors", "a" * 64, "b" * 64),
    ]
    here = recipe(UNUSUAL)
    then = here | {"version.torch": "2.0.0", "threads": "8", "device": "arm64 DEFAULT", "version.numpy": "1"}
    assert [(one.name, one.recorded) for one in in_recipe(4, then, here)] == [
        ("device", "arm64 DEFAULT"),
        ("threads", "8"),
        ("version.numpy", "1"),
        ("version.torch", "2.0.0"),
    ]
    assert in_data(1, {"tokens": 9.0}, {"tokens": 8.0}) == [
        one(kind="data", name="tokens", recorded="9.0", reproduced="8.0")
    ]


def one(**changes: Any) -> RecipeDifference:
    values = {"version": 1, "kind": "recipe", "name": "threads", "recorded": "1", "reproduced": "4"}
    return RecipeDifference(**{**values, **changes})


FILE = one(kind="file", name="adapter_model.safetensors", recorded="a", reproduced="b")


def test_the_likely_cause_names_other_data_before_another_recipe() -> None:
    assert cause([FILE, one()]).startswith("threads is 4 here, recorded 1. Install or set")
    told = cause([FILE, one(), one(kind="data", name="reward", recorded="0.5", reproduced="0.7")])
    assert told.startswith("other groups than it was trained on: reward is 0.7 here, recorded 0.5.")
    assert "And the recipe: threads is 4 here" in told
    assert cause([FILE]).startswith("not in the recipe")
    assert "version.x is missing here, recorded 1" in cause([FILE, one(name="version.x", reproduced=None)])
