"""GRPO as TRL's documentation has it: every setting is TRL's default, but those that the task needs."""

import re

from datasets import load_dataset
from peft import LoraConfig
from transformers.trainer_utils import get_last_checkpoint
from trl import GRPOConfig, GRPOTrainer


def reward(completions, answer, **_):
    texts = [completion[0]["content"].strip() for completion in completions]
    return [
        0.7 * (text == right) + 0.2 * bool(re.fullmatch(r"[-+]?\d+(\.\d+)?", text)) + 0.1 * text[:1].isdigit()
        for text, right in zip(texts, answer, strict=True)
    ]


trainer = GRPOTrainer(
    model="model",
    reward_funcs=reward,
    args=GRPOConfig(
        output_dir="out",
        use_cpu=True,
        learning_rate=1e-3,
        max_completion_length=12,
        num_train_epochs=1,
    ),
    train_dataset=load_dataset("json", data_files="questions.jsonl", split="train"),
    peft_config=LoraConfig(task_type="CAUSAL_LM", r=8, lora_alpha=16, target_modules="all-linear"),
)
trainer.train(resume_from_checkpoint=get_last_checkpoint("out"))
