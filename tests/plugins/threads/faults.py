"""Faults 21: the server of threads is killed, or a tool of its runs, or one hangs, while clients read streams of runs.

    clients, a thread each ──► POST /runs/stream ──► `streamward serve` ──► threads, turns        beside the whole loop
         ▲   answer breaks off: GET /runs/{id}/stream, Last-Event-ID ──┘ SIGKILL, and started again
         └── a run waits for consent, or for whether a call was made: resumed      └──► functions: a note of each call

A client begins a run, reads its stream to the end, joining it again as often as it breaks off, and begins the next.
Then every run has one request and one end in the log, each text has come to its client whole, places only grew, and the
runs of a thread ended in the order in which they were read. Calls of tools are recounted in call_recount.py.

Not covered: several servers, and tools that a client runs (`test_acting_runs.py` has those).
"""

from __future__ import annotations

import json
import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, ClassVar

import httpx
import psutil

from schemas.events import ThreadEvent
from schemas.serde import Poison
from streams.kafka import admin
from tests.chaos.load import Load
from tests.chaos.matrix import fault
from tests.chaos.proxy import free_ports
from tests.chaos.world import World
from tests.plugins.threads.call_recount import recount_calls
from tests.plugins.threads.stream_clients import KINDS, WITHIN_S, ThreadClient, ToolClient, replies

CLIENTS, TOOL_CLIENTS, KILLS = 2, 4, 5
PAUSE_MS = 150
LONG_S = 3.0
"""How long a tool may take where one hangs."""
MODULE = "functions_of_faults"
FUNCTIONS = '''
import os
import pathlib
import time

def _call(tool, name):
    def note(what):
        with open(os.environ["CALLS"], "a") as file:
            file.write(f"{what} {tool} {name} {os.getpid()}\\n")
    note("begun")
    time.sleep(0.3)
    while tool == "once" and pathlib.Path(os.environ["CALLS"] + ".hang").exists():
        time.sleep(0.05)
    note("ended")
    return f"made {tool} {name}"

def once(name: str) -> str:
    """Make a call."""
    return _call("once", name)

def again(name: str) -> str:
    """Make a call that may be made twice."""
    return _call("again", name)

def sign(name: str) -> str:
    """Make a call that needs consent."""
    return _call("sign", name)
'''


class ThreadsWorld(World):
    """A World with a server of threads whose agents have tools, and clients of it."""

    kinds: ClassVar[Sequence[str]] = KINDS
    """What the runs of clients call."""
    timeout_s: ClassVar[float] = 60.0
    """How long a call may take."""

    def open_broker(self) -> None:
        """Start a node; the server has a port of its own, and answers after a pause."""
        clients = range(CLIENTS, CLIENTS + TOOL_CLIENTS)
        script = {"accuracy": 0.5, "latency_ms": PAUSE_MS, "replies": replies(clients, self.kinds)}
        limits = {"modules": f"{MODULE}, .", "variables": "CALLS", "timeout_s": self.timeout_s}
        (self.folder / f"{MODULE}.py").write_text(FUNCTIONS)
        self.calls = self.folder / "calls.txt"
        self.hanging = self.folder / "calls.txt.hang"
        self._overrides = {
            **self._overrides,
            "serve": {"port": free_ports(1)[0]},
            "policy": {"script": json.dumps(script)},
            "environments": limits,
        }
        self.clients: list[ThreadClient] = []
        self.killed: list[str] = []
        """The calls that were in progress in processes that were killed."""
        super().open_broker()

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Have clients read streams while the block runs; they then end what they have begun."""
        self.start("serve", env={"CALLS": str(self.calls)})
        url, enough = f"http://127.0.0.1:{self.settings.serve.port}", threading.Event()
        _register(url)
        self.clients = [ThreadClient(url, number, enough) for number in range(CLIENTS)]
        self.clients += [ToolClient(url, CLIENTS + number, enough, self.kinds) for number in range(TOOL_CLIENTS)]
        for client in self.clients:
            client.start()
        try:
            self.until_read(1)
            yield
            self.until_read(2 * TOOL_CLIENTS)
        finally:
            enough.set()
            for client in self.clients:
                client.join()

    def until_read(self, more: int) -> None:
        """Return once so many more runs that call tools were read to their end. Raises TimeoutError."""
        wanted, deadline = self._read() + more, time.monotonic() + WITHIN_S
        while self._read() < wanted:
            if time.monotonic() > deadline or not any(client.is_alive() for client in self.clients):
                raise TimeoutError(f"{self._read()} of {wanted} runs: {self.said('serve')[-800:]}")
            time.sleep(0.02)

    def in_progress(self) -> dict[str, int]:
        """Return the processes of the calls that have begun and not ended, by tool and name."""
        notes = [line.split() for line in self.notes_of_calls()]
        begun = {f"{tool} {name}": int(pid) for what, tool, name, pid in notes if what == "begun"}
        ended = {f"{tool} {name}" for what, tool, name, _ in notes if what == "ended"}
        return {call: pid for call, pid in begun.items() if call not in ended}

    def notes_of_calls(self) -> list[str]:
        """Return the notes of the functions."""
        return self.calls.read_text().splitlines() if self.calls.exists() else []

    def _read(self) -> int:
        return sum(len(client.answers) for client in self.clients if isinstance(client, ToolClient))

    def findings(self) -> list[str]:
        """Return what clients and log do not agree on."""
        tools = [client for client in self.clients if isinstance(client, ToolClient)]
        joined = sum(client.joined for client in self.clients if client not in tools)
        waits = Counter(wait for client in tools for wait in client.waits)
        read = {run_id: results for client in tools for run_id, results in client.results.items()}
        records = admin.read_topic(self.direct, "threads")
        events = [event for record in records if not isinstance(event := record.decode(ThreadEvent), Poison)]
        recount = recount_calls(events, self.notes_of_calls(), read)
        errors = Counter(recount.errors.values())
        self.notes += [
            f"{self._read()} runs with calls were read to their end, streams of others joined again {joined} times",
            f"{len(recount.calls)} calls, {recount.repeated} made again; {recount.children} child runs",
            f"waited for {dict(waits)}; failed {dict(errors)}",
        ]
        complaints = [complaint for client in self.clients for complaint in client.complaints]
        return [
            *complaints,
            *recount.problems,
            *self._without_effect(joined, recount.errors, waits),
            *self._disagreements(events),
        ]

    def _without_effect(self, joined: int, errors: dict[str, str], waits: Counter[str]) -> Iterator[str]:
        """Complain of a fault that hit nothing."""
        if not joined:
            yield "no stream was cut off; the kills hit nobody"
        if not waits["unfinished"]:
            yield "no call was cut off that may have been made"

    def _disagreements(self, events: list[ThreadEvent]) -> Iterator[str]:
        requests = Counter(event.run_id for event in events if event.kind == "run_requested")
        ends = Counter(event.run_id for event in events if event.kind == "run_ended")
        for run_id, count in (requests + ends).items():
            if (requests[run_id], ends[run_id]) != (1, 1):
                yield f"run {run_id}: {requests[run_id]} requests and {ends[run_id]} ends, {count} in all"
        for client in self.clients:
            order = [event.run_id for event in events if event.kind == "run_ended" and event.run_id in client.answers]
            if order != list(client.answers):
                yield f"thread {client.thread_id}: its runs ended as {order}, and were read as {list(client.answers)}"


class KilledToolsWorld(ThreadsWorld):
    """A ThreadsWorld in which the processes of tools are killed, and no server."""

    def _without_effect(self, joined: int, errors: dict[str, str], waits: Counter[str]) -> Iterator[str]:
        failed = set(errors)
        if not failed:
            yield "no call was hit"
        if failed - set(self.killed):
            yield f"calls failed whose processes were not killed: {sorted(failed - set(self.killed))}"
        if set(errors.values()) - {"crashed"}:
            yield f"a killed tool is called {sorted(set(errors.values()))}; expected crashed"


class HangingToolsWorld(ThreadsWorld):
    """A ThreadsWorld with a tool that hangs at times."""

    kinds = ("once", "again", "ask", "again")
    timeout_s = LONG_S

    def _without_effect(self, joined: int, errors: dict[str, str], waits: Counter[str]) -> Iterator[str]:
        if "timeout" not in errors.values():
            yield "no call hung until its time was up"
        if set(errors.values()) - {"timeout"}:
            yield f"a tool that hangs is called {sorted(set(errors.values()))}; expected timeout"


def _register(url: str) -> None:
    """Register the functions, `host`, which has them, and `boss`, who asks `host`. Raises TimeoutError."""
    fields: dict[str, dict[str, Any]] = {"once": {}, "again": {"idempotent": True}, "sign": {"needs_consent": True}}
    orders = [
        ("/mcp/tools", {"tool_id": name, "endpoint": f"{MODULE}:{name}", **more}) for name, more in fields.items()
    ]
    orders += [
        ("/rl/agents", {"agent_id": "host", "model_id": "default", "tool_ids": list(fields)}),
        ("/mcp/tools", {"tool_id": "ask", "endpoint": "agent:host"}),
        ("/rl/agents", {"agent_id": "boss", "model_id": "default", "tool_ids": ["ask"]}),
    ]
    deadline = time.monotonic() + WITHIN_S
    for path, body in orders:
        while True:
            with suppress(httpx.TransportError):
                response = httpx.post(url + path, json=body, timeout=WITHIN_S)
                if response.is_success:
                    break
                if response.status_code < 500:
                    raise ValueError(f"{path}: {response.text}")
            if time.monotonic() > deadline:
                raise TimeoutError(f"{path} was not answered")
            time.sleep(0.2)


THREADS: dict[str, Any] = {"rate": 3, "most": 100}


@fault(
    21,
    "the server of threads is killed",
    "SIGKILL to `streamward serve` five times while clients stream runs that call tools and agents",
    place=ThreadsWorld,
    **THREADS,
)
def kill_thread_server(world: World, load: Load, draw: random.Random) -> None:
    assert isinstance(world, ThreadsWorld)
    with world.reading():
        for _ in range(KILLS):
            world.until_read(draw.randint(2, 5))
            time.sleep(draw.uniform(0, 0.3))
            world.kill("serve")


@fault(
    21, "tools are killed", "SIGKILL to the process of a tool in mid-call, ten times", place=KilledToolsWorld, **THREADS
)
def kill_tool(world: World, load: Load, draw: random.Random) -> None:
    assert isinstance(world, ThreadsWorld)
    with world.reading():
        for _ in range(2 * KILLS):
            world.until_read(draw.randint(0, 2))
            deadline = time.monotonic() + WITHIN_S
            while not _kill_call(world, draw):
                if time.monotonic() > deadline:
                    raise TimeoutError("no call that could be killed")
                time.sleep(0.01)


@fault(
    21,
    "a tool hangs",
    f"it hangs three times, for longer than the {LONG_S:g} s of a call; SIGKILL to the server during the second",
    place=HangingToolsWorld,
    **THREADS,
)
def hang_tool(world: World, load: Load, draw: random.Random) -> None:
    assert isinstance(world, ThreadsWorld)
    with world.reading():
        for number in range(3):
            world.until_read(draw.randint(1, 3))
            world.hanging.touch()
            time.sleep(draw.uniform(0.3, LONG_S))
            if number == 1:
                world.kill("serve")
            world.until_read(draw.randint(1, 3))  # of calls that end by their limit, and of other tools
            time.sleep(draw.uniform(LONG_S, 2 * LONG_S))
            world.hanging.unlink()


def _kill_call(world: ThreadsWorld, draw: random.Random) -> bool:
    """Kill the process of a call in progress; return False if there is none."""
    if not (calls := world.in_progress()) or (server := world.pid("serve")) is None:
        return False
    call = draw.choice(sorted(calls))
    with suppress(psutil.NoSuchProcess, ProcessLookupError):
        if calls[call] in {child.pid for child in psutil.Process(server).children(recursive=True)}:
            os.kill(calls[call], signal.SIGKILL)
            world.killed.append(call)
            return True
    return False
