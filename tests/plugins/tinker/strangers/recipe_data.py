"""Data on this machine for the cookbook's recipes: sums, in the form of the sets that the recipes load from the hub.

folder ──► openai/gsm8k, HuggingFaceH4/no_robots, Anthropic/hh-rlhf, …        found from the folder as working folder
SmolLM2's tokenizer ──► HF_HOME/hub/models--HuggingFaceTB--…               found as if it had been downloaded
"""

from __future__ import annotations

import json
import os
import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any

MODEL = "HuggingFaceTB/SmolLM2-135M-Instruct"
ROWS = 1100
"""The recipe of preferences takes 1,024 of them for tests."""
REVISION = "0" * 40
TOKENIZER_FILES = ("config.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json",
                   "chat_template.jinja", "generation_config.json")  # fmt: skip


def sums(split: str) -> list[tuple[int, int]]:
    """Return pairs of small numbers; a pair of `test` is in no other split."""
    pairs = [(a, b) for a in range(1, 10) for b in range(1, 10) if ((2 * a + b) % 5 == 0) is (split == "test")]
    return random.Random(split).choices(pairs, k=ROWS)


def write_sets(folder: Path) -> None:
    """Write the sets below a folder."""
    for split in ("train", "test"):
        pairs = sums(split)
        questions = ({"question": f"What is {a} + {b}?", "answer": f"{a} + {b} = {a + b}\n#### {a + b}"}
                     for a, b in pairs)  # fmt: skip
        write_split(folder / "openai" / "gsm8k", split, questions, config="main")
        talks = (
            {"messages": [{"role": "user", "content": f"{a} + {b} ="}, {"role": "assistant", "content": str(a + b)}]}
            for a, b in pairs
        )
        write_split(folder / "HuggingFaceH4" / "no_robots", split, talks)
        ask = "\n\nHuman: What is {} + {}?\n\nAssistant: {}"
        pairs_of = ({"chosen": ask.format(a, b, a + b), "rejected": ask.format(a, b, a * b + 1)} for a, b in pairs)
        write_split(folder / "Anthropic" / "hh-rlhf", split, pairs_of)
        lines = ({"text": f"After {a} and {b} came {a + b}, which many had known before."} for a, b in pairs)
        write_split(folder / "Salesforce" / "wikitext", split, lines, config="wikitext-103-raw-v1")


def write_split(folder: Path, split: str, rows: Iterable[dict[str, Any]], config: str = "default") -> None:
    """Write a split of a set, and the header that names its configuration."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    files = "".join(f"  - split: {name}\n    path: {name}.jsonl\n" for name in ("train", "test"))
    header = f"---\nconfigs:\n- config_name: {config}\n  data_files:\n{files}---\n"
    (folder / "README.md").write_text(header, encoding="utf-8")


def write_hub(home: Path, tokenizer: Path) -> None:
    """Make a folder with a tokenizer look like one that was downloaded."""
    repository = home / "hub" / f"models--{MODEL.replace('/', '--')}"
    snapshot = repository / "snapshots" / REVISION
    snapshot.mkdir(parents=True, exist_ok=True)
    (repository / "refs").mkdir(exist_ok=True)
    (repository / "refs" / "main").write_text(REVISION, encoding="utf-8")
    for name in TOKENIZER_FILES:
        if (tokenizer / name).exists() and not (snapshot / name).exists():
            os.symlink(tokenizer / name, snapshot / name)


def environment(home: Path, url: str, key: str) -> dict[str, str]:
    """Return the environment of a recipe."""
    return {
        "TINKER_BASE_URL": url,
        "TINKER_API_KEY": key,
        "TINKER_TELEMETRY": "0",
        "HF_HOME": str(home),
        "HF_HUB_OFFLINE": "1",
        "HF_DATASETS_CACHE": str(home / "datasets"),
        "TOKENIZERS_PARALLELISM": "false",
        "WANDB_MODE": "disabled",
    }
