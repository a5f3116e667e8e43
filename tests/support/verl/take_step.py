"""Take a step as verl does, in an environment that has verl and nothing of ours.

batch-N.pkl ──► verl.DataProto ──► chunk, concat, save, load ──► its own policy loss ──► AdamW ──► a PEFT folder

python take_step.py FILE FOLDER, with the numbers of the step as JSON on stdin; what was read is the last line of stdout
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from omegaconf import OmegaConf
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM

import verl
from verl import DataProto
from verl.trainer.ppo.core_algos import get_policy_loss_fn


def main(file: str, folder: str) -> None:
    """Read, step, write, report."""
    numbers = json.load(sys.stdin)
    read = DataProto.load_from_disk(file)
    read.check_consistency()
    whole = DataProto.concat(read.chunk(2))
    whole.save_to_disk(f"{folder}.again")
    proto = DataProto.load_from_disk(f"{folder}.again")
    Path(f"{folder}.again").unlink()
    assert all(torch.equal(proto.batch[name], read.batch[name]) for name in read.batch.keys())  # noqa: SIM118 - no dict
    batch, mask = proto.batch, proto.batch["response_mask"]

    torch.manual_seed(numbers["seed"])
    plain = AutoModelForCausalLM.from_pretrained(numbers["base"], dtype=torch.float32)
    targets, shape = "all-linear", {"r": numbers["rank"], "lora_alpha": numbers["alpha"]}
    torch.manual_seed(numbers["seed"])
    model = get_peft_model(plain, LoraConfig(**shape, target_modules=targets, task_type="CAUSAL_LM"))
    weights = [one for one in model.parameters() if one.requires_grad]
    optimizer = torch.optim.AdamW(weights, lr=numbers["learning_rate"], weight_decay=0.0)
    logits = model(
        input_ids=batch["input_ids"], attention_mask=batch["attention_mask"], position_ids=batch["position_ids"]
    ).logits[:, -batch["responses"].shape[1] - 1 : -1]
    logps = (logits.float() / proto.meta_info["temperature"]).log_softmax(-1)
    clip = {"clip_ratio": 0.2, "clip_ratio_low": numbers["low"], "clip_ratio_high": numbers["high"]}
    loss, _ = get_policy_loss_fn("vanilla")(
        old_log_prob=batch["old_log_probs"],
        log_prob=logps.gather(-1, batch["responses"][..., None])[..., 0],
        advantages=batch["advantages"],
        response_mask=mask,
        loss_agg_mode="token-mean",
        config=OmegaConf.create({**clip, "clip_ratio_c": 10.0, "global_batch_info": {}}),
    )
    loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(weights, numbers["max_grad_norm"])
    optimizer.step()
    model.save_pretrained(folder)
    rows = {"rows": len(proto), "uids": len(set(proto.non_tensor_batch["uid"])), "loss_tokens": int(mask.sum())}
    print(json.dumps({"version": verl.__version__, "loss": loss.item(), "grad_norm": norm.item(), **rows}))


if __name__ == "__main__":
    main(*sys.argv[1:])
