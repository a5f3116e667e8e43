"""lm-evaluation-harness on a served model: a task of one's own, which needs no hub.

tiny model ──► server ◄── proxy ◄── lm_eval, local-completions: echo, logprobs ──► likelihoods ─┐
    └────────► lm_eval, hf: the same weights ──────────────────────────────────► likelihoods ───┴─► findings
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

from tokenizers import decoders

from streams.settings.model import Model, Policy, Settings
from tests.strangers.described import HOME
from tests.support.agent_server import settings_of
from tests.support.models.tiny import save_tiny, tiny_tokenizer

HERE = Path(__file__).parent
FILE = HERE / "exchanges.jsonl.xz"
TASK = """task: next_number
dataset_path: json
dataset_kwargs:
  data_files:
    test: {questions}
output_type: multiple_choice
test_split: test
doc_to_text: "{{{{text}}}}"
doc_to_choice: "{{{{choices}}}}"
doc_to_target: answer
metric_list:
  - metric: acc
"""
OFFLINE = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}


def served_settings(bootstrap: str, folder: Path) -> Settings:
    """Return settings of a server whose model has weights: the tiny one, saved in the folder."""
    base = save_tiny(folder / "tiny")
    tokenizer = tiny_tokenizer()
    tokenizer.backend_tokenizer.decoder = decoders.WordPiece()  # the harness makes text of its tokens: with spaces
    tokenizer.save_pretrained(base)
    changes = {"model": Model(base=str(base)), "policy": Policy(name="sums", engine="transformers")}
    return settings_of(bootstrap, folder).model_copy(update=changes)


def evaluated(url: str, settings: Settings) -> dict[str, Any]:
    """Return what the harness finds in the server's model, and in the same weights."""
    folder = Path(settings.model.base)
    questions = folder / "questions.jsonl"
    rows = (
        {"text": " ".join(map(str, range(n, n + 3))), "choices": [f" {n + 3}", f" {n} {n + 1}"], "answer": n % 2}
        for n in range(1, 9)
    )
    questions.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    (folder / "next_number.yaml").write_text(TASK.format(questions=questions), encoding="utf-8")
    command = [HOME / "lm_evaluation" / "bin" / "python", HERE / "program.py", url, settings.policy.name, folder]
    environment = os.environ | OFFLINE | {"OPENAI_API_KEY": "none", "HF_HOME": str(folder / "hub")}
    ended = subprocess.run(
        [*map(str, command)], cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, check=True
    )
    found: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    own = found.pop("loaded by the harness")
    return {"loaded by the harness": own, **{way: "the same" if each == own else each for way, each in found.items()}}
