"""Run a task of a user's own in lm-evaluation-harness: python program.py BASE_URL MODEL FOLDER

The model of the server is asked for the likelihood of each choice, in tokens, several a request, and in text; and the
harness loads the same weights itself. Prints JSON: of each way the accuracy and the likelihoods.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from lm_eval import simple_evaluate
from lm_eval.tasks import TaskManager


def main() -> None:
    """Print what comes of it."""
    url, model, folder = sys.argv[1:]
    served = {"model": model, "base_url": f"{url}/v1/completions", "tokenizer": folder, "max_length": 256}
    ways: dict[str, tuple[str, dict[str, Any], int]] = {
        "tokens": ("local-completions", served, 1),
        "several a request": ("local-completions", served, 4),
        "text": ("local-completions", {**served, "tokenized_requests": False}, 1),
        "loaded by the harness": ("hf", {"pretrained": folder, "dtype": "float32", "device": "cpu"}, 1),
    }
    print(json.dumps({name: evaluated(folder, *way) for name, way in ways.items()}))


def evaluated(folder: str, kind: str, arguments: dict[str, Any], batch: int) -> dict[str, Any]:
    """Return accuracy and likelihoods, in the order of the questions and their choices."""
    tasks = TaskManager(include_path=folder, include_defaults=False)
    whole = simple_evaluate(kind, arguments, ["next_number"], task_manager=tasks, batch_size=batch, bootstrap_iters=0)
    samples = sorted(whole["samples"]["next_number"], key=lambda sample: sample["doc_id"])
    return {
        "accuracy": whole["results"]["next_number"]["acc,none"],
        "likelihoods": [round(float(answer[0]), 3) for sample in samples for answer in sample["filtered_resps"]],
    }


if __name__ == "__main__":
    main()
