"""Answer the runs of agents on tasks: the server calls the agent's registered tools, as it does for runs of threads.

    `agents run AGENT` ──► begin ──► act ──► run_requested, of no thread ──► ThreadRuns ──► what it came to ──► end
                                      └── asked again until the run has ended; or the run is not wanted any more

The run has the id of the task's run, so its answers are turns of that, by its version and as the task draws tokens. A
request that is repeated, also of the next server, finds the same run. A task without tools has those of its agent.

Not covered: the store and the agent's memory_config; a task's messages are all that its agent reads.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

from pydantic import Field
from starlette.requests import Request

from gateway.http import errors
from gateway.http.body import Answer, Body
from gateway.http.principal import actor_of
from plugins.agents.rooms.agent_runs import RUNS
from plugins.threads.acp.known_agents import AvailableAgent, KnownAgents
from plugins.threads.acp.run_execution import ThreadRuns, run_of
from plugins.threads.acp.run_limits import RECURSION_LIMIT
from plugins.threads.acp.thread_access import read_uuid
from plugins.threads.log.thread_state import RunState
from schemas import json_text
from schemas.conventions import TOOL_IDS
from schemas.events import ANSWERED_TASK, Task, ThreadEvent
from streams.errors import CallError
from streams.stages.tasks.task_index import TaskIndex

HOLD_S = 10.0
"""How long a request waits for the end of its run."""


class BegunRuns(Protocol):
    """The runs of tasks of a server: `ServedRuns`."""

    def task_of(self, trajectory_id: str) -> str | None:
        """Return the task of a run that was begun; None if there is no such run."""


class ActBody(Body):
    """Whether a run is to work on."""

    cancel: bool = Field(False, description="end it: its answer is not wanted any more")


class ActAnswer(Answer):
    """What a run has come to."""

    ending: str | None = Field(description="null: it has not ended")
    error: str | None = Field(description="why it has no answer")
    answer: str | None = Field(description="the turn with its answer")
    waits_for: list[str] = Field(description="calls that wait for a person or a client: POST /acp/runs/{id}/resume")


class RunsOfTasks:
    """The runs of tasks that a server answers by itself."""

    def __init__(self, runs: ThreadRuns, begun: BegunRuns, tasks: Callable[[], TaskIndex], agents: KnownAgents) -> None:
        self._runs, self._begun, self._tasks, self._agents = runs, begun, tasks, agents

    @RUNS.post(
        "/act",
        may="runs.write",
        refuses=(404, 409),
        sends={},
        example=ActAnswer(ending="success", error=None, answer="0d3f1f0e-5a57-5f0e-9f0a-2c1f5c8d7e90", waits_for=[]),
    )
    async def act_run(self, request: Request, agent_id: str, trajectory_id: str, body: ActBody) -> ActAnswer:
        """Let the server answer the run of a registered agent on a task, with the agent's tools."""
        name = read_uuid(trajectory_id, "trajectory_id")
        threads = await self._runs.open()
        if threads.find(name) is None:
            if (task_id := self._begun.task_of(name)) is None:
                raise CallError("not_found", f"agent {agent_id} began no run {name}; begin it first")
            await self._runs.append(await errors.apart(self._request, request, agent_id, name, task_id))
        if body.cancel:
            await self._runs.cancel(name, actor_of(request))
        with suppress(TimeoutError):
            async with asyncio.timeout(HOLD_S):
                await self._runs.wait(name)
        return _answer(run_of(threads, name))

    def _request(self, request: Request, agent_id: str, name: str, task_id: str) -> ThreadEvent:
        """Return the request for a run of a task. Raises CallError, LogError."""
        agent = self._agents.get(request, agent_id)
        self._agents.check(agent)
        if agent.has_program:
            problem = f"agent {agent_id} has a program; run that: `streamward agents run {agent_id} --command ...`"
            raise CallError("conflict", problem, "agent_id")
        if (found := self._tasks().find(task_id)) is None:
            raise CallError("not_found", f"task {task_id} is not in the log any more", "trajectory_id")
        return _request_of(found.task, agent, name, actor_of(request))


def _request_of(task: Task, agent: AvailableAgent, name: str, actor: str) -> ThreadEvent:
    tools, references = (task.tools, task.metadata.get(TOOL_IDS, "")) if task.tools else (agent.tools, agent.tool_ids)
    limit = {} if task.max_turns is None else {RECURSION_LIMIT: task.max_turns}
    version = "" if task.adapter_version is None else f"@{task.adapter_version}"
    return agent.single_run(
        name,
        actor,
        task.sampling,
        metadata={ANSWERED_TASK: task.task_id} | ({TOOL_IDS: references} if references else {}),
        model=f"{task.policy}{version}",
        memory_config="{}",
        subject=task.subject,
        messages=task.messages,
        tools=tools,
        request=json_text.one_line(limit) if limit else None,
    )


def _answer(run: RunState) -> ActAnswer:
    waits = [f"{step.call.name}: {step.waits_for}" for step in run.waiting]
    return ActAnswer(ending=run.ending, error=run.error, answer=run.turn_id, waits_for=waits)
