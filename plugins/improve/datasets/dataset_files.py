"""The files of a data set: written completely, then moved into place.

    PlacedRun ──► train.jsonl, eval.jsonl                 conversations
              ├─► train.labels.jsonl, …                   about each of those lines
              ├─► train.tokens.jsonl, …                   as sampled
              ├─► train.pairs.jsonl, train.pair-tokens.jsonl
              └─► README.md for `load_dataset`, manifest.json

The digest of a set covers its rows: `sha256sum *.jsonl | sha256sum` in its folder prints it. Empty files are omitted. A
set is in memory while it is built.
"""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from plugins.improve.datasets import dataset_rows as rows
from plugins.improve.datasets.dataset_shares import SPLITS, PlacedRun
from schemas.events import AdapterFile
from schemas.json_text import one_line
from streams.errors import RefusedError
from streams.files import half_written

MANIFEST, CARD = "manifest.json", "README.md"
KINDS = ("", ".labels", ".tokens", ".pairs", ".pair-tokens")
"""What the files of a split are called by, after its name."""
_LISTS = dict.fromkeys(("messages", "tools", "preferred_output", "non_preferred_output"), "json") | {
    "versions": "int64"
}
"""Types of the elements of lists; messages and tools have keys of their own."""
_TYPES = {"input": "json", "chain": "int64", "reward": "float64", "feedback": "float64"}
"""Other types; a field that is not named is a text."""


class RowFiles(NamedTuple):
    """The files of rows, by name."""

    contents: dict[str, bytes]
    keys: dict[str, list[str]]
    """The keys that lines of a file have."""


def row_files(placed: Iterable[PlacedRun]) -> RowFiles:
    """Return every file of rows."""
    lines: defaultdict[str, list[rows.Line]] = defaultdict(list)
    for split, _, run, rejected in placed:
        for chain, conversation in enumerate(rows.conversations(run)):
            lines[f"{split}.jsonl"].append(conversation)
            lines[f"{split}.labels.jsonl"].append(rows.label(run, chain))
        answer_id = run.finished.answer_id
        if (sampled := rows.tokens(run)) is not None:
            lines[f"{split}.tokens.jsonl"].append(rows.tokens_line([answer_id], sampled))
        if rejected is None:
            continue
        if (preference := rows.pair(run, rejected)) is not None:
            lines[f"{split}.pairs.jsonl"].append(preference)
        if (sampled := rows.pair_tokens(run, rejected)) is not None:
            answer_ids = [answer_id, rejected.finished.answer_id]
            lines[f"{split}.pair-tokens.jsonl"].append(rows.tokens_line(answer_ids, sampled))
    names = sorted(lines)
    return RowFiles(
        {name: "".join(f"{one_line(line)}\n" for line in lines[name]).encode() for name in names},
        {name: list(dict.fromkeys(key for line in lines[name] for key in line)) for name in names},
    )


def files_of(contents: Mapping[str, bytes]) -> tuple[AdapterFile, ...]:
    """Return names, sizes and digests."""
    return tuple(
        AdapterFile(path=name, sha256=hashlib.sha256(content).hexdigest(), bytes=len(content))
        for name, content in contents.items()
    )


def card(keys: Mapping[str, Sequence[str]], dataset: str) -> bytes:
    """Return the README.md from which `load_dataset` knows which files belong together, and the types of their lines.

    Without the types it infers them from the first lines, and refuses a later tool whose parameters have other keys.
    """
    configs, infos = [], []
    for kind in KINDS:
        files = [{"split": split, "path": name} for split in SPLITS if (name := f"{split}{kind}.jsonl") in keys]
        if not files:
            continue
        config = kind.lstrip(".") or "default"
        configs.append({"config_name": config, "data_files": files})
        if "tokens" not in kind:
            names = dict.fromkeys(key for entry in files for key in keys[entry["path"]])
            infos.append({"config_name": config, "features": [_feature(name) for name in names]})
    header = json.dumps({"configs": configs, "dataset_info": infos}, indent=1)
    written_by = f"Written by `streamward improve datasets build {dataset}`; {MANIFEST} names its runs."
    return f"---\n{header}\n---\n\n{written_by}\n".encode()


def _feature(name: str) -> dict[str, str]:
    if name in _LISTS:
        return {"name": name, "list": _LISTS[name]}
    return {"name": name, "dtype": _TYPES.get(name, "string")}


def manifest_text(manifest: Mapping[str, Any]) -> bytes:
    """Return the bytes of a manifest."""
    return (json.dumps(manifest, indent=1, ensure_ascii=False) + "\n").encode()


def write(contents: Mapping[str, bytes], folder: Path) -> None:
    """Write the files into `folder`, which appears whole. Raises RefusedError if it holds anything, SettingsError."""
    with half_written(folder) as half:
        for name, content in contents.items():
            (half / name).write_bytes(content)
        half.chmod(0o755)
        half.replace(folder)


def folder_for(root: Path, timestamp: str, digest: str, contents: Mapping[str, bytes]) -> tuple[Path, bool]:
    """Return the folder of a set, and whether it is there already, with the same manifest.

    Two sets may have the same newest verdict: the second has its digest in its name. Raises RefusedError if that is
    taken by something else.
    """
    for folder in (root / timestamp, root / f"{timestamp}-{digest[:12]}"):
        if not folder.exists() or not any(folder.iterdir()):
            return folder, False
        existing = folder / MANIFEST
        if existing.is_file() and existing.read_bytes() == contents[MANIFEST]:
            return folder, True
    raise RefusedError(f"{folder}: it is there, and is not this data set; move it away, or name another --to")
