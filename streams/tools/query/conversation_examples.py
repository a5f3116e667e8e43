"""Whole conversations as training examples: every message of a response or a run, tool calls and results included.

    Finished ──► a response: its task's messages, and the answer ───┐
             └─► a run: each chain of its calls, with what it said ─┴─► {messages, tools, reward, feedback, …}

Messages and tools have the form of chat templates (TRL's conversational format with `tools`): the arguments of a call
are an object, not its text. A run is written once for each chain of its calls, the conversation first: sub-agents and
forks are separate chains, and chains that share their first turns repeat them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from schemas.events import Message, Tool
from streams.stages.agents.trajectories.chat_format import message_of, tool_of
from streams.tools.query.examples import Example, ExportOptions
from streams.tools.query.export import Counts
from streams.tools.query.finished import Finished
from streams.tools.query.splits import ExampleOrigin, origin_of


def examples(
    finished: Iterable[Finished],
    options: ExportOptions,
    counts: Counts,
    make: Callable[[Finished], Iterable[Example]] | None = None,
) -> Iterator[tuple[Example, ExampleOrigin]]:
    """Yield every example with its origin, and count. `make` returns those of an answer; None: its conversations."""
    group = None
    for answer in finished:
        counts.responses += 1
        counts.groups += answer.group is not None and answer.position != group
        group = answer.position
        floor, reward = options.min_reward, answer.reward
        if floor is not None and (reward is None or reward < floor):
            counts.left_out["below the least reward"] += 1
            continue
        conversations = list((make or _conversations)(answer))
        if not conversations:
            counts.left_out["its task is gone" if answer.run is None else "no call is delivered"] += 1
        origin = origin_of(answer)
        for example in conversations:
            counts.examples += 1
            yield example, origin


def _conversations(answer: Finished) -> Iterator[Example]:
    task, response = answer.task, answer.response
    if answer.run is None:
        if task is not None and response is not None:
            reply = Message(role="assistant", content=response.text)
            yield _example(answer, (*task.messages, reply), task.tools, 0, response.adapter_version, None)
        return
    for number, chain in enumerate(answer.run.chains):
        first, last = chain.turns[0], chain.turns[-1]
        yield _example(answer, chain.messages, first.tools, number, last.adapter_version, last.agent_id)


def _example(
    answer: Finished,
    messages: Iterable[Message],
    tools: Iterable[Tool],
    chain: int,
    version: int,
    agent_id: str | None,
) -> Example:
    return {
        "messages": [message_of(message, for_template=True) for message in messages],
        "tools": [tool_of(tool) for tool in tools],
        "reward": answer.reward,
        "feedback": answer.mean_feedback,
        "task_id": answer.task_id,
        "purpose": answer.purpose,
        "scenario": None if answer.task is None else answer.task.scenario,
        "agent_id": agent_id,
        "trajectory_id": None if answer.run is None else answer.answer_id,
        "chain": chain,
        "adapter_version": version,
        "at": str(answer.position),
    }
