"""Append a line for every question and its answer to a file that readers may follow.

    Finished ──► a response: one line; a run: one line a call ──► the end of agent_interactions.jsonl

The file holds all state: a line has the id of its answer or call, and an id is written once. So an export that was
killed anywhere can be repeated without losing or doubling a line; a truncated last line is removed and written again.
Lines are in the order in which groups and runs finished.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterable, Iterator
from itertools import takewhile
from pathlib import Path
from typing import Any

from schemas.events import Reward
from streams.kafka.history import History
from streams.kafka.retry import StoppedWaiting
from streams.output import moment
from streams.stages.agents.trajectories.fold import TrajectoryStep
from streams.tools.query.dataset_card import CARD, write_card
from streams.tools.query.finished import Finished, FinishedReader
from streams.tools.query.line_file import LineFile

FILE = "agent_interactions.jsonl"
FOLLOW_S = 1.0
"""How often a follower looks for more, seconds."""
Interaction = dict[str, Any]


def interactions(answer: Finished) -> Iterator[Interaction]:
    """Yield a line for a response, or for each call of a run, also one that bears no loss."""
    if answer.runs:  # each call has the score of its own run
        for run in answer.runs:
            yield from interactions(run)
    elif answer.run is not None:
        yield from (_call_line(answer, step) for step in answer.run.steps)
    elif answer.response is not None:
        response, messages = answer.response, () if answer.task is None else answer.task.messages
        yield {
            "task_id": answer.task_id,
            "input": messages[-1].content if messages else None,
            "response": response.text,
            "score": answer.reward if answer.reward is not None else answer.opinion(answer.answer_id),
            "agent_id": response.agent_id,
            "adapter_version": response.adapter_version,
            "timestamp": moment(response.created_at),
            "metadata": {"id": response.response_id, **_metadata(answer, response.finish_reason, (answer.answer_id,))},
        }


def _call_line(answer: Finished, step: TrajectoryStep) -> Interaction:
    turn = step.turn
    opinion = answer.opinion(turn.turn_id)
    calls = [{"name": call.name, "arguments": call.arguments} for call in turn.reply.tool_calls]
    details: dict[str, Any] = {"trajectory_id": turn.trajectory_id, "turn": turn.number, "chain": step.chain}
    if step.left_out is not None:
        details["left_out"] = step.left_out
    if turn.error is not None:
        details["error"] = turn.error
    if calls:
        details["tool_calls"] = calls
    score = answer.reward if answer.reward is not None else answer.opinion(answer.answer_id)
    return {
        "task_id": answer.task_id,
        "input": turn.messages[-1].content if turn.messages else None,
        "response": turn.reply.content,
        "score": score if opinion is None else opinion,
        "agent_id": turn.agent_id,
        "adapter_version": turn.adapter_version,
        "timestamp": moment(turn.created_at),
        "metadata": {
            "id": turn.turn_id,
            **details,
            **_metadata(answer, turn.finish_reason, (answer.answer_id, turn.turn_id)),
        },
    }


def _metadata(answer: Finished, finish_reason: str, subjects: Iterable[str]) -> dict[str, Any]:
    opinions = [_opinion(reward) for name in subjects for reward in answer.feedback.get(name, ())]
    metadata: dict[str, Any] = {"purpose": answer.purpose, "finish_reason": finish_reason, "at": str(answer.position)}
    if answer.task is not None:
        metadata["scenario"] = answer.task.scenario
        if answer.task.metadata:
            metadata["task"] = answer.task.metadata
    if opinions:
        metadata["feedback"] = opinions
    return metadata


def _opinion(reward: Reward) -> dict[str, Any]:
    return {"source": reward.source, "value": reward.value, "reason": reward.rationale}


class InteractionFile:
    """The file, and the ids of its lines. Use as a context manager."""

    def __init__(self, path: Path) -> None:
        """Open it, and mend its end. Raises RefusedError if it is not such a file, or another process writes it."""
        self._card = path.with_name(CARD)
        self._ids: set[str] = set()
        description = "`export --format interactions`, which has a metadata.id"
        self._file = LineFile(path, lambda line: self._ids.add(str(line["metadata"]["id"])), description)

    def __enter__(self) -> InteractionFile:
        return self

    def __exit__(self, *exc: object) -> None:
        self._file.__exit__(*exc)

    def add(self, finished: Iterable[Finished]) -> int:
        """Append the lines that are not there yet, and return how many those are."""
        added = 0
        for answer in finished:
            for line in interactions(answer):
                line_id = line["metadata"]["id"]
                if line_id not in self._ids:
                    self._ids.add(line_id)
                    if not self._card.exists():
                        write_card(self._card.parent, line, "--format interactions`")
                    self._file.append(line)
                    added += 1
        self._file.flush()
        return added


def write(reader: FinishedReader, path: Path, live: History | None, *, stop: threading.Event) -> int:
    """Append the finished answers; return how many lines those are. Raises as `FinishedReader`.

    With `live` it continues there until `stop` is set.
    """
    with InteractionFile(path) as file:
        added = file.add(takewhile(lambda _: not stop.is_set(), reader.round()))
        if live is None:
            return added
        reader.history = live
        with contextlib.suppress(StoppedWaiting):
            while not stop.wait(FOLLOW_S):
                added += file.add(reader.round())
    return added
