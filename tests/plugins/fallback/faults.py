"""Fault 22: the engine is killed while calls wait for it, returns after a minute, and is killed again as it streams.

    clients ──► `streamward serve` ──┬─► stand-in for vLLM ◄── SIGKILL         each engine writes its own mark
    tasks ────► `streamward policy` ─┘   └─► fallback: a second stand-in       into its answers

Each call must get one whole answer, or a named error after its first token. Each answer is one turn, of the version and
the engine that header, body and mark name. Tasks from which something is learned have answers of the asked engine.

Not covered: an engine with weights, and the targets `earlier` and `base`, which need the engine that was killed.
"""

from __future__ import annotations

import json
import random
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import httpx

from schemas.events import AdvantagedGroup, Response, Task, Turn
from streams.processes.child import ChildProcess
from tests.chaos.agent_client import GivenAnswer
from tests.chaos.agent_recount import WrittenOnce, log_of, recount
from tests.chaos.load import Load
from tests.chaos.matrix import fault
from tests.chaos.proxy import free_ports
from tests.chaos.recorded_world import RecordedWorld
from tests.chaos.world import World
from tests.support.models.tiny import save_tiny
from tests.support.processes import until
from tests.support.vllm import stand_in

ASKED, SECOND = "11", "12"
"""The marks of the engines: words of the tiny model."""
CHAT = "chat"
"""The policy of the tasks that users wait for; its agent has no others."""
CLIENTS, WORDS, AWAY_S, WITHIN_S, MOST_TOLD = 4, 8, 60.0, 180.0, 20
ORIGIN = ("asked-version", "asked_version"), ("fallback-reason", "fallback_reason")
"""The headers of a fallback, and the metadata of its turn."""
BROKEN_OFF = "in the middle of its answer"


@dataclass
class ClientCall:
    """A call, and what came of it so far."""

    question: str
    """Words of the tiny model, asked once."""
    began: float = field(default_factory=time.monotonic)
    ended: float = 0.0
    headers: Mapping[str, str] = field(default_factory=dict)
    text: str = ""
    model: str = ""
    logprobs: list[float] = field(default_factory=list)
    finish_reason: str | None = None
    error: str = ""

    def take(self, answer: dict[str, Any]) -> None:
        """Take in a whole answer, or the next piece of one."""
        self.error = str(answer.get("error", self.error))
        for choice in answer.get("choices", ()):
            self.model, self.finish_reason = answer["model"], choice["finish_reason"]
            self.text += choice.get("message", choice.get("delta")).get("content") or ""
            self.logprobs += [token["logprob"] for token in (choice.get("logprobs") or {"content": ()})["content"]]

    @property
    def turn_id(self) -> str:
        """The turn that its answer names."""
        return self.headers.get("x-request-id", "")

    @property
    def is_fallback(self) -> bool:
        """Whether its answer is said to be a fallback's."""
        return "x-streamward-asked-version" in self.headers

    @property
    def is_right(self) -> bool:
        """Whether it got one whole answer, or a named error once its first token had come."""
        mark = SECOND if self.is_fallback else ASKED
        is_whole = bool(self.finish_reason) and self.text == mark + self.question.replace(" ", "") + mark
        return BROKEN_OFF in self.error if self.error else is_whole


class ChatClient(threading.Thread):
    """Makes one call after the other until it is `enough`; every other client streams."""

    def __init__(self, url: str, number: int, enough: threading.Event) -> None:
        super().__init__(name=f"client-{number}")
        self.calls: list[ClientCall] = []
        self._url, self._number, self._enough = f"{url}/agents/walker/v1/chat/completions", number, enough

    def run(self) -> None:
        """Make the calls."""
        draw = random.Random(self._number)
        with httpx.Client(timeout=WITHIN_S) as client:
            while not self._enough.is_set():
                self.calls.append(call := ClientCall(" ".join(map(str, draw.sample(range(20, 60), WORDS)))))
                try:
                    self._ask(client, call)
                except (httpx.HTTPError, ValueError) as exc:
                    call.error = repr(exc)
                call.ended = time.monotonic()

    def _ask(self, client: httpx.Client, call: ClientCall) -> None:
        messages = [{"role": "user", "content": call.question}]
        body = {"model": "default", "messages": messages, "max_tokens": 16, "logprobs": True}
        with client.stream("POST", self._url, json=body | {"stream": self._number % 2 == 0}) as answer:
            call.headers = answer.headers
            if "event-stream" not in answer.headers["content-type"]:
                call.take(json.loads(answer.read()))
            for line in answer.iter_lines() if not answer.is_stream_consumed else ():
                if line.startswith("data: {"):
                    call.take(json.loads(line.removeprefix("data: ")))


class EnginesWorld(RecordedWorld):
    """A World with two engines that can be killed, a server that asks them, and clients of it."""

    def open_broker(self) -> None:
        """Start a node and both engines."""
        serve, *self._ports = free_ports(3)
        first, second = (f"http://127.0.0.1:{port}" for port in self._ports)
        self._engines: dict[str, ChildProcess] = {}
        self.clients: list[ChatClient] = []
        self.away: tuple[float, float] = (0.0, 0.0)
        self._overrides = {
            **self._overrides,
            "model": {"base": str(save_tiny(self.folder / "model"))},
            "serve": {"port": serve, "idle_s": 3.0},
            "kafka": {"session_timeout_s": 15.0},  # a server that a busy machine froze for longer refuses calls
            "policy": {
                "engine": "vllm", "servers": first, "server_folder": str(self.folder / "served"), "script": "{}",
                "server_timeout_s": 10.0, "server_retries": 0, "verify": "listed",
            },
            "fallback": {
                "chains": "*=server", "engine": "vllm", "servers": second, "first_token_s": 5.0, "pause_s": 3.0,
            },
        }  # fmt: skip
        for mark in (ASKED, SECOND):
            self.stack.callback(self.kill_engine, mark)
            self.begin_engine(mark)
        super().open_broker()

    def begin_engine(self, mark: str) -> None:
        """Start an engine, and return once it answers."""
        port = self._ports[mark == SECOND]
        with self.log_file(f"engine-{mark}").open("ab") as log:
            command = [sys.executable, stand_in.__file__, str(port), mark]
            self._engines[mark] = ChildProcess(command, stdout=log, stderr=log)
        until(lambda: _answers(f"http://127.0.0.1:{port}/health"), f"engine {mark} to answer", timeout_s=WITHIN_S)

    def kill_engine(self, mark: str) -> None:
        """Kill an engine by SIGKILL."""
        if mark in self._engines:
            self._engines.pop(mark).kill_group()

    def answered_by(self) -> dict[str, tuple[str, ...]]:
        """Return the consumer groups of both policy agents."""
        return {f"policy-{name}": ("tasks",) for name in (self.direct.policy.name, CHAT)}

    @contextmanager
    def calling(self) -> Iterator[None]:
        """Have clients make calls while the block runs; each then ends the call it is in."""
        self.start("serve")
        self.start("policy")
        chat = self.settings.policy.model_copy(update={"name": CHAT})
        self.start("policy-chat", settings=self.settings.model_copy(update={"policy": chat}))
        url, enough = self.settings.serve.url.removesuffix("/v1"), threading.Event()
        until(lambda: _answers(f"{url}/healthz"), "serve to answer", timeout_s=WITHIN_S)
        self.clients = [ChatClient(url, number, enough) for number in range(CLIENTS)]
        for client in self.clients:
            client.start()
        try:
            yield
        finally:
            enough.set()
            for client in self.clients:
                client.join()

    def until_answers(self, mark: str) -> None:
        """Return once so many calls as there are clients, begun from now on, were answered by this engine."""
        now = time.monotonic()

        def answers() -> list[ClientCall]:
            later = (call for call in self.calls() if call.began >= now and call.finish_reason)
            return [call for call in later if call.text.startswith(mark)]

        until(lambda: len(answers()) >= CLIENTS, f"answers of engine {mark}", timeout_s=WITHIN_S)

    def has_begun(self) -> bool:
        """Return whether the asked engine has begun an answer that streams."""
        return any(call.text.startswith(ASKED) and len(call.text) < WORDS for call in self.calls() if not call.ended)

    def calls(self) -> list[ClientCall]:
        """Return every call so far."""
        return [call for client in self.clients for call in tuple(client.calls)]

    def findings(self) -> list[str]:
        """Return what clients and log do not agree on."""
        calls, log = self.calls(), log_of(self.direct)
        turns = list(WrittenOnce(log, Turn, "turn_id").events.values())
        turn_of = {turn.messages[-1].content: turn for turn in turns}
        whole = [call for call in calls if not call.error]
        broken = [call for call in calls if call.error]
        out = [call for call in calls if self.away[0] < call.began and call.ended < self.away[1]]
        given = [GivenAnswer(call.turn_id, call.text, call.logprobs) for call in whole]
        fallbacks = sum(call.is_fallback for call in whole)
        self.notes.append(
            f"{len(calls)} calls, {fallbacks} fallbacks, {len(broken)} broken off, {len(out)} in the minute"
        )
        complaints = [f"a call ended like this: {call}" for call in calls if not call.is_right]
        complaints += recount(lambda kind: () if kind in (Task, Response) else log(kind), given)
        if sorted(turn.messages[-1].content for turn in turns) != sorted(call.question for call in calls):
            complaints.append(f"{len(turns)} turns, and clients made {len(calls)} calls: not one each")
        complaints += [problem for call in calls if (problem := _unlike(call, turn_of.get(call.question)))]
        complaints += [f"a call in the minute was broken off: {call.error}" for call in out if call.error]
        if not all(any(call.is_fallback for call in out if call.began - self.away[0] > s) for s in (0, 20, 40)):
            complaints.append("nobody answered in a part of the minute")
        if not any(call.began > self.away[1] for call in broken):
            complaints.append("the second kill broke no answer off")
        complaints += [f"{end.name} ended" for end in self.exits if not end.asked and end.name != "policy"]
        return [*complaints[:MOST_TOLD], *self._learned_from()]

    def _learned_from(self) -> Iterator[str]:
        """Find answers of a fallback that are not said to be, and those in groups that something is learned from."""
        log = log_of(self.direct)
        responses = WrittenOnce(log, Response, "response_id").events
        marked = {name for name, response in responses.items() if "origin.asked_version" in response.metadata}
        for name, response in responses.items():
            if response.error is None and response.text.startswith(SECOND) != (name in marked):
                yield f"response {name} is {response.text!r}, with {response.metadata}"
        for group in WrittenOnce(log, AdvantagedGroup, "group_id").events.values():
            if group.purpose != "serve" and marked & {member.response_id for member in group.responses}:
                yield f"group {group.group_id} of purpose {group.purpose} has an answer of a fallback"
        if not marked:
            yield "the second engine answered no task"
        self.notes.append(f"{len(marked)} of {len(responses)} responses are fallbacks")


def _answers(url: str) -> bool:
    with suppress(httpx.HTTPError):
        return httpx.get(url, timeout=10).status_code == 200
    return False


def _unlike(call: ClientCall, turn: Turn | None) -> str | None:
    """Return in what a call's headers, body and turn differ, or None."""
    if turn is None:
        return f"LOST: {call}"
    if call.error:
        is_begin = bool(turn.error) and turn.reply.content.startswith(call.text)
        return None if is_begin else f"{call} broke off, and its turn is {turn}"
    headers = [call.headers.get(f"x-streamward-{name}") for name, _ in ORIGIN]
    recorded = [turn.metadata.get(f"origin.{name}") for _, name in ORIGIN]
    versions = {call.model, call.headers["x-streamward-model"], f"{turn.policy}@{turn.adapter_version}"}
    if headers != recorded or len(versions) != 1:
        return f"{turn.turn_id} is of {sorted(versions)}, {headers} in its headers and {recorded} in its turn"
    return None


def of_both_purposes(number: int) -> Mapping[str, Any]:
    """Return what is special about a task: a user waits for every other one, and nothing is learned from that."""
    return {"group_size": 4, **({"purpose": "serve", "policy": CHAT} if number % 2 else {})}


@fault(
    22,
    "the engine is killed",
    f"SIGKILL to it, away for {AWAY_S:g} s, and SIGKILL again while it streams; a fallback's engine answers",
    starts=("streams", "scoring"),
    place=EnginesWorld,
    tasks=of_both_purposes,
    rate=0.5,
    most=20,
    codes=frozenset({1}),  # the policy agent ends without an engine for tasks that it learns from
)
def kill_engine(world: World, load: Load, draw: random.Random) -> None:
    assert isinstance(world, EnginesWorld)
    with world.calling():
        world.until_answers(ASKED)
        time.sleep(draw.uniform(0, 1))
        world.kill_engine(ASKED)
        began = time.monotonic()
        world.until_answers(SECOND)
        time.sleep(max(0.0, began + AWAY_S - time.monotonic()))
        world.away = began, time.monotonic()
        world.begin_engine(ASKED)
        world.until_answers(ASKED)
        until(world.has_begun, "an answer that has just begun", timeout_s=WITHIN_S)
        world.kill_engine(ASKED)
        time.sleep(draw.uniform(1, 5))
        world.begin_engine(ASKED)
        world.until_answers(ASKED)
