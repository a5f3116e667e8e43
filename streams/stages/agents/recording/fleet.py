"""Answer the calls of agents for every policy of a fleet: one engine, and a recorder for each policy.

    adapters, all partitions ──► FleetVersions, in a thread ──► the versions of each policy, as its rollout decides
    ModelCall ──► whose? its model, or that of the agent which it names ──► Recorder of that policy ──► shared engine
                                    └── its adapters are not in memory: loaded; the policy unused for longest leaves

Each policy has the recorder, the trajectories and the versions that `serve` has for one, so nothing of one policy
continues what another began. Rows of all policies are decoded in one pass, and begin by turns (fleet.weights). A policy
is known by its first version, by a run or call of it in the log, or by a run of a task that names it; a call for any
other is refused, since a name that is misspelt would be answered by the base model.

Not covered: a bound on the policies that are known; each takes some kilobytes and a thread that renders.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import AsyncGenerator, Iterable, Iterator
from contextlib import aclosing
from dataclasses import replace

from schemas.conventions import RatedAnswer
from schemas.events import AdapterEvent, Message
from schemas.serde import Poison
from streams.engines.protocol import TokenEngine
from streams.engines.rendering.rendering import Rendering
from streams.engines.sharing import SharedTokenEngine
from streams.errors import CallError, LogError
from streams.files import Scratch
from streams.kafka.admin import offsets
from streams.kafka.reader import PartitionReader, read
from streams.kafka.record import Record
from streams.kafka.retry import BrokerOutage
from streams.observability import catalog
from streams.observability.metrics import OFF, Meter
from streams.settings.model import Settings
from streams.stages.agents.recording.calls import ModelCall, Piece, ServedModel
from streams.stages.agents.recording.conversations import Conversation, Conversations
from streams.stages.agents.recording.recorder import Recorder
from streams.stages.agents.recording.served_versions import PolicyVersions
from streams.stages.agents.recording.task_runs import RunOrder
from streams.stages.agents.recording.turn_writer import TurnWriter
from streams.stages.agents.runs.registration import registrations
from streams.stages.agents.runs.run_end import RunEnd

AGENTS_S = 5.0
"""How old what is known of agents may be when a call names a model that nobody knows, seconds."""
log = logging.getLogger("streamward.agents")


class FleetVersions:
    """The versions of every policy, and an engine that has those which answered last. Use as a context manager."""

    def __init__(self, settings: Settings, engine: TokenEngine, outage: BrokerOutage, meter: Meter = OFF) -> None:
        """Read the log. Raises LogError, NotFoundError for a topic that is missing."""
        self._settings, self._engine, self._meter = settings, SharedTokenEngine(engine), meter
        self._scratch = Scratch("served")
        self._of: dict[str, PolicyVersions] = {}
        self._trained: set[str] = set()
        self._resident: OrderedDict[str, None] = OrderedDict()
        """Policies whose adapters are in memory, the one unused for longest first."""
        self._lock = threading.Lock()
        bounds = offsets(settings, ["adapters"])
        ends = {tp: end for tp, (_, end) in bounds.items()}
        for record in read(settings, {tp: first for tp, (first, _) in bounds.items()}, ends, outage=outage):
            self._take(record)
        self._reader = PartitionReader(settings, ends, outage=outage)

    def __enter__(self) -> FleetVersions:
        return self

    def __exit__(self, *_: object) -> None:
        self._reader.__exit__()
        self._scratch.close()

    @property
    def trained(self) -> list[str]:
        """The policies of this fleet that have a version, by name."""
        return sorted(name for name in tuple(self._trained) if self._settings.fleet.serves(name))

    def of(self, policy: str) -> PolicyVersions:
        """Return the versions of a policy."""
        with self._lock:
            if policy not in self._of:
                own = self._settings.policy.model_copy(update={"name": policy})
                settings = self._settings.model_copy(update={"policy": own})
                folder = self._scratch.folder / policy
                self._of[policy] = PolicyVersions(settings, self._engine.share(policy), folder)
            return self._of[policy]

    def other_base(self, policy: str) -> str | None:
        """Return the digest of the base model of a policy, if it is not that of the engine."""
        adapters, engine = self.of(policy).router.adapters, self._engine.engine
        base = adapters.versions[adapters.newest].base_digest
        return None if engine.name == "scripted" or base in (None, engine.base_digest) else base

    def enter(self, policy: str) -> None:
        """Have what answers for a policy in memory; who was unused for longest leaves. Blocks while it is fetched."""
        with self._lock:
            known = policy in self._resident
            self._resident[policy] = None
            self._resident.move_to_end(policy)
            oldest = list(self._resident)[: -self._settings.fleet.states]
            for other in oldest:
                del self._resident[other]
        for other in oldest:
            self._of[other].unload()
            self._meter.add(catalog.FLEET_EVICTIONS)
        if not known:
            began = time.perf_counter()
            self.of(policy).load_what_answers()
            self._meter.add(catalog.FLEET_SWAPS, "store")
            self._meter.observe(catalog.FLEET_SWAP_SECONDS, time.perf_counter() - began, "store")
        self._meter.set(catalog.FLEET_HELD, len(self._resident))

    def is_resident(self, policy: str) -> bool:
        """Return whether a policy is in memory, which it then was used for last."""
        with self._lock:
            if policy in self._resident:
                self._resident.move_to_end(policy)
                return True
        return False

    def follow(self, stop: threading.Event) -> None:
        """Take in decisions until `stop` is set. Raises LogError."""
        while not stop.is_set():
            for record in self._reader.poll():
                self._take(record)
            for policy in tuple(self._resident):
                self.of(policy).load_what_answers()
                if policy not in self._resident:  # it left meanwhile
                    self.of(policy).unload()

    def _take(self, record: Record) -> None:
        event = record.decode(AdapterEvent)
        if isinstance(event, Poison):
            log.warning("skipped: %s", event.error, extra=record.log_extra)
        elif self._settings.fleet.serves(event.policy):
            self.of(event.policy).router.take(event)
            self._trained.add(event.policy)


class FleetConversations:
    """The trajectories of each policy; together they take serve.remembered_mb."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.of_policy: dict[str, Conversations] = {}

    def of(self, policy: str) -> Conversations | None:
        """Return those of a policy; None of one that this fleet does not serve."""
        if policy not in self.of_policy and self._settings.fleet.serves(policy):
            self.of_policy[policy] = Conversations()
            each = int(self._settings.serve.remembered_mb * 1_000_000) // len(self.of_policy)
            for conversations in self.of_policy.values():
                conversations.limit(each)
        return self.of_policy.get(policy)

    def __iter__(self) -> Iterator[Conversations]:
        return iter(tuple(self.of_policy.values()))

    # what ServerMetrics adds up

    @property
    def count(self) -> int:
        """How many trajectories are remembered."""
        return sum(one.count for one in self)

    @property
    def nbytes(self) -> int:
        """What their turns take in memory."""
        return sum(one.nbytes for one in self)

    @property
    def evicted(self) -> int:
        """How many were left without their turns because memory was full."""
        return sum(one.evicted for one in self)

    @property
    def fates(self) -> Counter[str]:
        """Turns that were taken in, by what became of them."""
        return _sum(one.fates for one in self)

    @property
    def actions(self) -> Counter[str]:
        """Actions, by whether environments could use them."""
        return _sum(one.actions for one in self)


class FleetRecorder:
    """Answers calls for every policy. All of it runs in one event loop."""

    def __init__(
        self,
        settings: Settings,
        rendering: Rendering,
        versions: FleetVersions,
        writer: TurnWriter,
        conversations: FleetConversations,
    ) -> None:
        self._settings, self._rendering, self._versions = settings, rendering, versions
        self._writer, self._conversations = writer, conversations
        self._recorders: dict[str, Recorder] = {}
        self._agents: dict[str, str] = {}
        self._agents_at = -AGENTS_S
        self.runs = FleetRuns(self)
        for policy in (*versions.trained, *conversations.of_policy):
            self.recorder(policy)

    # --- what protocols ask -------------------------------------------------------------------------------------------

    async def answer(self, call: ModelCall) -> AsyncGenerator[Piece, None]:
        """Answer, `Begun` first; see `Recorder.answer`. Raises CallError."""
        recorder, call = await self._for(call)
        in_progress = sum(one.calls_in_progress for one in self._recorders.values())
        if in_progress >= self._settings.serve.max_calls:
            raise CallError("busy", f"{in_progress} calls are in progress (serve.max_calls); try again")
        async with aclosing(recorder.answer(call)) as pieces:
            async for piece in pieces:
                yield piece

    async def count_tokens(self, call: ModelCall) -> int:
        """Return how many tokens the call's prompt has. Raises CallError."""
        recorder, call = await self._for(call)
        return await recorder.count_tokens(call)

    async def conversation(self, turn_id: str) -> tuple[Message, ...] | None:
        """Return the messages up to a recorded turn, its answer included; None if there is no such turn."""
        found = (one.messages(turn_id) for one in self._conversations)
        return next((messages for messages in found if messages is not None), None)

    async def agent_of(self, name: str) -> str | None:
        """Return whose a turn or a trajectory is; None if there is none of this id."""
        found = (one.agent_of(name) for one in self._conversations)
        return next((agent_id for agent_id in found if agent_id is not None), None)

    async def rated(self, answer_id: str, choice: int | None) -> RatedAnswer | None:
        """Return what an opinion is about; see `Recorder.rated`."""
        for recorder in tuple(self._recorders.values()):
            if (found := await recorder.rated(answer_id, choice)) is not None:
                return found
        return None

    def models(self) -> list[ServedModel]:
        """Return what can be asked for, of each policy itself first."""
        for policy in self._versions.trained:
            self.recorder(policy)
        each = (
            one.models() for policy, one in sorted(self._recorders.items()) if not self._versions.other_base(policy)
        )
        return list(itertools.chain.from_iterable(each))

    async def close(self) -> None:
        """Return once no call is in progress any more."""
        for recorder in self._recorders.values():
            await recorder.close()

    # --- whose call it is ---------------------------------------------------------------------------------------------

    @property
    def recorders(self) -> list[Recorder]:
        """Those of all policies that are known."""
        return list(self._recorders.values())

    def recorder(self, policy: str) -> Recorder:
        """Return the recorder of a policy. Raises CallError (not_found) if this fleet does not serve it."""
        if policy not in self._recorders:
            conversations = self._conversations.of(policy)
            if conversations is None:
                served = self._settings.fleet.policies
                raise CallError("not_found", f"there is no model {policy[:80]!r}: fleet.policies is {served}", "model")
            versions = self._versions.of(policy)
            self._recorders[policy] = Recorder(
                self._settings.serve, versions.engine, self._rendering, versions, self._writer, conversations
            )
        return self._recorders[policy]

    async def ready(self, policy: str) -> Recorder:
        """Return the recorder of a policy whose adapters are in memory. Raises CallError."""
        recorder = self.recorder(policy)
        if (base := self._versions.other_base(policy)) is not None:
            what = f"{policy} is of base model {base[:12]}, which is not the one of this server"
            raise CallError("not_found", f"{what}; ask a server that runs it", "model")
        if not self._versions.is_resident(policy):
            await asyncio.to_thread(self._versions.enter, policy)
        return recorder

    def check_trajectory(self, policy: str, trajectory_id: str | None) -> None:
        """Raise CallError (conflict) for a trajectory that is another policy's."""
        for other, conversations in self._conversations.of_policy.items():
            if other != policy and trajectory_id in conversations.by_id:
                what = f"trajectory {trajectory_id} is of policy {other}, not of {policy}"
                raise CallError("conflict", f"{what}; use another trajectory")

    async def _for(self, call: ModelCall) -> tuple[Recorder, ModelCall]:
        """Return who answers a call, and the call by the name of the policy. Raises CallError."""
        name, at, version = call.model.partition("@")
        if not self._is_known(name):
            policy = await self._policy_of_agent(name)
            if policy is None:
                known = ", ".join(self._versions.trained[:8]) or "none yet"
                what = f"there is no model {call.model[:80]!r}, and no agent of that name; this server has {known}"
                raise CallError("not_found", what, "model")
            name = policy
            call = replace(call, model=f"{name}{at}{version}")
        self.check_trajectory(name, call.trajectory_id)
        return await self.ready(name.partition("@")[0]), call

    def _is_known(self, policy: str) -> bool:
        return policy in self._recorders or policy in self._versions.trained

    async def _policy_of_agent(self, agent_id: str) -> str | None:
        """Return the model of a registered agent, which is a policy that is known, or one version of it."""
        if agent_id not in self._agents and time.monotonic() >= self._agents_at + AGENTS_S:
            try:
                found = await asyncio.to_thread(registrations, self._settings)
            except LogError as exc:
                raise CallError("busy", f"{exc}; try again") from exc
            self._agents = {name: events[-1].model_id for name, events in found.items()}
            self._agents_at = time.monotonic()
        model = self._agents.get(agent_id)
        return model if model is not None and self._is_known(model.partition("@")[0]) else None


class FleetRuns:
    """Begins and ends the runs of tasks of every policy; see `TaskRuns`."""

    def __init__(self, fleet: FleetRecorder) -> None:
        self._fleet = fleet

    async def begin(self, order: RunOrder) -> Conversation:
        """Return the run once its beginning is in the log. Raises CallError."""
        self._fleet.check_trajectory(order.policy, order.trajectory_id)
        recorder = await self._fleet.ready(order.policy)
        return await recorder.runs.begin(order)

    async def end(self, agent_id: str, trajectory_id: str, end: RunEnd) -> Conversation:
        """Return the run once its end and its response are in the log. Raises CallError."""
        found = (one for one in self._fleet.recorders if one.has(trajectory_id))
        recorder = next(found, None)
        if recorder is None:
            raise CallError("not_found", f"agent {agent_id} began no run {trajectory_id}; begin it first")
        return await recorder.runs.end(agent_id, trajectory_id, end)

    def finish(self) -> None:
        """Write what the server before this one was killed over."""
        for recorder in self._fleet.recorders:
            recorder.runs.finish()

    def end_idle(self) -> None:
        """End runs that nobody continues."""
        for recorder in self._fleet.recorders:
            recorder.runs.end_idle()


def _sum(counters: Iterable[Counter[str]]) -> Counter[str]:
    found: Counter[str] = Counter()
    for one in counters:
        found.update(one)
    return found
