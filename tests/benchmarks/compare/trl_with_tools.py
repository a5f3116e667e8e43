"""The calculator in two turns as TRL's documentation has tools: a function that the trainer calls for the model."""

from datasets import load_dataset
from peft import LoraConfig
from trl import GRPOConfig, GRPOTrainer


def calculate(expression: str) -> str:
    """Calculate an expression.

    Args:
        expression: Whole numbers with + - *.

    Returns:
        The result.
    """
    return str(eval(expression, {"__builtins__": {}}))  # noqa: S307 - as the examples of the peer do


def reward(completions, answer, **_):
    texts = [completion[-1]["content"].strip() for completion in completions]
    return [float(text == right) for text, right in zip(texts, answer, strict=True)]


trainer = GRPOTrainer(
    model="model",
    reward_funcs=reward,
    args=GRPOConfig(output_dir="out", use_cpu=True, learning_rate=1e-3, num_train_epochs=1),
    train_dataset=load_dataset("json", data_files="questions.jsonl", split="train"),
    peft_config=LoraConfig(task_type="CAUSAL_LM", r=8, lora_alpha=16, target_modules="all-linear"),
    tools=[calculate],
)
trainer.train()
