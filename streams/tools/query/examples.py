"""Turn the rows of a group into training examples, one function per format.

    rows of one group ──► sft, preference, prompts, openai, openai-preference ──► examples, or why there are none
    conversations, interactions: conversation_examples.py, interactions.py

Each function is pure, so the same rows always give the same examples.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from schemas.events import Purpose
from streams.advantage_formulas import are_equal
from streams.errors import SettingsError

Format = Literal["sft", "preference", "prompts", "openai", "openai-preference"]
"""Of groups. The other formats are conversations and interactions, which are of finished answers (finished.py)."""
ExampleSplit = Literal["train", "test", "held_out"]
Row = Mapping[str, Any]
Example = dict[str, Any]

EQUAL_REWARDS = "all rewards are equal"
"""Why a group has no best response, in the words of `tune`."""
MESSAGES = (
    "STRUCT(role VARCHAR, content VARCHAR, name VARCHAR, tool_call_id VARCHAR, "
    "tool_calls STRUCT(id VARCHAR, type VARCHAR, function STRUCT(name VARCHAR, arguments VARCHAR))[])[]"
)
COLUMNS = {
    **dict.fromkeys(("messages", "prompt", "chosen", "rejected"), MESSAGES),
    **dict.fromkeys(("reward", "chosen_reward", "rejected_reward"), "DOUBLE"),
    "rewards": "DOUBLE[]",
    "completions": "VARCHAR[]",
    "adapter_version": "INTEGER",
}
"""The SQL type of each field of an example; one that is not named is a text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportOptions:
    """What to write."""

    policy: str
    format: str = "sft"
    """One of FORMATS, or of answers and runs: conversations, interactions, and those of plugins."""
    purpose: Purpose | None = "train"
    """None: any, which only conversations and interactions can be of."""
    min_reward: float | None = None
    """sft and openai: a response needs at least this reward."""
    margin: float = 0.0
    """Preference formats: best and worst must differ by more than this."""
    all_responses: bool = False
    """sft and openai: every response of a group that is good enough, not only the best one."""
    test_share: float = 0.1
    """Share of the questions with examples in `test`."""
    seed: int = 0
    """Another seed puts other questions into `test`."""
    with_held_out: bool = False
    """Also write held-out examples, to a separate file."""
    files: Literal["jsonl", "parquet"] = "jsonl"

    @property
    def is_of_runs(self) -> bool:
        """Whether its examples are finished answers and runs, not groups."""
        return self.format not in FORMATS


def check(options: ExportOptions) -> None:
    """Raise SettingsError for options that have no effect together, or no meaning."""
    if not 0 <= options.test_share < 1:
        raise SettingsError(f"--test {options.test_share:g}: expected a share from 0 to below 1")
    single = options.format in ("sft", "openai")
    if not single and options.all_responses:
        raise SettingsError(
            f"--all takes every response of a group, and not the best one, which --format {options.format} does not "
            "choose; leave it out, or use --format sft"
        )
    if options.min_reward is not None and not single and (options.format == "interactions" or not options.is_of_runs):
        raise SettingsError(
            f"--min-reward chooses single responses, which --format {options.format} does not; leave it out, or use "
            "--format sft or conversations"
        )
    if not options.format.endswith("preference") and options.margin:
        raise SettingsError("--margin compares the best response with the worst: it needs --format preference")
    if options.format.startswith("openai") and options.files == "parquet":
        raise SettingsError(f"--format {options.format} is JSON lines by definition; leave --files parquet out")
    if options.format == "interactions" and options.with_held_out:
        raise SettingsError(
            "--format interactions is a log of every answer, held out or not; leave --with-held-out out"
        )
    if options.is_of_runs and options.files == "parquet":
        raise SettingsError(
            f"--format {options.format} is JSON lines, since the arguments of every tool have a shape of their own; "
            "leave --files parquet out"
        )


def _single(group: list[Row], options: ExportOptions) -> list[Example] | str:
    """A prompt with an answer worth imitating: {messages, …}, the last message being the answer."""
    floor = options.min_reward
    good = [row for row in group if floor is None or row["reward"] >= floor]
    if not good:
        return "below the least reward"
    if floor is None and not options.all_responses and are_equal((_best(group)["reward"], _worst(group)["reward"])):
        return EQUAL_REWARDS
    chosen = good if options.all_responses else [_best(good)]
    return [{"messages": [*_messages(row), _answer(row)], "reward": row["reward"], **_origin(row)} for row in chosen]


def _openai(group: list[Row], options: ExportOptions) -> list[Example] | str:
    """OpenAI's chat format for supervised fine-tuning: {messages} and nothing else."""
    examples = _single(group, options)
    return examples if isinstance(examples, str) else [{"messages": example["messages"]} for example in examples]


def _preference(group: list[Row], options: ExportOptions) -> list[Example] | str:
    """Best against worst of a group, as TRL's conversational preference format: {prompt, chosen, rejected, …}."""
    best, worst = _best(group), _worst(group)
    if are_equal((best["reward"], worst["reward"])):
        return EQUAL_REWARDS
    if best["reward"] - worst["reward"] <= options.margin:
        return "best and worst are too close"
    if best["text"] == worst["text"]:
        return "best and worst say the same"
    return [
        {
            "prompt": _messages(best),
            "chosen": [_answer(best)],
            "rejected": [_answer(worst)],
            "chosen_reward": best["reward"],
            "rejected_reward": worst["reward"],
            **_origin(best),
            "rejected_at": _position(worst),
        }
    ]


def _openai_preference(group: list[Row], options: ExportOptions) -> list[Example] | str:
    """OpenAI's format for preference fine-tuning: {input, preferred_output, non_preferred_output}."""
    pairs = _preference(group, options)
    if isinstance(pairs, str):
        return pairs
    return [
        {
            "input": {"messages": example["prompt"]},
            "preferred_output": example["chosen"],
            "non_preferred_output": example["rejected"],
        }
        for example in pairs
    ]


def _prompts(group: list[Row], options: ExportOptions) -> list[Example] | str:
    """A prompt with everything it was answered and how that was judged: {prompt, verifier, completions, rewards, …}."""
    first = group[0]
    return [
        {
            "prompt": _messages(first),
            "verifier": first["verifier"],
            "completions": [row["text"] for row in group],
            "rewards": [row["reward"] for row in group],
            "task_id": first["task_id"],
            "purpose": first["purpose"],
            "scenario": first["scenario"],
            "adapter_version": first["adapter_version"],
            "group_at": f"groups[{first['groups_partition']}]@{first['groups_offset']}",
        }
    ]


FORMATS: dict[str, Callable[[list[Row], ExportOptions], list[Example] | str]] = {
    "sft": _single,
    "preference": _preference,
    "prompts": _prompts,
    "openai": _openai,
    "openai-preference": _openai_preference,
}
"""What each format makes of a group: its examples, or why it gives none."""


def _best(group: list[Row]) -> Row:
    return max(group, key=lambda row: (row["reward"], -row["slot"]))


def _worst(group: list[Row]) -> Row:
    return min(group, key=lambda row: (row["reward"], row["slot"]))


def _answer(row: Row) -> Example:
    return {"role": "assistant", "content": row["text"]}


def _origin(row: Row) -> Example:
    return {
        "task_id": row["task_id"],
        "purpose": row["purpose"],
        "scenario": row["scenario"],
        "adapter_version": row["adapter_version"],
        "finish_reason": row["finish_reason"],
        "response_at": _position(row),
    }


def _position(row: Row) -> str:
    return f"responses[{row['responses_partition']}]@{row['responses_offset']}"


def _messages(row: Row) -> list[Example]:
    """Return the prompt as chat templates and OpenAI's API take it; what is not set is left out."""
    messages = []
    for message in row["messages"]:
        fields = {
            name: message[name] for name in ("role", "content", "name", "tool_call_id") if message[name] is not None
        }
        if message["tool_calls"]:
            fields["tool_calls"] = [
                {
                    "id": call["id"],
                    "type": "function",
                    "function": {"name": call["name"], "arguments": call["arguments"]},
                }
                for call in message["tool_calls"]
            ]
        messages.append(fields)
    return messages


def split_of(name: str, options: ExportOptions) -> Literal["train", "test"]:
    """Return the split of what has this name: a share of all names, by a hash.

    >>> split_of("4 + 7", ExportOptions(policy="p")) == split_of("4 + 7", ExportOptions(policy="p"))
    True
    """
    draw = int.from_bytes(hashlib.sha256(f"{options.seed}\x1f{name}".encode()).digest()[:8], "big") / 2**64
    return "test" if draw < options.test_share else "train"
