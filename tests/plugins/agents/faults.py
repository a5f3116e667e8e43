"""Fault 17: what agents depend on is killed: their server, their manager, they themselves, the broker.

    tasks ──► `streamward agents run` ──► tests/chaos/agent_client.py, a process a slot ──┐
                                          clients that have no task ──────────────────────┴─► `streamward serve`

Not covered: an engine with weights. What is recorded, and when, is the same for both.
"""

from __future__ import annotations

import json
import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, ClassVar

import psutil

from streams.kafka.group_names import SERVER, begin
from streams.kafka.idle_member import SoleMember
from streams.kafka.retry import BrokerOutage
from streams.processes import supervisor
from streams.settings.model import Settings
from tests.chaos import agent_client
from tests.chaos.agent_recount import log_of, read_given, recount
from tests.chaos.faults.brokers import AWAY
from tests.chaos.load import Load
from tests.chaos.matrix import fault, healed
from tests.chaos.proxy import free_ports
from tests.chaos.recorded_world import RecordedWorld
from tests.chaos.world import World

AGENT, CLIENT = "adder", "walker"
"""The agent that has tasks, and the one that has none."""
SLOTS = 4
CLIENTS = 3
PARALLEL = 3
ACKNOWLEDGE_S = 3.0
"""Shorter than the longer outage: clients get 503 in it."""
IDLE_S = 3.0
"""Clients pause less, so a trajectory without a call for so long is one that its client has left."""
WITHIN_S = 90.0
"""How long the next answers may take to come, whatever was killed."""


class AgentWorld(RecordedWorld):
    """A World with the server of agents, a manager, and clients of their own accord."""

    agent: ClassVar[str] = AGENT
    """Whose tasks the manager takes."""
    script: ClassVar[Mapping[str, Any]] = {}
    """What the server answers, each time after a pause."""
    servers: ClassVar[tuple[str, ...]] = ("serve",)
    """Of several one answers, and the others forward to it; each has clients."""

    def open_broker(self) -> None:
        """Start a node; each server has a port of its own, and pauses before each answer."""
        self._ports = dict(zip(self.servers, free_ports(len(self.servers)), strict=True))
        rules = {"port": self._ports["serve"], "idle_s": IDLE_S, "acknowledge_s": ACKNOWLEDGE_S}
        script = json.dumps({"latency_ms": 150, **self.script})
        self._overrides = {**self._overrides, "serve": rules, "policy": {"script": script}}
        self.given = self.folder / "given.jsonl"
        self._refused: list[str] = []
        super().open_broker()

    def answered_by(self) -> dict[str, tuple[str, ...]]:
        """Return the manager's consumer group."""
        return {begin("agents", self.agent) + self.direct.policy.name: ("tasks",)}

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """Have agents and clients at work while the block runs; the clients then end what they have begun."""
        program = f"{sys.executable} {agent_client.__file__} {self.given}"
        folder = str(self.folder / "runs")
        for name in self.servers:
            self.start(name, settings=self._of_server(name))
        self.start("agents", "run", AGENT, "--command", program, "--parallel", str(PARALLEL), "--folder", folder)
        enough = threading.Event()
        clients = [threading.Thread(target=self._walk, args=(n, enough), name=f"client-{n}") for n in range(CLIENTS)]
        for client in clients:
            client.start()
        try:
            self.until_given(CLIENTS)
            yield
            self.until_given(2 * CLIENTS)
        finally:
            enough.set()
            for client in clients:
                client.join()

    def url_of(self, name: str) -> str:
        """Return the address of a server."""
        return f"http://127.0.0.1:{self._ports[name]}"

    def _of_server(self, name: str) -> Settings:
        peer_url = self.url_of(name) if len(self.servers) > 1 else ""
        serve = self.settings.serve.model_copy(update={"port": self._ports[name], "peer_url": peer_url})
        return self.settings.model_copy(update={"serve": serve})

    def answering(self) -> str:
        """Return which of several servers answers. Raises TimeoutError."""
        never = threading.Event()
        place = SoleMember(self.direct, SERVER, never, BrokerOutage(self.direct.kafka, never))
        deadline = time.monotonic() + WITHIN_S
        while time.monotonic() < deadline:
            urls = place.member_urls()
            if name := next((name for name in self.servers if urls[:1] == [self.url_of(name)]), None):
                return name
            time.sleep(0.1)
        raise TimeoutError(f"no server has the place after {WITHIN_S:g} s: {self.said('serve')[-400:]}")

    def until_given(self, more: int) -> None:
        """Return once so many more answers have ended at clients. Raises TimeoutError."""
        wanted, deadline = len(read_given(self.given)) + more, time.monotonic() + WITHIN_S
        while (have := len(read_given(self.given))) < wanted:
            if time.monotonic() > deadline:
                said = "; ".join(self.said(name)[-400:] for name in ("serve", "agents"))
                raise TimeoutError(f"{have} of {wanted} answers after {WITHIN_S:g} s: {said}")
            time.sleep(0.02)

    def findings(self) -> list[str]:
        """Return what an independent count of the log finds wrong."""
        given = read_given(self.given)
        self.notes.append(f"{len(given)} answers ended at clients")
        return [*self._refused, *recount(log_of(self.direct), given)]

    def _walk(self, number: int, enough: threading.Event) -> None:
        url, said = f"{self.url_of(self.servers[number % len(self.servers)])}/agents/{CLIENT}/v1", 0
        while not enough.is_set():
            texts = [f"{number}: {said} {part}" for part in ("first", "second", "third")]
            try:
                agent_client.converse(url, str(self.given), texts)
            except (agent_client.Refused, TimeoutError) as exc:
                self._refused.append(f"client {number}: {exc}")
                return
            said += 1


def of_an_agent(number: int) -> Mapping[str, Any]:
    """Return what is special about a task that is an agent's."""
    return {"agent": AGENT, "group_size": SLOTS}


AGENTS: Mapping[str, Any] = {
    "starts": ("streams", "scoring"),
    "place": AgentWorld,
    "tasks": of_an_agent,
    "rate": 0.5,  # each task is four runs, and each run is a process that is supervised by another
    "most": 8,
}


@fault(17, "the server of agents is killed", "SIGKILL to `streamward serve` four times while clients stream", **AGENTS)
def kill_server(world: World, load: Load, draw: random.Random) -> None:
    assert isinstance(world, AgentWorld)
    with world.at_work():
        for _ in range(4):
            world.until_given(draw.randint(3, 9))
            time.sleep(draw.uniform(0, 0.3))
            world.kill("serve")


class ThreeServersWorld(AgentWorld):
    """An AgentWorld whose clients call three servers."""

    servers = ("serve", "serve-2", "serve-3")


def _each_kind(world: AgentWorld, draw: random.Random) -> Iterator[str]:
    """Yield the server to hurt: the one that answers and one that forwards, twice, in random order, under load."""
    kinds = [True, False] * 2
    draw.shuffle(kinds)
    for is_answering in kinds:
        world.until_given(draw.randint(3, 9))
        answering = world.answering()
        time.sleep(draw.uniform(0, 0.3))
        yield answering if is_answering else draw.choice([name for name in world.servers if name != answering])


@fault(
    17,
    "one of three servers of agents is killed",
    "SIGKILL to the one that answers and to one that forwards, twice each, while clients stream",
    **{**AGENTS, "place": ThreeServersWorld},
)
def kill_one_of_three_servers(world: World, load: Load, draw: random.Random) -> None:
    assert isinstance(world, AgentWorld)
    with world.at_work():
        for name in _each_kind(world, draw):
            world.kill(name)


@fault(
    17,
    "one of three servers of agents is frozen",
    "SIGSTOP for three sessions to the one that answers and to one that forwards, twice each, while clients stream",
    **{**AGENTS, "place": ThreeServersWorld},
    codes=frozenset({75}),
)
def freeze_one_of_three_servers(world: World, load: Load, draw: random.Random) -> None:
    assert isinstance(world, AgentWorld)
    with world.at_work():
        for name in _each_kind(world, draw):
            with healed(lambda name=name: world.thaw(name)):  # type: ignore[misc]
                world.freeze(name)
                time.sleep(3 * world.settings.kafka.session_timeout_s)


@fault(
    17,
    "agents and their manager are killed",
    "SIGKILL to two programs, to two of those that watch over them, and to `streamward agents run` three times",
    **AGENTS,
)
def kill_agents(world: World, load: Load, draw: random.Random) -> None:
    assert isinstance(world, AgentWorld)
    victims: list[Callable[[], bool]] = [
        *[lambda: _kill_child(world, supervisor.__name__)] * 2,
        *[lambda: _kill_child(world, Path(agent_client.__file__).name)] * 2,
        *[lambda: _kill_manager(world)] * 3,
    ]
    draw.shuffle(victims)
    with world.at_work():
        for kill in victims:
            deadline = time.monotonic() + WITHIN_S
            world.until_given(draw.randint(1, 6))
            while not kill():
                if time.monotonic() > deadline:
                    raise TimeoutError("no agent runs that could be killed")
                time.sleep(0.01)


@fault(
    17,
    "the broker is away while agents run",
    "SIGKILL to the node, down for 1 to 2 s, and then longer than the server waits for an acknowledgement",
    **{**AGENTS, "rate": 0.3},  # what has waited for the broker is worked off beside what comes
    codes=AWAY,
)
def agents_broker_kill(world: World, load: Load, draw: random.Random) -> None:
    assert isinstance(world, AgentWorld)
    with world.at_work():
        for seconds in (draw.uniform(1, 2), ACKNOWLEDGE_S + draw.uniform(2, 4)):
            world.until_given(draw.randint(3, 9))
            with healed(world.restart_broker):
                world.signal_broker(signal.SIGKILL)
                time.sleep(seconds)


def _kill_manager(world: AgentWorld) -> bool:
    """Kill the manager while an agent of it runs."""
    if _child(world, Path(agent_client.__file__).name) is None:
        return False
    world.kill("agents")
    return True


def _kill_child(world: AgentWorld, script: str) -> bool:
    """Kill a process of the manager's that runs this script or module, if there is one."""
    child = _child(world, script)
    if child is not None:
        with suppress(psutil.NoSuchProcess):
            child.kill()
            return True
    return False


def _child(world: AgentWorld, script: str) -> psutil.Process | None:
    """Return a process below the manager of this script or module; the supervisor's words do not name its program."""
    manager = world.pid("agents")
    with suppress(psutil.NoSuchProcess):
        for child in psutil.Process(manager).children(recursive=True) if manager else ():
            if any(script in word for word in child.cmdline()):
                return child
    return None
