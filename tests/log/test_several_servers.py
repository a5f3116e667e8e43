"""Several servers of one log: one answers, the others forward to it, and replace it when it leaves or dies."""

from __future__ import annotations

import json
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from schemas.events import Turn
from streams.errors import EXIT_RESTART
from streams.settings.model import Settings
from tests.support.agent_server import ServeProcess, check_audit, settings_with_topics, turns
from tests.support.log.keys import open_keys
from tests.support.log.secured_node import free_ports
from tests.support.processes import read, said, until

pytestmark = pytest.mark.kafka
SESSION_S = 6.0
QUESTIONS = tuple(f"Question {number}?" for number in range(14))
SCRIPT = {
    "replies": [
        {"when": question, "reply": f"Answer {number} has some more words than one."}
        for number, question in enumerate(QUESTIONS)
    ],
    "latency_ms": 400,
}


@pytest.fixture
def settings(kafka_bootstrap: str, tmp_path: Path) -> Settings:
    return settings_with_topics(kafka_bootstrap, tmp_path, SCRIPT, session_s=SESSION_S)


def one_of_several(settings: Settings, **rules: Any) -> Settings:
    (port,) = free_ports(1)
    serve = settings.serve.model_copy(update={"port": port, "peer_url": f"http://127.0.0.1:{port}", **rules})
    return settings.model_copy(update={"serve": serve})


@pytest.fixture
def start(settings: Settings, tmp_path: Path) -> Iterator[Callable[..., ServeProcess]]:
    """Return how a further server is started, by the name of its folder."""
    with ExitStack() as stack:

        def begin(name: str, **rules: Any) -> ServeProcess:
            folder = tmp_path / name
            folder.mkdir()
            server = ServeProcess(one_of_several(settings, **rules), folder)
            stack.callback(end, server)
            return server

        yield begin


def end(server: ServeProcess) -> None:
    with suppress(ProcessLookupError):
        server.process.send_signal(signal.SIGCONT)
    server.kill()


def holds(server: ServeProcess) -> bool:
    return "answers at" in said(server.folder)


class Talk(threading.Thread):
    """A client: one conversation without a name, streamed, whose calls go to the servers in turn and are retried."""

    def __init__(self, number: int, urls: list[str], *, pause_s: float = 0.3) -> None:
        super().__init__()
        self.agent, self.urls, self.pause_s = f"talk-{number}", urls, pause_s
        self.failures: list[str] = []
        self.messages: list[dict[str, str]] = []
        self.start()

    def run(self) -> None:
        for number, question in enumerate(QUESTIONS):
            self.messages.append({"role": "user", "content": question})
            tried = 0
            while (answer := self.ask(self.urls[(number + tried) % len(self.urls)], tried)) is None:
                tried += 1
                time.sleep(0.2)
            self.messages.append({"role": "assistant", "content": answer})
            time.sleep(self.pause_s)

    def ask(self, url: str, tried: int) -> str | None:
        """Return the whole answer; None if there is none, or its end is missing."""
        body = {"model": "sums", "messages": self.messages, "stream": True}
        headers = {"x-stainless-retry-count": str(tried)}
        text, is_whole = "", False
        try:
            with httpx.stream(
                "POST", f"{url}/agents/{self.agent}/v1/chat/completions", json=body, headers=headers, timeout=300
            ) as answer:
                if answer.status_code != 200:
                    self.failures.append(f"{answer.status_code} {answer.read()!r}")
                    return None
                for line in answer.iter_lines():
                    is_whole = is_whole or line == "data: [DONE]"
                    if line.startswith("data: {"):
                        text += json.loads(line[6:])["choices"][0]["delta"].get("content") or ""
        except httpx.TransportError as exc:
            self.failures.append(repr(exc))
            return None
        return text if is_whole else None


def check_whole(settings: Settings, talks: list[Talk]) -> None:
    """Fail unless each conversation is one trajectory, with one turn for each question, as one server records it."""
    for talk in talks:
        talk.join()
        answers = [message["content"] for message in talk.messages[1::2]]
        assert answers == [f"Answer {number} has some more words than one." for number in range(len(QUESTIONS))]
        of_talk = turns(settings, talk.agent)
        read_turns = [turn for turn in of_talk if turn.delivered]
        assert len({turn.trajectory_id for turn in of_talk}) == 1, of_talk
        assert [turn.number for turn in of_talk] == list(range(len(of_talk)))
        assert [turn.continuity for turn in read_turns] == ["first", *["extends"] * (len(QUESTIONS) - 1)]


def holder_of(servers: list[ServeProcess]) -> ServeProcess:
    until(lambda: any(map(holds, servers)), "one answers")
    return next(filter(holds, servers))


def remove(server: ServeProcess, servers: list[ServeProcess], talks: list[Talk]) -> None:
    """Send nothing to a server any more, as a balancer does with one that ends."""
    servers.remove(server)
    for talk in talks:
        talk.urls[:] = [other.url for other in servers]
    time.sleep(0.2)


@pytest.mark.kills
def test_calls_to_any_server_are_those_of_one_and_a_rolling_replacement_refuses_none(
    settings: Settings, start: Callable[..., ServeProcess]
) -> None:
    servers = [start(name) for name in "abc"]
    first = holder_of(servers)
    talks = [Talk(number, [server.url for server in servers]) for number in range(3)]
    until(lambda: len(read(settings, Turn)) > 6, "calls are answered")
    for leaving in (first, None):
        leaving = leaving or holder_of(servers)
        remove(leaving, servers, talks)
        leaving.process.terminate()
        assert leaving.process.wait(300) == 0, said(leaving.folder)
    assert all(talk.is_alive() for talk in talks)
    check_whole(settings, talks)
    assert [talk.failures for talk in talks] == [[], [], []]
    assert holds(servers[0])
    check_audit(settings)


RULE: dict[str, Any] = {"auth": "keys", "key_per_s": 4, "key_burst": 8, "key_tokens_per_min": 6000}
LONG = "word " * 1200
"""A prompt of which few use up a minute's tokens."""


class Caller(threading.Thread):
    """A client of a key that calls again at once, each server in turn, whatever it is told."""

    def __init__(self, key: str, urls: list[str], prompt: str, enough: threading.Event) -> None:
        super().__init__()
        self.key, self.urls, self.prompt, self.enough = key, urls, prompt, enough
        self.calls: list[tuple[float, int]] = []
        """When each answer came, and the tokens of its call."""
        self.waits: list[float] = []
        self.start()

    def run(self) -> None:
        number = 0
        with httpx.Client(timeout=300, headers={"Authorization": f"Bearer {self.key}"}) as client:
            while not self.enough.is_set():
                number += 1
                with suppress(httpx.TransportError):
                    self.ask(client, self.urls[number % len(self.urls)], number)

    def ask(self, client: httpx.Client, url: str, number: int) -> None:
        messages = [{"role": "user", "content": f"{QUESTIONS[number % len(QUESTIONS)]} {self.prompt}{number}"}]
        answer = client.post(f"{url}/v1/chat/completions", json={"model": "sums", "messages": messages})
        if answer.status_code == 200:
            self.calls.append((time.monotonic(), answer.json()["usage"]["total_tokens"]))
        elif answer.status_code == 429:
            self.waits.append(float(answer.headers["retry-after"]))
            time.sleep(0.05)


@pytest.mark.kills
@pytest.mark.parametrize("answering", [True, False])
def test_a_limit_of_a_key_is_one_limit_of_three_servers_while_one_is_killed(
    settings: Settings, start: Callable[..., ServeProcess], answering: bool
) -> None:
    with open_keys(settings) as person:
        keys = [person.create(role="submitter", actor="ann").text for _ in range(2)]
    servers = [start(name, **RULE) for name in "abc"]
    first = holder_of(servers)
    urls, enough, begun = [server.url for server in servers], threading.Event(), time.monotonic()
    often, long = (
        [Caller(key, urls, text, enough) for _ in range(2)] for key, text in zip(keys, ("", LONG), strict=True)
    )
    try:
        until(lambda: any(each.waits for each in often) and any(each.waits[-1:] > [15.0] for each in long), "keys wait")
        killed = first if answering else next(each for each in servers if each is not first)
        urls.remove(killed.url)
        killed.kill()
        killed_at = time.monotonic()
        moved_at = killed_at + (SESSION_S if answering else 0)
        for callers in (often, long):
            until(lambda: any(call[0] > moved_at for each in callers for call in each.calls), "the key is answered")  # noqa: B023
    finally:
        enough.set()
        for caller in (*often, *long):
            caller.join()
    for callers in (often, long):
        calls = sorted(call for caller in callers for call in caller.calls)
        in_flight, used = len(callers) * max(tokens for _, tokens in calls), 0
        for number, (at, tokens) in enumerate(calls, start=1):
            used, passed_s = used + tokens, at - begun
            assert number <= 1.01 * (RULE["key_burst"] + RULE["key_per_s"] * passed_s)
            assert used <= 1.01 * (RULE["key_tokens_per_min"] * (1 + passed_s / 60) + in_flight)
        print(
            f"{len(calls)} requests, {used} tokens in {calls[-1][0] - begun:.1f} s, killed at {killed_at - begun:.1f} s"
        )


@pytest.mark.kills
@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("way", [signal.SIGKILL, signal.SIGSTOP])
def test_a_killed_or_frozen_server_is_replaced_and_the_conversations_continue(
    settings: Settings, start: Callable[..., ServeProcess], way: signal.Signals, seed: int
) -> None:
    servers = [start(name) for name in "abc"]
    first = holder_of(servers)
    talks = [Talk(number, [server.url for server in servers]) for number in range(4)]
    until(lambda: len(read(settings, Turn)) > 8, "calls are answered")
    time.sleep(random.Random(seed).uniform(0, 0.5))
    first.process.send_signal(way)
    remove(first, servers, talks)
    second = holder_of(servers)
    if way == signal.SIGSTOP:
        first.process.send_signal(signal.SIGCONT)
        assert first.process.wait(300) == EXIT_RESTART, said(first.folder)
    check_whole(settings, talks)
    assert holds(second)
    check_audit(settings)
