"""Five prompts for one-digit sums with SmolLM2: the search for a better one, then GRPO with the first and with it.

    python -m tests.plugins.prompts.benchmarks.prompt_example [--iterations N] [--write]

    improve prompts create ──► improve prompts optimize --method pairs ──► the better version
    sums@1 ──► a job of N versions ──┐
    the better version ──► the same ─┴──► held-out reward and success, before and after

All of it is the loop as a user starts it: broker, streams, scoring, policy, train, jobs. The reward is the demo's: of 1
for the sum, 0.2 are for a bare number and 0.1 for beginning with a digit. `--iterations 0` trains nothing, `--write`
puts what was measured into docs/prompts.md. Nothing is asserted. Not covered: another seed; one run is one sample.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from plugins.jobs.fold.state import JobState
from plugins.jobs.log.job_log import JobLog
from plugins.jobs.orders import request as requests
from plugins.prompts.versions.prompt_log import PromptLog, PromptText
from schemas.events import Message
from streams.settings.model import Settings
from streams.stages.tasks.generators import SHAPED
from tests.benchmarks.loop import node
from tests.benchmarks.side_by_side import say
from tests.plugins.jobs.benchmarks.jobs import Programs
from tests.plugins.jobs.benchmarks.learning import settings_in
from tests.support.processes import command, environment

EXAMPLES = (("1 + 2 =", "3"), ("5 + 4 =", "9"))
PAGE = Path(__file__).parents[2] / "docs" / "prompts.md"
BEGIN, END = "<!-- prompt-example:begin -->", "<!-- prompt-example:end -->"
ANSWERS, MAX_TOKENS, SLOTS, GROUPS = 400, 6, 8, 16
TEXTS = (
    "Answer with a number alone.",
    "You are a calculator. Write the result and nothing else.",
    "Reply with only the final number. Example: 5 + 4 = gives 9.",
    "Answer like this: 1 + 2 = 3",
)
"""And as the fifth the two examples of the demo, without a text."""
SUMS = [{"query": f"{a} + {b} =", "expected_outcome": str(a + b)} for a in range(10) for b in range(10)]
REWARD = [{"name": "mix", "settings": SHAPED}]
LIMIT_S = 1500


def called(settings: Settings, folder: Path, *words: str) -> Any:
    """Return what a command of streamward prints. Raises CalledProcessError."""
    done = subprocess.run(
        command("--log-level", "warning", *words, "--output", "jsonl"),
        cwd=folder, env=environment(settings), stdout=subprocess.PIPE, check=True, timeout=LIMIT_S,
    )  # fmt: skip
    return json.loads(done.stdout)


def create_versions(settings: Settings) -> None:
    """Create the five versions."""
    examples = tuple(
        Message(role=role, content=text)
        for question, answer in EXAMPLES
        for role, text in (("user", question), ("assistant", answer))
    )
    with PromptLog(settings) as log:
        for messages in (*((Message(role="system", content=text),) for text in TEXTS), examples):
            log.create(PromptText(prompt="sums", messages=messages, actor="benchmark", reason="to compare"))


def searched(settings: Settings, folder: Path) -> dict[str, Any]:
    """Return the job of the search."""
    (folder / "questions.jsonl").write_text("".join(json.dumps(each) + "\n" for each in SUMS), encoding="utf-8")
    config = json.dumps({"max_tokens": MAX_TOKENS, "reward_sources": REWARD})
    words = ("--queries", "questions.jsonl", "--alias", "production", "--answers", str(ANSWERS), "--config", config)
    job: dict[str, Any] = called(settings, folder, "improve", "prompts", "optimize", "sums", *words)
    return job


def trained(settings: Settings, version: int, iterations: int) -> JobState:
    """Return the job that trained a policy with a version of the prompt."""
    body = {
        "agent_id": f"sums-{version}",
        "training_queries": SUMS,
        "config": {
            "n_iterations": iterations,
            "n_trajectories_per_query": SLOTS,
            "checkpoint_interval": iterations,
            "max_tokens": MAX_TOKENS,
            "reward_sources": REWARD,
            "prompt": f"sums@{version}",
        },
    }
    with JobLog(settings) as jobs:
        order = requests.order(requests.read_request(body), settings, policies=[f"sums-{version}"], agents={})
        job = jobs.start(order, actor="benchmark", key=None)
        deadline, shown = time.monotonic() + LIMIT_S, -1
        while not (job := jobs.get(job.job_id)).has_ended and time.monotonic() < deadline:
            if job.iteration != shown:
                shown = job.iteration
                say(f"  sums@{version}: iteration {shown}")
            time.sleep(0.5)
    return job


def search_table(job: dict[str, Any], seconds: float) -> str:
    """Return the table of the search."""
    figures = job["figures"]
    rows = [
        f"| {version} | {text} | {figures[f'mean_reward.{version}']:.3f} |"
        for version, text in enumerate((*TEXTS, "two examples"), 1)
    ]
    low, high = (figures.get(f"test_gain_{side}", float("nan")) for side in ("low", "high"))
    return "\n".join(
        [
            "| version | prompt | mean reward |", "|---|---|---|", *rows, "",
            f"{job['reason']}, with a 95 % interval of {low:+.3f} to {high:+.3f}.",
            f"e-value {figures['e_value']:.0f}; {figures['answers']:.0f} answers, {seconds:.0f} s.",
        ]
    )  # fmt: skip


def training_table(jobs: Sequence[JobState]) -> str:
    """Return the table of the jobs that trained."""
    rows = []
    for job in jobs:
        newest = job.evaluations[-1].metrics
        before, after = (
            f"{newest[f'mean_reward{side}']:.2f}, {newest[f'success{side}']:.2f}" for side in ("_against", "")
        )
        interval = f"{newest['gain']:+.2f} ({newest['gain_low']:+.2f} to {newest['gain_high']:+.2f})"
        rows.append(f"| {job.spec.prompt_version} | {job.iteration} | {before} | {after} | {interval} |")
    head = "| prompt | iterations | reward, success before | after | gain, 95 % interval |\n|---|---|---|---|---|\n"
    return head + "\n".join(rows)


def measured(iterations: int) -> str:
    """Search, train with both prompts in turn, and return what came of it."""
    with node() as empty, ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="streamward-bench-")))
        settings = settings_in(empty, folder)
        settings = settings.model_copy(update={"batches": settings.batches.model_copy(update={"groups": GROUPS})})
        create_versions(settings)
        names = {name: (settings, (name,)) for name in ("streams", "scoring")}
        names["policy"] = (settings, ("policy", "--fleet"))
        programs = stack.enter_context(Programs(names, folder))
        began = time.monotonic()
        try:
            job = searched(settings, folder)
        except subprocess.SubprocessError as exc:
            exc.add_note(programs.said())
            raise
        tables = [search_table(job, time.monotonic() - began)]
        say(tables[0])
        with PromptLog(settings) as log:
            means = log.get("sums").aliases.get("production")
        best = None if means is None else means.version
        if iterations and best is not None:
            more = {"train": (settings, ("train", "--fleet")), "jobs": (settings, ("jobs", "run"))}
            stack.enter_context(Programs(more, folder))
            tables.append(training_table([trained(settings, version, iterations) for version in (1, best)]))
            say(tables[1])
    return "\n\n".join(tables)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--iterations", type=int, default=8)
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    printed = measured(options.iterations)
    print(printed)
    if options.write:
        text = PAGE.read_text(encoding="utf-8")
        before, _, rest = text.partition(BEGIN)
        PAGE.write_text(f"{before}{BEGIN}\n{printed}\n{END}{rest.partition(END)[2]}", encoding="utf-8")


if __name__ == "__main__":
    main()
