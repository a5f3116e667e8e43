"""A job from an empty folder by JSON-RPC: SmolLM2 learns one-digit sums, and what that gained and cost.

    broker, streams, scoring, policy, train, jobs run, serve ──► training.start_grpo ──► versions
    held-out sums, never trained on ──► success before and after, in pairs, with an interval, every EVERY iterations

The job ends when it has gained 15 points of success with an interval above 0, or after ITERATIONS, or MINUTES in the
environment (default: 15). The prices are those of docs/jobs.md, recorded in the job.
Not covered: that it gains as much with another seed of its questions' order. docs/experiments.md has several runs.
"""

from __future__ import annotations

import http.client
import json
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from schemas.events import Task
from streams.demo.loop_plan import ONE_MACHINE
from streams.processes.child import free_port
from streams.settings.load import load, to_env
from streams.settings.model import Settings
from streams.stages.tasks.generators import SHAPED
from tests.benchmarks.loop import node
from tests.benchmarks.side_by_side import line, say
from tests.plugins.jobs.benchmarks.jobs import Programs
from tests.support.processes import read

WANTED = 0.15
"""Gain in success, of 1."""
ITERATIONS, EVERY, SLOTS = 24, 4, 8
MINUTES = float(os.environ.get("MINUTES", "15"))
QUESTION = "State the final answer to the following arithmetic problem: {} + {} =\nReply with only the final answer."
"""The base model answers 1 of 64 rightly at temperature 1, and 1 of 9 with a bare number; with the sentences the other
way round 1 of 128 and 1 of 32."""
PRICES = {"prompt": 0.1, "completion": 0.4, "trainer_hour": 1.0}
"""USD a million tokens of prompts and of answers, and an hour of training."""
ORDER: dict[str, Any] = {
    "agent_id": "default",
    "training_queries": [
        {"query": QUESTION.format(one, other), "expected_outcome": str(one + other)}
        for one in range(10)
        for other in range(10)
    ],
    "config": {
        "n_iterations": ITERATIONS,
        "n_trajectories_per_query": SLOTS,
        "checkpoint_interval": EVERY,
        "held_out_share": 0.35,
        "patience": ITERATIONS,
        "target_gain": WANTED,
        "max_tokens": 12,
        "max_budget_usd": 5.0,
        "prices": PRICES,
        "reward_sources": [{"name": "mix", "settings": SHAPED}],
    },
}
PROCESSES = {
    "streams": ("streams",),
    "scoring": ("scoring",),
    "policy": ("policy",),
    "train": ("train",),
    "jobs": ("jobs", "run"),
}


def run() -> Iterator[dict[str, Any]]:
    """Yield what the job gained, with its interval and its cost."""
    with node() as empty, ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="streamward-bench-")))
        settings = settings_in(empty, folder)
        scripted = settings.model_copy(
            update={"policy": settings.policy.model_copy(update={"engine": "scripted", "script": "{}"})}
        )
        words = {name: (settings, words) for name, words in PROCESSES.items()}
        began = time.monotonic()
        programs = stack.enter_context(Programs({**words, "serve": (scripted, ("serve",))}, folder))
        server = JobServer(settings.serve.port)
        _await(server, programs)
        job = server.call("training.start_grpo", ORDER)
        say(f"learning: job {job['job_id']}, {len(ORDER['training_queries'])} sums, at most {MINUTES:g} minutes")
        job = _watched(server, job["job_id"], programs, began + 60 * MINUTES)
        seconds = time.monotonic() - began
        newest = server.get(f"/rl/training/{job['job_id']}/metrics")["evaluations"][-1]
        asked = sum(task.metadata.get("job") == job["job_id"] for _, task in read(settings, Task))
    yield _line(job, newest, asked, seconds)


def settings_in(empty: Settings, folder: Path) -> Settings:
    """Return the settings of `streamward up`, in folders of this run."""
    from unittest import mock

    chosen = [f"{key}={value}" for key, value in ONE_MACHINE.items()]
    own = {
        "adapters.store": folder / "adapters",
        "trainer.checkpoints": folder / "checkpoints",
        "serve.port": free_port(),
    }
    with mock.patch.dict(os.environ, to_env(empty)):
        return load(file=Path(os.devnull), overrides=[*chosen, *(f"{key}={value}" for key, value in own.items())])


class JobServer:
    """The server that takes orders."""

    def __init__(self, port: int) -> None:
        self._port = port

    def call(self, method: str, params: dict[str, Any]) -> Any:
        """Return the result of a method. Raises RuntimeError for an error, OSError if nobody answers."""
        answer = self._asked("POST", "/jsonrpc", {"jsonrpc": "2.0", "id": 1, "method": method, "params": params})
        if "result" not in answer:
            raise RuntimeError(f"{method}: {answer}")
        return answer["result"]

    def get(self, path: str) -> Any:
        """Return what is at a path."""
        return self._asked("GET", path, None)

    def _asked(self, verb: str, path: str, body: Any) -> Any:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=60)
        try:
            connection.request(verb, path, None if body is None else json.dumps(body))
            return json.loads(connection.getresponse().read())
        finally:
            connection.close()


def _await(server: JobServer, programs: Programs) -> None:
    deadline = time.monotonic() + 120
    while True:
        try:
            server.call("training.list_jobs", {})
            return
        except OSError:
            if programs.ended() or time.monotonic() > deadline:
                raise RuntimeError(f"the server does not answer: {programs.said()}") from None
        time.sleep(0.2)


def _watched(server: JobServer, name: str, programs: Programs, deadline: float) -> dict[str, Any]:
    """Return the job when it has ended, or its time is over; say each iteration."""
    shown = None
    while True:
        job: dict[str, Any] = server.call("training.get_status", {"job_id": name})
        figures = job["metrics"]
        now = (job["iteration"], figures["success_rate"])
        if now != shown:
            shown = now
            rate, reward = (
                "-" if one is None else f"{one:.2f}" for one in (figures["success_rate"], figures["avg_reward"])
            )
            say(f"  iteration {job['iteration']}: success {rate}, reward {reward}, {job['cost_usd'] or 0:.4f} USD")
        if job["status"] in ("completed", "failed", "cancelled"):
            say(f"  {job['status']}: {job['reason']}")
            return job
        if programs.ended():
            raise RuntimeError(f"{programs.ended()} ended: {programs.said()}")
        if time.monotonic() > deadline:
            say("  its time is over")
            return job
        time.sleep(0.5)


def _line(job: dict[str, Any], newest: dict[str, Any], asked: int, seconds: float) -> dict[str, Any]:
    """Return the result; met if the gain is as wanted, and its interval above 0."""
    gain, low, high = (newest[name] for name in ("success_gain", "success_gain_low", "success_gain_high"))
    cost = job["cost_usd"] or 0.0
    held_out, each = int(newest["n"]), 1000 * cost / asked
    interval = f"95 % interval {100 * low:+.0f} to {100 * high:+.0f}"
    say(f"  success {newest['success_against']:.2f} before, {newest['success']:.2f} after, of {held_out} held-out sums")
    say(f"  {100 * gain:+.0f} points, {interval}; {cost:.4f} USD for {asked} questions, {each:.4f} USD per 1,000")
    return line(
        "learning",
        "gain in success of a job by JSON-RPC, SmolLM2-135M, one-digit sums",
        ours=gain,
        peer=WANTED,
        unit="of 1",
        ratio=gain / WANTED if low > 0 else 0.0,
        target=1.0,
        peer_is="the target",
        interval=[round(low, 3), round(high, 3)],
        success_before=round(newest["success_against"], 3),
        success=round(newest["success"], 3),
        held_out=held_out,
        status=job["status"],
        iterations=job["iteration"],
        version=newest["version"],
        cost_usd=round(cost, 5),
        questions=asked,
        usd_per_1000_questions=round(each, 5),
        seconds=round(seconds),
    )
