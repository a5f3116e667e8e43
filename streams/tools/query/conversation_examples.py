"""Whole conversations as training examples: every message of a response or a run, tool calls and results included.

    Finished ──► a response: its task's messages, and the answer ───┐
             └─► a run: each chain of its calls, with what it said ─┴─► {messages, tools, reward, feedback, …}

Messages and tools are as chat templates take them (TRL's conversational format with `tools`): the arguments of a call
are an object, not the text of one. A run is written once for each chain of its calls, the conversation first:
sub-agents and forks are chains of their own, and those that share their first turns repeat them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from schemas.events import Message, Tool
from streams.stages.agents.trajectories.chat_format import message_of, tool_of
from streams.tools.query.examples import Example, ExportOptions
from streams.tools.query.export import Counts
from streams.tools.query.finished import Finished


def examples(found: Iterable[Finished], options: ExportOptions, counts: Counts) -> Iterator[tuple[Example, str]]:
    """Yield every example with the id of its task, and count."""
    group = None
    for one in found:
        counts.responses += 1
        counts.groups += one.group is not None and one.at != group
        group = one.at
        floor, reward = options.min_reward, one.reward
        is_good = floor is None or (reward is not None and reward >= floor)
        made = list(_of(one)) if is_good else []
        if not made:
            why = "below the least reward" if not is_good else "its task is gone"
            counts.left_out[why if one.run is None or not is_good else "no call is delivered"] += 1
        for example in made:
            counts.examples += 1
            yield example, one.task_id


def _of(one: Finished) -> Iterator[Example]:
    if one.run is None:
        if one.task is not None and one.response is not None:
            said = Message(role="assistant", content=one.response.text)
            yield _example(one, (*one.task.messages, said), one.task.tools, 0, one.response.adapter_version, None)
        return
    for number, chain in enumerate(one.run.chains):
        first, last = chain.turns[0], chain.turns[-1]
        yield _example(one, chain.messages, first.tools, number, last.adapter_version, last.agent_id)


def _example(
    one: Finished,
    messages: Iterable[Message],
    tools: Iterable[Tool],
    chain: int,
    version: int,
    agent_id: str | None,
) -> Example:
    about = [one.answer_id, *(step.turn.turn_id for step in (one.run.steps if one.run is not None else ()))]
    return {
        "messages": [message_of(message, for_template=True) for message in messages],
        "tools": [tool_of(tool) for tool in tools],
        "reward": one.reward,
        "feedback": one.opinion(*about),
        "task_id": one.task_id,
        "scenario": None if one.task is None else one.task.scenario,
        "agent_id": agent_id,
        "trajectory_id": None if one.run is None else one.answer_id,
        "chain": chain,
        "adapter_version": version,
        "at": str(one.at),
    }
