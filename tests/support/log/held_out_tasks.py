"""Tasks to train on and to evaluate with, some of which have the same question."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from click.testing import Result

from schemas.events import Message
from schemas.serde import encode
from streams.engines.base_model import Base
from streams.kafka import times
from streams.kafka.producer import Producer
from streams.kafka.topics import topics
from streams.settings.model import Settings
from tests.support import factories
from tests.support.commands import invoke
from tests.support.models.tiny_log import groups_of, write

CLEAN, LEAKED = "What is the sum of one and two?", "What is the capital of France?"


def submit(settings: Settings, base: Base, sequence: int, text: str, **changes: Any) -> None:
    """Write the tasks of a batch's groups, the first of which asks `text`."""
    with Producer(settings) as producer:
        for number, group in enumerate(groups_of(base, sequence)):
            asked = text if number == 0 else f"{CLEAN} {sequence} {number}"
            messages = (Message(role="user", content=asked),)
            producer.send(factories.task(task_id=group.task_id, policy=group.policy, messages=messages, **changes))


def evaluate(settings: Settings, text: str, policy: str = "default", age_ms: int = 0) -> None:
    """Write the task of a suite of one question that was asked of version 0."""
    metadata = {"suite": "cities@1", "suite_size": "1", "suite_index": "0"}
    task = factories.task(
        task_id=f"held-out {policy}",
        policy=policy,
        purpose="eval",
        adapter_version=0,
        group_size=1,
        metadata=metadata,
        messages=(Message(role="user", content=text),),
    )
    with Producer(settings) as producer:
        topic = topics(settings.topics)["tasks"].name
        at_ms = times.now_ms() - age_ms
        producer.send_bytes(topic, task.task_id.encode(), encode(task), timestamp_ms=at_ms)


def suite_file(folder: Path, *texts: str) -> Path:
    """Write a suite of these questions, and return its file."""
    questions = [{"prompt": text, "verifier": {"answer": "x"}, "reward_sources": ["exact"]} for text in texts]
    (folder / "questions.jsonl").write_text("".join(json.dumps(line) + "\n" for line in questions))
    file = folder / "suite.yaml"
    file.write_text("name: cities\nscenarios:\n  all:\n    file: questions.jsonl\n")
    return file


def check_export(settings: Settings, base: Base, *arguments: str, nothing: Callable[[], bool]) -> None:
    """Assert that a command refuses to give away a batch with a held-out question, and then that it may be told to."""
    submit(settings, base, 0, CLEAN)
    submit(settings, base, 1, LEAKED.upper())
    evaluate(settings, LEAKED)
    write(settings, base, range(2))

    def exported(*more: str) -> Result:
        return invoke(settings, *arguments, "--batch", "0-1", *more)

    refused = exported()
    assert refused.exit_code == 4 and "batch 1 of default: contaminated: 1 of 2 rows" in refused.stderr
    assert "Nothing was exported" in refused.stderr and "--allow-contaminated" in refused.stderr
    assert nothing(), "was written"
    allowed = exported("--allow-contaminated")
    assert allowed.exit_code == 0, allowed.stderr
