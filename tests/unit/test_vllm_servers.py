"""The `vllm` engine against servers that go wrong, and how it spreads its tasks over them."""

from __future__ import annotations

import json
import math
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2
import pytest

from streams.engines.vllm import servers as client
from streams.engines.vllm.servers import VllmServer, VllmServers, rendezvous
from streams.engines.vllm.vllm_engine import VllmEngine
from streams.errors import BadAnswer, ServerUnavailable, SettingsError, StreamwardError
from streams.settings.model import Policy
from tests.support.doubles.judge import drips, judging
from tests.support.vllm.contract import (
    REQUESTS,
    Replay,
    Said,
    replay,
)
from tests.support.vllm.replayed import BY_NAME, PLAIN, files, impatient, name_in, serve, server, start

__all__ = ["files", "impatient", "server", "start"]

# --- servers that go wrong -------------------------------------------------------------------------------------------


def test_a_server_that_was_restarted_loads_the_adapter_again_before_it_answers(
    server: Replay, start: Callable[..., VllmEngine], files: Path
) -> None:
    engine = start(server)
    serve(engine, files, 1)
    server.restart()
    (slots,) = engine.sample([PLAIN])
    assert all(slot.error is None for slot in slots) and list(server.loaded) == [name_in(files, 1)]


def test_an_answer_that_is_too_long_for_its_request_is_refused(
    server: Replay, start: Callable[..., VllmEngine], files: Path
) -> None:
    engine = start(server, server_retries=0)
    serve(engine, files, 0)
    server.turns = [lambda body, said: (*said[:2], said[2] + b" " * client.most_bytes(body))]
    with pytest.raises(BadAnswer, match=r"more than .* bytes, and no answer to this request is so long"):
        engine.sample([PLAIN])


def test_a_dead_server_is_passed_over_and_used_again_when_it_is_back(
    server: Replay, start: Callable[..., VllmEngine], files: Path
) -> None:
    with replay() as other:
        engine = start(server, other)
        other.is_dead = True
        serve(engine, files, 1)
        assert all(slot.error is None for slot in engine.sample([PLAIN])[0])
        other.restart()
        server.is_dead = True
        (slots,) = engine.sample([PLAIN])
        assert all(slot.error is None for slot in slots)
        assert list(other.loaded) == [name_in(files, 1)]
        assert other.tasks()[-1]["model"] == name_in(files, 1)


def status(code: int, kind: str = "text/plain", body: bytes = b"no") -> Callable[[dict[str, Any], Said], Said]:
    return lambda body_asked, said: (code, kind, body)


def hangs_up(asked: dict[str, Any], said: Said) -> None:
    return None


@pytest.mark.parametrize(
    "turn",
    [
        status(500),
        status(503),
        status(429, "text/plain;retry-after=0.1"),
        hangs_up,
        status(200, "application/json", b"{"),
    ],
    ids=["500", "503", "429", "hangs up", "garbage"],
)
def test_what_goes_wrong_once_is_asked_again_with_the_same_seed(
    server: Replay, start: Callable[..., VllmEngine], turn: Any
) -> None:
    server.turns = [turn]
    (slots,) = start(server).sample([PLAIN])
    assert [slot.error for slot in slots] == [None] * 4
    first, second = server.tasks()
    assert first == second


def test_a_server_that_hangs_loses_its_task_to_another(start: Callable[..., VllmEngine]) -> None:
    over, first = threading.Event(), threading.Lock()

    def hangs_once(asked: dict[str, Any], said: Said) -> Said:
        if first.acquire(blocking=False):
            over.wait(300)
        return said

    with replay() as one, replay() as two:
        engine = start(one, two, server_timeout_s=1.5, server_retries=3)
        one.forever = two.forever = hangs_once
        (slots,) = engine.sample([PLAIN])
        over.set()
        assert [slot.error for slot in slots] == [None] * 4
        assert len(one.tasks()) >= 1 and len(two.tasks()) >= 1


def test_a_server_that_sends_a_byte_now_and_then_is_late_all_the_same() -> None:
    with judging(drips(b"HTTP/1.1 200 OK\r\nX-Slow: ", b"x")) as slow:
        servers = VllmServers(Policy(engine="vllm", servers=slow.url, server_timeout_s=0.3))
        with pytest.raises(ServerUnavailable, match=r"did not answer within 0\.3 s"):
            servers.servers[0].ask("POST", "/v1/chat/completions", {})
        servers.close()


def test_a_request_on_which_a_healthy_server_always_breaks_fails_and_takes_no_other_with_it(
    server: Replay, start: Callable[..., VllmEngine]
) -> None:
    def breaks_on_two(asked: dict[str, Any], said: Said) -> Said:
        return (500, "text/plain", b"cannot do that") if asked["n"] == 2 else said

    server.forever = breaks_on_two
    good, bad = start(server).sample([PLAIN, BY_NAME["seeded"]])
    assert [slot.error for slot in good] == [None] * 4
    assert len(bad) == 2 and all("HTTP 500: cannot do that" in str(slot.error) for slot in bad)


def test_what_the_server_refuses_fails_with_its_words(server: Replay, start: Callable[..., VllmEngine]) -> None:
    engine = start(server)
    found = server._found("too long", None)
    server.forever = lambda asked, said: found
    (slots,) = engine.sample([PLAIN])
    assert all("HTTP 400" in str(slot.error) and "256" in str(slot.error) for slot in slots)
    assert len(server.tasks()) == 1


def test_when_no_server_answers_nothing_is_answered(server: Replay, start: Callable[..., VllmEngine]) -> None:
    engine = start(server, server_timeout_s=0.5, server_retries=0)
    server.forever = status(503)
    with pytest.raises(StreamwardError, match=r"no server in policy\.servers could be asked for 0\.5 s: .*HTTP 503"):
        engine.sample([PLAIN])


def test_a_key_that_the_server_does_not_take_is_a_matter_of_settings(
    server: Replay, start: Callable[..., VllmEngine]
) -> None:
    engine = start(server)
    server.forever = status(401)
    with pytest.raises(SettingsError, match=r"check policy\.server_key"):
        engine.sample([PLAIN])


def altered(change_of: Callable[[dict[str, Any]], object]) -> Callable[[dict[str, Any], Said], Said]:
    def turn(asked: dict[str, Any], said: Said) -> Said:
        answer = json.loads(said[2])
        change_of(answer)
        return said[0], said[1], json.dumps(answer).encode()

    return turn


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (lambda a: a.update(model="another"), "answered by model 'another', and 'base' was asked"),
        (lambda a: a["choices"].pop(), "3 choices, and 4 were asked for"),
        (lambda a: a.pop("choices"), "no list of choices"),
        (lambda a: a["choices"][1].pop("token_ids"), "no token ids"),
        (lambda a: a["choices"][1].update(token_ids=None), "no list of 1 to 6 token ids"),
        (lambda a: a["choices"][1].update(token_ids=[3] * 7), "no list of 1 to 6 token ids"),
        (lambda a: a["choices"][1]["prompt_token_ids"].pop(), "not those that were sent"),
        (lambda a: a["choices"][1].update(index=0), "choice 1 is not there in its place"),
        (lambda a: a["choices"][1].update(logprobs=None), "lacks the logprob"),
        (lambda a: a["choices"][1]["logprobs"]["token_logprobs"].pop(), "lacks the logprob"),
        (lambda a: a["choices"][1]["logprobs"]["token_logprobs"].__setitem__(0, 0.5), "lacks the logprob"),
        (lambda a: a["choices"][1]["logprobs"]["token_logprobs"].__setitem__(0, math.nan), "lacks the logprob"),
        (lambda a: a["choices"][1]["logprobs"]["token_logprobs"].__setitem__(0, -9999.0), "lacks the logprob"),
    ],
)
def test_an_answer_that_is_not_to_what_was_asked_is_never_taken(
    server: Replay, start: Callable[..., VllmEngine], wrong: Callable[[dict[str, Any]], object], says: str
) -> None:
    engine = start(server)
    server.forever = altered(wrong)
    with pytest.raises(StreamwardError, match=says):
        engine.sample([PLAIN])
    assert len(server.tasks()) == 2  # it was given a second try


def test_a_turn_that_the_server_ends_where_the_base_ends_none_is_an_error(
    server: Replay, start: Callable[..., VllmEngine]
) -> None:
    def shorten(answer: dict[str, Any]) -> None:
        choice = answer["choices"][0]
        choice["token_ids"], choice["finish_reason"] = [5], "stop"
        choice["logprobs"]["token_logprobs"] = [-1.0]

    server.turns = [altered(shorten)]
    (slots,) = start(server).sample([PLAIN])
    assert "ends no turn; do both have the same files?" in str(slots[0].error)
    assert [slot.error for slot in slots[1:]] == [None] * 3


def test_tokens_behind_the_end_of_the_turn_are_dropped(server: Replay, start: Callable[..., VllmEngine]) -> None:
    def talk_on(answer: dict[str, Any]) -> None:
        choice = answer["choices"][0]
        choice["token_ids"] = [5, 2, 6]
        choice["logprobs"]["token_logprobs"] = [-1.0, -2.0, -3.0]

    server.turns = [altered(talk_on)]
    (slots,) = start(server).sample([PLAIN])
    assert slots[0].completion_token_ids == (5, 2) and slots[0].logprobs == (-1.0, -2.0)
    assert (slots[0].finish_reason, slots[0].text) == ("stop", "1")


# --- which server ----------------------------------------------------------------------------------------------------


def test_no_more_tasks_are_in_flight_than_may_be(server: Replay, start: Callable[..., VllmEngine]) -> None:
    engine, now, most, lock = start(server, max_concurrent=2), 0, 0, threading.Lock()

    def counts(asked: dict[str, Any], said: Said) -> Said:
        nonlocal now, most
        with lock:
            now += 1
            most = max(most, now)
        time.sleep(0.05)
        with lock:
            now -= 1
        return said

    server.forever = counts
    engine.sample(REQUESTS)
    assert most == 2 and len(server.tasks()) == len(REQUESTS)


def test_a_probe_waits_for_the_answers_in_progress_and_the_next_one_for_the_probe() -> None:
    """vLLM 0.32.0 on a CPU exits when they share a step."""
    with httpx2.Client(timeout=300) as http:
        server, order = VllmServer("http://vllm", http, 4, 20.0), list[str]()

        def probe() -> None:
            with server.alone():
                order.append("probe")
                answers.start()
                assert not begun.wait(0.2)
            assert begun.wait(300)

        def answer() -> None:
            with server.answering():
                order.append("answer")
                begun.set()

        begun, probes, answers = threading.Event(), threading.Thread(target=probe), threading.Thread(target=answer)
        with server.answering():
            probes.start()
            time.sleep(0.2)
            order.append("earlier answer ends")
        probes.join(300)
        answers.join(300)
    assert order == ["earlier answer ends", "probe", "answer"]


def test_a_prompt_goes_to_the_same_server_again_and_only_a_full_one_gives_it_away(
    server: Replay, start: Callable[..., VllmEngine]
) -> None:
    with replay() as other:
        engine = start(server, other)
        for _ in range(3):
            engine.sample([PLAIN])
        assert sorted((len(server.tasks()), len(other.tasks()))) == [0, 3]
        servers = engine._servers
        first = servers._pick(b"a prompt", None, [])
        assert isinstance(first, VllmServer)
        first.in_flight = client.FAR_OFF - 1
        assert servers._pick(b"a prompt", None, []) is first
        first.in_flight = client.FAR_OFF
        assert servers._pick(b"a prompt", None, []) is not first


def test_when_a_server_leaves_only_its_own_prompts_move() -> None:
    urls, keys = ["http://a", "http://b", "http://c"], [str(number).encode() for number in range(300)]
    before = {key: max(urls, key=lambda url: rendezvous(key, url)) for key in keys}
    after = {key: max(urls[:2], key=lambda url: rendezvous(key, url)) for key in keys}
    assert {before[key] for key in keys if before[key] != after[key]} == {"http://c"}
    assert all(60 < list(before.values()).count(url) < 140 for url in urls)
