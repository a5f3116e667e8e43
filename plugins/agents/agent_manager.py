"""Agents in place of a trainer's `generate`: prompts in, completed conversations with their tokens out.

    deploy(prompts) ──► tasks ──► runs of the program (stages/agents/run.py) ──► responses, turns ──► AgentCompletion

The prompts become tasks in the log like any other, answered by runs of the agent: recorded, audited, kept. Completions
are read from the log: the sampled tokens, never the text tokenized again.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from plugins.agents.runs.agent_process import AgentProcess, ProgramRun, run_process, task_for_agent
from plugins.agents.runs.agent_program import of_class, program_of
from plugins.agents.runs.agent_runner import AgentPlan, AgentWork, run
from plugins.agents.runs.run_server import trajectories_url
from schemas.events import (
    AnswerRule,
    Continuity,
    Message,
    Response,
    Sampling,
    Task,
    TrajectoryEvent,
    Turn,
    derive_id,
)
from schemas.serde import Poison
from streams.engines.rendering.chat_template import ChatTemplate
from streams.errors import EventError, SettingsError
from streams.kafka.admin import check_topics, offsets, read_topic
from streams.kafka.reader import read
from streams.kafka.record import Record
from streams.kafka.times import now_ms
from streams.kafka.topics import topics
from streams.settings.load import load
from streams.settings.model import Settings
from streams.stages.agents.recording.run_end import TrajectoryEnd
from streams.stages.agents.registered_agents import known_agents
from streams.stages.agents.trajectories.chat_format import message_of
from streams.stages.agents.trajectories.fold import LeftOutReason, fold, of_each
from streams.stages.agents.trajectories.run_answer import OUTPUT_CHARACTERS
from streams.stages.tasks.line_steps import LineSteps, log_now
from streams.stages.tasks.line_task import with_named
from streams.stages.tasks.submit import submit

Prompt = str | Sequence[Mapping[str, Any]]
"""What the user says, or a whole conversation: messages with `role` and `content`."""
RUN_TOPICS = ("responses", "turns", "trajectories")
LOST = "lost: it has no response in the log"


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentCompletion:
    """One run of the agent over one prompt. The lists of one entry a token have the length of `completion_ids`."""

    trajectory_id: str
    task_id: str
    slot: int
    """0-based: which of the runs over this prompt."""
    error: str | None = None
    """Why it cannot be trained on; its per-token fields are then empty."""
    text: str = ""
    """The last answer of the conversation."""
    messages: tuple[dict[str, Any], ...] = ()
    """The whole conversation, with tool calls and results, as chat templates take it."""
    adapter_version: int = -1
    prompt_ids: tuple[int, ...] = ()
    completion_ids: tuple[int, ...] = ()
    """What the policy wrote, and what it was sent in between."""
    logprobs: tuple[float, ...] = ()
    """Nats, under the distribution sampled from; 0 where the policy did not write the token."""
    completion_mask: tuple[int, ...] = ()
    """1 where the policy wrote the token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackedTurn:
    """One call of a run, and what it was to the calls before it."""

    number: int
    """0-based, in the order in which the calls were recorded."""
    turn_id: str
    continuity: Continuity
    reason: str
    """Why it is that."""
    parent_id: str | None
    """The turn that it continues; None: it begins a history of its own."""
    left_out: LeftOutReason | None
    """Why nothing is learned from it; None: it is in a chain of the run."""

    @property
    def is_discontinuity(self) -> bool:
        """Whether it neither begins the run nor continues the newest call."""
        return self.continuity not in ("first", "extends")


class ConversationTracker:
    """Reads from the log what agents and the policy said to each other."""

    def __init__(self, settings: Settings | None = None) -> None:
        self._settings = settings or load()

    def get_completion_history(self, trajectory_id: str) -> list[dict[str, Any]]:
        """Return the conversation of a run, its last answer included; empty if nothing was asked in it.

        All of `turns` and `trajectories` is read. Raises LogError if the broker does not answer.
        """
        end = self._end(trajectory_id)
        return list(conversations(self._turns(trajectory_id), [] if end is None else [end]).get(trajectory_id, ()))

    def get_turns(self, trajectory_id: str) -> list[TrackedTurn]:
        """Return the calls of a run in the order of the log, each with what it was to the calls before it, and why.

        Reads and raises as `get_completion_history`.
        """
        return [
            TrackedTurn(
                number=step.turn.number,
                turn_id=step.turn.turn_id,
                continuity=step.continuity,
                reason=step.reason,
                parent_id=step.turn.parent_id,
                left_out=step.left_out,
            )
            for step in fold(self._turns(trajectory_id), self._end(trajectory_id)).steps
        ]

    def get_discontinuities(self, trajectory_id: str) -> list[TrackedTurn]:
        """Return the calls of a run that neither begin nor continue it: forks, rewritten histories, auxiliary calls.

        Reads and raises as `get_completion_history`.
        """
        return [turn for turn in self.get_turns(trajectory_id) if turn.is_discontinuity]

    def _turns(self, trajectory_id: str) -> list[Turn]:
        name = trajectory_id.encode()
        records = (one for one in read_topic(self._settings, "turns") if name in (one.payload or b""))
        return [turn for turn in _turns(records) if turn.trajectory_id == trajectory_id]

    def _end(self, trajectory_id: str) -> TrajectoryEvent | None:
        name = trajectory_id.encode()
        for record in read_topic(self._settings, "trajectories"):
            event = record.decode(TrajectoryEvent) if name in (record.payload or b"") else None
            if isinstance(event, TrajectoryEvent) and (event.trajectory_id, event.kind) == (trajectory_id, "ended"):
                return event
        return None


class AgentManager:
    """Runs one agent over prompts. `streamward serve` has to run: it answers the agent's calls, and records them.

    The agent is a `command`, an `entry_point` (`package.module:function`, in a process of its own), or a subclass with
    a `_process_one` of its own, which runs in a thread of this process.
    """

    def __init__(
        self,
        agent_id: str = "agent",
        *,
        command: str | None = None,
        entry_point: str | None = None,
        settings: Settings | None = None,
        folder: Path | str = ".streamward/runs",
        answer_rule: AnswerRule | None = None,
        **limits: float,
    ) -> None:
        """Raises SettingsError if the program cannot be run. `limits` are those of AgentProcess: time_limit_s, ...

        `answer_rule`: which of several answers of a run counts; None: the one that it prints or returns.
        Its tasks have the scorers and the prompt that the agent is registered with.
        """
        if command is not None and entry_point is not None:
            raise SettingsError("an agent is either a command or an entry point")
        self.agent_id, self.settings = agent_id, settings or load()
        self._folder, self._answer_rule = Path(folder).absolute(), answer_rule
        self._process: AgentProcess | None = None
        if command is not None:
            self._process = AgentProcess.from_text(command, **limits)
        elif entry_point is not None:
            self._process = AgentProcess.from_entry_point(entry_point, **limits)
        elif type(self)._process_one is AgentManager._process_one:
            raise SettingsError("name the agent: command=, entry_point=, or a subclass with its own _process_one")
        self._program = of_class(type(self)) if self._process is None else program_of(command, entry_point)

    def deploy(
        self,
        prompts: Iterable[Prompt],
        *,
        group_size: int = 1,
        parallel: int = 4,
        sampling: Sampling | None = None,
        stop: threading.Event | None = None,
    ) -> list[AgentCompletion]:
        """Run the agent `group_size` times over each prompt; return the completions, by prompt and slot.

        A run that fails has an `error` and does not affect the others. Waiting tasks of this agent in the log are
        answered, too. Raises LogError if the broker does not answer, NotFoundError for a topic that is missing,
        EventError for a prompt that no task can hold.
        """
        conversations = [_messages(prompt) for prompt in prompts]
        check_topics(self.settings)
        tasks = self._tasks(conversations, group_size, sampling or Sampling())
        starts = {tp: end for tp, (_, end) in offsets(self.settings, RUN_TOPICS).items()}
        submit(self.settings, tasks)
        work = self._in_thread if self._process is None else partial(run_process, self._process)
        plan = AgentPlan(
            agent_id=self.agent_id,
            work=lambda _: AgentWork(work),
            program=self._program,
            server=self.settings.serve.url,
            key=self.settings.serve.key,
            parallel=parallel,
            folder=self._folder,
            answer_rule=self._answer_rule,
            until_done=True,
        )
        run(self.settings, plan, stop=stop or threading.Event())
        return self._completions(tasks, starts)

    def rollout_func(self, prompts: Sequence[Prompt], trainer: Any) -> dict[str, list[Any]]:
        """Answer the prompts of TRL's GRPOTrainer (1.16): `GRPOTrainer(..., rollout_func=manager.rollout_func)`.

        One run a prompt, at the trainer's `temperature` and `max_completion_length`. `env_mask` is 1 where the policy
        wrote the token; reward functions also get `trajectory_id` and `error`. A run that failed is the end of a turn
        that bears no loss. Raises as `deploy`.
        """
        sampling = Sampling(temperature=trainer.temperature, max_tokens=trainer.max_completion_length)
        tokenizer, runs = trainer.processing_class, self.deploy(prompts, sampling=sampling)

        template = ChatTemplate(tokenizer)

        return {
            "prompt_ids": [
                list(one.prompt_ids) or list(template.ids(_messages(prompt)))
                for prompt, one in zip(prompts, runs, strict=True)
            ],
            "completion_ids": [list(one.completion_ids) or [tokenizer.eos_token_id] for one in runs],
            "logprobs": [list(one.logprobs) or [0.0] for one in runs],
            "env_mask": [list(one.completion_mask) or [0] for one in runs],
            "trajectory_id": [one.trajectory_id for one in runs],
            "error": [one.error for one in runs],
        }

    def base_url(self, agent_id: str) -> str:
        """Return where `_process_one` finds the server for this run: OpenAI's clients want `/v1` behind it."""
        return f"{trajectories_url(self.settings.serve.url, self.agent_id)}/{agent_id}"

    def _process_one(self, agent_id: str, prompt: dict[str, Any]) -> object:
        """Run the agent once, for subclasses that are not programs.

        `agent_id` names the run, see `base_url`; `prompt` is what a program finds in task.json: `prompt`, the last
        message of the user, `messages`, and more. It has completed when it returns, and failed if it raises. It may
        return its answer, as text or as the client's response, whose `id` names it. A thread cannot be stopped from
        outside, so the subclass enforces its own time limit.
        """
        raise NotImplementedError

    def _in_thread(self, context: ProgramRun, _: threading.Event) -> TrajectoryEnd:
        try:
            answer = self._process_one(context.trajectory_id, task_for_agent(context.task))
        except Exception as exc:  # whatever a user's agent raises
            return TrajectoryEnd("failed", f"{type(exc).__name__}: {exc}")
        named = getattr(answer, "id", None)
        if isinstance(named, str):
            return TrajectoryEnd("completed", "it returned", answer=named)
        return TrajectoryEnd(
            "completed", "it returned", output=answer[-OUTPUT_CHARACTERS:] if isinstance(answer, str) else None
        )

    def _tasks(self, conversations: Sequence[tuple[Message, ...]], group_size: int, sampling: Sampling) -> list[Task]:
        """Return a task for each conversation; each has an id of its own, and deployed again another one."""
        agent, steps = known_agents(self.settings).get(self.agent_id), LineSteps(log_now(self.settings))
        template = Task(
            task_id="",
            created_at=now_ms(),
            policy=self.settings.policy.name,
            purpose="serve",
            scenario="deployed",
            group_size=group_size,
            sampling=sampling,
            agent=self.agent_id,
            reward_sources=() if agent is None else agent.reward_sources,
        )
        ids = (derive_id(self.agent_id, uuid.uuid4()) for _ in conversations)
        tasks = [replace(template, task_id=name, messages=said) for name, said in zip(ids, conversations, strict=True)]
        try:
            return [with_named(task, agent, {}, steps) for task in tasks]
        except ValueError as exc:
            raise EventError(f"agent {self.agent_id} is registered with {exc}") from exc

    def _completions(self, tasks: Sequence[Task], starts: Mapping[tuple[str, int], int]) -> list[AgentCompletion]:
        named, wanted = topics(self.settings.topics), {task.task_id.encode() for task in tasks}
        ends = {tp: end for tp, (_, end) in offsets(self.settings, RUN_TOPICS).items()}
        records = [one for one in read(self.settings, starts, ends) if one.key in wanted]
        responses: dict[tuple[str, int], Response] = {}
        for record in records:
            if record.at.topic == named["responses"].name:
                response = record.decode(Response)
                if not isinstance(response, Poison):
                    responses.setdefault((response.task_id, response.slot), response)
        steps = [record.decode(TrajectoryEvent) for record in records if record.at.topic == named["trajectories"].name]
        ended = [step for step in steps if not isinstance(step, Poison)]
        turns = _turns(record for record in records if record.at.topic == named["turns"].name)
        answers = conversations(turns, ended)
        slots = [(task.task_id, slot) for task in tasks for slot in range(task.group_size)]
        return [_completion(*slot, responses.get(slot), answers) for slot in slots]


def _messages(prompt: Prompt) -> tuple[Message, ...]:
    """Return the messages of a prompt. Raises EventError as `_message`."""
    return tuple(map(_message, [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt))


def _message(given: Mapping[str, Any]) -> Message:
    try:
        return Message(role=given["role"], content=given["content"])
    except (KeyError, TypeError) as exc:
        raise EventError(f"a message of a prompt has `role` and `content`; this one is {given!r:.200}") from exc


def conversations(turns: Iterable[Turn], ends: Iterable[TrajectoryEvent] = ()) -> dict[str, tuple[dict[str, Any], ...]]:
    """Return the conversation of each run, which is the first of its chains of calls."""
    return {
        name: tuple(message_of(message, for_template=True) for message in trajectory.chains[0].messages)
        for name, trajectory in of_each(turns, ends).items()
        if trajectory.chains
    }


def _turns(records: Iterable[Record]) -> Iterator[Turn]:
    for record in records:
        turn = record.decode(Turn)
        if not isinstance(turn, Poison):
            yield turn


def _completion(
    task_id: str, slot: int, response: Response | None, said: Mapping[str, tuple[dict[str, Any], ...]]
) -> AgentCompletion:
    if response is None:
        return AgentCompletion(trajectory_id="", task_id=task_id, slot=slot, error=LOST)
    return AgentCompletion(
        trajectory_id=response.response_id,
        task_id=task_id,
        slot=slot,
        error=response.error,
        text=response.text,
        messages=said.get(response.response_id, ()),
        adapter_version=response.adapter_version,
        prompt_ids=tuple(response.prompt_token_ids),
        completion_ids=tuple(response.completion_token_ids),
        logprobs=tuple(response.logprobs),
        completion_mask=tuple(response.loss_mask),
    )
