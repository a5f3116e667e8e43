"""The README.md of a data set: the types of its fields, as Hugging Face's `load_dataset` takes them.

    lines ──► fields that may be null, or messages with different keys? ──► README.md with `dataset_info`

Without it a reader infers the types from the first chunk of a file. If no message there has a tool call, or no answer
has feedback, it refuses the first that does. Messages keep only the keys that are set, as chat templates need.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from streams.tools.query.examples import ExportOptions

CARD = "README.md"
_MESSAGES = ("messages", "tools", "prompt", "chosen", "rejected", "preferred_output", "non_preferred_output")
_LISTS = dict.fromkeys(_MESSAGES, "json") | {"completions": "string", "rewards": "float64"}
"""Types of the elements of lists."""
_NUMBERS = dict.fromkeys(
    ("reward", "feedback", "score", "chosen_reward", "rejected_reward"), "float64"
) | dict.fromkeys(("adapter_version", "chain"), "int64")


class DatasetCard:
    """What the lines of a data set have shown about their types."""

    def __init__(self, options: ExportOptions) -> None:
        self._format, self._is_parquet = options.format, options.files == "parquet"
        self._example: dict[str, Any] = {}
        self._message_keys: set[tuple[str, ...]] = set()

    @property
    def _is_needed(self) -> bool:
        return self._format == "conversations" or len(self._message_keys) > 1

    def add(self, line: str) -> None:
        """Take the line of an example."""
        if self._example and self._is_needed:
            return
        self._example = json.loads(line)
        self._message_keys.update(tuple(sorted(message)) for message in _messages_in(self._example))

    def write(self, folder: Path, files: Mapping[str, str]) -> None:
        """Write the card, unless every line shows the same types. `files`, by split, are named if one is held out."""
        named = files if "held_out" in files else {}
        if named or (self._is_needed and not self._is_parquet):
            example = {} if self._is_parquet else self._example
            write_card(folder, example, f"--format {self._format}`; manifest.json names its records", named)


def write_card(folder: Path, example: Mapping[str, Any], origin: str, files: Mapping[str, str] | None = None) -> None:
    """Write the card of lines like `example`; `origin` ends the command that wrote them, `files` are those by split."""
    info: dict[str, Any] = {}
    if example:
        info["dataset_info"] = {"features": [_feature(name, value) for name, value in example.items()]}
    if files:
        data_files = [{"split": split, "path": path} for split, path in files.items()]
        info["configs"] = [{"config_name": "default", "data_files": data_files}]
    text = f"---\n{json.dumps(info, indent=1)}\n---\n\nWritten by `streamward export {origin}.\n"
    (folder / CARD).write_text(text)


def _messages_in(example: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    if isinstance(example.get("input"), dict):
        yield from example["input"]["messages"]
    for name in _MESSAGES:
        yield from example.get(name, ())


def _feature(name: str, value: object) -> dict[str, str]:
    if name in _LISTS:
        return {"name": name, "list": _LISTS[name]}
    return {"name": name, "dtype": "json" if isinstance(value, dict) else _NUMBERS.get(name, "string")}
