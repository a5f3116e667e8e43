"""Answer the calls of agents: for one policy, or for every policy of a fleet with one engine.

    ModelCall ──► which policy: its model, or that of the agent which it names ──► PolicyRecorder ──► engine
                            └── its adapters are not in memory: loaded; the policy unused for longest leaves

Each policy has a recorder, trajectories and versions of its own, so no policy continues another's trajectory. Rows of
all policies are decoded in one pass, and start in weighted round-robin (fleet.weights). A fleet knows a policy by its
first version, by its runs or calls in the log, or by a run of a task that names it; a call for any other is refused,
since the base model would answer a misspelt name.

Not covered: a bound on the policies that are known; each takes some kilobytes.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import replace
from fnmatch import fnmatchcase

from schemas.conventions import RatedAnswer
from schemas.events import AgentEvent, Message
from streams.errors import CallError, LogError
from streams.kafka.followed import FollowedOnDemand
from streams.settings.model import Settings
from streams.stages.agents.recording.calls import ModelCall, Piece, PromptScores, ServedModel
from streams.stages.agents.recording.conversations import Conversation
from streams.stages.agents.recording.policy_recorder import PolicyRecorder, RecordingIO
from streams.stages.agents.recording.run_end import EndOfRun, TrajectoryEnd
from streams.stages.agents.recording.served_conversations import ServedConversations
from streams.stages.agents.recording.served_versions import ServedVersions
from streams.stages.agents.recording.task_runs import TrajectoryOrder
from streams.stages.agents.registered_agents import AgentRegistry


class Recorder:
    """Answers calls for every policy of a server. Runs in one event loop."""

    def __init__(
        self,
        settings: Settings,
        versions: ServedVersions,
        conversations: ServedConversations,
        io: RecordingIO,
        agents: FollowedOnDemand[AgentRegistry],
    ) -> None:
        self._settings, self._versions, self._conversations = settings, versions, conversations
        self._io, self.agents = io, agents
        self._recorders: dict[str, PolicyRecorder] = {}
        self.is_fleet = versions.single is None
        self.runs = ServedRuns(self, conversations)
        for policy in (*versions.policies, *conversations.of_policy):
            self.of(policy)

    # --- what protocols ask -------------------------------------------------------------------------------------------

    async def answer(self, call: ModelCall) -> AsyncGenerator[Piece, None]:
        """Answer, `Begun` first; see `PolicyRecorder.answer`. Raises CallError."""
        recorder, call = await self._recorder_for(call)
        async with aclosing(recorder.answer(call)) as pieces:
            async for piece in pieces:
                yield piece

    async def count_tokens(self, call: ModelCall) -> int:
        """Return how many tokens the call's prompt has. Raises CallError."""
        recorder, call = await self._recorder_for(call)
        return await recorder.count_tokens(call)

    async def score(self, call: ModelCall, top: int) -> PromptScores:
        """Return the logprobs of a call's text under a version; see `PolicyRecorder.score`. Raises CallError."""
        recorder, call = await self._recorder_for(call)
        return await recorder.score(call, top)

    async def is_continued(self, call: ModelCall) -> bool:
        """Return whether the history of a call begins with a recorded one and its answer."""
        return any(conversations.is_continued(call) for conversations in self._conversations)

    async def prompt_of(self, call: ModelCall) -> str | None:
        """Return the logged prompt that a call's agent is registered with; None for a run, since its task has its own.

        Raises CallError if the broker does not answer.
        """
        if any(conversations.is_run(call.trajectory_id) for conversations in self._conversations):
            return None
        agent = await self._agent(call.agent_id)
        return None if agent is None else agent.prompt

    async def conversation(self, turn_id: str) -> tuple[Message, ...] | None:
        """Return the messages up to a recorded turn, its answer included; None if there is no such turn."""
        for conversations in self._conversations:
            if (messages := conversations.messages(turn_id)) is not None:
                return messages
        return None

    async def opening(self, trajectory_id: str) -> tuple[Message, ...] | None:
        """Return the messages of the first recorded call of a trajectory; None if there is none."""
        for conversations in self._conversations:
            if (first := conversations.first_turn(trajectory_id)) is not None:
                return first.messages
        return None

    async def newest_messages(self, trajectory_id: str) -> tuple[Message, ...] | None:
        """Return the messages up to the newest turn of a trajectory, its answer included; None if there is none."""
        for conversations in self._conversations:
            if (messages := conversations.newest_messages(trajectory_id)) is not None:
                return messages
        return None

    def note_unread(self, turn_id: str) -> None:
        """Take in that a client left without reading an answer: a retry of its call gets it."""
        for conversations in self._conversations:
            conversations.note_unread(turn_id)

    async def agent_of(self, name: str) -> str | None:
        """Return the agent of a turn or a trajectory; None if there is none of this id."""
        for conversations in self._conversations:
            if (agent_id := conversations.agent_of(name)) is not None:
                return agent_id
        return None

    async def rated(self, answer_id: str, choice: int | None) -> RatedAnswer | None:
        """Return the turn of this id, or of another choice of its call, or the trajectory of this id; None if none."""
        for policy, conversations in self._conversations.of_policy.items():
            if (answer := conversations.find_rated(answer_id, choice, policy)) is not None:
                return answer
        return None

    def model_of(self, name: str) -> str:
        """Return the model for a requested name: the name itself, or its entry in serve.model_names."""
        if self._is_known(name.partition("@")[0]):
            return name
        targets = self._settings.serve.model_targets
        named = (model for pattern, model in targets if fnmatchcase(name, pattern))
        return next(named, name) or self._settings.policy.name

    def policy_of(self, model: str) -> str | None:
        """Return the policy that a requested name leads to; None: an agent's name, or an unknown one."""
        policy = self.model_of(model).partition("@")[0]
        return policy if self._is_known(policy) else None

    def models(self) -> list[ServedModel]:
        """Return the names that can be requested, each policy's own first; then the others in serve.model_names."""
        for policy in self._versions.policies:
            self.of(policy)
        usable = (policy for policy in sorted(self._recorders) if self._versions.other_base(policy) is None)
        models = list(itertools.chain.from_iterable(self._versions.of(policy).models() for policy in usable))
        by_name = {model.name: model for model in models}
        names = (name for name, _ in self._settings.serve.model_targets if name not in by_name)
        others = ((name, by_name.get(self.model_of(name))) for name in names)
        return models + [model._replace(name=name) for name, model in others if model is not None]

    async def close(self) -> None:
        """Return once no call is in progress any more."""
        while self._io.in_progress:
            await asyncio.wait(self._io.in_progress)
        self._io.prompts.close()

    # --- which policy -------------------------------------------------------------------------------------------------

    @property
    def recorders(self) -> list[PolicyRecorder]:
        """Trajectories of all known policies."""
        return list(self._recorders.values())

    def of(self, policy: str) -> PolicyRecorder:
        """Return the recorder of a policy. Raises CallError if this server does not serve it."""
        if policy not in self._recorders:
            conversations = self._conversations.of(policy)
            if conversations is None:
                served = self._versions.single or self._settings.fleet.policies
                text = f"the task is for policy {policy[:80]}, and this server has {served}"
                raise CallError("conflict", f"{text}; start one for that policy")
            self._recorders[policy] = PolicyRecorder(self._versions.of(policy), conversations, self._io)
        return self._recorders[policy]

    async def ready(self, policy: str) -> PolicyRecorder:
        """Return the recorder of a policy whose adapters are in memory. Raises CallError."""
        recorder = self.of(policy)
        if (base := self._versions.other_base(policy)) is not None:
            text = f"{policy} is of base model {base[:12]}, which is not the one of this server"
            raise CallError("not_found", f"{text}; ask a server that runs it", "model")
        if not self._versions.is_resident(policy):
            await asyncio.to_thread(self._versions.make_resident, policy)
        return recorder

    async def _recorder_for(self, call: ModelCall) -> tuple[PolicyRecorder, ModelCall]:
        """Return the recorder that answers a call, and the call by the name of the policy. Raises CallError."""
        name, separator, version = call.model.partition("@")
        if not self._is_known(name):
            model = await self._model_of_agent(name) if self.is_fleet else None
            if model is None:
                raise CallError("not_found", self._no_model(call.model), "model")
            name = model
            call = replace(call, model=f"{name}{separator}{version}")
        policy = name.partition("@")[0]
        self._conversations.check_policy(policy, call.trajectory_id)
        return await self.ready(policy), call

    def _is_known(self, policy: str) -> bool:
        return policy in self._recorders or policy in self._versions.policies

    def _no_model(self, model: str) -> str:
        policies = ", ".join(self._versions.policies[:8]) or "none yet"
        or_agent = ", and no agent of that name" if self.is_fleet else ""
        way_out = "ask for one of these, or add the name to serve.model_names"
        return f"there is no model {model[:80]!r}{or_agent}; this server has {policies}; {way_out}"

    async def _model_of_agent(self, agent_id: str) -> str | None:
        """Return the model of a registered agent, which is a policy that is known, or one version of it."""
        agent = await self._agent(agent_id, is_expected=True)
        return agent.model_id if agent is not None and self._is_known(agent.model_id.partition("@")[0]) else None

    async def _agent(self, agent_id: str, *, is_expected: bool = False) -> AgentEvent | None:
        """Return a registered agent; if one that `is_expected` is missing, the log is first read to its present end.

        Raises CallError.
        """
        try:
            agents = self.agents.current
            if agents is None:
                agents = await asyncio.to_thread(self.agents.open)
            agent = agents.get(agent_id)
            if agent is None and is_expected:
                await asyncio.to_thread(agents.catch_up)
                agent = agents.get(agent_id)
        except LogError as exc:
            raise CallError("busy", f"{exc}; try again") from exc
        return agent


class ServedRuns:
    """Begins and ends the runs of tasks of every policy; see `TaskRuns`."""

    def __init__(self, recorder: Recorder, conversations: ServedConversations) -> None:
        self._recorder, self._conversations = recorder, conversations

    async def begin(self, order: TrajectoryOrder) -> Conversation:
        """Return the run once its beginning is in the log. Raises CallError."""
        self._conversations.check_policy(order.policy, order.trajectory_id)
        recorder = await self._recorder.ready(order.policy)
        return await recorder.runs.begin(order)

    async def end(self, agent_id: str, trajectory_id: str, end: TrajectoryEnd) -> Conversation:
        """Return the run once its end and its response are in the log. Raises CallError."""
        for recorder in self._recorder.recorders:
            if recorder.has(trajectory_id):
                return await recorder.runs.end(agent_id, trajectory_id, end)
        raise CallError("not_found", f"agent {agent_id} began no run {trajectory_id}; begin it first")

    def task_of(self, trajectory_id: str) -> str | None:
        """Return the task of a run that was begun; None if there is no such run."""
        runs = (conversations.by_id.get(trajectory_id) for conversations in self._conversations)
        return next((run.task_id for run in runs if run is not None and run.began is not None), None)

    def has_ended(self, trajectory_id: str) -> bool:
        """Return whether the end of a run is in the log, and its response."""
        return any(conversations.has_ended(trajectory_id) for conversations in self._conversations)

    def finish(self) -> None:
        """Write the records that the previous server was killed before writing."""
        for recorder in self._recorder.recorders:
            recorder.runs.finish()

    def end_idle(self, keeps_open: Callable[[str], bool] = lambda _: False, outcome: EndOfRun = lambda _: None) -> None:
        """End abandoned trajectories, but none that something `keeps_open`; `outcome`: how one of these ended."""
        for recorder in self._recorder.recorders:
            recorder.runs.end_idle(keeps_open, outcome)
