"""The cache of answers in the server: what is given again, to whom, and what never is."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

import httpx
import pytest

from plugins.cache.answer_cache import AnswerCache, build_cache
from plugins.cache.cache_settings import Cache
from plugins.cache.recount_cache import CacheRecount
from schemas import key_source
from schemas.events import Turn
from schemas.tokens import TokenIds
from streams.engines.scripted.scripted_tokens import END_OF_TURN, ScriptedRendering
from streams.settings.model import Settings
from tests.support.server_in_memory import LogInMemory, ServerInMemory, serving
from tests.support.subject_keys import SubjectKeys

FOUR = (*b"4", END_OF_TURN)
FIVE = (*b"5", END_OF_TURN)
QUESTION = {"model": "sums", "messages": [{"role": "user", "content": "2 + 2 ="}], "temperature": 0}
TOOL = {"type": "function", "function": {"name": "calc", "parameters": {"type": "object"}}}


def served(log: LogInMemory | None = None, **rule: Any) -> AbstractContextManager[ServerInMemory]:
    step = AnswerCache(Cache(**{"exact_s": 3600.0} | rule))
    return serving(ScriptedRendering(), frozenset((END_OF_TURN,)), log, (step,))


def ask(server: ServerInMemory, agent: str = "calc", headers: Mapping[str, str] | None = None, **body: Any) -> Any:
    answer = server.post("chat/completions", QUESTION | body, agent, **dict(headers or {}))
    assert answer.status_code == 200, answer.text
    return answer


def text(answer: httpx.Response) -> str:
    return str(answer.json()["choices"][0]["message"]["content"])


def test_the_second_of_two_equal_questions_gets_the_first_ones_answer_and_says_so() -> None:
    with served() as server:
        server.engine.says(FOUR)
        first, second = ask(server), ask(server, agent="other")
        assert text(first) == text(second) == "4"
        assert len(server.engine.streams) == 1
        sampled, repeated = server.turns
        assert "x-streamward-cached-from" not in first.headers
        assert second.headers["x-streamward-cached-from"] == sampled.turn_id
        assert repeated.metadata["origin.cached_from"] == sampled.turn_id
        assert repeated.completion_token_ids == sampled.completion_token_ids
        assert repeated.logprobs == sampled.logprobs
        assert first.json()["usage"] == second.json()["usage"]


def test_an_answer_to_a_person_whose_words_are_sealed_is_given_to_nobody_again() -> None:
    key_source.use(SubjectKeys())
    try:
        with served() as server:
            for user in ("ann", "bob", "ann"):
                server.engine.says(FOUR)
                assert "x-streamward-cached-from" not in ask(server, user=user).headers
            assert len(server.engine.streams) == 3
            assert [turn.subject for turn in server.turns] == ["ann", "bob", "ann"]
    finally:
        key_source.use(key_source.NoKeys())


def test_a_repeated_answer_streams_like_any_other() -> None:
    with served() as server:
        server.engine.says(FOUR)
        frames = [ask(server, stream=True, stream_options={"include_usage": True}).text for _ in range(2)]
        texts = []
        for frame in frames:
            *chunks, end, _ = frame.split("\n\n")
            assert end == "data: [DONE]"
            events = [json.loads(chunk.removeprefix("data: ")) for chunk in chunks]
            texts.append([(event["choices"], event["usage"]) for event in events])
        assert texts[0] == texts[1]
        assert len(server.engine.streams) == 1


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("completions", {"model": "sums", "prompt": "2 + 2 =", "temperature": 0}),
        ("responses", {"model": "sums", "input": "2 + 2 =", "temperature": 0}),
        ("messages", QUESTION | {"max_tokens": 8}),
    ],
)
def test_every_protocol_has_the_cache(path: str, body: dict[str, Any]) -> None:
    with served() as server:
        server.engine.says(FOUR)
        answers = [server.post(path, body) for _ in range(2)]
        assert [answer.status_code for answer in answers] == [200, 200]
        assert "x-streamward-cached-from" in answers[1].headers
        assert len(server.engine.streams) == 1


def test_a_hundred_equal_questions_at_once_are_sampled_once() -> None:
    with served() as server:

        async def storm() -> list[httpx.Response]:
            transport = httpx.ASGITransport(server.app)
            async with httpx.AsyncClient(transport=transport, base_url="http://memory") as client:
                path = "/agents/calc/v1/chat/completions"
                calls = [asyncio.create_task(client.post(path, json=QUESTION)) for _ in range(100)]
                while not server.engine.streams:
                    await asyncio.sleep(0.01)
                [stream] = server.engine.streams
                stream.push(*(FOUR[0], -0.5))
                await asyncio.sleep(0.05)  # calls that come meanwhile are of the same sampling
                stream.finish("stop")
                return list(await asyncio.gather(*calls))

        answers = server.run(storm())
        assert {(answer.status_code, text(answer)) for answer in answers} == {(200, "4")}
        assert len(server.engine.streams) == 1
        repeated = [turn for turn in server.turns if "origin.cached_from" in turn.metadata]
        assert (len(server.turns), len(repeated)) == (100, 99)


@pytest.mark.parametrize(
    "changed",
    [
        {"messages": [{"role": "user", "content": "2 + 3 ="}]},
        {"tools": [TOOL]},
        {"temperature": 0.5},
        {"max_tokens": 9},
        {"stop": ["="]},
        {"n": 2},
        {"response_format": {"type": "text"}, "messages": [{"role": "system", "content": "s"}, *QUESTION["messages"]]},
    ],
)
def test_another_question_is_sampled(changed: dict[str, Any]) -> None:
    with served() as server:
        for tokens in (FOUR, FIVE, FIVE):
            server.engine.says(tokens)
        ask(server)
        assert text(ask(server, **changed)) == "5"


def test_another_tenant_is_sampled_for_itself() -> None:
    with served() as server:
        server.engine.says(FOUR)
        server.engine.says(FIVE)
        assert [text(ask(server, agent)) for agent in ("red.calc", "blue.calc", "red.other")] == ["4", "5", "4"]


def test_what_changes_no_draw_at_temperature_0_is_no_other_question() -> None:
    with served() as server:
        server.engine.says(FOUR)
        answers = [ask(server, **changed) for changed in ({}, {"seed": 7}, {"top_p": 0.5}, {"user": "ann"})]
        assert {text(answer) for answer in answers} == {"4"}
        assert len(server.engine.streams) == 1


def test_a_client_decides_with_cache_control() -> None:
    with served() as server:
        for tokens in (FOUR, FIVE, FOUR, FIVE):
            server.engine.says(tokens)
        wish, fresh, private = ({"cache_control": control} for control in ("max-age=600", "no-cache", "no-store"))
        warm = {"temperature": 1.0}
        assert text(ask(server, headers=wish, **warm)) == text(ask(server, headers=wish, **warm)) == "4"
        assert text(ask(server, headers=fresh, **warm)) == "5"  # sampled anew, and kept
        assert text(ask(server, headers=wish, **warm)) == "5"
        assert text(ask(server, headers=private, **warm)) == "4"  # sampled, and not kept
        assert text(ask(server, headers=wish, **warm)) == "5"
        assert text(ask(server, headers={"cache_control": "max-age=0"}, **warm)) == "5"
        assert len(server.engine.streams) == 4


def test_only_whole_answers_are_kept() -> None:
    with served() as server:
        server.engine.says(FOUR[:1], "error")
        answer = server.post("chat/completions", QUESTION)
        assert answer.status_code == 500
        server.engine.says(FIVE)
        assert text(ask(server)) == text(ask(server)) == "5"
        assert len(server.engine.streams) == 2


def test_an_answer_that_was_cut_at_its_length_is_whole() -> None:
    with served() as server:
        server.engine.says(FOUR[:1], "length")
        answers = [ask(server, max_tokens=1).json()["choices"][0] for _ in range(2)]
        assert answers[0] == answers[1]
        assert answers[0]["finish_reason"] == "length"


def test_a_server_that_begins_again_gives_the_same_answers() -> None:
    with served() as server:
        server.engine.says(FOUR)
        first = ask(server)
        log = server.log
    with served(log) as server:
        second = ask(server)
        assert server.engine.streams == []
        assert second.headers["x-streamward-cached-from"] == first.json()["id"].removeprefix("chatcmpl-")


def test_answers_are_kept_for_a_time_and_up_to_a_number() -> None:
    with served(entries=1) as server:
        for tokens in (FOUR, FIVE, FIVE):
            server.engine.says(tokens)
        other = {"messages": [{"role": "user", "content": "another"}]}
        ask(server), ask(server, **other)
        assert text(ask(server)) == "5"
    with served(exact_s=1e-9) as server:
        server.engine.says(FOUR)
        server.engine.says(FIVE)
        assert [text(ask(server)), text(ask(server))] == ["4", "5"]


def test_a_conversation_goes_on_from_a_repeated_answer() -> None:
    with served() as server:
        server.engine.says(FOUR)
        server.engine.says(FIVE)
        ask(server), ask(server)
        history = [*QUESTION["messages"], {"role": "assistant", "content": "4"}, {"role": "user", "content": "+ 1"}]
        ask(server, messages=history)
        _, repeated, last = server.turns
        assert (last.parent_id, last.continuity) == (repeated.turn_id, "extends")
        assert ask(server, messages=history).headers["x-streamward-cached-from"] == last.turn_id


def test_tool_calls_are_given_again_with_ids_of_their_own() -> None:
    said = b'<tool_call>{"name": "calc", "arguments": {"a": 2}}</tool_call>'
    with served() as server:
        server.engine.says((*said, END_OF_TURN))
        calls = [ask(server, tools=[TOOL]).json()["choices"][0]["message"]["tool_calls"][0] for _ in range(2)]
        assert calls[0]["function"] == calls[1]["function"]
        assert calls[0]["id"] != calls[1]["id"]


def test_without_exact_s_there_is_no_cache() -> None:
    settings = Settings()
    with served() as server:
        assert build_cache(settings, server.engine) is None  # type: ignore[arg-type]
        rule = settings.model_copy(update={"cache": Cache(exact_s=1.0)})
        assert build_cache(rule, server.engine) is not None  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="similar=suggest has no effect with exact_s=0"):
        Cache(similar="suggest")


def audit(log: LogInMemory, **changed: Any) -> list[str]:
    """Return what the recount finds wrong, with the repeated turns `changed`."""
    recount = CacheRecount()
    for record in log.records:
        event = record.decode(Turn)
        if isinstance(event, Turn):
            recount.take(record, replace(event, **changed) if event.metadata else event)
    view: Any = None  # it looks at nothing else
    outcome = recount.report(view, None)
    assert outcome.counts["repeated answers"] == 1
    return [finding.what for finding in outcome.findings]


def test_the_audit_compares_a_repeated_answer_with_its_original() -> None:
    with served() as server:
        server.engine.says(FOUR)
        original = ask(server).json()["id"].removeprefix("chatcmpl-")
        ask(server)
        assert audit(server.log) == []
        tokens = TokenIds.of(FIVE)
        assert audit(server.log, completion_token_ids=tokens) == [f"it repeats {original}, and differs from it"]
        for other in ({"adapter_version": 3}, {"agent_id": "red.calc"}):
            assert audit(server.log, **other) == [f"it repeats {original}, of another version or tenant"]
        run = {"sampling_id": "s", "slot": 0}
        assert audit(server.log, **run) == ["it repeats an answer, and its task has to be sampled"]
