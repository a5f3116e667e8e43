"""One line for every question and its answer, appended to a file that may be followed.

    Finished ──► a response: one line; a run: one line a call ──► agent_interactions.jsonl, behind what is there

The file is its own memory: a line says whose it is, and what has one is not written again. So a run that is killed
anywhere is repeated, and neither loses nor doubles a line; a last line that was cut off is removed and written anew.
Lines are in the order in which groups and runs were finished.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import threading
from collections.abc import Iterable, Iterator
from itertools import takewhile
from pathlib import Path
from typing import Any, BinaryIO

from schemas import json_text
from schemas.events import Reward
from streams.errors import RefusedError
from streams.kafka.history import History
from streams.kafka.retry import StoppedWaiting
from streams.output import moment
from streams.stages.agents.trajectories.fold import TrajectoryStep
from streams.tools.query.finished import Finished, FinishedReader

FILE = "agent_interactions.jsonl"
FOLLOW_S = 1.0
"""How often a follower looks for more, seconds."""
Interaction = dict[str, Any]


def interactions(one: Finished) -> Iterator[Interaction]:
    """Yield a line for a response, or for each call of a run, also one that bears no loss."""
    if one.run is not None:
        yield from (_of_call(one, step) for step in one.run.steps)
    elif one.response is not None:
        said, messages = one.response, () if one.task is None else one.task.messages
        yield {
            "task_id": one.task_id,
            "input": messages[-1].content if messages else None,
            "response": said.text,
            "score": one.reward if one.reward is not None else one.opinion(one.answer_id),
            "agent_id": said.agent_id,
            "adapter_version": said.adapter_version,
            "timestamp": moment(said.created_at),
            "metadata": {"id": said.response_id, **_metadata(one, said.finish_reason, (one.answer_id,))},
        }


def _of_call(one: Finished, step: TrajectoryStep) -> Interaction:
    turn = step.turn
    own = one.opinion(turn.turn_id)
    calls = [{"name": call.name, "arguments": call.arguments} for call in turn.reply.tool_calls]
    about: dict[str, Any] = {"trajectory_id": turn.trajectory_id, "turn": turn.number, "chain": step.chain}
    about |= {"left_out": step.left_out} if step.left_out is not None else {}
    about |= {"error": turn.error} if turn.error is not None else {}
    about |= {"tool_calls": calls} if calls else {}
    whole = one.reward if one.reward is not None else one.opinion(one.answer_id)
    return {
        "task_id": one.task_id,
        "input": turn.messages[-1].content if turn.messages else None,
        "response": turn.reply.content,
        "score": whole if own is None else own,
        "agent_id": turn.agent_id,
        "adapter_version": turn.adapter_version,
        "timestamp": moment(turn.created_at),
        "metadata": {
            "id": turn.turn_id,
            **about,
            **_metadata(one, turn.finish_reason, (one.answer_id, turn.turn_id)),
        },
    }


def _metadata(one: Finished, finish_reason: str, about: Iterable[str]) -> dict[str, Any]:
    opinions = [_opinion(reward) for name in about for reward in one.feedback.get(name, ())]
    said: dict[str, Any] = {"purpose": one.purpose, "finish_reason": finish_reason, "at": str(one.at)}
    if one.task is not None:
        said |= {"scenario": one.task.scenario} | ({"task": one.task.metadata} if one.task.metadata else {})
    return said | ({"feedback": opinions} if opinions else {})


def _opinion(reward: Reward) -> dict[str, Any]:
    return {"source": reward.source, "value": reward.value, "reason": reward.rationale}


class InteractionFile:
    """The file, and what it has. Use as a context manager."""

    def __init__(self, path: Path) -> None:
        """Open it, and mend its end. Raises RefusedError if it is not such a file, or another process writes it."""
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file: BinaryIO = path.open("a+b")
        self._known: set[str] = set()
        try:
            self._begin()
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> InteractionFile:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def _begin(self) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as exc:
            raise RefusedError(f"{self.path}: another export writes it; stop that one, or name another folder") from exc
        self._file.seek(0)
        end = 0
        for number, line in enumerate(self._file, 1):
            if not line.endswith(b"\n"):  # cut off: its writer was killed
                break
            self._known.add(self._id_in(line, number))
            end += len(line)
        self._file.truncate(end)

    def _id_in(self, line: bytes, number: int) -> str:
        try:
            return str(json_text.parse(line)["metadata"]["id"])
        except (ValueError, KeyError, TypeError) as exc:
            raise RefusedError(
                f"{self.path}:{number}: expected a line of `export --format interactions`, which has a metadata.id; "
                "name another folder, or remove what is in this file"
            ) from exc

    def add(self, found: Iterable[Finished]) -> int:
        """Append the lines that are not there yet, and return how many those are."""
        added = 0
        for one in found:
            for line in interactions(one):
                name = line["metadata"]["id"]
                if name not in self._known:
                    self._known.add(name)
                    self._file.write(json.dumps(line, ensure_ascii=False).encode() + b"\n")
                    added += 1
        self._file.flush()
        os.fsync(self._file.fileno())
        return added


def write(reader: FinishedReader, path: Path, live: History | None, *, stop: threading.Event) -> int:
    """Append what is finished; return how many lines those are. Raises as `FinishedReader`.

    With `live` it continues until `stop` is set, and reads there what comes.
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
