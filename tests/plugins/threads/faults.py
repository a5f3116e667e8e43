"""Fault 21: the server of threads is killed while clients read the streams of their runs.

    clients, a thread each ──► POST /runs/stream ──► `streamward serve` ──► threads, turns        beside the whole loop
         ▲   answer breaks off: GET /runs/{id}/stream, Last-Event-ID ──┘ SIGKILL, and started again

A client begins a run, reads its stream to the end, joining it again as often as it breaks off, and begins the next.
Then every run has one request and one end in the log, each text has come to its client whole, places only grew, and the
runs of a thread ended in the order in which they were read.

Not covered: several servers, and tools that a run waits for (`test_agent_protocol.py` has those).
"""

from __future__ import annotations

import json
import random
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import httpx

from schemas.events import ThreadEvent
from schemas.serde import Poison
from streams.kafka import admin
from tests.chaos.load import Load
from tests.chaos.matrix import fault
from tests.chaos.proxy import free_ports
from tests.chaos.world import World

CLIENTS, KILLS = 6, 5
PAUSE_MS = 150
WITHIN_S = 90.0
"""How long a client may read nothing, whatever was killed."""
RETRY_S = 0.2


class ThreadClient(threading.Thread):
    """Somebody with a thread of its own, who begins one run after the other."""

    def __init__(self, url: str, number: int, enough: threading.Event) -> None:
        super().__init__(name=f"thread-client-{number}")
        self._url, self._number, self._enough = f"{url}/acp", number, enough
        self.thread_id = ""
        self.answers: dict[str, str] = {}
        """The text of each run that this client has read to its end, in order."""
        self.complaints: list[str] = []
        self.joined = 0
        """How often it has joined a stream again."""

    def run(self) -> None:
        try:
            with httpx.Client(base_url=self._url, timeout=WITHIN_S) as self._http:
                self.thread_id = self._thread()
                while not self._enough.is_set():
                    self._one_run(f"{self._number}: {len(self.answers)}")
        except (TimeoutError, ValueError) as exc:
            self.complaints.append(f"client {self._number}: {exc}")

    def _thread(self) -> str:
        """Return a new thread. A retry may leave one behind that nobody uses."""
        for _ in self._tries():
            try:
                response = self._http.post("/threads", json={})
            except httpx.TransportError:
                continue
            if response.status_code == 200:
                return str(response.json()["thread_id"])
        raise TimeoutError("no thread")

    def _one_run(self, text: str) -> None:
        """Begin a run, and read its stream to the end. Raises TimeoutError, or ValueError for what may not be."""
        body = {
            "thread_id": self.thread_id,
            "input": text,
            "stream_mode": ["messages"],
            "multitask_strategy": "enqueue",
        }
        run_id, place, answer = "", "", ""
        for turn in self._tries():
            method, path = (
                ("GET", f"/runs/{run_id}/stream?stream_mode=messages") if run_id else ("POST", "/runs/stream")
            )
            self.joined += bool(run_id and turn)
            try:
                with self._http.stream(
                    method, path, json=None if run_id else body, headers={"Last-Event-ID": place} if place else {}
                ) as response:
                    if response.status_code != 200:
                        continue
                    for frame in _frames(response):
                        if place and _order(frame["id"]) <= _order(place):
                            raise ValueError(f"run {run_id}: place {frame['id']} came after {place}")
                        place, data = frame["id"], json.loads(frame["data"])
                        if frame["event"] == "metadata":
                            run_id = data["run_id"]
                        elif frame["event"].startswith("messages/"):
                            answer = data[-1]["content"]
                        elif frame["event"] == "end":
                            self._take(run_id, text, answer)
                            return
            except httpx.TransportError:
                continue
        raise TimeoutError(f"run {run_id or 'without an id'} did not end")

    def _take(self, run_id: str, text: str, answer: str) -> None:
        if run_id in self.answers:
            raise ValueError(f"run {run_id} ended twice")
        if answer != text:
            raise ValueError(f"run {run_id} was asked {text!r} and answered {answer!r}")
        self.answers[run_id] = answer

    def _tries(self) -> Iterator[int]:
        """Yield again and again, for as long as a client waits."""
        deadline, turn = time.monotonic() + WITHIN_S, 0
        while time.monotonic() < deadline:
            yield turn
            turn += 1
            time.sleep(RETRY_S)


def _frames(response: httpx.Response) -> Iterator[dict[str, str]]:
    fields: dict[str, str] = {}
    for line in response.iter_lines():
        if line:
            name, _, value = line.partition(": ")
            fields[name] = value
        elif {"id", "event", "data"} <= fields.keys():
            yield fields
            fields = {}


def _order(place: str) -> tuple[int, ...]:
    return tuple(map(int, place.split(".")))


class ThreadsWorld(World):
    """A World with a server of threads, and clients of it."""

    def open_broker(self) -> None:
        """Start a node; the server has a port of its own, and repeats what it is asked after a pause."""
        script = json.dumps({"accuracy": 0.5, "latency_ms": PAUSE_MS})
        self._overrides = {**self._overrides, "serve": {"port": free_ports(1)[0]}, "policy": {"script": script}}
        self.clients: list[ThreadClient] = []
        super().open_broker()

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Have clients read streams while the block runs; they then end what they have begun."""
        self.start("serve")
        enough = threading.Event()
        self.clients = [ThreadClient(f"http://127.0.0.1:{self.settings.serve.port}", n, enough) for n in range(CLIENTS)]
        for client in self.clients:
            client.start()
        try:
            self.until_read(CLIENTS)
            yield
            self.until_read(2 * CLIENTS)
        finally:
            enough.set()
            for client in self.clients:
                client.join()

    def until_read(self, more: int) -> None:
        """Return once so many more runs were read to their end. Raises TimeoutError."""
        wanted, deadline = self._read() + more, time.monotonic() + WITHIN_S
        while self._read() < wanted:
            if time.monotonic() > deadline or not any(client.is_alive() for client in self.clients):
                raise TimeoutError(f"{self._read()} of {wanted} runs: {self.said('serve')[-800:]}")
            time.sleep(0.02)

    def _read(self) -> int:
        return sum(len(client.answers) for client in self.clients)

    def findings(self) -> list[str]:
        """Return what clients and log do not agree on."""
        joined = sum(client.joined for client in self.clients)
        self.notes.append(f"{self._read()} runs were read to their end, streams joined again {joined} times")
        complaints = [complaint for client in self.clients for complaint in client.complaints]
        if not joined:
            complaints.append("no stream was cut off; the kills hit nobody")
        return [*complaints, *self._disagreements()]

    def _disagreements(self) -> Iterator[str]:
        records = admin.read_topic(self.direct, "threads")
        events = [event for record in records if not isinstance(event := record.decode(ThreadEvent), Poison)]
        requests = Counter(event.run_id for event in events if event.kind == "run_requested")
        ends = Counter(event.run_id for event in events if event.kind == "run_ended")
        for run_id, count in (requests + ends).items():
            if (requests[run_id], ends[run_id]) != (1, 1):
                yield f"run {run_id}: {requests[run_id]} requests and {ends[run_id]} ends, {count} in all"
        for client in self.clients:
            order = [event.run_id for event in events if event.kind == "run_ended" and event.run_id in client.answers]
            if order != list(client.answers):
                yield f"thread {client.thread_id}: its runs ended as {order}, and were read as {list(client.answers)}"


@fault(
    21,
    "the server of threads is killed",
    "SIGKILL to `streamward serve` five times while clients read streams of runs",
    place=ThreadsWorld,
    rate=6,
    most=200,
)
def kill_thread_server(world: World, load: Load, draw: random.Random) -> None:
    assert isinstance(world, ThreadsWorld)
    with world.reading():
        for _ in range(KILLS):
            world.until_read(draw.randint(3, 9))
            time.sleep(draw.uniform(0, 0.3))
            world.kill("serve")
