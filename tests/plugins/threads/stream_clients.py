"""Clients of threads that are cut off, and join the streams of their runs again.

    ThreadClient ──► POST /runs/stream ──► the run's id, its text ──► GET /runs/{id}/stream, Last-Event-ID
    ToolClient ────► the same, of an agent with tools ──► it waits: POST /runs/{id}/resume ──► its stream continues

They know the Agent Protocol and nothing else. A run whose id did not reach its client is found by its metadata.
"""

from __future__ import annotations

import itertools
import json
import random
import re
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import httpx

WITHIN_S = 180.0
"""How long a client may read nothing, whatever was killed."""
RETRY_S = 0.2
KINDS = ("once", "again", "sign", "ask", "both")
"""What runs of a ToolClient call: `sign` needs consent, `again` may be made twice, `ask` is an agent; `both`: two."""
MOST_RUNS = 80
"""Of one ToolClient: its runs have replies of their own."""
NOTED = "Noted."
"""The answer after a tool's result."""


class ThreadClient(threading.Thread):
    """A client with a thread of its own, which begins one run after the other."""

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
                    self._begin_run()
        except (TimeoutError, ValueError) as exc:
            self.complaints.append(f"client {self._number}: {exc}")

    def _thread(self) -> str:
        """Return a new thread. A retry may leave one behind that is not used."""
        for _ in self._tries():
            try:
                response = self._http.post("/threads", json={})
            except httpx.TransportError:
                continue
            if response.status_code == 200:
                return str(response.json()["thread_id"])
        raise TimeoutError("no thread")

    def _begin_run(self) -> None:
        text = f"{self._number}: {len(self.answers)}"
        stream = self._read({"input": text})
        if stream.text != text:
            raise ValueError(f"run {stream.run_id} was asked {text!r} and answered {stream.text!r}")
        self._take(stream.run_id, stream.text)

    def _read(self, body: dict[str, Any]) -> RunStream:
        """Begin a run, and read its stream to the end. Raises TimeoutError, or ValueError for what may not be."""
        name = {"request": str(time.monotonic_ns())}
        whole = {"thread_id": self.thread_id, "stream_mode": ["messages"], "multitask_strategy": "enqueue", **body}
        stream = RunStream()
        for turn in self._tries():
            try:
                if turn and not stream.run_id:
                    stream.run_id = self._find(name)
                self.joined += bool(stream.run_id and turn)
                if not stream.run_id:
                    stream.follow(self._http, "POST", "/runs/stream", {**whole, "metadata": name})
                else:
                    stream.follow(self._http, "GET", f"/runs/{stream.run_id}/stream?stream_mode=messages", None)
                if stream.run_id and not self._answer(stream) and stream.is_ended:
                    return stream
            except httpx.TransportError:
                continue
        raise TimeoutError(f"run {stream.run_id or 'without an id'} did not end")

    def _find(self, name: dict[str, str]) -> str:
        """Return the id of a run that was requested with this metadata; empty: there is none."""
        response = self._http.post("/runs/search", json={"thread_id": self.thread_id, "metadata": name})
        if response.status_code != 200:
            raise httpx.ReadError(response.text)
        return str(response.json()[0]["run_id"]) if response.json() else ""

    def _answer(self, stream: RunStream) -> bool:
        """Answer what a run waits for; return False if it has ended, or waits for nothing."""
        return False

    def _take(self, run_id: str, text: str) -> None:
        if run_id in self.answers:
            raise ValueError(f"run {run_id} ended twice")
        self.answers[run_id] = text

    def _tries(self) -> Iterator[int]:
        """Yield again and again, for as long as a client waits."""
        deadline, turn = time.monotonic() + WITHIN_S, 0
        while time.monotonic() < deadline:
            yield turn
            turn += 1
            time.sleep(RETRY_S)


class RunStream:
    """What a client has read of one run."""

    def __init__(self) -> None:
        self.run_id, self.text, self.is_ended = "", "", False
        self.results: list[str] = []
        """Of tools."""
        self._place = ""

    def follow(self, http: httpx.Client, method: str, path: str, body: Any) -> None:
        """Read on after what was read; return at the end of the stream, or if the request is refused.

        Raises httpx.TransportError if it breaks off, ValueError for an event out of order.
        """
        self.is_ended = False
        headers = {"Last-Event-ID": self._place} if self._place else {}
        with http.stream(method, path, json=body, headers=headers) as response:
            for frame in _frames(response) if response.status_code == 200 else ():
                if self._place and _order(frame["id"]) <= _order(self._place):
                    raise ValueError(f"run {self.run_id}: place {frame['id']} came after {self._place}")
                self._place, data = frame["id"], json.loads(frame["data"])
                self._take(frame["event"], data)

    def _take(self, event: str, data: Any) -> None:
        if event == "metadata":
            self.run_id = data["run_id"]
        elif event == "end":
            self.is_ended = True
        elif event == "messages/complete" and data[-1]["role"] == "tool":
            self.results.append(data[-1]["content"])
        elif event.startswith("messages/"):
            self.text = data[-1]["content"]


class ToolClient(ThreadClient):
    """A client of agents with tools, which answers what their runs wait for."""

    def __init__(self, url: str, number: int, enough: threading.Event, kinds: Sequence[str]) -> None:
        super().__init__(url, number, enough)
        self._draw, self._kinds = random.Random(number), kinds
        self.results: dict[str, list[str]] = {}
        """What tools have returned, by the runs that were read."""
        self.waits: list[str] = []
        """For what runs waited."""

    def _begin_run(self) -> None:
        if len(self.answers) == MOST_RUNS:
            self._enough.wait(RETRY_S)
            return
        kind = self._kinds[len(self.answers) % len(self._kinds)]
        agent = "boss" if kind == "ask" else "host"
        stream = self._read({"input": text_of(kind, self._number, len(self.answers)), "agent_id": agent})
        if stream.text != NOTED:
            raise ValueError(f"run {stream.run_id} answered {stream.text!r}")
        self._take(stream.run_id, stream.text)
        self.results[stream.run_id] = stream.results

    def _answer(self, stream: RunStream) -> bool:
        response = self._http.get(f"/runs/{stream.run_id}")
        if response.status_code != 200:
            return True
        waits = response.json().get("requires_action") or []
        if not waits:
            return bool(response.json()["status"] == "pending")
        names = [wait["waits_for"] for wait in waits]
        answer = "it was made" if names == ["unfinished"] and self._draw.random() < 0.5 else "yes"
        if self._http.post(f"/runs/{stream.run_id}/resume", json={"resume": answer}).status_code == 200:
            self.waits += names
        return True


class ScriptedRun(NamedTuple):
    """A text, and the calls that the model makes for it."""

    text: str
    calls: list[tuple[str, dict[str, str]]]

    def reply(self) -> dict[str, str]:
        """Return the reply of the script."""
        calls = (json.dumps({"name": tool, "arguments": arguments}) for tool, arguments in self.calls)
        return {"when": self.text, "reply": "".join(f"<tool_call>{call}</tool_call>" for call in calls)}


def text_of(kind: str, client: int, number: int) -> str:
    return f"{kind} {client}-{number}."


def replies(clients: range, kinds: Sequence[str]) -> list[dict[str, str]]:
    """Return the replies to all texts of these clients: calls of tools, and after a result an answer."""
    runs = []
    for client, number in itertools.product(clients, range(MOST_RUNS)):
        kind, name = kinds[number % len(kinds)], {"name": f"{client}-{number}"}
        tools = ("once", "again") if kind == "both" else ("once",) if kind == "ask" else (kind,)
        runs.append(ScriptedRun(text_of("once" if kind == "ask" else kind, client, number), [(t, name) for t in tools]))
        if kind == "ask":
            ask = ("ask", {"message": text_of("once", client, number)})
            runs.append(ScriptedRun(text_of("ask", client, number), [ask]))
    return [{"when": "tool: ", "reply": NOTED}, *(run.reply() for run in runs)]


def _frames(response: httpx.Response) -> Iterator[dict[str, str]]:
    fields: dict[str, str] = {}
    for line in response.iter_lines():
        if line:
            name, _, value = line.partition(": ")
            fields[name] = value
        elif {"id", "event", "data"} <= fields.keys():
            yield fields
            fields = {}


def _order(place: str) -> tuple[int, int, int]:
    match = re.fullmatch(r"(?:(\d+)-)?(\d+)(?:\.(\d+))?", place)
    if match is None:
        raise ValueError(f"{place!r} is no place")
    message, step, characters = (int(part or 0) for part in match.groups())
    return message, step, characters
