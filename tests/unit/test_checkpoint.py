"""A checkpoint is there whole or not at all, and going on from it changes no byte."""

from __future__ import annotations

import errno
import hashlib
import json
import subprocess
import sys
import textwrap
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from safetensors import SafetensorError

from streams.errors import RefusedError, SettingsError
from streams.settings.model import Model, Settings, Trainer
from tests.support.models.tiny import tiny_group, tiny_model, tiny_tokenizer
from trainer.step.grpo import LogGRPOTrainer
from trainer.step.model import pin, recipe, wrap
from trainer.step.totals import STEP_VERSION
from trainer.versions import checkpoint
from trainer.versions.checkpoint import State


def fresh(tmp_path: Path, **changes: Any) -> LogGRPOTrainer:
    settings = Trainer(checkpoints=tmp_path, **changes)
    return LogGRPOTrainer(wrap(tiny_model(), settings), tiny_tokenizer(), settings)


def state(version: int) -> State:
    return State(
        policy="p",
        version=version,
        next_sequence=version,
        next_offset=10 + version,
        base_digest="base",
        batch_id=f"batch-{version - 1}",
        recipe={"trainer.seed": "0"},
        metrics={"loss": 0.5},
    )


def train(trainer: LogGRPOTrainer, versions: range) -> None:
    for version in versions:
        trainer.train_batch([tiny_group(tiny_model(), 10 * version + seed) for seed in range(3)])


def save(folder: Path, trainer: LogGRPOTrainer, version: int, keep: int = 5) -> Path:
    return checkpoint.save(folder, state(version), trainer.model, trainer.optimizer, "tiny", keep)


def digests(path: Path) -> dict[str, str]:
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in path.rglob("*.*")}


def test_going_on_from_a_checkpoint_ends_with_the_bytes_of_a_run_without_a_break(tmp_path: Path) -> None:
    whole = fresh(tmp_path)
    train(whole, range(4))
    expected = digests(save(tmp_path / "whole", whole, 4))
    first = fresh(tmp_path)
    train(first, range(2))
    save(tmp_path / "broken", first, 2)
    del first
    torch.manual_seed(999)  # what another process might have drawn
    second = fresh(tmp_path)
    found = checkpoint.latest(tmp_path / "broken")
    assert found is not None and found[1] == state(2)
    checkpoint.restore(found[0], second.model, second.optimizer)
    train(second, range(2, 4))
    got = digests(save(tmp_path / "broken", second, 4))
    assert got == expected
    assert got["adapter_model.safetensors"] != digests(found[0])["adapter_model.safetensors"]


def test_another_seed_gives_another_adapter(tmp_path: Path) -> None:
    files = [digests(save(tmp_path / str(seed), fresh(tmp_path, seed=seed), 1)) for seed in (0, 0, 1)]
    assert files[0] == files[1]
    assert files[0]["adapter_model.safetensors"] != files[2]["adapter_model.safetensors"]


def test_peft_reads_the_adapter_and_no_path_of_this_machine_is_in_it(tmp_path: Path) -> None:
    trainer = fresh(tmp_path)
    train(trainer, range(2))
    path = save(tmp_path / "p", trainer, 1)
    loaded = PeftModel.from_pretrained(tiny_model(), path / "adapter")
    ids = torch.tensor([[1, 5, 9, 12]])
    with torch.no_grad():
        ours, theirs = trainer.model(input_ids=ids).logits, loaded(input_ids=ids).logits
    assert torch.equal(ours, theirs)
    assert not torch.allclose(ours, tiny_model()(input_ids=ids).logits, atol=1e-4)
    assert json.loads((path / "adapter" / "adapter_config.json").read_text())["base_model_name_or_path"] == "tiny"
    for file in path.rglob("*.*"):
        assert str(tmp_path).encode() not in file.read_bytes()


@pytest.mark.parametrize("harm", ["cut", "gone", "flipped", "no manifest", "half"])
def test_a_torn_checkpoint_is_passed_over_for_the_one_before(tmp_path: Path, harm: str) -> None:
    trainer = fresh(tmp_path)
    save(tmp_path / "p", trainer, 1)
    newest = save(tmp_path / "p", trainer, 2)
    file = newest / "adapter" / "adapter_model.safetensors"
    data = bytearray(file.read_bytes())
    match harm:
        case "cut":
            file.write_bytes(data[:-1])
        case "gone":
            file.unlink()
        case "flipped":
            data[-1] ^= 1
            file.write_bytes(data)
        case "no manifest":
            (newest / "manifest.json").unlink()
        case "half":
            newest.rename(newest.with_name(f".{newest.name}.half"))
    found = checkpoint.latest(tmp_path / "p")
    assert found is not None and found[1].version == 1
    assert save(tmp_path / "p", trainer, 2) == newest
    found = checkpoint.latest(tmp_path / "p")
    assert found is not None and found[1].version == 2


DAMAGED = {
    "manifest.json": [b"[]", b"{}", b'{"state.json": 7}', b'"text"', b"[" * 100_000, b"\xff"],
    "state.json": [b"[]", b"{}", b"{", b"\xff", b"[" * 100_000, b'{"version": "2"}'],
}


@pytest.mark.parametrize(("name", "content"), [(name, content) for name in DAMAGED for content in DAMAGED[name]])
def test_a_damaged_checkpoint_is_skipped_whatever_its_files_hold(tmp_path: Path, name: str, content: bytes) -> None:
    folder = tmp_path / "p"
    for version in (1, 2):
        path = folder / f"v{version:08d}"
        path.mkdir(parents=True)
        (path / "state.json").write_text(json.dumps(asdict(state(version))))
        (path / "manifest.json").write_text(json.dumps(digests(path)))
    (path / name).write_bytes(content)
    if name == "state.json":
        (path / "manifest.json").write_text(json.dumps({name: digests(path)[name]}))
    found = checkpoint.latest(folder)
    assert found is not None and found[1] == state(1)
    with pytest.raises(RefusedError, match="the checkpoint is incomplete"):
        checkpoint.of_version(folder, 2)


def test_a_checkpoint_under_the_name_of_another_version_is_skipped(tmp_path: Path) -> None:
    path = save(tmp_path / "p", fresh(tmp_path), 1)
    path.rename(path.with_name("v00000007"))
    assert checkpoint.latest(tmp_path / "p") is None


def test_only_the_newest_are_kept_by_number_not_by_date(tmp_path: Path) -> None:
    trainer = fresh(tmp_path)
    for version in (9, 10, 11):
        save(tmp_path / "p", trainer, version, keep=2)
    assert sorted(path.name for path in (tmp_path / "p").iterdir()) == ["v00000010", "v00000011"]


def test_without_checkpoints_there_is_none(tmp_path: Path) -> None:
    assert checkpoint.latest(tmp_path) is None


@pytest.mark.parametrize("changes", [{"lora_rank": 4}, {"lora_alpha": 8}, {"lora_targets": "q_proj"}])
def test_a_checkpoint_of_another_shape_is_refused_with_the_way_out(tmp_path: Path, changes: dict[str, Any]) -> None:
    path = save(tmp_path / "p", fresh(tmp_path), 1)
    other = fresh(tmp_path, **changes)
    with pytest.raises(SettingsError, match=r"\(trainer\.lora_\w+\); restore the setting, or train a new policy"):
        checkpoint.restore(path, other.model, other.optimizer)


def test_a_second_trainer_of_a_policy_is_refused_and_told_who_holds_it(tmp_path: Path) -> None:
    holder = subprocess.Popen(
        [
            sys.executable,
            "-c",
            textwrap.dedent(f"""
                from pathlib import Path
                from streams import files  # as `checkpoint.hold` does, which would bring torch
                with files.hold(Path({str(tmp_path / "p")!r}), refusal="", way_out=""):
                    print("held", flush=True)
                    input()
            """),
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert holder.stdout is not None and holder.stdout.readline() == "held\n"
        with pytest.raises(RefusedError, match=f"process {holder.pid} on "), checkpoint.hold(tmp_path, "p"):
            pass
        with checkpoint.hold(tmp_path, "q"):
            pass
        holder.kill()  # kill -9: the lock goes with the process
        holder.wait()
        with checkpoint.hold(tmp_path, "p"):
            pass
    finally:
        holder.kill()
        holder.communicate()


def test_the_recipe_names_what_decides_the_bytes_and_nothing_else(tmp_path: Path) -> None:
    threads = torch.get_num_threads()
    try:
        settings = Settings(trainer=Trainer(threads=1, checkpoints=tmp_path), model=Model(base="tiny"))
        pin(settings)
        made = recipe(settings)
    finally:
        torch.set_num_threads(threads)
        torch.use_deterministic_algorithms(False)
    assert made["threads"] == "1" and made["trainer.seed"] == "0" and made["model.base"] == "tiny"
    assert {"version.torch", "version.trl", "version.peft", "version.transformers", "device"} <= made.keys()
    assert made["version.step"] == STEP_VERSION
    assert not any(str(tmp_path) in value for value in made.values())


@pytest.mark.parametrize(
    ("exc", "says"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), "No space left on device"),
        (OSError(errno.EROFS, "Read-only file system"), "Read-only file system"),
        (SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)"), "No space left"),
        (FileNotFoundError(errno.ENOENT, "No such file or directory"), None),
        (SafetensorError("header too large"), None),
    ],
)
def test_a_disk_that_takes_nothing_more_is_told_from_other_troubles(
    exc: OSError | SafetensorError, says: str | None
) -> None:
    what = checkpoint.disk_trouble(exc)
    assert what is None if says is None else says in str(what)
