"""Runs of agents as they are read from the log, for tests of what judges them."""

from __future__ import annotations

from typing import Any

from plugins.improve.curation.agreement import Agreement, JudgeIdentity, PairTable
from plugins.improve.curation.promotion_guard import MeasuredJudges
from schemas.events import Coordinates, CurationJudge, Message, ToolCall, TrajectoryEvent, Turn
from streams.stages.agents.trajectories.fold import fold
from streams.tools.query.finished import Finished
from tests.support.factories import trajectory, turn

SURE = PairTable(both=45, missed=2, false=3, neither=50)
"""A judge that agrees with people: kappa 0.9."""


def chat_turn(number: int, *, run: str = "run-1", **changes: Any) -> Turn:
    """Return a call of a chat without a task, after the one before."""
    parent = None if number == 0 else f"{run}/{number - 1}"
    whole: dict[str, Any] = {
        "turn_id": f"{run}/{number}",
        "trajectory_id": run,
        "task_id": run,
        "sampling_id": None,
        "slot": None,
        "parent_id": parent,
        "continuity": "first" if number == 0 else "extends",
        "prompt_tokens": 3 + 5 * number,
    }
    return turn(number, **whole | changes)


def tool_turn(number: int, arguments: str = '{"a": 4, "b": 7}', **changes: Any) -> Turn:
    """Return a call whose answer calls the tool add."""
    call = ToolCall(id=f"c{number}", name="add", arguments=arguments)
    reply = Message(role="assistant", content="", tool_calls=(call,))
    return chat_turn(number, reply=reply, finish_reason="tool_calls", **changes)


def result(text: str, number: int = 0) -> Message:
    """Return what the tool add gave."""
    return Message(role="tool", content=text, name="add", tool_call_id=f"c{number}")


def events_of_chat(run: str, *turns: Turn, **changes: Any) -> tuple[TrajectoryEvent | Turn, ...]:
    """Return the beginning of a chat of these calls, the calls and its end, as the log has them."""
    ended = finished(*turns, run=run, **changes).ended
    assert ended is not None
    chat: dict[str, Any] = {"sampling_id": None, "slot": None, "group_size": None, "purpose": "serve"}
    return trajectory("started", trajectory_id=run, task_id=run, **chat), *turns, ended


def finished(*turns: Turn, run: str = "run-1", **changes: Any) -> Finished:
    """Return a chat of these calls that ended well; `changes` are of its end."""
    steps = turns or (tool_turn(0, run=run), chat_turn(1, run=run, messages=(result("11"),)))
    ended: TrajectoryEvent = trajectory(
        trajectory_id=run,
        task_id=run,
        sampling_id=None,
        slot=None,
        group_size=None,
        purpose="serve",
        turns=len(steps),
        **{"reason": "it was idle"} | changes,
    )
    return Finished(
        position=Coordinates("streamward.trajectories", 0, 7),
        answer_id=run,
        task_id=run,
        purpose="serve",
        run=fold(steps, ended),
        ended=ended,
    )


def agreeing(table: PairTable = SURE, *, counted: tuple[int, ...] = (0,)) -> MeasuredJudges:
    """Return that every judge agrees so with people."""

    def of_judge(judge: JudgeIdentity) -> Agreement:
        return Agreement(judge=judge, table=table)

    return MeasuredJudges(of_judge=of_judge, counted=counted)


def judge_of(**changes: Any) -> CurationJudge:
    """Return the judge of a verdict, who would promote."""
    whole: dict[str, Any] = {
        "model": "judge-1",
        "endpoint": "http://judge/v1",
        "prompt_version": "transcript/1",
        "prompt_digest": "e" * 64,
        "verdict": "promote",
        "answer": "{}",
        "prompt_tokens": 10,
        "completion_tokens": 5,
    }
    return CurationJudge(**whole | changes)
