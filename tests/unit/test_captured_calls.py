"""What agents do to a server that records them, and what the log has then: each test is one way in which it goes wrong.

The server is the real one with a log in memory, and the model says what the test has it say.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from types import CodeType
from typing import Any

import httpx
import pytest
from tokenizers import processors

from gateway.http.body import read_call
from schemas.conventions import FAILED_TOOLS
from schemas.events import Message, Sampling, Tool, TrajectoryEvent, Turn
from schemas.tokens import TokenIds
from streams.engines.protocol import TextScores
from streams.engines.rendering.template_rendering import ChatRendering
from streams.engines.rendering.token_table import TokenTable
from streams.errors import CallError
from streams.stages.agents.recording.calls import Delta, Done, ModelCall, Piece, PromptScores
from streams.stages.agents.trajectories.fold import fold
from streams.tools.runs.tool_use import ToolUse, tool_use
from tests.support.models import chat
from tests.support.processes import until
from tests.support.server_in_memory import LogInMemory, ServerInMemory, serving

RENDER = chat.rendering(chat.KEEPS)
(END,) = RENDER.plain(chat.END)
WEATHER = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Ulm"}}\n</tool_call>'


def served(
    render: ChatRendering = RENDER, log: LogInMemory | None = None, **changes: Any
) -> AbstractContextManager[ServerInMemory]:
    return serving(render, frozenset((END,)), log, **changes)


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def asked(*messages: dict[str, Any], **parameters: Any) -> dict[str, Any]:
    return {"model": "sums", "messages": list(messages), **parameters}


def says(server: ServerInMemory, text: str, *, end: bool = True) -> tuple[int, ...]:
    """Have the model answer with the characters of a text, each a token of its own, as no tokenizer would have them."""
    tokens = tuple(token for character in text for token in RENDER.plain(character))
    tokens += (END,) if end else ()
    server.engine.says(tokens, "stop" if end else "length")
    return tokens


def ask(server: ServerInMemory, *messages: dict[str, Any], **parameters: Any) -> dict[str, Any]:
    """Return the message that a call is answered with."""
    answer = server.post("chat/completions", asked(*messages, **parameters))
    assert answer.status_code == 200, answer.text
    return dict(answer.json()["choices"][0]["message"])


def prompt(server: ServerInMemory, number: int) -> tuple[int, ...]:
    """Return the prompt of a call as the model got it."""
    return server.engine.streams[number].generation.prompt_token_ids


# --- tokens -----------------------------------------------------------------------------------------------------------


def test_the_next_prompt_has_what_was_sampled_though_a_tokenizer_writes_it_otherwise() -> None:
    with served() as server:
        drawn = says(server, "aaaa the weather")
        reply = ask(server, user("hi"))
        assert RENDER.plain(reply["content"]) != drawn[:-1]
        says(server, "fine")
        ask(server, user("hi"), reply, user("and?"))
        first, second = server.turns
    assert tuple(first.completion_token_ids) == drawn
    assert prompt(server, 1)[: len(prompt(server, 0)) + len(drawn)] == (*prompt(server, 0), *drawn)
    assert (second.continuity, second.parent_id) == ("extends", first.turn_id)


def test_what_is_in_the_log_are_the_tokens_and_logprobs_of_the_engine() -> None:
    with served() as server:
        drawn = says(server, "bbbb")
        ask(server, user("hi"))
        [turn] = server.turns
    assert tuple(turn.completion_token_ids) == drawn
    assert list(turn.logprobs) == [logprob for _, logprob in server.engine.streams[0].drawn]


def test_a_text_to_continue_gets_what_its_tokenizer_puts_before_one_and_token_ids_stay_as_they_are() -> None:
    tokenizer = chat.chat_tokenizer(chat.KEEPS)
    first = tokenizer.convert_tokens_to_ids("<|im_start|>")
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="<|im_start|> $A", special_tokens=[("<|im_start|>", first)]
    )
    text, ids = "the weather in", RENDER.plain("the weather in")
    bodies = [{}, {"add_special_tokens": None}, {"add_special_tokens": False}, {"prompt": list(ids)}]
    with served(ChatRendering(tokenizer, TokenTable.of(tokenizer), "tokenizer")) as server:
        for body in bodies:
            says(server, " Ulm")
            answer = server.post("completions", {"model": "sums", "prompt": text, **body})
            assert answer.status_code == 200, answer.text
        says(server, "hi")
        ask(server, user("hi"))
        prompts = [prompt(server, number) for number in range(len(bodies) + 1)]
    assert prompts[:4] == [(first, *ids), (first, *ids), ids, ids]
    assert prompts[4] == RENDER.first((Message(role="user", content="hi"),), ())  # a template writes its own


@pytest.mark.parametrize(
    ("template", "answer", "reason"),
    [
        (chat.STRIPS_REASONING, "<think>warm</think>Sunny.", "leaves out a part of the answer"),
        (chat.COUNTS_IN_SYSTEM, "Sunny.", "it writes '3"),
        (chat.WRITES_TWICE, "See. " + CALL, "the text of an answer 2 times"),
        (chat.DROPS_TEXT, "See. " + CALL, "the text of an answer 0 times"),
        (chat.THINKS_FIRST, "warm</think>Sunny.", "for '<think>"),
    ],
    ids=["reasoning left out", "system prompt changes", "text twice", "text left out", "generation prompt changes"],
)
def test_a_template_that_changes_history_begins_a_chain_and_what_was_sampled_before_keeps_its_own(
    template: str, answer: str, reason: str
) -> None:
    render = chat.rendering(template)
    with served(render) as server:
        tools = {"tools": [WEATHER]} if CALL in answer else {}
        drawn = says(server, answer)
        reply = ask(server, user("hi"), **tools)
        behind = [
            {"role": "tool", "tool_call_id": call["id"], "content": "sunny"} for call in reply.get("tool_calls", ())
        ]
        says(server, "fine")
        ask(server, user("hi"), reply, *(behind or [user("and?")]), **tools)
        first, second = server.turns
    assert (second.continuity, second.parent_id) == ("rewrites", None)
    assert second.reason.startswith("the chat template changes history") and reason in second.reason
    assert prompt(server, 1) == tuple(second.prompt_token_ids) == render.first(second.messages, second.tools)
    assert tuple(first.completion_token_ids) == drawn
    assert [step.chain for step in fold(server.turns).steps] == [1, 0]


def test_a_server_with_another_template_or_tokenizer_does_not_continue_tokens_of_the_one_before() -> None:
    with served() as server:
        says(server, "fine")
        reply = ask(server, user("hi"))
    other = chat.rendering(chat.COUNTS_IN_SYSTEM)
    with served(other, server.log) as after:
        says(after, "fine")
        ask(after, user("hi"), reply, user("and?"))
        first, second = after.turns
    assert (second.continuity, second.reason) == ("rewrites", "the server's template_digest is not that of turn 0")
    assert second.trajectory_id == first.trajectory_id
    assert prompt(after, 0) == other.first(second.messages, ())
    assert fold(after.turns).calls_in_chains == 2


@pytest.mark.parametrize("prints_names", [False, True])
def test_an_answer_that_its_client_named_is_continued_unless_the_template_prints_the_name(
    *, prints_names: bool
) -> None:
    template = chat.looping("{{ m['name'] or '' }}{{ m['content'] }}") if prints_names else chat.KEEPS
    with served(chat.rendering(template)) as server:
        history = [user("hi")]
        for text in ("Sunny.", "Rain."):
            says(server, text)
            reply = ask(server, *history)
            history += [{**reply, "name": "w"}, user("and then?")]
        says(server, "Snow.")
        ask(server, *history)
        turns = server.turns
    steps = fold(turns).steps
    assert len({turn.trajectory_id for turn in turns}) == 1, "it is found without a name of the trajectory"
    named = [("rewrites", f"the reply of turn {number} has a name now") for number in range(2)]
    continues = [("extends", f"it continues turn {number}") for number in range(2)]
    assert [(turn.continuity, turn.reason) for turn in turns[1:]] == (named if prints_names else continues)
    assert [(step.continuity, step.reason) for step in steps[1:]] == (named if prints_names else continues)


def test_a_call_of_a_tool_that_its_client_replaced_by_one_of_its_own_bears_no_loss() -> None:
    with served() as server:

        def post(*messages: dict[str, Any]) -> dict[str, Any]:
            body = asked(*messages, tools=[WEATHER])
            answer = server.post("chat/completions", body, agent="calc/trajectories/run-1")
            return dict(answer.json()["choices"][0]["message"])

        says(server, CALL)
        reply = post(user("hi"))
        [call] = reply["tool_calls"]
        own = {**call, "function": {**call["function"], "arguments": '{"city": "Bonn"}'}}
        says(server, "Sunny.")
        result = {"role": "tool", "tool_call_id": call["id"], "content": "sunny"}
        post(user("hi"), {**reply, "tool_calls": [own]}, result)
        steps = fold(server.turns).steps
    assert [(step.left_out, step.chain) for step in steps] == [("replaced", None), (None, 0)]
    assert steps[1].reason == "the reply of turn 0 was changed"


def test_an_answer_that_was_cut_off_is_ended_before_the_conversation_continues() -> None:
    with served() as server:
        cut = says(server, "I was about", end=False)
        reply = ask(server, user("hi"))
        says(server, "to say")
        ask(server, user("hi"), reply, user("continue"))
        first, second = server.turns
    assert (first.finish_reason, second.continuity) == ("length", "extends")
    assert prompt(server, 1)[: len(prompt(server, 0)) + len(cut) + 1] == (*prompt(server, 0), *cut, END)


# --- tool calls -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [CALL[:-12], CALL.replace("}}", "}"), "<tool_call>" + "[" * 1_100 + "</tool_call>"],
    ids=["not closed", "not JSON", "nested too deeply"],
)
def test_a_call_that_cannot_be_read_is_text_with_the_tokens_that_were_sampled(text: str) -> None:
    with served() as server:
        drawn = says(server, text)
        reply = ask(server, user("hi"), tools=[WEATHER])
        says(server, "fine")
        ask(server, user("hi"), reply, user("and?"), tools=[WEATHER])
        first, second = server.turns
    assert (reply["content"], reply.get("tool_calls")) == (text, None)
    assert first.malformed is not None and tuple(first.completion_token_ids) == drawn
    assert second.continuity == "extends"


def test_a_streamed_call_has_the_logprob_of_every_token() -> None:
    with served() as server:
        says(server, "See. " + CALL)
        body = asked(user("hi"), tools=[WEATHER], stream=True, logprobs=True)
        lines = server.post("chat/completions", body).text.split("\n\n")
        [turn] = server.turns
    chunks = [json.loads(line.removeprefix("data: "))["choices"][0] for line in lines if line.startswith("data: {")]
    told = [token["logprob"] for chunk in chunks if chunk["logprobs"] for token in chunk["logprobs"]["content"]]
    assert told == list(turn.logprobs)
    [call] = [call for chunk in chunks for call in chunk["delta"].get("tool_calls", ())]
    assert call["id"] == turn.reply.tool_calls[0].id


SEVERAL_OFF: dict[str, dict[str, Any]] = {
    "chat/completions": {"parallel_tool_calls": False, "tools": [WEATHER]},
    "responses": {"parallel_tool_calls": False, "tools": [{"type": "function", **WEATHER["function"]}]},
    "messages": {
        "tool_choice": {"type": "auto", "disable_parallel_tool_use": True},
        "tools": [{"name": "weather", "input_schema": {"type": "object"}}],
        "max_tokens": 999,
    },
}


def by(path: str, text: str, **parameters: Any) -> dict[str, Any]:
    """Return a question in the words of a protocol."""
    said = {"input": text} if path == "responses" else {"messages": [user(text)]}
    return {"model": "sums", **said, **parameters}


def says_until_a_call_ends(server: ServerInMemory, text: str) -> None:
    """Have the model write a text up to the end of its first call, as engines do where that is a stop text."""
    before, end, _ = text.partition("</tool_call>")
    server.engine.says([token for character in before + end for token in RENDER.plain(character)], stop=end)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", SEVERAL_OFF)
def test_where_a_client_takes_one_call_the_answer_ends_with_it(path: str, stream: bool) -> None:
    with served() as server:
        says_until_a_call_ends(server, "See. " + CALL + "\n" + CALL)
        answer = server.post(path, by(path, "both", **SEVERAL_OFF[path], stream=stream), idempotency_key="1")
        again = server.post(path, by(path, "both", **SEVERAL_OFF[path], stream=stream), idempotency_key="1")
        [turn] = server.turns
    assert server.engine.streams[0].generation.sampling.stop == ("</tool_call>",)
    assert [call.name for call in turn.reply.tool_calls] == ["weather"] and turn.reply.content == "See."
    assert (turn.finish_reason, turn.constraint, turn.malformed) == ("tool_calls", None, None)
    assert RENDER.text(turn.completion_token_ids) == "See. " + CALL
    assert answer.status_code == again.status_code == 200
    assert answer.text.count("Ulm") == again.text.count("Ulm") >= 1
    assert answer.text.count('"stop_sequence"') == answer.text.replace(" ", "").count('"stop_sequence":null')


def test_a_call_that_follows_one_of_several_that_were_cut_extends_it() -> None:
    body = SEVERAL_OFF["chat/completions"]
    with served() as server:
        says_until_a_call_ends(server, CALL)
        reply = ask(server, user("both"), **body)
        says(server, "fine")
        result = {"role": "tool", "tool_call_id": reply["tool_calls"][0]["id"], "content": "sunny"}
        ask(server, user("both"), reply, result, **body)
        first, second = server.turns
    assert (second.continuity, second.parent_id) == ("extends", first.turn_id)
    whole = first.prompt_token_ids.data + first.completion_token_ids.data + second.prompt_token_ids.data
    assert RENDER.text(TokenIds(whole)).count("</tool_call>") == 1


def test_text_with_a_stray_end_of_a_call_is_text_without_it() -> None:
    with served() as server:
        says_until_a_call_ends(server, "odd </tool_call>")
        answer = server.post("messages", by("messages", "both", **SEVERAL_OFF["messages"])).json()
    assert answer["content"] == [{"type": "text", "text": "odd "}]
    assert (answer["stop_reason"], answer["stop_sequence"]) == ("end_turn", None)


# --- streams, and clients that leave ----------------------------------------------------------------------------------


def call_of(server: ServerInMemory, *messages: Message) -> ModelCall:
    return ModelCall(
        agent_id="calc",
        model="sums",
        protocol="chat",
        messages=messages,
        sampling=Sampling(max_tokens=100),
        request_digest=f"{len(messages):064}",
    )


async def until_begun(server: ServerInMemory) -> None:
    while not server.engine.streams:
        await asyncio.sleep(0)


def test_a_stream_gives_text_before_the_answer_is_complete() -> None:
    with served() as server:

        async def read() -> list[Piece]:
            got: list[Piece] = []

            async def gather() -> None:
                async for piece in reading:
                    got.append(piece)

            reading = server.recorder.answer(call_of(server, Message(role="user", content="hi")))
            reader = asyncio.create_task(gather())
            await until_begun(server)
            for token in RENDER.plain("fine"):
                server.engine.streams[0].push(token, -0.5)
            for _ in range(50):
                await asyncio.sleep(0)
            early = list(got)
            server.engine.streams[0].finish("stop")
            await reader
            return early

        early = server.run(read())
    assert "".join(piece.text for piece in early if isinstance(piece, Delta)) == "fine"
    assert not any(isinstance(piece, Done) for piece in early)


def test_what_a_client_left_is_recorded_as_not_delivered_and_its_row_ends() -> None:
    with served() as server:

        async def leave() -> None:
            reading = server.recorder.answer(call_of(server, Message(role="user", content="hi")))
            await anext(reading)
            server.engine.streams[0].push(END, -0.5)
            await reading.aclose()
            assert server.engine.streams[0].cancelled
            server.engine.streams[0].finish("cancelled")
            while not server.turns:
                await asyncio.sleep(0)

        server.run(leave())
        says(server, "fine")
        ask(server, user("hi"))
        first, second = server.turns
    assert (first.delivered, first.finish_reason, tuple(first.completion_token_ids)) == (False, "cancelled", (END,))
    assert second.delivered


def test_a_call_that_is_sent_again_under_its_key_is_one_turn() -> None:
    with served() as server:
        for text in ("fine", "other"):
            says(server, text)
        answers = [server.post("chat/completions", asked(user("hi")), idempotency_key="k1") for _ in range(2)]
        assert answers[0].json() | {"created": 0} == answers[1].json() | {"created": 0}
        later = server.post("chat/completions", asked(user("hi")), idempotency_key="k2")
    assert later.json()["id"] != answers[0].json()["id"]
    assert [turn.reply.content for turn in server.turns] == ["fine", "other"]


def test_an_answer_that_is_not_recorded_in_time_is_not_given_and_its_retry_gets_it() -> None:
    with served(acknowledge_s=0.05) as server:

        def tried() -> httpx.Response:
            return server.post("chat/completions", asked(user("hi")), idempotency_key="k1")

        server.log.reachable.clear()
        says(server, "fine")
        refused = tried()
        assert (refused.status_code, refused.headers.get("retry-after")) == (503, "1")
        server.log.reachable.set()
        until(lambda: tried().status_code == 200, "the answer is recorded")
        given = tried()
        [turn] = server.turns
    assert given.json()["id"] == f"chatcmpl-{turn.turn_id}"


def test_a_call_beyond_those_that_may_be_in_progress_is_told_to_try_again() -> None:
    with served(max_calls=1) as server:

        async def both() -> CallError:
            first, second = ([Message(role="user", content="hi")] * count for count in (1, 2))
            reading = server.recorder.answer(call_of(server, *first))
            await anext(reading)
            with pytest.raises(CallError) as raised:
                await anext(server.recorder.answer(call_of(server, *second)))
            server.engine.streams[0].push(END, -0.5)
            server.engine.streams[0].finish("stop")
            async for _ in reading:
                pass
            return raised.value

        refused = server.run(both())
    assert refused.kind == "busy" and "serve.max_calls" in refused.message


def test_texts_are_scored_one_at_a_time_and_one_beyond_those_that_may_wait_is_told_to_try_again() -> None:
    with served(max_calls=2) as server:
        now, most, goes_on = 0, 0, threading.Event()

        def score(version: int, ids: Sequence[int], top: int) -> TextScores:
            nonlocal now, most
            now, most = now + 1, max(most, now + 1)
            goes_on.wait(300)
            now -= 1
            return TextScores(logprobs=(-0.5,) * (len(ids) - 1), likeliest=(((END, -0.1),),) * len(ids))

        async def all_three() -> list[PromptScores | BaseException]:
            text = replace(call_of(server), protocol="completions", prompt="hi", messages=())
            asked = [asyncio.create_task(server.recorder.score(text, 1)) for _ in range(3)]
            await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED)
            goes_on.set()
            return await asyncio.gather(*asked, return_exceptions=True)

        server.engine.score = score  # type: ignore[attr-defined]
        *scored, refused = server.run(all_three())
    assert [type(each) for each in scored] == [PromptScores] * 2 and most == 1, scored
    assert isinstance(refused, CallError) and refused.kind == "busy" and "serve.max_calls" in refused.message


# --- bodies -----------------------------------------------------------------------------------------------------------


def test_a_conversation_longer_than_a_record_is_recorded_turn_by_turn() -> None:
    with served(max_record_bytes=30_000) as server:
        history: list[dict[str, Any]] = []
        for number in range(6):
            history.append(user(f"{number} " * 1_000))
            says(server, "fine")
            history.append(ask(server, *history))
        assert [turn.continuity for turn in server.turns] == ["first", *["extends"] * 5]
        largest = max(len(record.payload or b"") for record in server.log.records)
    assert largest < 30_000 < sum(len(message["content"]) for message in history) * 4


def test_a_body_that_is_too_long_is_refused_by_the_name_of_its_limit() -> None:
    with served(max_body_mb=0.001) as server:
        answer = server.post("chat/completions", asked(user("x" * 1_000)))
    assert answer.status_code == 413 and "serve.max_body_mb" in answer.json()["error"]["message"]


def test_a_body_that_says_it_is_too_long_is_refused_before_it_is_read() -> None:
    async def parts() -> AsyncIterator[bytes]:
        raise AssertionError("it is read")
        yield b""

    async def answer(server: ServerInMemory) -> httpx.Response:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(server.app), base_url="http://memory") as client:
            return await client.post("/v1/chat/completions", content=parts(), headers={"content-length": "1001"})

    with served(max_body_mb=0.001) as server:
        refused = server.run(answer(server))
    assert refused.status_code == 413 and "serve.max_body_mb" in refused.json()["error"]["message"]


@pytest.mark.parametrize(("characters", "in_the_loop"), [(10, True), (1_000_000, False)])
def test_a_large_body_is_read_outside_of_the_event_loop(characters: int, in_the_loop: bool) -> None:
    called: set[CodeType] = set()
    with served() as server:
        says(server, "fine")
        sys.setprofile(lambda frame, event, argument: called.add(frame.f_code))  # of this thread, which has the loop
        try:
            answer = server.post("feedback", {"id": "1", "comment": "x" * characters})
        finally:
            sys.setprofile(None)
    assert answer.status_code == 400 and (read_call.__code__ in called) is in_the_loop


@pytest.mark.parametrize("characters", [60, 3_000], ids=["once it is tokenized", "whatever its tokens are"])
def test_a_conversation_that_does_not_fit_is_refused_in_the_words_that_clients_look_for(characters: int) -> None:
    text, limit = "x" * characters, 40
    calls = {"completions": {"model": "sums", "prompt": text}, "chat/completions": by("chat", text)}
    with served() as server:
        server.engine.context_tokens = limit
        for stream in (False, True):
            for path, body in (calls | {"responses": by("responses", text)}).items():
                refused = server.post(path, {**body, "stream": stream})
                error = refused.json()["error"]
                assert (refused.status_code, error["code"]) == (400, "context_length_exceeded"), refused.text
                assert error["message"].startswith("prompt is too long: ")
            refused = server.post("messages", by("messages", text, max_tokens=9, stream=stream))
            error = refused.json()["error"]
            assert (refused.status_code, error["type"]) == (400, "invalid_request_error")
            known = re.match(r"prompt is too long: (\d+) tokens > 39 maximum", error["message"])
            assert known is not None and int(known[1]) >= limit
        assert server.log.records == []
        says(server, "fine")
        assert ask(server, user("hi"))["content"] == "fine", "the shortened conversation is answered"


def test_a_call_too_large_to_be_recorded_is_refused_before_anything_is_sampled() -> None:
    with served(max_record_bytes=2_000) as server:
        says(server, "fine")
        refused = server.post("chat/completions", asked(user("x" * 2_000)))
        assert server.engine.streams == [] and server.log.records == []
        assert ask(server, user("hi"))["content"] == "fine"
    assert refused.status_code == 413 and "topics.max_record_bytes" in refused.json()["error"]["message"]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("chat/completions", asked(user("hi"))),
        ("completions", {"model": "sums", "prompt": "hi"}),
        ("responses", {"model": "sums", "input": "hi"}),
        ("messages", asked(user("hi"), max_tokens=9)),
    ],
)
def test_a_parameter_that_nobody_knows_is_refused_by_its_name_and_nothing_is_sampled(
    path: str, body: dict[str, Any]
) -> None:
    with served() as server:
        says(server, "fine")
        answer = server.post(path, {**body, "colour": "blue"})
        assert server.engine.streams == [] and server.turns == []
    assert answer.status_code == 400 and "colour" in answer.json()["error"]["message"]


def test_parameters_that_say_how_tokens_are_drawn_reach_the_engine_and_the_log() -> None:
    drawn = {"temperature": 0.5, "top_p": 0.9, "max_tokens": 7, "seed": 3, "stop": ["stop here"]}
    with served() as server:
        for _ in range(2):
            says(server, "fine")
        answer = server.post("chat/completions", asked(user("hi"), n=2, **drawn))
        first, second = server.turns
    wanted = Sampling(temperature=0.5, top_p=0.9, max_tokens=7, seed=3, stop=("stop here",))
    assert first.sampling == second.sampling == wanted
    assert [stream.generation.sampling for stream in server.engine.streams] == [wanted, wanted]
    assert [(turn.choice, turn.choices) for turn in (first, second)] == [(0, 2), (1, 2)]
    assert len(answer.json()["choices"]) == 2


def test_a_response_continues_the_recorded_conversation_of_the_one_before() -> None:
    with served() as server:
        says(server, "fine")
        first = server.post("responses", {"model": "sums", "input": "hi"}).json()
        says(server, "sunny")
        body = {"model": "sums", "input": "and?", "previous_response_id": first["id"]}
        assert server.post("responses", body).status_code == 200
        one, two = server.turns
        assert (two.parent_id, two.continuity) == (one.turn_id, "extends")
        assert server.post("responses", body | {"previous_response_id": "resp_nobody"}).status_code == 404


def test_an_item_that_is_only_referred_to_is_the_one_that_the_log_has() -> None:
    tools = SEVERAL_OFF["responses"]["tools"]
    with served() as server:
        says(server, "See. " + CALL)
        [text, call] = server.post("responses", by("responses", "hi", tools=tools)).json()["output"]
        says(server, "sunny")
        result = {"type": "function_call_output", "call_id": call["call_id"], "output": "sun"}
        refer = [{"type": "item_reference", "id": item["id"]} for item in (text, call)]
        body = {"model": "sums", "tools": tools}
        assert server.post("responses", {**body, "input": [user("hi"), *refer, result]}).status_code == 200
        one, two = server.turns
        for wrong in ("msg_nobody_0", "fc_nobody", call["id"][:-1] + "7", ""):
            refused = server.post("responses", {**body, "input": [user("hi"), {"type": "item_reference", "id": wrong}]})
            assert refused.status_code == 404 and refused.json()["error"]["param"] == "input[1].id", refused.text
        says(server, "fine")
        other = server.post("responses", {**body, "input": [user("hi"), refer[0]]}, agent="other")
    assert (two.parent_id, two.continuity) == (one.turn_id, "extends")
    assert other.status_code == 200, "without keys every agent sees every answer"


def test_a_name_that_a_client_insists_on_is_the_model_that_the_setting_says() -> None:
    with served(model_names="gpt-4o-mini, claude-*=sums@0, sums=elsewhere") as server:
        for path, model in (("chat/completions", "gpt-4o-mini"), ("messages", "claude-any-5"), ("responses", "sums")):
            says(server, "fine")
            limit = {"max_output_tokens" if path == "responses" else "max_tokens": 9}
            answer = server.post(path, by(path, "hi", **limit) | {"model": model})
            assert (answer.status_code, answer.headers.get("x-streamward-model")) == (200, "sums@0"), answer.text
        refused = server.post("chat/completions", asked(user("hi")) | {"model": "gpt-5"})
        assert refused.status_code == 404 and "serve.model_names" in refused.json()["error"]["message"]
        listed = [model["id"] for model in server.get("models").json()["data"]]
        assert listed == ["sums", "sums@0", "gpt-4o-mini", "claude-*"]
        assert server.get("models/claude-any-5", anthropic_version="2023-06-01").json()["id"] == "claude-any-5"
        assert server.get("models/gpt-5").status_code == 404


def test_an_anthropic_client_gets_its_own_blocks_counted_and_refused_by_name() -> None:
    marked = {"type": "text", "text": "hi", "cache_control": {"type": "ephemeral"}}
    body = asked({"role": "user", "content": [marked]}, system=[marked])
    thought = {"role": "assistant", "content": [{"type": "thinking", "thinking": "hm", "signature": "s"}]}
    with served() as server:
        counted = server.post("messages/count_tokens", body)
        says(server, "fine")
        answer = server.post("messages", {**body, "max_tokens": 9}, anthropic_beta="context-1m-2025-08-07")
        refused = server.post("messages", asked(user("hi"), thought, user("and?"), max_tokens=9))
        [turn] = server.turns
    assert counted.json() == {"input_tokens": turn.prompt_tokens}
    assert answer.headers["x-streamward-ignored"] == "messages.content.cache_control, system.cache_control"
    assert refused.status_code == 400 and "messages[1].content[0]" in refused.json()["error"]["message"]


@pytest.mark.parametrize(
    ("changes", "why"), [({"longest_s": 0.001}, "it has ended"), ({"remembered_mb": 0.001}, "serve.remembered_mb")]
)
def test_a_trajectory_that_is_remembered_no_longer_is_refused_in_the_words_of_each_protocol(
    changes: dict[str, float], why: str
) -> None:
    async def has_ended() -> bool:
        server.recorder.runs.end_idle()
        return "t1" in {event.trajectory_id for event in server.log.events(TrajectoryEvent) if event.kind == "ended"}

    with served(**changes) as server:
        for name in ("t1", "t2"):
            says(server, "fine")
            assert server.post("chat/completions", asked(user("hi")), f"calc/trajectories/{name}").status_code == 200
        if "longest_s" in changes:
            until(lambda: server.run(has_ended()), "the first trajectory has ended")
        bodies = {
            "chat/completions": asked(user("and?")),
            "completions": {"model": "sums", "prompt": "and?"},
            "responses": {"model": "sums", "input": "and?"},
            "messages": asked(user("and?"), max_tokens=9),
        }
        answers = {path: server.post(path, body, "calc/trajectories/t1") for path, body in bodies.items()}
        assert len(server.turns) == 2
    for path, answer in answers.items():
        error = answer.json()["error"]
        assert answer.status_code == 409 and why in error["message"] and "use another trajectory" in error["message"]
        assert error.keys() == ({"type", "message"} if path == "messages" else {"message", "type", "param", "code"})


def test_an_opinion_of_an_answer_that_nobody_recorded_is_refused() -> None:
    with served() as server:
        answer = server.post("feedback", {"id": "chatcmpl-nobody", "value": 1})
    assert answer.status_code == 404 and "there is no answer" in answer.json()["error"]["message"]


def test_a_beginning_that_was_lost_with_its_server_is_written_by_the_next() -> None:
    log = LogInMemory()
    with served(log=log) as server:
        says(server, "one")
        ask(server, user("first"))
        says(server, "two")
        ask(server, user("first"), {"role": "assistant", "content": "one"}, user("second"))
    [began], turns = log.events(TrajectoryEvent), log.events(Turn)
    log.records = [record for record in log.records if isinstance(record.decode(Turn), Turn)]
    assert len(turns) == len(log.records) == 2
    with served(log=log) as server:
        server.recorder.runs.finish()
        server.recorder.runs.finish()
    assert log.events(TrajectoryEvent) == [began]


def test_a_short_prompt_is_rendered_where_it_comes_in_unless_another_is_being_rendered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    places, may, render = list[tuple[str, bool]](), threading.Event(), ChatRendering.first

    def first(self: ChatRendering, messages: Sequence[Message], tools: Sequence[Tool]) -> tuple[int, ...]:
        text = messages[-1].content
        places.append((text[:5], threading.current_thread() is threading.main_thread()))
        assert not text.startswith("long") or may.wait(300)
        return render(self, messages, tools)

    async def talk(server: ServerInMemory) -> None:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(server.app), base_url="http://memory") as client:

            async def call(text: str) -> None:
                answer = await client.post("/v1/chat/completions", json=asked(user(text)))
                assert answer.status_code == 200, answer.text

            await call("short")
            long = asyncio.create_task(call("long " * 300))
            while len(places) < 2:
                await asyncio.sleep(0.001)
            late = asyncio.create_task(call("late"))
            while server.recorder._io.prompts._thread._work_queue.empty():
                await asyncio.sleep(0.001)
            may.set()
            await asyncio.gather(long, late)

    monkeypatch.setattr(ChatRendering, "first", first)
    with served() as server:
        for _ in range(3):
            says(server, "yes")
        server.run(talk(server))
    assert places == [("short", True), ("long ", False), ("late", False)]


def test_a_tool_result_that_is_sent_as_an_error_is_recorded_with_the_turn_that_first_has_it() -> None:
    tool = {"name": "weather", "input_schema": {"type": "object"}}
    with served() as server:

        def ask_messages(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
            body = {"model": "sums", "max_tokens": 64, "tools": [tool], "messages": messages}
            answer = server.post("messages", body)
            assert answer.status_code == 200 and "x-streamward-ignored" not in answer.headers, answer.text
            return list(answer.json()["content"])

        says(server, CALL)
        history = [user("hi")]
        [use] = ask_messages(history)
        result = {"type": "tool_result", "tool_use_id": use["id"], "content": "no such city", "is_error": True}
        history += [{"role": "assistant", "content": [use]}, {"role": "user", "content": [result]}]
        says(server, "Which city?")
        reply = ask_messages(history)
        history += [{"role": "assistant", "content": reply}, user("Ulm")]
        says(server, "fine")
        ask_messages(history)
        turns = server.turns
    assert [turn.metadata for turn in turns] == [{}, {FAILED_TOOLS: f'["{use["id"]}"]'}, {}]
    assert tool_use(turns, None, ()) == ToolUse(tool_calls=1, failed_tools=1)
