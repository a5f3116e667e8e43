"""Questions of the improvement demo: sums of two digits from 0 to 9, with two examples in front of each.

sums ──► 60 % are asked while serving, 40 % are held out      which, a hash of the question decides
served ──► half of them `checked` (a rule knows the answer), half `reviewed` (a person reads them)
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from schemas import json_text
from schemas.events import Message, RewardSource, Sampling, Task, derive_id
from streams.stages.tasks.generators import is_held_out

CHECKED, REVIEWED, JUDGED = "checked", "reviewed", "judged"
"""Scenarios, by the kind of verdict on a run: a rule's, a person's, a judge's."""
EXAMPLES = (("1 + 2 =", "3"), ("5 + 4 =", "9"))
MAX_TOKENS = 4
SCORER = RewardSource(name="exact")
PERSONS_FILE = "person.jsonl"
SUITE = 'name: sums\nscenarios:\n  sums:\n    file: held-out.jsonl\n    reward_sources: ["exact"]\n'


def questions(*, held_out: bool) -> list[tuple[str, str]]:
    """Return the sums of one side of the split, with their answers."""
    sums = ((f"{a} + {b} =", str(a + b)) for a, b in itertools.product(range(10), repeat=2))
    return [(question, answer) for question, answer in sums if is_held_out(question) == held_out]


def messages(question: str) -> tuple[Message, ...]:
    """Return a question behind its examples."""
    turns = itertools.chain.from_iterable(
        (Message(role="user", content=shot), Message(role="assistant", content=answer)) for shot, answer in EXAMPLES
    )
    return (*turns, Message(role="user", content=question))


class RoundSpec(NamedTuple):
    """One round of what users ask."""

    policy: str
    seed: int
    number: int
    scenarios: Sequence[str]
    """By turns."""
    group_size: int
    now_ms: int


def served_tasks(spec: RoundSpec) -> Iterator[Task]:
    """Yield the tasks of a round: every question that is not held out, once."""
    for index, (question, answer) in enumerate(questions(held_out=False)):
        scenario = spec.scenarios[(index + spec.number) % len(spec.scenarios)]
        yield Task(
            task_id=derive_id("improve", spec.seed, spec.number, question),
            created_at=spec.now_ms,
            metadata={"source": f"improve:{spec.seed}:{spec.number}"},
            policy=spec.policy,
            purpose="serve",
            scenario=scenario,
            group_size=spec.group_size,
            sampling=Sampling(max_tokens=MAX_TOKENS),
            verifier=json.dumps({"answer": answer}),
            reward_sources=(SCORER,),
            messages=messages(question),
        )


def write_files(folder: Path) -> None:
    """Write the held-out questions as a suite, and what the person goes by: the right answer to every question."""
    lines = (
        {
            "messages": [{"role": message.role, "content": message.content} for message in messages(question)],
            "answer": answer,
            "scenario": "sums",
            "sampling": {"max_tokens": MAX_TOKENS},
        }
        for question, answer in questions(held_out=True)
    )
    (folder / "held-out.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (folder / "suite.yaml").write_text(SUITE)
    answers = ({"question": question, "answer": answer} for question, answer in questions(held_out=False))
    (folder / PERSONS_FILE).write_text("".join(json.dumps(line) + "\n" for line in answers))


def read_persons_file(folder: Path) -> dict[str, str]:
    """Return the right answers, by question."""
    lines = map(json_text.parse, (folder / PERSONS_FILE).read_text().splitlines())
    return {line["question"]: line["answer"] for line in lines}
