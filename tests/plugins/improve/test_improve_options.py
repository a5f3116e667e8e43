"""What the demo of improvement refuses before it starts or deletes anything, and what `improve` runs."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest
from rich.console import Console

from plugins.improve import PLUGIN
from plugins.improve.curation.curator import curator_group
from plugins.improve.datasets.curation_service import builder_group
from plugins.improve.demo.improve_demo import ImproveDemo, run
from plugins.improve.demo.improve_run import ImproveOrder, commands
from plugins.improve.triggers.rule import read_rule
from streams.errors import SettingsError

RULE = 'name = "r"\npolicy = "shop.coach"\ntenant = "shop"\npurpose = "eval"\nactions = ["tune"]\n'
WHEN = '[when]\npromotable = 7\n[tune]\ndataset = "good"\n'


def test_a_folder_with_something_in_it_is_deleted_only_if_that_was_asked_for(tmp_path: Path) -> None:
    (tmp_path / "own.txt").write_text("mine")
    with pytest.raises(SettingsError, match="--fresh deletes it"):
        run(ImproveDemo(folder=tmp_path), Console())
    assert (tmp_path / "own.txt").read_text() == "mine"


def test_the_folder_that_one_works_in_is_never_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "inside").mkdir()
    monkeypatch.chdir(tmp_path / "inside")
    with pytest.raises(SettingsError, match="not one you work in"):
        run(ImproveDemo(folder=tmp_path, fresh=True), Console())
    assert (tmp_path / "inside").is_dir()


def test_every_process_gets_the_policy_tenant_and_purpose_of_the_rule(tmp_path: Path) -> None:
    (tmp_path / "retrain.toml").write_text(RULE + WHEN)
    words = commands(ImproveOrder.of(tmp_path / "retrain.toml", read_rule(tmp_path / "retrain.toml")))
    assert words["curate"] == ("improve", "curate", "follow", "--policy", "shop.coach", "--purpose", "eval")
    selection = ("--policy", "shop.coach", "--tenant", "shop", "--new", "7")
    assert words["datasets"] == ("improve", "datasets", "follow", "good", *selection)


def test_curators_and_builders_of_data_sets_that_select_different_ones_are_in_groups_of_their_own() -> None:
    selections = list(product((None, "pa", "pb"), (None, "serve", "train")))
    names = [*(curator_group(*selection) for selection in selections), *map(builder_group, ("sums", "talks"))]
    assert len(set(names)) == len(selections) + 2
    assert all(name.startswith(PLUGIN.groups) for name in names)
