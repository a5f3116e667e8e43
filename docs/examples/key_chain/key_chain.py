"""Keys that lead to other keys, and at last to a number: a tool, tasks that need it, their reward, and the model.

    key: fox-lamp ──► get(fox-lamp) ──► key: owl-ship ──► get(owl-ship) ──► 417 ──► 417

    python key_chain.py [SEED [SERVER]] ──► train.jsonl, held_out.jsonl, smollm2-tools/

Every chain has keys of its own, so what was learned of one says nothing about the number of another: the policy has to
look it up. SmolLM2's own chat template has no tools; the model in smollm2-tools/ has the same weights, and tools.jinja.
"""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path
from typing import Any

from plugins.environments.games.lookup import WORDS
from streamward import entry_point

SERVER = "http://127.0.0.1:8791"
HELD_OUT = 35
SYSTEM = "Look the key up, then the key that comes back, until there is a number. Answer with only the number."
EXAMPLES = (("sheep-wolf", "tiger-camel", "305"), ("zebra-panda", "whale-rabbit", "728"))
"""Of words that no other chain has."""


def chains() -> list[tuple[str, str, str]]:
    """Return each chain: its first key, the second, and the number."""
    draw = random.Random(0)  # noqa: S311 - for variety
    keys = [f"{one}-{other}" for one in WORDS for other in WORDS if one != other]
    draw.shuffle(keys)
    pairs = zip(keys[::2], keys[1::2], strict=True)
    return [(first, second, str(draw.randrange(100, 1000))) for first, second in pairs]


TABLE = {key: value for first, second, number in chains() for key, value in ((first, second), (second, number))}


def get(key: str) -> str:
    """Return what is stored under a key."""
    if key not in TABLE:
        raise ValueError(f"there is no key {key[:40]}")
    return shown(TABLE[key])


def shown(value: str) -> str:
    """Return a key or a number as the policy reads it."""
    return value if value.isdecimal() else f"key: {value}"


@entry_point("chain/1")
def chain(task: Any, response: Any, settings: dict[str, Any]) -> tuple[float, dict[str, float], list[float]]:
    """0.1 for each of the first two lookups that found something, and 0.8 for the right number."""
    steps = [0.1 * bool(turn.tool and turn.ok and number < 2) for number, turn in enumerate(response.turns)]
    right = response.text.strip() == task.verifier["answer"]
    if steps:
        steps[-1] += 0.8 * right
    return sum(steps), {"right": float(right)}, steps


def worked(first: str, second: str, number: str) -> list[dict[str, Any]]:
    """Return the messages of an episode that goes well."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": shown(first)}]
    for key, value in ((first, second), (second, number)):
        call = {"id": key, "name": "get", "arguments": json.dumps({"key": key})}
        messages.append({"role": "assistant", "content": "", "tool_calls": [call]})
        messages.append({"role": "tool", "content": shown(value), "name": "get", "tool_call_id": key})
    return [*messages, {"role": "assistant", "content": number}]


def task(server: str, seed: int, first: str, number: str, *, held_out: bool) -> dict[str, Any]:
    """Return a line for `streamward up --tasks`."""
    examples = [message for example in EXAMPLES for message in worked(*example)]
    settings = {"system": SYSTEM, "messages": examples, "prompt": shown(first)}
    return {
        "prompt": shown(first),
        "answer": number,
        "agent": "environment",
        "environment": {"name": f"mcp:{server}/mcp/registered", "settings": settings, "seed": seed},
        "max_turns": 4,
        "sampling": {"temperature": 1.0, "max_tokens": 40},
        "reward_sources": ["exact" if held_out else "key_chain:chain"],
        **({"purpose": "eval", "group_size": 1} if held_out else {}),
    }


def write_tasks(seed: int, server: str) -> None:
    """Write the tasks; a seed draws their order, and which are held out."""
    every = chains()
    random.Random(seed).shuffle(every)  # noqa: S311 - for variety
    for name, drawn, held_out in (("held_out", every[:HELD_OUT], True), ("train", every[HELD_OUT:], False)):
        lines = (
            json.dumps(task(server, place, first, number, held_out=held_out))
            for place, (first, _, number) in enumerate(drawn)
        )
        Path(f"{name}.jsonl").write_text("".join(f"{line}\n" for line in lines))


def write_model(folder: Path) -> None:
    """Make a folder with SmolLM2 and the template; nothing is copied."""
    from streams.engines.base_model import folder_of

    folder.mkdir(exist_ok=True)
    template = Path(__file__).with_name("tools.jinja")
    for file in (*folder_of("smollm2-135m-instruct").iterdir(), template):
        link = folder / ("chat_template.jinja" if file == template else file.name)
        link.unlink(missing_ok=True)
        link.symlink_to(file)


if __name__ == "__main__":
    seed, server, *_ = (*sys.argv[1:], *("0", SERVER)[len(sys.argv) - 1 :])
    write_tasks(int(seed), server)
    write_model(Path("smollm2-tools"))
