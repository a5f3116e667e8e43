"""Run a user's TRL script unchanged, and note what it samples and how its model does on the held-out questions.

    script ──► GRPOTrainer with a callback ──► events.jsonl: started, begun, sampled, scoring, scored, with times

    python -m tests.benchmarks.compare.trl_probe SCRIPT SEED STEPS UNTIL       in the folder of the run

Held-out questions are asked greedily after each step, or after EVERY rows where steps are smaller. What that takes is
noted, and is no part of the peer's time. STEPS 0: as many as the script asks for. The run ends at the score UNTIL.
"""

from __future__ import annotations

import json
import runpy
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import torch
import trl
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from tests.benchmarks.compare.measured_run import EVENTS, HELD_OUT

EVERY = 64
"""Rows between two evaluations at least."""
MAX_TOKENS = 12


def note(kind: str, **fields: Any) -> None:
    """Append an event; a kill right after loses nothing."""
    with open(EVENTS, "a", encoding="utf-8") as file:
        file.write(json.dumps({"kind": kind, "at": time.time(), **fields}) + "\n")


class HeldOut(TrainerCallback):  # type: ignore[misc]
    """Asks the held-out questions after steps."""

    def __init__(self, trainer: ProbedTrainer, until: float) -> None:
        self.trainer, self.until = trainer, until
        self.questions = [json.loads(row) for row in Path(HELD_OUT).read_text(encoding="utf-8").splitlines()]

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, *_: Any, **__: Any) -> None:
        """Note the step that the run begins at: more than 0 after a checkpoint."""
        note("started", step=state.global_step)

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Note the score, and stop the run once it is high enough."""
        if self.trainer.unscored < EVERY and state.global_step < state.max_steps:
            return
        self.trainer.unscored = 0
        note("scoring", step=state.global_step)
        score = self.score()
        note("scored", step=state.global_step, score=score)
        control.should_training_stop |= score >= self.until

    def score(self) -> float:
        """Return the share of held-out questions with the right answer, greedily."""
        model, tokenizer = self.trainer.model, self.trainer.processing_class
        inputs = tokenizer.apply_chat_template(
            [question["prompt"] for question in self.questions],
            add_generation_prompt=True,
            padding=True,
            padding_side="left",
            return_tensors="pt",
            return_dict=True,
        )
        was_training = model.training
        model.eval()
        with torch.no_grad():
            ids = model.generate(**inputs, do_sample=False, max_new_tokens=MAX_TOKENS, use_cache=True)
        model.train(was_training)
        texts = tokenizer.batch_decode(ids[:, inputs["input_ids"].shape[1] :], skip_special_tokens=True)
        right = [text.strip() == question["answer"] for text, question in zip(texts, self.questions, strict=True)]
        return sum(right) / len(right)


class ProbedTrainer(trl.GRPOTrainer):  # type: ignore[misc]
    """TRL's trainer, which notes what it samples."""

    def __init__(self, *args: Any, until: float, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.unscored = 0
        self.add_callback(HeldOut(self, until))

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        step, ids = self.state.global_step, [row["id"] for row in inputs]
        note("begun", step=step, ids=ids)
        output: dict[str, Any] = super()._generate_and_score_completions(inputs)
        self.unscored += len(ids)
        note("sampled", step=step, ids=ids, tokens=int(output["completion_mask"].sum()))
        return output


def main(script: str, seed: str, steps: str, until: str) -> None:
    """Run the script with the probed trainer in the place of TRL's."""
    fixed = {"seed": int(seed), **({"max_steps": int(steps)} if int(steps) else {})}
    trl.GRPOTrainer = partial(ProbedTrainer, until=float(until))
    trl.GRPOConfig = partial(trl.GRPOConfig, **fixed)
    runpy.run_path(script, run_name="__main__")


if __name__ == "__main__":
    main(*sys.argv[1:])
