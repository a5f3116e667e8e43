"""Write batches of the log to a folder, for another trainer.

    TrainingBatch ──► a format's function ──► its files     manifest.json: the content of each
                                                            recipe.json: the known origin of the returned version

Formats are those of plugins. The folder appears atomically. The same records give the same bytes. recipe.json is the
origin of the version that is trained on them, once its author is filled in.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from schemas.events import AdapterEvent
from streams.files import half_written
from streams.kafka.history import History
from streams.settings.model import Settings
from trainer.export import batch_rows
from trainer.export.batch_rows import BatchSpan, ExportCheck, TrainingBatch
from trainer.reproduce.recorded import recorded_events, taken_batches

Encode = Callable[[TrainingBatch, Mapping[str, Any]], Mapping[str, bytes]]
"""A format's function: returns the files of a batch by name, given the batch, its entry in the manifest, and options by
keyword. Raises RefusedError for a batch that the format cannot express, SettingsError."""
MANIFEST_VERSION = 1
RECIPE_FILE = "recipe.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchOrder:
    """Which batches to write, and how."""

    policy: str
    format: str
    encode: Encode
    """The format's function, with its options."""
    span: BatchSpan


@dataclass(frozen=True, slots=True)
class ExportedBatches:
    """The exported batches."""

    folder: str
    batches: list[dict[str, Any]]
    """Their entries in the manifest."""
    refused: list[str]
    """Why a group is left out, one sentence each."""


def export(
    settings: Settings, order: BatchOrder, folder: Path, history: History, check: ExportCheck
) -> ExportedBatches:
    """Write the batches to `folder`, which is created; an empty one is used. `check` refuses held-out questions.

    Raises RefusedError if it holds anything, or a batch cannot be written in this format; NotFoundError for a batch
    that is not in the log; SettingsError if the folder cannot be written, or a package is missing; LogError if the log
    cannot be read.
    """
    with half_written(folder) as half:
        entries: list[dict[str, Any]] = []
        refused: list[str] = []
        events = recorded_events(settings, order.policy, history)
        for batch in batch_rows.read(settings, order.policy, order.span, history, check):
            entries.append(_write(batch, _parent_of(batch.batch.sequence, events), order, half))
            refused += batch.refused
        manifest = {"manifest_version": MANIFEST_VERSION, "format": order.format, "batches": entries}
        _write_json(half / "manifest.json", manifest)
        _write_json(half / RECIPE_FILE, _recipe(order, entries))
        half.chmod(0o755)  # mkdtemp made it private
        half.replace(folder)
    return ExportedBatches(str(folder), entries, refused)


def _parent_of(sequence: int, events: Mapping[int, AdapterEvent]) -> int:
    """Return the version that a batch was trained onto, or will be if no other is made before."""
    made = (event.version for event in events.values() if event.last_batch == sequence)
    newest = max(events, default=0)
    return next(made, newest + sequence - taken_batches(events, newest) + 1) - 1


def _write(batch: TrainingBatch, parent: int, order: BatchOrder, folder: Path) -> dict[str, Any]:
    """Write one batch, and return its entry in the manifest."""
    about = _about(batch, parent)
    files = order.encode(batch, about)
    for path, content in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(content)
    return about | {"files": {path: hashlib.sha256(content).hexdigest() for path, content in files.items()}}


def _about(batch: TrainingBatch, parent: int) -> dict[str, Any]:
    """Return a description of a batch, the version that it is trained onto, and the denominators of its step's
    means."""
    totals, group = batch.totals, batch.groups[0]
    return {
        "policy": batch.batch.policy,
        "batch": batch.batch.sequence,
        "at": str(batch.at),
        "parent_version": parent,
        "base_digest": group.base_digest,
        "tokenizer_digest": group.tokenizer_digest,
        "groups": totals.groups,
        "responses": totals.responses,
        "rows": len(batch.rows),
        "loss_tokens": int(totals.loss_tokens),
        "max_tokens": totals.max_tokens,
        "reward": totals.reward,
        "left_out": len(batch.refused),
        **batch.held_out,
    }


def _recipe(order: BatchOrder, entries: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the start of a recipe for the version that is trained on these batches."""
    return {
        "framework": order.format,
        "framework_version": "",
        "trained_by": "",
        "policy": order.policy,
        "parent_version": entries[0]["parent_version"],
        "batches": [entry["batch"] for entry in entries],
        "base_digest": entries[0]["base_digest"],
        "settings": {},
        "metrics": {},
    }


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + os.linesep)
