"""Conversations of several runs, each of one call that begins with the whole history, as threads record them.

run_of_talk("b", history, place=1) ──► a call of run b; with its tokens after those of the runs before it, if given
records(run, 1) ──► that it began, its call, and that it ended
served("one", "two", thread="case 17") ──► the same as tasks of a thread, with their responses, scores and groups
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from schemas.conventions import CONVERSATION, conversation_of_task
from schemas.events import Event, Message, RewardSource, Turn, derive_id
from schemas.tokens import TokenIds
from streams.stages.agents.trajectories.fold import fold
from streams.stages.agents.trajectories.response import response_of
from tests.support.agent_calls import ADD, Recorded, assistant, user
from tests.support.factories import T0, group, member, reward, task, trajectory

TALK = "talk"
"""The conversation of all of them."""
ALONE: dict[str, Any] = {"sampling_id": None, "slot": None}


def run_of_talk(name: str, history: Sequence[Message], *, place: int, **changes: Any) -> Recorded:
    """Return a run of the thread th9 with one call, 100 ms after the one before."""
    run, began = Recorded(name), T0 + 100 * place
    about: dict[str, Any] = {"task_id": name, "agent_id": "red.calc", "metadata": {"thread": "th9"}, **ALONE}
    run.call(history, [ADD], started_at=began, created_at=began + 40, **about | changes)
    return run


def records(run: Recorded, place: int, *, ends: bool = True) -> list[Event]:
    """Return the records of a run of the conversation."""
    name, began = run.trajectory_id, T0 + 100 * place
    common: dict[str, Any] = {"trajectory_id": name, "task_id": name, "agent_id": run.turns[0].agent_id, **ALONE}
    common |= {"group_size": None, "purpose": "serve", "metadata": {CONVERSATION: TALK}}
    ended = trajectory(turns=len(run.turns), created_at=began + 90, **common)
    return [trajectory("started", created_at=began, **common), *run.turns, *([ended] if ends else [])]


def talk(*replies: str, same_tokens: bool = True) -> list[list[Event]]:
    """Return the records of a run for each reply; without `same_tokens` no run begins with the tokens before it."""
    history: list[Message] = []
    tokens, runs = b"", list[list[Event]]()
    for place, reply in enumerate(replies):
        history.append(user(f"question {place}"))
        ids = tokens + TokenIds.of([700 + place, 800 + place]).data if same_tokens else TokenIds.of([place]).data
        run = run_of_talk(f"run{place}", history, place=place, reply=assistant(reply), prompt_token_ids=TokenIds(ids),
                          completion_token_ids=TokenIds.of([900 + place, 950 + place]))  # fmt: skip
        history, tokens = run.history(run.turns[0]), ids + run.turns[0].completion_token_ids.data
        runs.append(records(run, place))
    return runs


def calls(runs: Sequence[Sequence[Event]]) -> list[Turn]:
    """Return the calls of these runs."""
    return [event for run in runs for event in run if isinstance(event, Turn)]


def served(*replies: str, thread: str | None = "case 17", first: int = 0, **changes: Any) -> list[list[Event]]:
    """Return the records of a served task for each reply, each with the whole history and half a dollar of a judge.

    `first`: the number of the first one, and of responses before it; `changes` are of the tasks.
    """
    history: list[Message] = []
    runs = list[list[Event]]()
    for place, reply in enumerate(replies, first):
        history.append(user(f"question {place}"))
        asked: dict[str, Any] = {"task_id": f"t{place}", "purpose": "serve", "group_size": 1, "agent": "calc"}
        asked |= {"messages": tuple(history), "reward_sources": (RewardSource(name="judge"),), "scenario": "sums"}
        question = task(thread=thread, **{"tenant": "red"} | asked | changes)
        name, began = derive_id(f"s{place}", 0), T0 + 100 * place
        slot: dict[str, Any] = {"task_id": question.task_id, "sampling_id": f"s{place}", "slot": 0}
        slot["agent_id"] = question.agent
        run = Recorded(name)
        run.call(history, [ADD], reply=assistant(reply), started_at=began, created_at=began + 40, **slot)
        history = run.history(run.turns[0])
        common = {"trajectory_id": name, "group_size": question.group_size, "purpose": question.purpose, **slot}
        common |= {"metadata": conversation_of_task(question)}
        ended = trajectory(turns=1, created_at=began + 90, **common)
        response = response_of(fold(run.turns, ended), ended)
        score = reward(response, source="judge", value=place / 4, components={"cost_usd": 0.5})
        scored = member(0, response_id=name, offset=place, reward=place / 4, components={"judge": place / 4})
        whole = {"task_id": question.task_id, "group_id": derive_id(question.task_id), "sampling_id": f"s{place}"}
        of_task = group(group_size=question.group_size, purpose=question.purpose, responses=(scored,), **whole)
        runs.append([question, trajectory("started", created_at=began, **common), *run.turns, ended, response, score,
                     of_task])  # fmt: skip
    return runs
