"""Five prompts for one-digit sums with SmolLM2, and the search for one that is better than the first.

    python -m tests.benchmarks.prompt_example [--write]

    prompts create ──► prompts optimize --method pairs ──► the better version, and its figures on held-out sums

It is the loop as a user starts it: broker, streams, scoring, policy. The reward is the demo's: of 1 for the sum, 0.2
are for a bare number and 0.1 for beginning with a digit. `--write` puts what was measured into docs/prompts.md. Nothing
is asserted. Not covered: another order of the questions; one run is one sample.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

from schemas.events import Message
from streams.demo.improve_tasks import EXAMPLES
from streams.prompts.prompt_log import PromptLog, PromptText
from streams.settings.model import Settings
from streams.stages.tasks.generators import SHAPED
from tests.benchmarks.jobs import Programs
from tests.benchmarks.learning import settings_in
from tests.benchmarks.loop import node
from tests.support.processes import command, environment

PAGE = Path(__file__).parents[2] / "docs" / "prompts.md"
BEGIN, END = "<!-- prompt-example:begin -->", "<!-- prompt-example:end -->"
ANSWERS, MAX_TOKENS = 400, 6
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
    words = ("--queries", "questions.jsonl", "--answers", str(ANSWERS), "--config", config)
    job: dict[str, Any] = called(settings, folder, "prompts", "optimize", "sums", *words)
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
            f"e-value {figures['e_value']:.3g}; {figures['answers']:.0f} answers, {seconds:.0f} s.",
        ]
    )  # fmt: skip


def measured() -> str:
    """Search, and return what came of it."""
    with node() as empty, tempfile.TemporaryDirectory(prefix="streamward-bench-") as temporary:
        folder = Path(temporary)
        settings = settings_in(empty, folder)
        create_versions(settings)
        with Programs({name: (settings, (name,)) for name in ("streams", "scoring", "policy")}, folder) as programs:
            began = time.monotonic()
            try:
                job = searched(settings, folder)
            except subprocess.SubprocessError as exc:
                exc.add_note(programs.said())
                raise
            return search_table(job, time.monotonic() - began)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    printed = measured()
    print(printed)
    if options.write:
        text = PAGE.read_text(encoding="utf-8")
        before, _, rest = text.partition(BEGIN)
        PAGE.write_text(f"{before}{BEGIN}\n{printed}\n{END}{rest.partition(END)[2]}", encoding="utf-8")


if __name__ == "__main__":
    main()
