"""An agent of two registered tools, and questions that it can only answer with both.

guest: fox-lamp ──► guest(fox-lamp) ──► room: owl-ship ──► room(owl-ship) ──► 417 ──► 417

python front_desk.py [SEED]       train.jsonl, held_out.jsonl, prompt.json, desk.json, smollm2-tools/
python front_desk.py ask FILE [COUNT]     its questions over /acp ──► how many answers were right
python front_desk.py rate FILE [COUNT]    the same, and each run is rated
"""

from __future__ import annotations

import json
import os
import random
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import httpx
from key_chain import EXAMPLES, HELD_OUT, chains, write_model

SERVER = os.environ.get("DESK_SERVER", "http://127.0.0.1:8790")
SYSTEM = "Look the guest up, then the room that comes back. Answer with only the number."
ROOMS = {name: room for name, room, _ in chains()}
BILLS = {room: number for _, room, number in chains()}
SAMPLING = {"temperature": 1.0, "max_tokens": 40}
AT_ONCE, LIMIT_S = 32, 600


def guest(name: str) -> str:
    """Return the room of a guest."""
    if name not in ROOMS:
        raise ValueError(f"there is no guest {name[:40]}")
    return f"room: {ROOMS[name]}"


def room(name: str) -> str:
    """Return the bill of a room."""
    if name not in BILLS:
        raise ValueError(f"there is no room {name[:40]}")
    return BILLS[name]


def worked(name: str, its_room: str, number: str) -> list[dict[str, Any]]:
    """Return the messages of a run that goes well."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": f"guest: {name}"}]
    for tool, key, found in (("guest", name, f"room: {its_room}"), ("room", its_room, number)):
        call = {"id": key, "name": tool, "arguments": json.dumps({"name": key})}
        messages.append({"role": "assistant", "content": "", "tool_calls": [call]})
        messages.append({"role": "tool", "content": found, "name": tool, "tool_call_id": key})
    return [*messages, {"role": "assistant", "content": number}]


def write_files(seed: int) -> None:
    """Write what the commands read; a seed draws the order of the questions, and which are held out."""
    every = chains()
    random.Random(seed).shuffle(every)  # noqa: S311 - for variety
    lines = [
        {"prompt": f"guest: {name}", "answer": number, "agent": "desk", "max_turns": 4, "sampling": SAMPLING}
        for name, _, number in every
    ]
    for file, drawn in (("held_out.jsonl", lines[:HELD_OUT]), ("train.jsonl", lines[HELD_OUT:])):
        Path(file).write_text("".join(f"{json.dumps(line)}\n" for line in drawn))
    examples = [message for example in EXAMPLES for message in worked(*example)]
    Path("prompt.json").write_text(json.dumps([{"role": "system", "content": SYSTEM}, *examples]))
    agent = {"agent_id": "desk", "model_id": "default", "tool_ids": ["guest", "room"], "prompt": "desk"}
    Path("desk.json").write_text(json.dumps(agent))
    write_model(Path("smollm2-tools"))


def ask(line: dict[str, Any], *, rates: bool) -> bool:
    """Ask the agent one question, and return whether its answer is right."""
    chosen = {"recursion_limit": line["max_turns"], "configurable": line["sampling"]}
    body = {"agent_id": "desk", "input": line["prompt"], "config": chosen}
    run = httpx.post(f"{SERVER}/acp/runs/wait", json=body, timeout=LIMIT_S).raise_for_status().json()
    said = run["messages"][-1] if run["run"]["status"] == "success" else {"content": ""}
    is_right = said["content"].strip() == line["answer"]
    if rates:
        rating = {"id": run["run"]["run_id"], "value": int(is_right), "source": "clerk"}
        httpx.post(f"{SERVER}/v1/feedback", json=rating, timeout=LIMIT_S).raise_for_status()
    return is_right


def ask_all(file: Path, count: int | None, *, rates: bool) -> None:
    """Ask the first questions of a file, and print how many answers were right."""
    lines = [json.loads(line) for line in file.read_text().splitlines()[:count]]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        right = sum(pool.map(partial(ask, rates=rates), lines))
    print(json.dumps({"asked": len(lines), "right": right}))


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["ask" | "rate" as word, file, *count]:
            ask_all(Path(file), int(count[0]) if count else None, rates=word == "rate")
        case [seed]:
            write_files(int(seed))
        case _:
            write_files(0)
