"""forward_backward and optim_step of the Tinker API against the trainer's own step on the same tokens, real model.

Both sides have SmolLM2-135M, LoRA on all linear layers, one group of eight slots with random tokens, one thread and
float32. The trainer takes a batch of the log with loss dapo; the calls are one forward_backward with loss ppo, whose
outputs have the logprobs of every token, of the prompt too, and one optim_step.

Not covered: the log and HTTP around a call, which the benchmarks of the door measure.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from tests.benchmarks.side_by_side import by_turns, line, median_s, say
from tests.benchmarks.trainer import CASES, SLOTS, random_group, real_trainer

if TYPE_CHECKING:
    from plugins.tinker.worker.called_model import LossExample
    from schemas.events import AdvantagedGroup

TARGET = 1 / 1.2
"""How fast the calls should at least be, as a share of the trainer's speed."""


def run() -> Iterator[dict[str, Any]]:
    """Yield one line a size; ours and peer are seconds for one step."""
    import torch

    from plugins.tinker.calls.call_forms import adam_of
    from plugins.tinker.worker.called_model import CalledModel
    from schemas.events import CallLora
    from streams.engines.base_model import load_base
    from streams.settings.model import Model, Settings

    with real_trainer() as trainer:
        called = CalledModel(Settings(), load_base(Model()))
        called.enter(called.fresh(CallLora(rank=trainer.settings.lora_rank), 0))
        adam = adam_of({"learning_rate": 1e-4})
        for prompt, completion, _ in CASES:
            say(f"training_calls: {SLOTS} slots of {prompt} + {completion} tokens, {torch.get_num_threads()} thread(s)")
            group = random_group(trainer, prompt, completion)
            examples = examples_of(group)

            def step(examples: list[LossExample] = examples) -> dict[str, float]:
                called.forward_backward(examples, "ppo")
                return called.optim_step(adam)

            def peer(group: AdvantagedGroup = group) -> dict[str, float]:
                return trainer.train_batch([group])

            measured = by_turns({"ours": step, "peer": peer}, rounds=7, budget_s=40)
            ours, theirs = median_s(measured["ours"]), median_s(measured["peer"])
            yield line(
                "training_calls",
                f"{prompt} + {completion} tokens, {SLOTS} slots",
                ours=ours,
                peer=theirs,
                unit="s/step",
                ratio=theirs / ours,
                target=TARGET,
                peer_is="the trainer's own step",
                threads=torch.get_num_threads(),
                rounds=len(measured["ours"]),
            )


def examples_of(group: AdvantagedGroup) -> list[LossExample]:
    """Return the responses of a group as a client of the Tinker API sends them, padded as its cookbook does."""
    import torch

    from plugins.tinker.worker.called_model import LossExample

    examples = []
    for response in group.responses:
        tokens = torch.tensor([*group.prompt_token_ids, *response.completion_token_ids])
        padding = torch.zeros(len(group.prompt_token_ids) - 1)
        sampled = torch.ones(len(response.completion_token_ids))
        inputs = {
            "target_tokens": tokens[1:],
            "logprobs": torch.cat([padding, torch.tensor(list(response.logprobs))]),
            "advantages": torch.cat([padding, response.advantage * sampled]),
        }
        examples.append(LossExample(tokens[:-1], inputs))
    return examples
