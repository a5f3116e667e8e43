"""A run of a TRL script, and what its events say.

script + questions.jsonl, held_out.jsonl, model ──► trl_probe ──► events.jsonl ──► MeasuredRun
"""

from __future__ import annotations

import ast
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from schemas.events import Purpose, Task
from streams.demo.demo_options import HELD_OUT_TASKS
from streams.engines.base_model import folder_of
from streams.stages.tasks.generators import TaskSpec, generate
from tests.benchmarks.compare.measured_run import EVENTS, HELD_OUT, Limits, MeasuredRun, attempts, failure
from tests.benchmarks.loop import REPO

HERE = Path(__file__).parent
GROUPS, GROUP_SIZE, STEPS = 16, 8, 20
"""Of the demo: questions a step, answers a question, and steps."""
Spans = Sequence[tuple[float, float]]


def measure(run: MeasuredRun, script: str, folder: Path, limits: Limits) -> None:
    """Run a script of this folder as the arm of `run`, and fill that in."""
    _prepare(folder, run.task, run.seed, limits.model)
    probe = "tests.benchmarks.compare.trl_probe"
    words = (HERE / script, run.seed, limits.steps, limits.until)
    command = [sys.executable, "-m", probe, *map(str, words)]
    env = {**os.environ, "PYTHONPATH": str(REPO), "HF_DATASETS_CACHE": str(folder / "cache"), "HF_HUB_OFFLINE": "1"}
    ended = attempts(
        lambda _: command, folder, env=env, kills=run.kills, limit_s=limits.seconds, paused_s=lambda: paused_s(folder)
    )
    run.code_lines, run.peak_bytes, run.error = code_lines(HERE / script), ended.peak_bytes, failure(ended, folder)
    fill(run, list(_events(folder)), ended.spans)


def _prepare(folder: Path, task: str, seed: int, model: str) -> None:
    """Write what a script reads: the questions of the demo in its order, the held-out ones, and the base model."""
    (folder / "model").symlink_to(folder_of(model))
    files: tuple[tuple[str, Purpose, int], ...] = (
        ("questions.jsonl", "train", GROUPS * STEPS),
        (HELD_OUT, "eval", HELD_OUT_TASKS),
    )
    for name, purpose, count in files:
        spec = TaskSpec(family=task, count=count, seed=seed, purpose=purpose, policy="demo")
        rows = [_row(number, question) for number, question in enumerate(generate(spec, now_ms=0))]
        (folder / name).write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")


def _row(number: int, task: Task) -> dict[str, Any]:
    prompt = [{"role": message.role, "content": message.content} for message in task.messages]
    return {"id": number, "prompt": prompt, "answer": json.loads(task.verifier or "{}").get("answer", "")}


def _events(folder: Path, holds: str = "") -> Iterator[dict[str, Any]]:
    """Yield the events so far; those with `holds` in their line."""
    file = folder / EVENTS
    lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    return (json.loads(line) for line in lines if holds in line and line.endswith("}"))


def paused_s(folder: Path) -> float:
    """Return the seconds of evaluations so far, an open one up to now."""
    marks = [event["at"] for event in _events(folder, '"scor')]
    if len(marks) % 2:
        marks.append(time.time())
    return sum(end - start for start, end in zip(marks[::2], marks[1::2], strict=True))


def fill(run: MeasuredRun, events: Sequence[dict[str, Any]], spans: Spans) -> None:
    """Fill in a run from its events; the clock stands still in evaluations."""
    begun, paused, mark, step_of = spans[0][0], 0.0, 0.0, 0
    for event in events:
        match event["kind"]:
            case "sampled":
                run.tokens += event["tokens"]
            case "scoring":
                mark, step_of = event["at"], event["step"]
            case "scored":
                run.points.append((round(mark - begun - paused, 2), step_of, run.tokens, round(event["score"], 4)))
                paused += event["at"] - mark
    run.evaluation_s, run.seconds = round(paused, 1), round(spans[-1][1] - begun - paused, 1)
    run.lost = losses(events, spans)


def losses(events: Sequence[dict[str, Any]], spans: Spans) -> dict[str, float]:
    """Return what the kills cost. A start goes back to its checkpoint: what was sampled for later steps is lost."""
    seconds, tokens = 0.0, 0
    served: Counter[int] = Counter()
    kept: Counter[int] = Counter()
    last_step = 0
    for number, (start, end) in enumerate(spans):
        own = [event for event in events if start <= event["at"] <= end]
        later = [event["step"] for event in events if event["kind"] == "started" and event["at"] > end]
        back_to = min(later) if later else sys.maxsize
        begun: dict[str, Any] | None = None
        for event in own:
            if event["kind"] == "begun":
                begun = event
                served.update(set(event["ids"]))
            elif event["kind"] == "sampled" and begun is not None:
                if event["step"] >= back_to:
                    seconds += len(event["ids"]) * (event["at"] - begun["at"])
                    tokens += event["tokens"]
                else:
                    kept.update(set(event["ids"]))
                begun = None
        if begun is not None and number + 1 < len(spans):
            seconds += len(begun["ids"]) * (end - begun["at"])
        last_step = max([event["step"] for event in own if event["kind"] == "scoring"], default=last_step)
    rounds = [event for event in events if event["kind"] == "begun"]
    asked = last_step * len(set(rounds[0]["ids"])) if rounds else 0
    return {
        "trajectory_s": round(seconds, 1),
        "served_twice": sum(1 for times in served.values() if times > 1),
        "never_trained": max(0, asked - len(kept)),
        "tokens_again": tokens,
    }


def code_lines(script: Path) -> int:
    """Return the lines of code of a script, without blank ones, comments and docstrings."""
    text = script.read_text(encoding="utf-8")
    docs = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            docs |= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    lines = enumerate(text.splitlines(), 1)
    return sum(1 for number, line in lines if line.strip() and line.strip()[0] != "#" and number not in docs)
