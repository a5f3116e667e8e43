"""Judged runs on a real log: runs without a task, as `serve` records them, and verdicts on them."""

from __future__ import annotations

from typing import Any

from schemas.events import Coordinates, CurationEvent, Message, RunVerdict, TrajectoryEvent, Turn, derive_id
from schemas.tokens import TokenIds
from streams.settings.model import Settings
from tests.support.agent_calls import Recorded, assistant, user
from tests.support.factories import curation_event, trajectory
from tests.support.processes import write

PROMPT = (6, 20, 7, 21)
"""Tokens of every question."""


def run_of(name: str, question: str, answer: str = "11", **changes: Any) -> tuple[Turn, TrajectoryEvent]:
    """Return a run of one call, and its end; `changes` are of its turn."""
    run = Recorded(name)
    ids = {
        "prompt_token_ids": TokenIds.of(PROMPT),
        "completion_token_ids": TokenIds.of([22 + len(answer) % 7, 23]),
        "prompt_tokens": len(PROMPT),
    }
    alone: dict[str, Any] = {"task_id": name, "sampling_id": None, "slot": None, **ids}
    prompt: list[Message] = [user(question)]
    (turn,) = [run.call(prompt, reply=assistant(answer), **alone | changes)]
    assert isinstance(turn, Turn)
    end = trajectory(
        trajectory_id=name, task_id=name, turns=1, sampling_id=None, slot=None, group_size=None, purpose="serve"
    )
    return turn, end


def served(settings: Settings, name: str, question: str, answer: str = "11", **changes: Any) -> Coordinates:
    """Write a run of one call, and return where its end is; `changes` are of its turn."""
    return write(settings, *run_of(name, question, answer, **changes))[-1]


def verdict_on(name: str, end: Coordinates, decision: RunVerdict = "promote", **changes: Any) -> CurationEvent:
    """Return a verdict on a run."""
    labeller, actor = changes.get("labeller", "person"), changes.get("actor", "ann")
    about: dict[str, Any] = {
        "event_id": derive_id(name, labeller, actor, decision),
        "task_id": name,
        "answer_id": name,
        "policy": "default",
        "source_topic": end.topic,
        "source_partition": end.partition,
        "source_offset": end.offset,
        "verdict": decision,
    }
    return curation_event(**about | changes)


def judge(settings: Settings, name: str, end: Coordinates, decision: RunVerdict = "promote", **changes: Any) -> None:
    """Write a verdict on a run."""
    write(settings, verdict_on(name, end, decision, **changes))


def promoted(settings: Settings, *questions: str, **changes: Any) -> None:
    """Write a promoted run for each question. Each producer takes half a second to begin, so one writes them all."""
    names = {derive_id("run", question): question for question in questions}
    runs = [event for name, question in names.items() for event in run_of(name, question, **changes)]
    ends = [
        place for place, event in zip(write(settings, *runs), runs, strict=True) if isinstance(event, TrajectoryEvent)
    ]
    write(settings, *map(verdict_on, names, ends))
