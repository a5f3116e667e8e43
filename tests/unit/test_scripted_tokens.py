"""What a token engine promises to those who call it, on the scripted one: streams, cancelling, errors, the end."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from schemas.events import Sampling
from streams.engines.decoding_loop import DecodingLoop
from streams.engines.scripted.scripted_engine import END_OF_TURN
from streams.engines.scripted.scripted_tokens import ScriptedTokenEngine
from streams.engines.token_stream import Generation, TokenStream
from streams.errors import EventError, RefusedError, SettingsError

Start = Callable[..., ScriptedTokenEngine]


@pytest.fixture
def start() -> Iterator[Start]:
    engines = []

    def engine(**script: Any) -> ScriptedTokenEngine:
        engines.append(ScriptedTokenEngine(json.dumps(script)))
        return engines[-1]

    yield engine
    for each in engines:
        each.close()


def asked(text: str = "user: hello\n", **changes: Any) -> Generation:
    return Generation(**{"prompt_token_ids": tuple(text.encode()), "sampling": Sampling(), "draw_key": "k", **changes})


def said(stream: TokenStream) -> str:
    return bytes(token for token, _ in stream if token != END_OF_TURN).decode()


def test_the_reply_whose_text_came_last_is_given_and_without_one_an_echo(start: Start) -> None:
    replies = [{"when": "weather", "reply": "<tool_call>"}, {"when": "sunny", "reply": "Wear a hat."}]
    engine = start(replies=replies)
    assert said(engine.submit(asked("user: the weather?\n"))) == "<tool_call>"
    assert said(engine.submit(asked("user: the weather?\ntool: sunny\nassistant: "))) == "Wear a hat."
    assert said(engine.submit(asked("user: hello\nassistant:"))) == "hello"
    assert said(start(answers="nothing").submit(asked())) == ""


def test_a_stream_can_be_read_again_and_ends_with_its_reason(start: Start) -> None:
    stream = start().submit(asked())
    assert list(stream) == list(stream) == stream.drawn
    assert stream.drawn[-1][0] == END_OF_TURN
    assert (stream.ending, stream.stop, stream.error) == ("stop", None, None)
    assert all(logprob <= 0 for _, logprob in stream)


def test_a_limit_and_a_stop_text_end_an_answer(start: Start) -> None:
    engine = start()
    short = engine.submit(asked(sampling=Sampling(max_tokens=2)))
    assert (said(short), short.ending) == ("he", "length")
    stopped = engine.submit(asked(sampling=Sampling(stop=("zz", "lo", "ll"))))
    assert (said(stopped), stopped.ending, stopped.stop) == ("hell", "stop", "ll")
    cut = engine.submit(asked(sampling=Sampling(stop=("ll",), max_tokens=3)))
    assert (said(cut), cut.ending, cut.stop) == ("hel", "length", None)
    close = start(context_tokens=16).submit(asked())
    assert (said(close), close.ending) == ("hell", "length")


def test_a_thousand_generations_at_once_each_get_their_own_answer(start: Start) -> None:
    engine = start()
    streams = [engine.submit(asked(f"user: number {number}\n")) for number in range(1000)]
    assert [said(stream) for stream in streams] == [f"number {number}" for number in range(1000)]


def test_an_event_loop_reads_many_streams_without_a_thread_for_each(start: Start) -> None:
    engine = start(latency_ms=20)

    async def read(number: int) -> list[int]:
        return [token async for token, _ in engine.submit(asked(f"user: {number}\n"))]

    async def all_of_them() -> list[list[int]]:
        return await asyncio.gather(*map(read, range(20)))

    assert asyncio.run(all_of_them()) == [[*str(number).encode(), END_OF_TURN] for number in range(20)]


def test_a_reader_whose_event_loop_was_closed_harms_nobody(start: Start) -> None:
    engine = start(latency_ms=50)
    stream = engine.submit(asked())
    reader = aiter(stream)
    loop = asyncio.new_event_loop()
    first = loop.create_task(anext(reader))
    loop.run_until_complete(asyncio.sleep(0))  # it waits for its first token now
    first._log_destroy_pending = False  # type: ignore[attr-defined]
    loop.close()
    assert said(stream) == "hello"


def test_a_cancelled_generation_ends_and_its_neighbour_does_not(start: Start) -> None:
    engine = start(latency_ms=60_000)
    first, second = engine.submit(asked()), engine.submit(asked())
    first.cancel()
    assert (list(first), first.ending) == ([], "cancelled")
    assert not second.done
    first.cancel()


def test_a_reply_may_be_slow_and_keeps_no_other_waiting(start: Start) -> None:
    engine = start(replies=[{"when": "slowly", "reply": "ab", "token_ms": 60_000}])
    slow = engine.submit(asked("user: slowly\n"))
    first = next(iter(slow))
    assert said(engine.submit(asked())) == "hello"
    slow.cancel()
    assert (list(slow), slow.ending) == ([first], "cancelled")


def test_what_can_never_be_answered_is_refused_when_it_is_submitted(start: Start, tmp_path: Path) -> None:
    engine = start(context_tokens=16)
    for reason, changes in {
        "prompt_too_long": {"prompt_token_ids": (65,) * 16},
        "bad_tokens": {"prompt_token_ids": ()},
        "unknown_version": {"version": 3},
        "bad_sampling": {"sampling": Sampling(max_tokens=0)},
    }.items():
        with pytest.raises(EventError) as refused:
            engine.submit(asked(**changes))
        assert refused.value.reason == reason
    for token in (-1, END_OF_TURN + 1):
        with pytest.raises(EventError, match="expected at least one token with ids from 0 to 256"):
            engine.submit(asked(prompt_token_ids=(65, token)))
    with pytest.raises(EventError, match="its folder is None"):
        engine.load(3, None)
    with pytest.raises(SettingsError, match="repiles"):
        start(repiles=[])


def test_a_version_answers_from_when_it_is_loaded_until_it_is_unloaded(start: Start, tmp_path: Path) -> None:
    engine = start(rules=[{"version": 3, "padding": 1}])
    engine.load(3, tmp_path)
    assert said(engine.submit(asked(version=3))) == "hello "
    engine.unload(3)
    with pytest.raises(EventError, match="version 3 is not loaded, only 0"):
        engine.submit(asked(version=3))
    engine.unload(0)
    assert said(engine.submit(asked())) == "hello"


def test_generations_that_fail_say_why(start: Start) -> None:
    stream = start(fail_rate=1).submit(asked(slot=2))
    assert (list(stream), stream.ending) == ([], "error")
    assert stream.error == "slot 2 fails because policy.script has fail_rate 1.0"


def test_closing_ends_what_runs_and_refuses_what_comes() -> None:
    engine = ScriptedTokenEngine('{"latency_ms": 60000}')
    stream = engine.submit(asked())
    engine.close()
    assert (list(stream), stream.ending, stream.error) == ([], "error", "the engine was closed")
    with pytest.raises(RefusedError, match="closed"):
        engine.submit(asked())
    engine.close()


class Fragile:
    """A decoder that breaks on a draw key, and gives any other one token."""

    def __init__(self) -> None:
        self.streams: list[TokenStream] = []

    def admit(self, stream: TokenStream) -> None:
        self.streams.append(stream)

    def drop(self, stream: TokenStream) -> None:
        self.streams.remove(stream)

    def clear(self) -> None:
        self.streams.clear()

    def step(self) -> None:
        if any(stream.generation.draw_key == "breaks" for stream in self.streams):
            raise MemoryError("no room")
        for stream in self.streams:
            if stream.generation.draw_key != "waits":
                stream.push(65, -1.0)
                stream.finish("stop")
        self.streams = [stream for stream in self.streams if not stream.done]


def test_everyone_who_waits_hears_of_a_step_that_failed_and_the_engine_serves_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    loop = DecodingLoop(Fragile())
    waiting = loop.submit(TokenStream(asked(draw_key="waits")))
    broken = loop.submit(TokenStream(asked(draw_key="breaks")))
    for stream in (waiting, broken):
        assert list(stream) == []
        assert (stream.ending, stream.error) == ("error", "the engine failed: MemoryError: no room")
    assert "a decoding step failed" in caplog.text
    assert list(loop.submit(TokenStream(asked()))) == [(65, -1.0)]
    loop.close()
