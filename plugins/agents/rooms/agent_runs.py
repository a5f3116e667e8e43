"""Begin and end the runs of agents on tasks, for the program that starts their processes (`streamward agents run`).

    POST /agents/AGENT_ID/trajectories/TRAJECTORY_ID/begin ──► started, acknowledged ──┐
                                                 …/end ──► ended, response, both too ──┴─► what is known of the run

Both may be repeated until they are answered. Between them the process calls /agents/…/TRAJECTORY_ID/v1.
"""

from __future__ import annotations

from typing import Annotated, Protocol

from pydantic import Field

from gateway.agents.caller import ObservedBody
from gateway.http.body import Answer, Body
from gateway.http.route import Interface
from plugins.agents.runs.agent_program import PROGRAM_CHARACTERS
from schemas.events import (
    MAX_GROUP_SIZE,
    AgentProgram,
    AnswerRule,
    Ending,
    ForkMode,
    ForkPoint,
    Observed,
    Purpose,
    Sampling,
)
from schemas.tokens import TokenIds
from streams.stages.agents.recording.conversations import Conversation
from streams.stages.agents.recording.run_end import TrajectoryEnd
from streams.stages.agents.recording.task_runs import TrajectoryOrder
from streams.stages.agents.trajectories.run_answer import OUTPUT_CHARACTERS
from streams.tools.asking import bare_id


class BeginsAndEnds(Protocol):
    """The runs of a server: `ServedRuns`."""

    async def begin(self, order: TrajectoryOrder) -> Conversation:
        """Return the run once its beginning is in the log. Raises CallError."""

    async def end(self, agent_id: str, trajectory_id: str, end: TrajectoryEnd) -> Conversation:
        """Return the run once its end and its response are in the log. Raises CallError."""


class SamplingBody(Body):
    """How the tokens of a task are drawn."""

    temperature: float
    top_p: float
    max_tokens: int
    seed: int | None = None
    stop: list[str] = Field([])


class ProgramBody(Body):
    """The program of a run, for the manifests of versions and data sets."""

    program: str = Field(max_length=PROGRAM_CHARACTERS, description="a command line, or module:function")
    file: str | None = Field(None, max_length=PROGRAM_CHARACTERS, description="that its code is in")
    sha256: str | None = Field(None, pattern=r"^[0-9a-f]{64}$", description="of that file")
    commit: str | None = Field(
        None, pattern=r"^([0-9a-f]{40}|[0-9a-f]{64})$", description="of git, where it was started"
    )
    dirty: bool | None = Field(None, description="whether tracked files there differ from the commit")


class ForkBody(Body):
    """The recorded moment that a task begins at; the fields of an event's `ForkPoint`."""

    task_id: str
    trajectory_id: str
    turn: int = Field(ge=0)
    mode: ForkMode
    tokenizer_digest: str
    messages_digest: str
    recorded_tokens: int = Field(ge=0)
    token_ids: list[int] = Field([], description="the whole prompt; empty: it is rendered again")

    @property
    def event(self) -> ForkPoint:
        """What the log has of it."""
        return ForkPoint(**{**self.model_dump(), "token_ids": TokenIds.of(self.token_ids)})


class BeginBody(Body):
    """A slot of an attempt at a task."""

    task_id: str
    sampling_id: str
    slot: int = Field(ge=0, lt=MAX_GROUP_SIZE)
    group_size: int = Field(ge=1, le=MAX_GROUP_SIZE)
    policy: str
    purpose: Purpose
    sampling: SamplingBody
    adapter_version: int | None = None
    max_turns: int | None = None
    metadata: dict[str, str] = Field({})
    traceparent: str | None = None
    observed: ObservedBody | None = None
    prompt_version: str | None = Field(None, description="NAME@VERSION of the prompt that its messages begin with")
    program: ProgramBody | None = None
    subject: str | None = Field(None, description="pseudonym of the person that its task is of")
    fork: ForkBody | None = Field(None, description="recorded moment that its task begins at")


class EndBody(Body):
    """How a run ended."""

    ending: Ending
    reason: Annotated[str, Field(max_length=1000)]
    observed: ObservedBody | None = None
    success: bool | None = None
    answer: str | None = Field(None, description="id of the model's answer that is the run's, as its client got it")
    answer_rule: AnswerRule | None = Field(None, description="which of several answers counts; null: the printed one")
    output: Annotated[str | None, Field(max_length=OUTPUT_CHARACTERS, description="end of what it printed")] = None


class RunAnswer(Answer):
    """What the log has of an agent's run on a task."""

    trajectory_id: str
    adapter_version: int | None
    metadata: dict[str, str]
    ending: str | None
    turns: int | None
    error: str | None = Field(description="why its response failed, and nothing is learned from it")


RUNS = Interface(("/agents/{agent_id}/trajectories/{trajectory_id}",))


class AgentRuns:
    """The runs of agents on tasks."""

    def __init__(self, runs: BeginsAndEnds) -> None:
        self._runs = runs

    @RUNS.post(
        "/begin",
        may="runs.write",
        sends={
            "task_id": "3d9b51f0-7a52-5e0e-8f2b-6a2b8f0a9c11",
            "sampling_id": "0f6d8a51-0a3d-5f7e-9b4e-2f1c7d9a3b22",
            "slot": 0,
            "group_size": 8,
            "policy": "sums",
            "purpose": "train",
            "sampling": {"temperature": 1, "top_p": 1, "max_tokens": 64},
        },
        example=RunAnswer(trajectory_id="walk-1", adapter_version=7, metadata={}, ending=None, turns=None, error=None),
    )
    async def begin_run(self, agent_id: str, trajectory_id: str, body: BeginBody) -> RunAnswer:
        """Begin the run of an agent on a task."""
        sampling = Sampling(**{**body.sampling.model_dump(), "stop": tuple(body.sampling.stop)})
        program = None if body.program is None else AgentProgram(**body.program.model_dump())
        fork = None if body.fork is None else body.fork.event
        events = {"sampling": sampling, "observed": _event(body.observed), "program": program, "fork": fork}
        return _answer(
            await self._runs.begin(
                TrajectoryOrder(agent_id=agent_id, trajectory_id=trajectory_id, **{**body.model_dump(), **events})
            )
        )

    @RUNS.post(
        "/end",
        may="runs.write",
        sends={"ending": "completed", "reason": "it answered"},
        example=RunAnswer(
            trajectory_id="walk-1", adapter_version=7, metadata={}, ending="completed", turns=3, error=None
        ),
    )
    async def end_run(self, agent_id: str, trajectory_id: str, body: EndBody) -> RunAnswer:
        """End it, and record its response."""
        fields = body.model_dump(include={"ending", "reason", "success", "answer_rule", "output"})
        answer = None if body.answer is None else bare_id(body.answer)
        end = TrajectoryEnd(**fields, observed=_event(body.observed), answer=answer)
        return _answer(await self._runs.end(agent_id, trajectory_id, end))


def _event(body: ObservedBody | None) -> Observed | None:
    return None if body is None else body.event


def _answer(run: Conversation) -> RunAnswer:
    began, end = run.began, run.end
    return RunAnswer(
        trajectory_id=run.trajectory_id,
        adapter_version=run.adapter_version,
        metadata={} if began is None else began.metadata,
        ending=None if end is None else end.ending,
        turns=None if end is None else end.turns,
        error=run.error,
    )
