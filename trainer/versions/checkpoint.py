"""Checkpoints, from which a trainer resumes: one folder per version, written atomically.

    model, optimizer, RNG, next batch ──► .v3.half/ ──► fsync ──► rename ──► v00000003/ ──► the oldest are deleted

The next batch and its offset in the folder decide; the consumer group's commit does not. `latest` takes the highest
version whose files all have the sha256 in its manifest, so an incomplete folder is skipped. Optimizer state is
safetensors and JSON; nothing is pickled.

Not covered: two machines on one network file system that does not honour flock.
"""

from __future__ import annotations

import errno
import json
import logging
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from peft import PeftModel
from pydantic import TypeAdapter
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from schemas import json_text
from streams import files
from streams.errors import NotFoundError, RefusedError, SettingsError, StreamwardError
from streams.files import sha256_of, sync
from trainer.step.model import load_adapter, save_adapter

log = logging.getLogger(__name__)

OPTIMIZER_FILE = "optimizer.safetensors"
RNG_FILE = "rng.safetensors"
STATE_FILE = "state.json"
MANIFEST_FILE = "manifest.json"
TUNING, NEXT, LINE = "tuning", "next", "line"
"""Lock folders: the tuner of a policy; a tuner that is next; and the process that may add a version now."""
ADAPTER_FOLDER = "adapter"
"""Folder with exactly the published files."""


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """The part of a checkpoint that is not tensors."""

    policy: str
    version: int
    next_sequence: int
    """The next batch."""
    next_offset: int
    """Where to resume reading, in the policy's partition of `batches`."""
    base_digest: str
    batch_id: str
    recipe: dict[str, str]
    metrics: dict[str, float]


@contextmanager
def hold(root: Path, policy: str) -> Iterator[Path]:
    """Lock `policy` under `root` for its only trainer; yield its folder. The lock ends with the process.

    Raises RefusedError naming the holder.
    """
    folder = root / policy
    refusal = f"policy {policy} is already being trained"
    with files.hold(folder, refusal=refusal, way_out="stop that trainer, or give this one another policy.name"):
        for half in folder.glob(".*.half"):
            shutil.rmtree(half)
        yield folder


@contextmanager
def hold_line(root: Path, policy: str) -> Iterator[None]:
    """Lock `policy` under `root` for its only tuner, and pause its trainer once its step is done. Raises RefusedError
    naming the present tuner.
    """
    folder = root / policy
    refusal = f"policy {policy} is already being tuned"
    with (
        files.hold(folder / TUNING, refusal=refusal, way_out="wait for its end, or tune under another --policy"),
        files.hold_when_free(folder / NEXT),
        files.hold_when_free(folder / LINE),
    ):
        yield


@contextmanager
def take_turn(folder: Path) -> Iterator[bool]:
    """Yield whether the trainer that holds `folder` may take a step: not while its policy is tuned, or a tuner waits.

    A tuner takes NEXT before it waits for LINE, so it waits for at most one step.
    """
    with files.try_hold(folder / NEXT) as is_free:
        pass
    with files.try_hold(folder / LINE) as is_ours:
        yield is_free and is_ours


def save(folder: Path, state: State, model: PeftModel, optimizer: torch.optim.Optimizer, base: str, keep: int) -> Path:
    """Write a checkpoint of `state.version`, synced when this returns, and delete all but the newest `keep`."""
    target = folder / _name(state.version)
    half = folder / f".{target.name}.half"
    shutil.rmtree(half, ignore_errors=True)
    half.mkdir(parents=True)
    (half / ADAPTER_FOLDER).mkdir()
    save_adapter(model, half / ADAPTER_FOLDER, base)
    save_file(_optimizer_tensors(model, optimizer), half / OPTIMIZER_FILE)
    save_file(rng_states(), half / RNG_FILE)
    (half / STATE_FILE).write_text(json.dumps(asdict(state), indent=2, sort_keys=True) + "\n")
    files = sorted(path for path in half.rglob("*") if path.is_file())
    manifest = {str(path.relative_to(half)): sha256_of(path) for path in files}
    (half / MANIFEST_FILE).write_text(json.dumps(manifest, indent=2, sort_keys=True) + "\n")
    for path in [*half.rglob("*"), half]:
        sync(path)
    if target.exists():  # incomplete, or of an abandoned run: `latest` did not choose it
        shutil.rmtree(target)
    half.rename(target)
    sync(folder)
    for old in _versions(folder)[keep:]:
        shutil.rmtree(old)
    return target


def latest(folder: Path) -> tuple[Path, State] | None:
    """Return the newest complete checkpoint, or None. Each one skipped is logged with the reason."""
    for path in _versions(folder):
        try:
            return path, _read(path)
        except (OSError, ValueError) as exc:
            log.warning("%s: skipped: %s", path, exc)
    return None


def of_version(folder: Path, version: int) -> tuple[Path, State]:
    """Return the checkpoint of `version`.

    Raises NotFoundError, naming the existing ones, if it is missing, and RefusedError if it is incomplete.
    """
    path = folder / _name(version)
    if not path.is_dir():
        saved = ", ".join(map(str, versions(folder))) or "none"
        raise NotFoundError(f"{path}: no checkpoint of version {version}; there are checkpoints of versions: {saved}")
    try:
        return path, _read(path)
    except (OSError, ValueError) as exc:
        raise RefusedError(
            f"{path}: the checkpoint is incomplete: {exc}; start from another one, or from the base"
        ) from exc


def versions(folder: Path) -> list[int]:
    """Return the versions that have a checkpoint in `folder`, complete or not, oldest first."""
    return sorted(int(path.name[1:]) for path in _versions(folder) if path.name[1:].isdecimal())


def restore(path: Path, model: PeftModel, optimizer: torch.optim.Optimizer) -> None:
    """Restore adapter, optimizer state and RNG as they were saved.

    Raises SettingsError if the shape of the checkpoint does not match the settings.
    """
    load_adapter(model, path / ADAPTER_FOLDER)
    tensors = load_file(path / OPTIMIZER_FILE)
    names = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    state: dict[int, dict[str, torch.Tensor]] = {index: {} for index in range(len(names))}
    index_of = {name: index for index, name in enumerate(names)}
    for key, tensor in tensors.items():
        kind, _, name = key.partition("/")
        if name not in index_of:
            raise SettingsError(
                f"{path}: optimizer state of {name}, which is not trained; restore trainer.lora_targets"
            )
        state[index_of[name]][kind] = tensor
    plain = optimizer.state_dict()
    filled = {index: values for index, values in state.items() if values}
    optimizer.load_state_dict({"state": filled, "param_groups": plain["param_groups"]})
    set_rng_states(load_file(path / RNG_FILE))


def disk_trouble(exc: OSError | SafetensorError) -> str | None:
    """Return the system's message if the error is about a full or failing disk, else None."""
    match = re.search(r"\(os error (\d+)\)", str(exc))  # safetensors' wording
    number = exc.errno if isinstance(exc, OSError) else int(match[1]) if match else None
    return os.strerror(number) if number in (errno.ENOSPC, errno.EROFS, errno.EDQUOT, errno.EIO) else None


@contextmanager
def explaining_disks(folders: str, advice: str) -> Iterator[None]:
    """Raise StreamwardError with this text if the block fails because of a full or failing disk."""
    try:
        yield
    except (OSError, SafetensorError) as exc:
        if (trouble := disk_trouble(exc)) is None:
            raise
        raise StreamwardError(f"{folders}: {trouble}. {advice}") from exc


def _optimizer_tensors(model: PeftModel, optimizer: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
    """Return Adam's moments and step counts as kind/parameter."""
    return {
        f"{kind}/{name}": tensor.detach().cpu().contiguous()
        for name, parameter in model.named_parameters()
        for kind, tensor in optimizer.state.get(parameter, {}).items()
    }


def rng_states() -> dict[str, torch.Tensor]:
    """Return the states of the random number generators, by device."""
    states = {"cpu": torch.get_rng_state()}
    if torch.cuda.is_available():
        states["cuda"] = torch.cuda.get_rng_state()
    return states


def set_rng_states(states: dict[str, torch.Tensor]) -> None:
    """Set the states of the devices that are available here."""
    torch.set_rng_state(states["cpu"])
    if "cuda" in states and torch.cuda.is_available():
        torch.cuda.set_rng_state(states["cuda"])


def _versions(folder: Path) -> list[Path]:
    return sorted(folder.glob("v[0-9]*"), reverse=True)


def _read(path: Path) -> State:
    """Return the content of a complete checkpoint. Raises OSError or ValueError for any other."""
    manifest = json_text.parse((path / MANIFEST_FILE).read_bytes())
    files = {str(file.relative_to(path)) for file in path.rglob("*") if file.is_file()} - {MANIFEST_FILE}
    if not isinstance(manifest, dict) or manifest.keys() != files:
        raise ValueError(f"its {MANIFEST_FILE} does not name the files that are there")
    if bad := [name for name, digest in manifest.items() if sha256_of(path / name) != digest]:
        raise ValueError(f"{bad[0]} does not match its manifest")
    state = TypeAdapter(State).validate_json((path / STATE_FILE).read_bytes(), strict=True)
    if path.name != _name(state.version):
        raise ValueError(f"its {STATE_FILE} is of version {state.version}")
    return state


def _name(version: int) -> str:
    return f"v{version:08d}"
