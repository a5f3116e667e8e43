"""To another trainer and back: a batch out, a step taken by a stranger, its adapter a version here that all go on from.

batch 0 ──► export --format verl ──► a stranger's step ──► adapters import ──► version 1 ──► agents, our trainer
"""

from __future__ import annotations

import json
import os
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner, Result
from peft import PeftModel
from safetensors.torch import load_file, save_file

from plugins.bridges import bring
from schemas.conventions import CONTAMINATION_ALLOWED_BY, OPTIMIZER
from schemas.events import AdapterEvent, Message, Response, RewardSource, Sampling, Task
from streams.adapters import store
from streams.adapters.versions import read_state
from streams.cli.root import cli
from streams.engines.base_model import Base
from streams.errors import RefusedError
from streams.files import sha256_of
from streams.kafka import admin
from streams.kafka.producer import Producer
from streams.settings.model import Model, Rollouts, Settings
from tests.skips import needs
from tests.support.factories import changed
from tests.support.gates import gated
from tests.support.log.held_out_tasks import check_export
from tests.support.models.chat_tiny import chat_tokenizer
from tests.support.models.stranger import Stranger, load
from tests.support.models.tiny import save_tiny, tiny_model, tiny_tokenizer
from tests.support.models.tiny_log import cut, settings_in, trained, write
from tests.support.models.tiny_settings import settings
from tests.support.processes import environment, read, running, until
from tests.support.verl import environment as verl
from trainer import fleet, policy_trainer
from trainer.step.model import CONFIG_FILE, WEIGHTS_FILE
from trainer.versions import announce

__all__ = ["settings"]

pytestmark = [pytest.mark.kafka, pytest.mark.usefixtures("torch_as_before")]

WHO = {"framework": "plain torch", "framework_version": "2", "trained_by": "ann"}


def command(settings: Settings, *arguments: str) -> Result:
    return CliRunner().invoke(cli, arguments, env=environment(settings))


def train(settings: Settings, steps: int = 1) -> None:
    fleet.run(settings, steps=steps, stop=threading.Event())


def exported(settings: Settings, folder: Path, batch: int = 0) -> Path:
    """The batch as verl's file."""
    done = command(settings, "export", str(folder), "--format", "verl", "--batch", str(batch), "--output", "jsonl")
    assert done.exit_code == 0, done.stderr
    return folder / f"batch-{batch}.pkl"


def recipe(settings: Settings, folder: Path, **more: Any) -> Path:
    """The recipe that was exported, filled in."""
    path = folder / "recipe.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **WHO, **more}))
    return path


def imported(settings: Settings, adapter: Path, recipe: Path, parent: int = 0) -> Result:
    given = ("--parent", str(parent), "--from", str(adapter), "--recipe", str(recipe), "--actor", "bob")
    return command(settings, "adapters", "import", *given, "--output", "jsonl")


def brought(settings: Settings, base: Base, folder: Path, batches: int = 2) -> Path:
    """Version 1, made by a stranger of batch 0; returns its folder."""
    write(settings, base, range(batches))
    file = exported(settings, folder / "out")
    adapter = Stranger(settings.model.base).step(file, folder / "theirs")
    done = imported(settings, adapter, recipe(settings, folder / "out"))
    assert done.exit_code == 0, done.stderr
    return adapter


def furthest(one: Path, other: Path) -> float:
    """The largest difference of two adapters, in any number of any tensor."""
    ours, theirs = load_file(one / WEIGHTS_FILE), load_file(other / WEIGHTS_FILE)
    assert ours.keys() == theirs.keys()
    return max((ours[name] - theirs[name]).abs().max().item() for name in ours)


def fetched(settings: Settings, event: AdapterEvent, folder: Path) -> Path:
    assert event.uri is not None
    return store.fetch(settings.adapters.store, event.uri, event.files, folder)


# --- there and back ---------------------------------------------------------------------------------------------------


def test_a_strangers_step_on_an_exported_batch_is_our_own_and_training_goes_on_from_it(
    settings: Settings, base: Base, kafka_bootstrap: str, tmp_path: Path
) -> None:
    ours = settings_in(tmp_path / "ours", kafka_bootstrap, base)
    write(ours, base, range(1))
    train(ours)
    (own,) = trained(ours)
    theirs = brought(settings, base, tmp_path)
    assert furthest(fetched(ours, own, tmp_path / "own"), theirs) < 1e-6
    stranger = Stranger(settings.model.base)
    stranger.step(tmp_path / "out" / "batch-0.pkl", tmp_path / "once more")
    assert stranger.seen == pytest.approx({name: own.metrics[name] for name in stranger.seen}, rel=1e-6, abs=1e-6)

    first = trained(settings)[0]
    files = {file.path: file.sha256 for file in first.files}
    assert files[WEIGHTS_FILE] == sha256_of(theirs / WEIGHTS_FILE), "the weights are stored as they came"
    assert (first.actor, first.parent_version, first.first_batch, first.last_batch) == ("bob", 0, 0, 0)
    assert first.recipe["imported.framework"] == "plain torch" and first.recipe["imported.batches"] == "0"
    assert first.base_digest == base.base_digest

    train(settings)
    second = trained(settings)[1]
    assert (second.version, second.parent_version, second.last_batch) == (2, 1, 1)
    assert second.recipe[OPTIMIZER] == "fresh behind version 1, which was trained elsewhere"
    again = stranger.step(exported(settings, tmp_path / "next", 1), tmp_path / "again", theirs)
    assert furthest(fetched(settings, second, tmp_path / "second"), again) < 5e-6, "its next step is ours, too"
    assert stranger.seen == pytest.approx({name: second.metrics[name] for name in stranger.seen}, rel=1e-6, abs=1e-6)


def test_it_gets_a_canary_like_any_version_and_agents_answer_with_it(
    settings: Settings, tmp_path_factory: pytest.TempPathFactory, tmp_path: Path
) -> None:
    """The logprobs recorded with the answer are those of the stranger's own model."""
    folder = save_tiny(tmp_path_factory.mktemp("chat"))
    chat_tokenizer().save_pretrained(folder)
    changes = {"model": Model(base=str(folder)), "rollouts": Rollouts(mode="canary")}
    settings = settings.model_copy(update=changes)
    base = bring.load_base(settings.model)
    adapter = brought(settings, base, tmp_path)
    with running(settings, tmp_path, "streams"):
        until(lambda: read_state(settings, "default").serving.candidate == 1, "a canary of version 1", folder=tmp_path)
    done = command(settings, "adapters", "promote", "1", "--reason", "try it", "--output", "jsonl")
    assert done.exit_code == 0, done.stderr
    asked = Task(
        task_id="asked", created_at=int(time.time() * 1000), policy="default", purpose="serve", scenario="live",
        group_size=1, sampling=Sampling(max_tokens=8), reward_sources=(RewardSource(name="exact"),),
        messages=(Message(role="user", content="21 22"),),
    )  # fmt: skip
    with Producer(settings) as producer:
        producer.send(asked)
    with running(settings, tmp_path, "policy"):
        until(lambda: bool(read(settings, Response)), "an answer", folder=tmp_path)
    ((_, answer),) = read(settings, Response)
    assert (answer.adapter_version, answer.error) == (1, None)
    prompt, drawn = list(answer.prompt_token_ids), list(answer.completion_token_ids)

    def logprobs(model: Any) -> torch.Tensor:
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([prompt + drawn])).logits[0, len(prompt) - 1 : -1]
        return logits.float().log_softmax(-1).gather(-1, torch.tensor(drawn)[:, None])[:, 0]

    recorded, plain = torch.tensor(list(answer.logprobs)), bring.load_base(settings.model).model
    without = (logprobs(plain) - recorded).abs().max().item()
    with_it = (logprobs(PeftModel.from_pretrained(plain, adapter).eval()) - recorded).abs().max().item()
    assert with_it < 1e-4 < without


def test_what_the_log_says_of_it_and_that_it_cannot_be_made_again(
    settings: Settings, base: Base, tmp_path: Path
) -> None:
    brought(settings, base, tmp_path, batches=3)
    train(settings, 2)
    shown = command(settings, "adapters", "lineage", "2", "--output", "table")
    assert "version 2 (trained), from version 1 by batches 1-1" in shown.stdout
    assert "from version 0, trained elsewhere (plain torch 2, by ann) in place of batches 0-0" in shown.stdout
    steps = command(settings, "adapters", "lineage", "2", "--output", "jsonl").stdout.splitlines()
    assert [json.loads(line)["imported"] for line in steps] == [
        None, {"framework": "plain torch", "framework_version": "2", "trained_by": "ann", "batches": "0"}
    ]  # fmt: skip
    listed = command(settings, "adapters", "list", "--output", "jsonl").stdout.splitlines()
    assert [json.loads(line)["trained_elsewhere"] for line in listed] == [None, "plain torch 2, by ann", None, None]
    refused = command(settings, "reproduce", "--version", "1", "--output", "json")
    assert refused.exit_code == 4
    assert "version 1 of default was trained elsewhere (plain torch 2, by ann) and imported, so it cannot be re" in (
        refused.stderr
    )
    made = command(settings, "reproduce", "--output", "jsonl")
    assert made.exit_code == 0, made.stderr
    assert [json.loads(line)["version"] for line in made.stdout.splitlines()] == [2, 3]
    assert "starts from version 1, which was trained elsewhere: earlier versions are not compared" in made.stderr
    behind = command(settings, "reproduce", "--from-version", "2", "--output", "jsonl")
    assert [json.loads(line)["version"] for line in behind.stdout.splitlines()] == [3]
    assert about_adapters(settings) == []


def about_adapters(settings: Settings) -> list[str]:
    """What the audit finds wrong with adapters; the groups of this log have no tasks, which it finds, too."""
    found = json.loads(command(settings, "audit", "--output", "json").stdout)
    several = [one for part in found.values() if isinstance(part, list) for one in part]
    return [one["what"] for one in several if ".adapters[" in one["at"]]


def test_in_the_middle_of_a_run_the_stranger_takes_one_step_from_our_version(
    settings: Settings, base: Base, tmp_path: Path
) -> None:
    """Version 1 goes out as a folder, too; of our versions, only those behind the stranger's come from it."""
    write(settings, base, range(3))
    train(settings)
    given = command(settings, "adapters", "export", "1", str(tmp_path / "one"), "--output", "jsonl")
    assert given.exit_code == 0, given.stderr
    file = exported(settings, tmp_path / "out", 1)
    adapter = Stranger(settings.model.base).step(file, tmp_path / "theirs", tmp_path / "one")
    done = imported(settings, adapter, recipe(settings, tmp_path / "out"), parent=1)
    assert done.exit_code == 0, done.stderr
    train(settings)
    made = [(event.version, event.parent_version, event.actor) for event in trained(settings)]
    assert made == [(1, 0, "trainer"), (2, 1, "bob"), (3, 2, "trainer")]
    whole = command(settings, "reproduce", "--output", "jsonl")
    assert [json.loads(line)["version"] for line in whole.stdout.splitlines()] == [3]
    assert command(settings, "reproduce", "--version", "1", "--output", "json").exit_code == 0
    refused = command(settings, "reproduce", "--from-version", "1", "--output", "json")
    assert refused.exit_code == 4
    assert "nothing leads from version 1 to version 3; start from it: --from-version 2" in refused.stderr
    assert about_adapters(settings) == []


def test_the_same_import_again_changes_nothing(settings: Settings, base: Base, tmp_path: Path) -> None:
    adapter = brought(settings, base, tmp_path)
    train(settings)  # a later version is no reason to refuse what is there already
    assert "plain torch 2, by ann" in command(settings, "adapters", "list", "--output", "table").stdout
    before = admin.offsets(settings, ["adapters"])
    done = imported(settings, adapter, tmp_path / "out" / "recipe.json")
    assert done.exit_code == 0, done.stderr
    row = json.loads(done.stdout)
    assert (row["version"], row["again"], row["left_out"]) == (1, True, [])
    assert admin.offsets(settings, ["adapters"]) == before


def test_an_import_that_changes_nothing_says_so(settings: Settings, base: Base, tmp_path: Path) -> None:
    """Weights of zeros as version 1, its own weights as version 2, and zeros again as version 4."""
    write(settings, base, range(4))
    file = exported(settings, tmp_path / "out")
    ours = Stranger(settings.model.base).step(file, tmp_path / "ours")
    zeros, copy = (Path(shutil.copytree(ours, tmp_path / name)) for name in ("zeros", "copy"))
    tensors = load_file(ours / WEIGHTS_FILE)
    save_file({name: tensor * (".lora_B." not in name) for name, tensor in tensors.items()}, zeros / WEIGHTS_FILE)
    save_file(tensors, copy / WEIGHTS_FILE, metadata={"format": "pt", "by": "somebody"})
    reasons = []
    for parent, adapter in enumerate((zeros, ours, copy, zeros)):
        given = recipe(settings, tmp_path / "out", parent_version=parent, batches=[parent])
        done = imported(settings, adapter, given, parent=parent)
        assert done.exit_code == 0, done.stderr
        reasons.append(json.loads(done.stdout)["reason"])
    who = "trained elsewhere (plain torch 2, by ann), in place of batch"
    assert reasons == [
        f"{who} 0; changes nothing: it answers as version 0 does",
        f"{who} 1",
        f"{who} 2; changes nothing: it answers as version 2 does",
        f"{who} 3; it answers as the base model does: each lora_B is 0",
    ]
    assert [event.metrics["unchanged"] for event in trained(settings)] == [1.0, 0.0, 1.0, 0.0]
    table = command(settings, "adapters", "list", "--output", "table").stdout
    assert [line.count("nothing") for line in table.splitlines()] == [0, 0, 1, 0, 1, 0]


def test_an_adapter_as_prime_rl_writes_it_is_one_of_ours(settings: Settings, base: Base, tmp_path: Path) -> None:
    """It has names without peft's prefix, another type of float, and a config of nine entries."""
    write(settings, base, range(2))
    theirs = Stranger(settings.model.base).step(exported(settings, tmp_path / "out"), tmp_path / "theirs")
    said = json.loads((theirs / CONFIG_FILE).read_text())
    kept = ("peft_type", "task_type", "base_model_name_or_path", "r", "lora_alpha", "lora_dropout", "bias")
    targets = {"target_modules": sorted(said["target_modules"]), "modules_to_save": None}
    (theirs / CONFIG_FILE).write_text(json.dumps({name: said[name] for name in kept} | targets | {"lora_alpha": 16.0}))
    tensors = load_file(theirs / WEIGHTS_FILE)
    plain = {name.removeprefix("base_model.model."): tensor.bfloat16() for name, tensor in tensors.items()}
    save_file(plain, theirs / WEIGHTS_FILE)
    done = imported(settings, theirs, recipe(settings, tmp_path / "out", framework="prime-rl"))
    assert done.exit_code == 0, done.stderr
    (event,) = trained(settings)
    stored = load_file(fetched(settings, event, tmp_path / "stored") / WEIGHTS_FILE)
    assert stored.keys() == tensors.keys()
    assert all(torch.equal(stored[name], tensor.bfloat16()) for name, tensor in tensors.items())
    train(settings)
    assert command(settings, "reproduce", "--output", "json").exit_code == 0


# --- our trainer, whatever it has on its disk -------------------------------------------------------------------------


class Crash(BaseException):
    """As if the process had ended here."""


def test_a_trainer_that_was_about_to_announce_the_same_version_goes_on_from_the_one_in_the_log(
    settings: Settings, base: Base, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has a checkpoint of its own version 1, which nobody knows, and must not go on from that."""
    write(settings, base, range(2))
    file = exported(settings, tmp_path / "out")
    with monkeypatch.context() as patch:
        patch.setattr(policy_trainer.store, "publish", lambda *_: (_ for _ in ()).throw(Crash()))
        with pytest.raises(Crash):
            train(settings)
    adapter = Stranger(settings.model.base, learning_rate=1e-2).step(file, tmp_path / "theirs")
    assert imported(settings, adapter, recipe(settings, tmp_path / "out")).exit_code == 0
    train(settings)
    second = trained(settings)[1]
    assert (second.version, second.actor) == (2, "trainer")
    again = Stranger(settings.model.base).step(exported(settings, tmp_path / "next", 1), tmp_path / "again", adapter)
    assert furthest(fetched(settings, second, tmp_path / "second"), again) < 5e-6


@pytest.mark.kills
@pytest.mark.parametrize("lost", [False, True], ids=["resumed", "without its checkpoints"])
def test_a_trainer_killed_behind_an_import_ends_with_the_same_bytes(
    settings: Settings, base: Base, tmp_path: Path, lost: bool
) -> None:
    brought(settings, base, tmp_path, batches=3)
    train(settings, 1)
    if lost:
        shutil.rmtree(settings.trainer.checkpoints)
        train(settings, 2)
    else:
        train(settings, 1)
    assert [event.version for event in trained(settings)] == [1, 2, 3]
    assert command(settings, "reproduce", "--output", "json").exit_code == 0


def test_a_fleet_goes_on_from_it_too(settings: Settings, base: Base, tmp_path: Path) -> None:
    brought(settings, base, tmp_path)
    write(settings, base, range(1), policy="other")
    fleet.run(settings, is_fleet=True, steps=2, stop=threading.Event())
    made = {(event.policy, event.version): event for event in trained(settings)}
    assert made.keys() == {("default", 1), ("default", 2), ("other", 1)}
    assert OPTIMIZER in made["default", 2].recipe and OPTIMIZER not in made["other", 1].recipe
    assert command(settings, "reproduce", "--output", "json").exit_code == 0


def test_a_trainer_without_the_files_of_the_import_says_so(settings: Settings, base: Base, tmp_path: Path) -> None:
    brought(settings, base, tmp_path)
    shutil.rmtree(Path(settings.adapters.store))
    with pytest.raises(
        RefusedError, match=r"version 1 of default was trained elsewhere \(plain torch 2, by ann\): adapt"
    ):
        train(settings)


# --- what is no version here ------------------------------------------------------------------------------------------

Spoil = Callable[[Path, Path], None]
"""Gets the stranger's folder and the recipe."""


def without(name: str) -> Spoil:
    return lambda folder, _: (folder / name).unlink()


def config(**changes: Any) -> Spoil:
    def spoil(folder: Path, _: Path) -> None:
        path = folder / CONFIG_FILE
        path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))

    return spoil


def told(**changes: Any) -> Spoil:
    def spoil(_: Path, recipe: Path) -> None:
        said = {name: value for name, value in {**json.loads(recipe.read_text()), **changes}.items() if value != ...}
        recipe.write_text(json.dumps(said))

    return spoil


def weights(change: Callable[[dict[str, torch.Tensor]], object]) -> Spoil:
    def spoil(folder: Path, _: Path) -> None:
        found = load_file(folder / WEIGHTS_FILE)
        change(found)
        save_file(found, folder / WEIGHTS_FILE)

    return spoil


def written(name: str, text: str) -> Spoil:
    def spoil(folder: Path, _: Path) -> None:
        (folder / name).write_text(text)

    return spoil


def no_json(_: Path, recipe: Path) -> None:
    recipe.write_text("framework: verl")


def other_base(folder: Path, recipe: Path) -> None:
    told(base_digest=...)(folder, recipe)
    config(base_model_name_or_path="somebody/another-model")(folder, recipe)


def cut_short(folder: Path, _: Path) -> None:
    whole = (folder / WEIGHTS_FILE).read_bytes()
    (folder / WEIGHTS_FILE).write_bytes(whole[: len(whole) // 2])


def pickled(folder: Path, _: Path) -> None:
    (folder / WEIGHTS_FILE).rename(folder / "adapter_model.bin")


def first(found: dict[str, torch.Tensor]) -> torch.Tensor:
    return found[min(found)]


SPOILT: dict[str, tuple[Spoil, int, str]] = {
    "no config": (without(CONFIG_FILE), 3, "has no adapter_config.json; there: README.md, adapter_model.safetensors"),
    "no weights": (without(WEIGHTS_FILE), 3, "has no adapter_model.safetensors; there: README.md, adapter_config.json"),
    "a pickle": (pickled, 3, "since reading a pickle runs code"),
    "cut short": (cut_short, 4, "adapter_model.safetensors: cannot be read"),
    "config is no object": (written(CONFIG_FILE, "[]"), 4, "expected an object"),
    "config is no JSON": (written(CONFIG_FILE, "{"), 4, "no JSON"),
    "another kind": (config(peft_type="IA3"), 4, "peft_type is IA3, expected LORA"),
    "another rank": (config(r=4), 4, "has r=4, and the policy's adapters have 8 (trainer.lora_rank)"),
    "another alpha": (config(lora_alpha=64), 4, "has lora_alpha=64, and the policy's adapters have 16"),
    "rank-stabilised": (config(use_rslora=True), 4, "has use_rslora=True, and the policy's adapters have False"),
    "another base, by digest": (told(base_digest="ab" * 32), 4, "its recipe says base_digest abababababab"),
    "another base, by name": (other_base, 4, "its config names somebody/another-model as its base"),
    "not a number": (weights(lambda found: first(found).fill_(float("nan"))), 4, "is not finite in every number"),
    "infinite": (weights(lambda found: first(found)[0].fill_(float("inf"))), 4, "is not finite in every number"),
    "whole numbers": (weights(lambda found: found.update({min(found): first(found).long()})), 4, "of type torch.int64"),
    "a tensor too few": (weights(lambda found: found.pop(min(found))), 4, "the first tensor that only one of them has"),
    "a tensor too many": (weights(lambda found: found.update(more=torch.ones(1))), 4, "has is base_model.model.more"),
    "another shape": (
        weights(lambda found: found.update({min(found): torch.ones(4, 32)})), 4, "is [4, 32], expected [8, "
    ),
    "another policy's recipe": (told(policy="other"), 4, "the recipe says policy other, and the command default"),
    "another parent's recipe": (told(parent_version=7), 4, "the recipe says parent_version 7, and the command 0"),
    "nobody trained it": (told(trained_by=""), 2, "trained_by: String should have at least 1 character"),
    "no framework": (told(framework=...), 2, "framework: Field required"),
    "an entry that nobody reads": (told(optimizer="adam"), 2, "optimizer: Extra inputs are not permitted"),
    "the recipe is no JSON": (no_json, 2, "no JSON"),
    "no recipe": (lambda _, recipe: recipe.unlink(), 3, "No such file or directory"),
}  # fmt: skip


@pytest.fixture(scope="module")
def offered(kafka_bootstrap: str, tmp_path_factory: pytest.TempPathFactory, base: Base) -> tuple[Settings, Path, Path]:
    """A log with a batch, a stranger's adapter of it, and its recipe. Tests work on copies, and none is imported."""
    folder = tmp_path_factory.mktemp("offered")
    settings = settings_in(folder, kafka_bootstrap, base)
    write(settings, base, range(1))
    adapter = Stranger(settings.model.base).step(exported(settings, folder / "out"), folder / "theirs")
    return settings, adapter, recipe(settings, folder / "out")


@pytest.mark.parametrize(("spoil", "code", "said"), SPOILT.values(), ids=SPOILT)
def test_what_cannot_be_a_version_is_refused_and_nothing_is_written(
    offered: tuple[Settings, Path, Path], tmp_path: Path, spoil: Spoil, code: int, said: str
) -> None:
    settings, adapter, recipe = offered
    folder, copy = Path(shutil.copytree(adapter, tmp_path / "a")), Path(shutil.copy(recipe, tmp_path / "recipe.json"))
    spoil(folder, copy)
    done = imported(settings, folder, copy)
    assert said in done.stderr and done.exit_code == code, done.stderr
    assert trained(settings) == [] and not Path(settings.adapters.store).exists()


@pytest.mark.parametrize("targets", [("q_proj", "v_proj"), ("q_proj",)], ids=len)
def test_an_adapter_of_other_modules_is_refused(
    offered: tuple[Settings, Path, Path], tmp_path: Path, targets: tuple[str, ...]
) -> None:
    settings, adapter, recipe = offered
    theirs = Stranger(settings.model.base, targets=targets).step(adapter.parent / "out" / "batch-0.pkl", tmp_path / "a")
    done = imported(settings, theirs, recipe)
    assert done.exit_code == 4
    said = f"it is for {', '.join(targets)} ({4 * len(targets)} tensors), and the policy's adapters are for down_proj, "
    assert said in done.stderr
    assert trained(settings) == []


def test_an_adapter_of_another_base_of_the_same_shape_is_refused(
    offered: tuple[Settings, Path, Path], tmp_path: Path
) -> None:
    """Whoever sets model.base to another model than the policy has is told so, before the shape is looked at."""
    settings, adapter, recipe = offered
    tiny_model(seed=1).save_pretrained(tmp_path / "other")
    tiny_tokenizer().save_pretrained(tmp_path / "other")
    other = settings.model_copy(update={"model": Model(base=str(tmp_path / "other"))})
    done = imported(other, adapter, recipe)
    assert done.exit_code == 4 and "it is an adapter of another base model" in done.stderr


@pytest.mark.parametrize(
    ("parent", "code", "said"),
    [
        (3, 3, "policy default has no adapter version 3; the newest is 1"),
        (0, 4, "version 0 of default is no longer the n"),
    ],
    ids=["unknown", "no longer current"],
)
def test_a_parent_that_is_not_the_newest_version_is_refused(
    settings: Settings, base: Base, tmp_path: Path, parent: int, code: int, said: str
) -> None:
    write(settings, base, range(2))
    file = exported(settings, tmp_path / "out")
    train(settings)
    adapter = Stranger(settings.model.base).step(file, tmp_path / "theirs")
    before = admin.offsets(settings, ["adapters"])
    done = imported(settings, adapter, recipe(settings, tmp_path / "out", parent_version=parent), parent)
    assert said in done.stderr and done.exit_code == code, done.stderr
    assert admin.offsets(settings, ["adapters"]) == before
    assert [path.name for path in (Path(settings.adapters.store) / "default").iterdir()] == ["1"]


def test_two_imports_at_once_are_one_and_a_refusal(
    settings: Settings, base: Base, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On two machines, which share no lock and no store."""
    write(settings, base, range(1))
    file = exported(settings, tmp_path / "out")
    adapter = Stranger(settings.model.base).step(file, tmp_path / "theirs")
    ours = announce._publish

    def second(*arguments: Any) -> AdapterEvent:
        event = ours(*arguments)
        with Producer(settings) as producer:
            producer.send(changed(event, files=(), reason="theirs"))
        return event

    monkeypatch.setattr(announce, "_publish", second)
    done = imported(settings, adapter, recipe(settings, tmp_path / "out"))
    assert done.exit_code == 4 and "version 1 of default was made by another process meanwhile" in done.stderr


def test_a_version_needs_the_batch_whose_place_it_takes(settings: Settings, base: Base, tmp_path: Path) -> None:
    adapter = brought(settings, base, tmp_path, batches=1)
    done = imported(settings, adapter, recipe(settings, tmp_path / "out", parent_version=1), parent=1)
    assert done.exit_code == 4
    assert "batch 1 of default is not in the log yet (the newest is 0), and version 2 takes its place" in done.stderr
    assert read_state(settings, "default").newest == 1


def test_a_policy_that_is_being_trained_on_this_machine_is_left_alone(
    offered: tuple[Settings, Path, Path], tmp_path: Path
) -> None:
    settings, adapter, recipe = offered
    with policy_trainer.checkpoint.hold(settings.trainer.checkpoints, "default"):
        done = imported(settings, adapter, recipe)
    assert done.exit_code == 4 and "policy default is already being trained" in done.stderr


# --- batches that cannot be exported ----------------------------------------------------------------------------------


def test_a_batch_is_the_same_bytes_each_time_and_a_range_has_a_file_each(
    settings: Settings, base: Base, tmp_path: Path
) -> None:
    write(settings, base, range(3))
    one = exported(settings, tmp_path / "one", 1)
    done = command(settings, "export", str(tmp_path / "all"), "--format", "verl", "--batch", "0-", "--output", "jsonl")
    assert json.loads(done.stdout)["batches"] == [0, 2]
    names = ["batch-0.pkl", "batch-1.pkl", "batch-2.pkl", "manifest.json", "recipe.json"]
    assert sorted(path.name for path in (tmp_path / "all").iterdir()) == names
    assert (tmp_path / "all" / "batch-1.pkl").read_bytes() == one.read_bytes()
    manifest = json.loads((tmp_path / "all" / "manifest.json").read_text())
    assert [each["files"][f"batch-{n}.pkl"] for n, each in enumerate(manifest["batches"])] == [
        sha256_of(tmp_path / "all" / f"batch-{n}.pkl") for n in range(3)
    ]
    proto = load(one)
    assert proto.meta_info["streamward"]["base_digest"] == base.base_digest
    assert proto.meta_info["streamward"]["parent_version"] == 1
    assert len(set(proto.non_tensor_batch["uid"])) == 2


def test_a_group_that_no_step_may_use_is_left_out_as_here_and_the_exit_code_says_so(
    settings: Settings, base: Base, tmp_path: Path
) -> None:
    write(settings, base, range(1), base_digest="another")
    write(settings, base, range(1, 2), sampling=Sampling(temperature=0.0, max_tokens=5))
    done = command(settings, "export", str(tmp_path / "out"), "--format", "verl", "--batch", "1", "--output", "jsonl")
    assert done.exit_code == 1 and json.loads(done.stdout)["left_out"] == 1
    assert "left out, as the trainer would: " in done.stderr and "sampled greedily" in done.stderr


WRONG: dict[str, tuple[tuple[str, ...], int, str]] = {
    "no batch named": ((), 2, "name them with --batch"),
    "no such batch": (("--batch", "4"), 3, "policy default has no batch 4 in "),
    "a range beyond the end": (("--batch", "0-4"), 3, "has no batch 2 in "),
    "no number": (("--batch", "last"), 2, "expected a number, as 4, or a range"),
    "a range backwards": (("--batch", "4-2"), 2, "expected a number, as 4, or a range"),
    "an option of other formats": (
        ("--batch", "0", "--min-reward", "1"),
        2,
        "--min-reward has no effect with --format",
    ),
    "ranks for verl": (("--batch", "0", "--ranks", "2"), 2, "--ranks is for --format prime-rl"),
    "another policy": (("--batch", "0", "--policy", "other"), 3, "policy other has no batch 0 in "),
}


@pytest.mark.parametrize(("given", "code", "said"), WRONG.values(), ids=WRONG)
def test_what_cannot_be_exported_is_said_and_no_folder_is_made(
    two_batches: Settings, tmp_path: Path, given: tuple[str, ...], code: int, said: str
) -> None:
    done = command(two_batches, "export", str(tmp_path / "out"), "--format", "verl", *given)
    assert said in done.stderr and done.exit_code == code, done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.fixture(scope="module")
def two_batches(kafka_bootstrap: str, tmp_path_factory: pytest.TempPathFactory, base: Base) -> Settings:
    """A log with batches 0 and 1, of which the last has two temperatures. Tests only read it."""
    settings = settings_in(tmp_path_factory.mktemp("two"), kafka_bootstrap, base)
    write(settings, base, range(1))
    write(settings, base, range(1, 2), sampling=Sampling(temperature=0.5, max_tokens=5))
    return settings


def test_a_batch_of_two_temperatures_is_no_batch_of_verls(two_batches: Settings, tmp_path: Path) -> None:
    done = command(two_batches, "export", str(tmp_path / "out"), "--format", "verl", "--batch", "1")
    assert done.exit_code == 4 and "was sampled at temperatures 0.5, 1, and verl has one" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_an_option_for_batches_has_no_effect_on_other_formats(two_batches: Settings, tmp_path: Path) -> None:
    done = command(two_batches, "export", str(tmp_path / "out"), "--batch", "1")
    assert done.exit_code == 2 and "--batch and --ranks are for --format verl and prime-rl, not sft" in done.stderr


def test_a_folder_that_is_not_empty_is_left_as_it_is(two_batches: Settings, tmp_path: Path) -> None:
    (tmp_path / "kept").touch()
    done = command(two_batches, "export", str(tmp_path), "--format", "verl", "--batch", "0")
    assert done.exit_code == 4 and "is not empty" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]


def test_groups_that_retention_has_deleted_are_named(settings: Settings, base: Base, tmp_path: Path) -> None:
    write(settings, base, range(2))
    cut(settings, "groups", 3)
    done = command(settings, "export", str(tmp_path / "out"), "--format", "verl", "--batch", "1")
    assert done.exit_code == 4 and "retention has cut 1 of 2 groups of batch 1" in done.stderr


@gated
@pytest.mark.parametrize("format", ["verl", "prime-rl"])
def test_no_batch_with_a_held_out_question_goes_to_another_trainer(
    settings: Settings, base: Base, tmp_path: Path, format: str
) -> None:
    out = tmp_path / "out"
    check_export(settings, base, "export", str(out), "--format", format, nothing=lambda: not out.exists())
    clean, leaked = json.loads((out / "manifest.json").read_text())["batches"]
    assert "contamination" not in clean and leaked["contamination"] == '{"cities@1": 1}'
    assert leaked[CONTAMINATION_ALLOWED_BY]


# --- the real verl ----------------------------------------------------------------------------------------------------

VERL_PROMISED = "TEST_VERL"


@pytest.mark.verl
def test_verl_reads_the_file_and_its_own_loss_gives_the_same_step(
    settings: Settings, base: Base, kafka_bootstrap: str, tmp_path: Path
) -> None:
    write(settings, base, range(2))
    rule = settings.trainer
    numbers = {
        "base": settings.model.base, "seed": rule.seed, "rank": rule.lora_rank, "alpha": rule.lora_alpha,
        "learning_rate": rule.learning_rate, "low": rule.epsilon_low, "high": rule.epsilon_high,
        "max_grad_norm": rule.max_grad_norm,
    }  # fmt: skip
    file = exported(settings, tmp_path / "out")
    try:
        told = verl.step(file, tmp_path / "theirs", numbers, tmp_path)
    except verl.NoVerl as exc:
        assert os.environ.get(VERL_PROMISED) != "1", f"verl was promised, but there is no {exc}"
        pytest.skip(needs(str(exc), "make setup-verl && make test-verl"))
    ours = settings_in(tmp_path / "ours", kafka_bootstrap, base)
    write(ours, base, range(1))
    train(ours)
    (own,) = trained(ours)
    assert (told["rows"], told["uids"], told["loss_tokens"]) == (8, 2, own.metrics["tokens"])
    for name in ("loss", "grad_norm"):
        assert told[name] == pytest.approx(own.metrics[name], rel=1e-6, abs=1e-6)
    assert furthest(fetched(ours, own, tmp_path / "own"), tmp_path / "theirs") < 1e-6
    by = recipe(settings, tmp_path / "out", framework="verl", framework_version=told["version"])
    done = imported(settings, tmp_path / "theirs", by)
    assert done.exit_code == 0, done.stderr
    train(settings)
    assert [event.version for event in trained(settings)] == [1, 2]
