"""Agents' generations over vLLM servers, against what the real vLLM 0.32.0 said (tests/contracts), streamed."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from streams.engines.base_model import Base, load_base
from streams.engines.rendering.token_table import TokenTable
from streams.engines.token_stream import TokenStream
from streams.engines.vllm import servers
from streams.engines.vllm.completions_api import seed_of, stream_body
from streams.engines.vllm.servers import rendezvous
from streams.engines.vllm.vllm_tokens import VllmTokenEngine
from streams.errors import EventError, RefusedError
from streams.observability.trace_context import Context
from tests.support.models.tiny import VOCABULARY
from tests.support.processes import until
from tests.support.vllm.contract import GENERATIONS, Replay, Said, generation, replay, settings_for, stream_of
from tests.support.vllm.replayed import files, impatient, name_in, server

__all__ = ["files", "impatient", "server"]

Starting = Callable[..., VllmTokenEngine]
FIRST = GENERATIONS[0]


@pytest.fixture(scope="module")
def base(files: Path) -> Base:
    return load_base(settings_for("http://unused", files / "model", files).model)


@pytest.fixture
def start(base: Base, files: Path, tmp_path: Path) -> Iterator[Starting]:
    with ExitStack() as stack:

        def starting(*servers: Replay, **changes: Any) -> VllmTokenEngine:
            urls = ",".join(server.url for server in servers)
            policy = settings_for(urls, files / "model", tmp_path, **changes).policy
            return stack.enter_context(closing(VllmTokenEngine(policy, base)))

        yield starting


def events(said: Said) -> list[Any]:
    """What a streamed answer holds, without its end."""
    parts = said[2].decode().split("\n\n")
    return [json.loads(part.removeprefix("data: ")) for part in parts if part and not part.endswith("[DONE]")]


def changed(**values: Any) -> Callable[[dict[str, Any], Said], Said]:
    """A server whose first event has another value in its choice, or beside it."""

    def turn(_: dict[str, Any], said: Said) -> Said:
        first, *rest = events(said)
        for name, value in values.items():
            (first if name in first else first["choices"][0])[name] = value
        return stream_of(first, *rest)

    return turn


def ended(stream: TokenStream) -> TokenStream:
    list(stream)
    return stream


def test_what_is_drawn_is_what_the_server_streamed_under_the_version_asked_for(
    server: Replay, start: Starting, files: Path
) -> None:
    engine, heard = start(server), list[Said]()
    server.forever = lambda _, said: heard.append(said) or said
    engine.load(1, files / "1")
    for asked in GENERATIONS:
        stream = ended(engine.submit(asked))
        choices = [event["choices"][0] for event in events(heard[-1])]
        tokens = [token for choice in choices for token in choice["token_ids"]]
        logprobs = [value for choice in choices for value in choice["logprobs"]["token_logprobs"]]
        assert [token for token, _ in stream.drawn] == tokens, stream.error
        assert [value for _, value in stream.drawn] == pytest.approx(logprobs, abs=1e-6)
        assert stream.ending == ("stop" if tokens[-1] == 2 else "length")
    models = [body["model"] for body in server.tasks()]
    assert models == ["base", name_in(files, 1)]


def test_each_slot_has_the_seed_that_it_has_among_those_of_a_task() -> None:
    asked = stream_body(replace(FIRST, slot=3), 5, TokenTable.of_ids(VOCABULARY, {2}))
    assert (asked["seed"], asked["n"], asked["max_tokens"]) == (seed_of(FIRST.draw_key) + 3, 1, 5)


def test_the_prompt_goes_as_tokens_and_stop_texts_stay_here(server: Replay, start: Starting) -> None:
    engine = start(server)
    whole = [token for token, _ in ended(engine.submit(FIRST))]
    text = engine._prompts.text
    last = next(number for number in range(2, len(whole)) if text(whole[:number]) not in text(whole[: number - 1]))
    stop = text(whole[:last])[-1]
    stream = ended(engine.submit(replace(FIRST, sampling=replace(FIRST.sampling, stop=(stop,)))))
    drawn = [token for token, _ in stream.drawn]
    assert (stream.ending, stream.stop) == ("stop", stop)
    assert drawn == whole[: len(drawn)] and stop in text(drawn) and stop not in text(drawn[:-1])
    assert server.tasks()[1] == server.tasks()[0] and "stop" not in server.tasks()[0]
    assert server.tasks()[0]["prompt"] == list(FIRST.prompt_token_ids)


def test_a_streamed_answer_is_asked_for_in_its_trace(server: Replay, start: Starting) -> None:
    trace = Context("4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7")
    engine = start(server)
    ended(engine.submit(replace(FIRST, trace=trace)))
    ended(engine.submit(FIRST))
    assert server.traced() == [(seed_of(FIRST.draw_key), trace.traceparent)]


def test_a_stream_without_an_end_is_given_up(server: Replay, start: Starting, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = start(server, server_retries=0)
    monkeypatch.setattr(servers, "BYTES_BESIDE", 2000)
    monkeypatch.setattr(servers, "BYTES_PER_TOKEN", 0)
    server.turns = [lambda _, said: (*said[:2], b": a comment" * 1000 + b"\n\n" + said[2])]
    stream = ended(engine.submit(FIRST))
    assert stream.ending == "error" and "more than 2000 bytes" in str(stream.error)


def test_an_answer_is_tried_again_until_its_first_token_came_and_never_after(server: Replay, start: Starting) -> None:
    engine = start(server)
    server.turns = [lambda *_: (500, "text/plain", b"once")]
    assert ended(engine.submit(FIRST)).ending in ("stop", "length") and len(server.tasks()) == 2

    def breaks(_: dict[str, Any], said: Said) -> Said:
        return 200, "text/event-stream", said[2][: said[2].index(b"\n\n") + 2]

    server.turns = [breaks]
    stream = ended(engine.submit(FIRST))
    assert stream.ending == "error" and "in the middle of its answer" in str(stream.error)
    assert len(stream.drawn) == 1 and len(server.tasks()) == 3


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"model": "another"}, "no answer of model 'base'"),
        ({"prompt_token_ids": [5]}, "not those that were sent"),
        ({"token_ids": ["5"]}, "something else than token ids"),
        ({"logprobs": None}, "lacks the logprob"),
        ({"choices": []}, "another number of choices"),
    ],
)
def test_an_event_that_does_not_fit_is_no_answer(
    server: Replay, start: Starting, values: dict[str, Any], said: str
) -> None:
    engine = start(server, server_retries=0)
    server.turns = [changed(**values)]
    stream = ended(engine.submit(FIRST))
    assert (stream.ending, stream.drawn) == ("error", []) and said in str(stream.error)


def test_a_line_separator_in_a_text_ends_no_event(server: Replay, start: Starting) -> None:
    engine = start(server)
    server.turns = [changed(text="\u2028\x85")]
    assert ended(engine.submit(FIRST)).error is None


def test_a_client_that_left_ends_the_request_at_once(server: Replay, start: Starting) -> None:
    engine, begun, free = start(server), threading.Event(), threading.Event()

    def waits(_: dict[str, Any], said: Said) -> Said:
        begun.set()
        assert free.wait(300)
        return said

    server.turns = [waits]
    stream = engine.submit(FIRST)
    assert begun.wait(300)
    stream.cancel()
    assert stream.ending == "cancelled"
    until(lambda: not engine._open, "the thread is free while the server still waits")
    free.set()
    assert ended(engine.submit(FIRST)).ending in ("stop", "length")  # and the server is not paused for it
    assert len(server.tasks()) == 2


def test_a_conversation_stays_with_its_server_and_others_go_to_both(server: Replay, start: Starting) -> None:
    with replay() as other:
        engine = start(server, other)
        names = [f"talk {number}" for number in range(64)]
        for own, far in ((server, other), (other, server)):  # their ports decide whose each conversation is
            talks = [name for name in names if _weight(name, own) > _weight(name, far)][:4]
            assert talks
            for talk in (*talks, *talks):
                ended(engine.submit(replace(FIRST, conversation=talk)))
            assert (len(own.tasks()), len(far.tasks())) == (2 * len(talks), 0)
            own.asked.clear()


def _weight(conversation: str, server: Replay) -> bytes:
    return rendezvous(conversation.encode(), server.url)


def test_what_cannot_be_answered_is_refused_before_anything_is_sampled(server: Replay, start: Starting) -> None:
    engine = start(server)
    for asked, reason in (
        (generation(temperature=0.005), "bad_sampling"),
        (replace(FIRST, version=7), "unknown_version"),
        (replace(FIRST, prompt_token_ids=(5,) * 300), "prompt_too_long"),
    ):
        with pytest.raises(EventError) as refused:
            engine.submit(asked)
        assert refused.value.reason == reason
    with pytest.raises(EventError, match="cannot force a form"):
        engine.constrain("start: /a/")
    with replay("raw_logprobs") as raw, pytest.raises(EventError, match="processed_logprobs"):
        start(raw).submit(generation("warm", temperature=0.7, top_p=0.9))
    assert not server.tasks()


def test_an_adapter_leaves_the_servers_after_the_last_answer_that_needs_it(
    server: Replay, start: Starting, files: Path
) -> None:
    engine, begun, free = start(server), threading.Event(), threading.Event()
    engine.load(1, files / "1")

    def waits(_: dict[str, Any], said: Said) -> Said:
        begun.set()
        assert free.wait(300)
        return said

    server.turns = [waits]
    stream = engine.submit(GENERATIONS[1])
    assert begun.wait(300)
    engine.unload(1)
    with pytest.raises(EventError, match="version 1 is not loaded"):
        engine.submit(GENERATIONS[1])
    assert name_in(files, 1) in server.loaded
    free.set()
    assert ended(stream).error is None
    until(lambda: not server.loaded, "the adapter is unloaded")


def test_a_version_that_no_server_can_be_asked_for_is_tried_again_later(
    server: Replay, start: Starting, files: Path
) -> None:
    engine = start(server)
    server.is_dead = True
    with pytest.raises(EventError) as away:
        engine.load(1, files / "1")
    assert away.value.reason == "store_unreachable"
    server.restart()
    until(lambda: not engine._adapters.servers.servers[0].is_paused(), "the server may be asked again")
    engine.load(1, files / "1")
    assert ended(engine.submit(GENERATIONS[1])).error is None


def test_closing_ends_what_is_open_and_takes_nothing_more(server: Replay, start: Starting) -> None:
    engine, begun, free = start(server), threading.Event(), threading.Event()
    server.turns = [lambda _, said: (begun.set(), free.wait(300), said)[2]]
    stream = engine.submit(FIRST)
    assert begun.wait(300)
    engine.close()
    free.set()
    assert (stream.ending, stream.error) == ("error", "the engine was closed")
    with pytest.raises(RefusedError):
        engine.submit(FIRST)
