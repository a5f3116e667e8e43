"""Training again from the log, against the same steps through TRL with a dataset, on the real SmolLM2-135M.

Both begin with the base model on disk and end with an adapter on disk. Ours reads batches and groups from an embedded
broker, verifies each version, and keeps a checkpoint of each. TRL's GRPOTrainer gets the recorded groups as a dataset
instead of sampling: its own loader, accumulation and optimizer loop, one group a pass, the tensors ready in memory. One
thread, weights in float32; two groups of eight slots in a step. Tokens are random: the worst case for prefixes.

Not covered: batches whose groups share a system prompt, where ours gains more.
"""

from __future__ import annotations

import os
import tempfile
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from schemas.events import AdvantagedGroup, Batch, Coordinates, derive_id
from tests.benchmarks.loop import node
from tests.benchmarks.side_by_side import by_turns, line, median_s, say
from tests.benchmarks.trainer import SLOTS, random_group

STEPS, GROUPS, PROMPT, COMPLETION = 3, 2, 64, 8


def run() -> Iterator[dict[str, Any]]:
    """Yield one line; ours and peer are steps a second, loading included."""
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # as the trainer's process sets it
    import torch

    from streams.kafka.history import LogHistory
    from trainer import fleet
    from trainer.reproduce import retrain

    with node() as settings, tempfile.TemporaryDirectory(prefix="streamward-bench-") as folder:
        say(f"offline: {STEPS} steps of {GROUPS} groups, {SLOTS} slots of {PROMPT} + {COMPLETION} tokens")
        settings = settings.model_copy(
            update={
                "trainer": settings.trainer.model_copy(update={"checkpoints": Path(folder) / "checkpoints"}),
                "adapters": settings.adapters.model_copy(update={"store": f"{folder}/adapters"}),
            }
        )
        batches = _write(settings)
        fleet.run(settings, steps=STEPS, stop=threading.Event())
        log = LogHistory(settings)

        def ours() -> bool:
            return all(made.equal for made in retrain.run(retrain.plan(settings, "default", None, log), settings, log))

        measured = by_turns(
            {"ours": ours, "peer": lambda: _through_trl(settings, batches, Path(folder) / "trl")},
            budget_s=120,
            warm=False,
        )
        seconds = {name: median_s(rounds) for name, rounds in measured.items()}
        yield line(
            "offline",
            f"{STEPS} steps of {GROUPS} groups, {PROMPT} + {COMPLETION} tokens",
            ours=STEPS / seconds["ours"],
            peer=STEPS / seconds["peer"],
            unit="steps/s",
            ratio=seconds["peer"] / seconds["ours"],
            peer_is="TRL GRPOTrainer with the groups as dataset",
            threads=torch.get_num_threads(),
            rounds=len(measured["ours"]),
            equal=all(equal for _, equal in measured["ours"]),
            far_from_peer=_far(measured["peer"][-1][1], Path(settings.adapters.store) / "default" / str(STEPS)),
        )


def _write(settings: Any) -> list[list[AdvantagedGroup]]:
    """Write batches of random groups to the log; return their groups."""
    from streams.engines.base_model import load_base
    from streams.kafka.producer import Producer
    from trainer.step.grpo import LogGRPOTrainer
    from trainer.step.model import pin, wrap

    pin(settings)
    base = load_base(settings.model)
    trainer = LogGRPOTrainer(wrap(base.model, settings.trainer), base.tokenizer, settings.trainer)
    made = []
    with Producer(settings) as producer:
        for sequence in range(STEPS):
            groups = [
                replace(
                    random_group(trainer, PROMPT, COMPLETION, seed=GROUPS * sequence + number),
                    base_digest=base.base_digest,
                    tokenizer_digest=base.tokenizer_digest,
                )
                for number in range(GROUPS)
            ]
            offsets: list[Coordinates] = []
            for group in groups:
                producer.send(group, on_ack=offsets.append)
            producer.flush()
            producer.send(
                Batch(
                    batch_id=derive_id("default", sequence), policy="default", created_at=0, sequence=sequence,
                    closed_by="count", max_policy_lag=1, groups=GROUPS, responses=GROUPS * SLOTS, loss_tokens=0,
                    groups_partition=offsets[0].partition, groups_offsets=tuple(at.offset for at in offsets),
                )
            )  # fmt: skip
            made.append(groups)
    return made


def _through_trl(settings: Any, batches: Sequence[Sequence[AdvantagedGroup]], folder: Path) -> Path:
    """Take the same steps with plain TRL; return where the adapter lies."""
    import warnings

    import torch
    from datasets import Dataset
    from torch.nn.utils.rnn import pad_sequence
    from transformers import PrinterCallback
    from trl import GRPOConfig, GRPOTrainer

    from streams.engines.base_model import load_base
    from trainer.step.collate import collate
    from trainer.step.model import pin, wrap

    class Recorded(GRPOTrainer):  # type: ignore[misc]
        def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
            """Return what TRL would have sampled: the recorded groups, each named by SLOTS rows."""
            groups = [every[row["group"]] for row in inputs[::SLOTS]]
            whole = collate(groups, pad_id=self._tokenizer.pad_token_id)
            prompts = [torch.tensor(row.tokens[: row.prompt]) for row in whole.rows]
            padded = partial(pad_sequence, batch_first=True, padding_side="left")
            return {
                "prompt_ids": padded(prompts, padding_value=self._tokenizer.pad_token_id),
                "prompt_mask": padded([torch.ones_like(prompt) for prompt in prompts]),
                "completion_ids": whole.completion_ids,
                "completion_mask": whole.completion_mask,
                "tool_mask": whole.loss_mask,
                "advantages": whole.advantages.clone(),
                "old_per_token_logps": whole.sampled_logps,
                "num_items_in_batch": whole.loss_mask.sum(),
            }

    every = [group for groups in batches for group in groups]
    pin(settings)
    base = load_base(settings.model)
    model = wrap(base.model, settings.trainer)
    optimizer = torch.optim.AdamW(
        [parameter for parameter in model.parameters() if parameter.requires_grad],
        lr=settings.trainer.learning_rate,
        weight_decay=0.0,
    )
    arguments = GRPOConfig(
        output_dir=str(folder), seed=settings.trainer.seed, learning_rate=settings.trainer.learning_rate,
        lr_scheduler_type="constant", loss_type=settings.trainer.loss, epsilon=settings.trainer.epsilon_low,
        epsilon_high=settings.trainer.epsilon_high, max_grad_norm=settings.trainer.max_grad_norm, beta=0.0,
        per_device_train_batch_size=SLOTS, num_generations=SLOTS, gradient_accumulation_steps=GROUPS,
        max_completion_length=COMPLETION, max_steps=STEPS, shuffle_dataset=False, gradient_checkpointing=False,
        disable_dropout=True, bf16=False, use_cpu=True, save_strategy="no", report_to="none", disable_tqdm=True,
        logging_strategy="no",
    )  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer = Recorded(
            model=model,
            reward_funcs=[lambda **_: []],
            args=arguments,
            train_dataset=Dataset.from_list([{"prompt": "", "group": number} for number in range(len(every))]),
            processing_class=base.tokenizer,
            optimizers=(optimizer, None),
        )
        trainer.remove_callback(PrinterCallback)  # stdout is for results
        trainer.train()
        model.save_pretrained(folder / "adapter", save_embedding_layers=False)
    return folder / "adapter"


def _far(peer: Path, ours: Path) -> float:
    """Return by how much the two adapters differ, as a share of the way that ours has gone from zero (its B)."""
    from safetensors.torch import load_file

    theirs, mine = (load_file(folder / "adapter_model.safetensors") for folder in (peer, ours))
    moved = [name for name in mine if "lora_B" in name]
    apart = sum(float((theirs[name] - mine[name]).norm() ** 2) for name in moved)
    return float(f"{(apart / sum(float(mine[name].norm() ** 2) for name in moved)) ** 0.5:.3g}")
