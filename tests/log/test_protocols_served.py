"""Agents over real connections: official clients, every protocol, one server on the scripted engine, one log."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import anthropic
import httpx
import openai
import pytest
from openai.types.chat import ChatCompletionMessageParam, ChatCompletionToolParam
from openai.types.responses import FunctionToolParam, ResponseInputParam

from schemas.events import Turn
from streams.settings.model import Settings
from tests.strangers import agents_of_others, exchanges
from tests.strangers.lm_evaluation import suite as harness
from tests.strangers.replay import differences
from tests.support.agent_server import audited, serving, settings_of, turns
from tests.support.documented import HOOKS
from tests.support.models.tiny import sampled_logps, tiny_model

pytestmark = pytest.mark.kafka

SYSTEM, QUESTION, THANKS = "Use the tool.", "What is 47 * 83?", "Thank you."
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}, "required": ["a", "b"]}
WHAT = "Multiply two numbers."


class Served(NamedTuple):
    """A server, and the log that it writes."""

    settings: Settings
    url: str

    def base(self, agent: str) -> str:
        return f"{self.url}/agents/{agent}"


@pytest.fixture(scope="module")
def server(kafka_bootstrap: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    settings = settings_of(kafka_bootstrap, tmp_path_factory.mktemp("serve"), max_body_mb=1)
    with serving(settings) as url:
        yield Served(settings, url)


def multiplied(arguments: str) -> str:
    given = json.loads(arguments)
    return str(given["a"] * given["b"])


def by_chat(base: str) -> str:
    """Ask, call the tool, and say thanks; return the last answer."""
    tool: ChatCompletionToolParam = {
        "type": "function",
        "function": {"name": "calc", "description": WHAT, "parameters": SCHEMA},
    }
    said: list[ChatCompletionMessageParam] = [
        {"role": "system", "content": SYSTEM},
        {"role": "user", "content": QUESTION},
    ]
    with openai.OpenAI(base_url=f"{base}/v1", api_key="none", max_retries=0) as client:
        for thanks in (False, False, True):
            if thanks:
                said.append({"role": "user", "content": THANKS})
            with client.chat.completions.stream(model="sums", messages=said, tools=[tool], temperature=0) as stream:
                for _ in stream:
                    pass
                answer = stream.get_final_completion().choices[0].message
            calls = answer.tool_calls or []
            said.append(
                {
                    "role": "assistant",
                    "content": answer.content,
                    **(
                        {
                            "tool_calls": [
                                {
                                    "id": call.id,
                                    "type": "function",
                                    "function": {"name": call.function.name, "arguments": call.function.arguments},
                                }
                                for call in calls
                            ]
                        }
                        if calls
                        else {}
                    ),
                }
            )
            for call in calls:
                result = multiplied(call.function.arguments)
                said.append({"role": "tool", "tool_call_id": call.id, "content": result})
    return answer.content or ""


def by_responses(base: str) -> str:
    return _responses(base, remembered=False)


def by_previous_response(base: str) -> str:
    return _responses(base, remembered=True)


def _responses(base: str, *, remembered: bool) -> str:
    tool: FunctionToolParam = {
        "type": "function",
        "name": "calc",
        "description": WHAT,
        "parameters": SCHEMA,
        "strict": False,
    }
    items: ResponseInputParam = [{"role": "user", "content": QUESTION}]
    before: str | None = None
    with openai.OpenAI(base_url=f"{base}/v1", api_key="none", max_retries=0) as client:
        for thanks in (False, False, True):
            if thanks:
                items.append({"role": "user", "content": THANKS})
            answer = client.responses.create(
                model="sums",
                instructions=SYSTEM,
                input=items,
                tools=[tool],
                temperature=0,
                previous_response_id=before,
            )
            before = answer.id if remembered else None
            items = [] if remembered else [*items, *(item.to_dict() for item in answer.output)]  # type: ignore[list-item]
            for item in answer.output:
                if item.type == "function_call":
                    result = multiplied(item.arguments)
                    items.append({"type": "function_call_output", "call_id": item.call_id, "output": result})
    return answer.output_text


def by_messages(base: str) -> str:
    tool: Any = {"name": "calc", "description": WHAT, "input_schema": SCHEMA}
    said: list[Any] = [{"role": "user", "content": QUESTION}]
    with anthropic.Anthropic(base_url=base, api_key="none", max_retries=0) as client:
        for thanks in (False, False, True):
            if thanks:
                said.append({"role": "user", "content": THANKS})
            with client.messages.stream(
                model="sums", max_tokens=1024, system=SYSTEM, messages=said, tools=[tool]
            ) as stream:
                answer = stream.get_final_message()
            said.append({"role": "assistant", "content": answer.content})
            results = [
                {
                    "type": "tool_result",
                    "tool_use_id": block.id,
                    "content": multiplied(json.dumps(block.input)),
                }
                for block in answer.content
                if block.type == "tool_use"
            ]
            if results:
                said.append({"role": "user", "content": results})
    [block] = answer.content
    assert block.type == "text"
    return block.text


def tree(found: list[Turn]) -> list[tuple[Any, ...]]:
    """Return what the tokens of a run are, and how they hang together."""
    places = {turn.turn_id: place for place, turn in enumerate(found)}
    return [
        (
            turn.continuity,
            None if turn.parent_id is None else places[turn.parent_id],
            tuple(turn.prompt_token_ids),
            tuple(turn.completion_token_ids),
            turn.finish_reason,
        )
        for turn in found
    ]


def test_the_same_agent_leaves_the_same_tokens_in_every_protocol(server: Served) -> None:
    agents = {"chat": by_chat, "responses": by_responses, "previous": by_previous_response, "messages": by_messages}
    said = {name: run(server.base(name)) for name, run in agents.items()}
    trees = {name: tree(turns(server.settings, name)) for name in agents}

    assert set(said.values()) == {"You are welcome."}
    assert [(turn[0], turn[1], turn[4]) for turn in trees["chat"]] == [
        ("first", None, "tool_calls"),
        ("extends", 0, "stop"),
        ("extends", 1, "stop"),
    ]
    for name in agents:
        assert trees[name] == trees["chat"], name


def test_a_form_that_a_client_asks_for_is_forced_in_every_protocol_and_the_turn_has_it(server: Served) -> None:
    schema = {**SCHEMA, "additionalProperties": False}
    base, asked_for = server.base("forced"), [{"role": "user", "content": "Whatever."}]
    named: Any = {"name": "product", "schema": schema}
    tool: Any = {"name": "calc", "description": WHAT, "input_schema": schema}
    with openai.OpenAI(base_url=f"{base}/v1", api_key="none", max_retries=0) as client:
        said: Any = asked_for
        wanted: Any = {"type": "json_schema", "json_schema": named}
        by_chat = client.chat.completions.create(model="sums", messages=said, response_format=wanted)
        text: Any = {"format": {"type": "json_schema", **named}}
        by_responses = client.responses.create(model="sums", input="Whatever.", text=text)
        cut = client.chat.completions.create(model="sums", messages=said, response_format=wanted, max_tokens=5)
        with pytest.raises(openai.BadRequestError, match='"not"') as refused:
            bad: Any = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"not": {}}}}
            client.chat.completions.create(model="sums", messages=said, response_format=bad)
    with anthropic.Anthropic(base_url=base, api_key="none", max_retries=0) as claude:
        choice: Any = {"type": "tool", "name": "calc"}
        by_messages = claude.messages.create(
            model="sums", max_tokens=200, messages=said, tools=[tool], tool_choice=choice
        )
    for answer in (by_chat.choices[0].message.content, by_responses.output_text):
        assert json.loads(answer or "").keys() == {"a", "b"}
    [block] = by_messages.content
    assert by_messages.stop_reason == block.type == "tool_use" and set(block.input) == {"a", "b"}
    assert cut.choices[0].finish_reason == "length" and refused.value.param == "response_format"
    forms = sorted(" ".join(json.loads(turn.constraint or "{}")) for turn in turns(server.settings, "forced"))
    assert forms == ["schema", "schema", "schema", "tools several"]


def post(server: Served, agent: str, path: str, body: dict[str, Any] | bytes) -> httpx.Response:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    return httpx.post(
        f"{server.base(agent)}/v1/{path}", content=content, headers={"content-type": "application/json"}, timeout=300
    )


def asked(path: str, text: str = "hi", **parameters: Any) -> dict[str, Any]:
    said = {"responses": {"input": text}, "completions": {"prompt": text}}.get(
        path, {"messages": [{"role": "user", "content": text}]}
    )
    return {"model": "sums", **({"max_tokens": 64} if path == "messages" else {}), **said, **parameters}


def tool_of(path: str, schema: dict[str, Any]) -> dict[str, Any]:
    """Return a tool as each protocol writes it."""
    if path == "responses":
        return {"type": "function", "name": "calc", "parameters": schema}
    if path.startswith("messages"):
        return {"name": "calc", "input_schema": schema}
    return {"type": "function", "function": {"name": "calc", "parameters": schema}}


PATHS = ("chat/completions", "completions", "responses", "messages", "messages/count_tokens")
BAD: dict[str, tuple[int, Callable[[str], dict[str, Any] | bytes]]] = {
    "no JSON": (400, lambda path: b"{"),
    "10 MB": (413, lambda path: asked(path, "x" * 10_000_000)),
    "an unknown model": (404, lambda path: asked(path, model="stranger")),
    "an unknown version": (404, lambda path: asked(path, model="sums@77")),
    "no version": (404, lambda path: asked(path, model="sums@latest")),
    "an unknown parameter": (400, lambda path: asked(path, colour="blue")),
    "no schema of a tool": (
        400,
        lambda path: asked(path, tools=[tool_of(path, {"type": "object", "properties": [7]})]),
    ),
    "a longer prompt than the context": (400, lambda path: asked(path, "x" * 9000)),
}
WRONG_BODIES = ("no JSON", "10 MB", "an unknown parameter", "no schema of a tool")
COUNTS = "messages/count_tokens"
"""It needs no model, and no room for a prompt."""


@pytest.mark.parametrize("path", PATHS)
def test_bad_input_gets_an_error_in_the_words_of_the_protocol_and_leaves_nothing_in_the_log(
    server: Served, path: str
) -> None:
    agent = f"bad-{PATHS.index(path)}"
    for bad in WRONG_BODIES if path == COUNTS else BAD:
        status, body = BAD[bad]
        answer = post(server, agent, path, body(path))
        error = answer.json()["error"]
        assert (answer.status_code, bool(error["message"])) == (status, True), (bad, answer.text)
        if path.startswith("messages"):
            assert answer.json()["type"] == "error", bad
            assert error["type"] in ("invalid_request_error", "request_too_large", "not_found_error"), bad
        else:
            assert error.keys() == {"message", "type", "param", "code"}, bad
    good = post(server, agent, path, asked(path))
    assert good.status_code == 200, "what follows is answered"
    assert [turn.turn_id for turn in turns(server.settings, agent)] == (
        [] if path == COUNTS else [good.headers["x-request-id"]]
    )


def test_a_tool_call_that_does_not_parse_stays_text_and_the_turn_says_so(server: Served) -> None:
    tool = {"name": "calc", "input_schema": SCHEMA}
    body = asked("messages", "Break it.", tools=[tool])
    answer = httpx.post(f"{server.base('breaks')}/v1/messages", json=body, timeout=300).json()
    assert (answer["stop_reason"], [block["type"] for block in answer["content"]]) == ("end_turn", ["text"])
    [turn] = turns(server.settings, "breaks")
    assert turn.malformed is not None and turn.reply.tool_calls == ()


def test_a_call_with_a_stop_text_right_behind_it_is_a_call_and_its_retry_says_the_same(server: Served) -> None:
    body = asked("messages", "Look once.", tools=[{"name": "calc", "input_schema": SCHEMA}], stop_sequences=["Result:"])
    body["max_tokens"] = 200
    first, again = (
        httpx.post(f"{server.base('looks')}/v1/messages", json=body, headers={"Idempotency-Key": "1"}, timeout=300)
        for _ in range(2)
    )
    [block] = first.json()["content"]
    assert (first.json()["stop_reason"], first.json()["stop_sequence"]) == ("tool_use", None)
    assert block["input"] == {"a": 1, "b": 2}
    assert again.json() == first.json()
    [turn] = turns(server.settings, "looks")
    assert bytes(turn.completion_token_ids).decode().endswith("</tool_call>\nResult:")


def test_what_was_ignored_is_in_the_answer_and_in_the_log(server: Served) -> None:
    body = asked("chat/completions", user="me", store=True)
    answer = httpx.post(f"{server.base('ignored')}/v1/chat/completions", json=body, timeout=300)
    [turn] = turns(server.settings, "ignored")
    assert answer.headers["x-streamward-ignored"] == "store, user"
    assert tuple(turn.ignored) == ("store", "user")
    assert answer.headers["x-request-id"] == turn.turn_id
    assert answer.json()["model"] == "sums@0"


def test_what_suites_of_others_asked_gets_answers_of_the_same_shape(server: Served) -> None:
    """Recorded by `make test-strangers`, which says what those suites make of the answers."""
    headers = {"content-type": "application/json"}
    with httpx.Client(base_url=server.url, headers=headers, timeout=300, event_hooks=HOOKS) as client:
        assert differences(client, exchanges.recorded()) == []


def test_what_an_evaluation_of_others_asked_is_scored_alike_and_leaves_nothing(
    kafka_bootstrap: str, tmp_path: Path, torch_as_before: None
) -> None:
    """Recorded by `make test-strangers`; the shape of an answer names the likeliest tokens."""
    settings, headers = harness.served_settings(kafka_bootstrap, tmp_path), {"content-type": "application/json"}
    asked = exchanges.recorded(harness.FILE)
    assert {json.loads(each["body"]).get("echo") for each in asked if each["body"]} == {True}
    with audited(settings) as url, httpx.Client(base_url=url, headers=headers, timeout=300) as client:
        assert differences(client, asked) == []
        prompts: list[object] = ["5 6 7", [8, 9, 10, 11]]
        scoring = {"model": "sums", "prompt": prompts, "echo": True, "logprobs": 0, "max_tokens": 0}
        answer = client.post("/v1/completions", json=scoring)
        assert answer.headers["x-streamward-model"] == "sums@0" and "x-request-id" not in answer.headers
        for text, choice in zip(((9, 10, 11), (8, 9, 10, 11)), answer.json()["choices"], strict=True):
            first, *logprobs = choice["logprobs"]["token_logprobs"]
            expected = sampled_logps(tiny_model(), list(text[:1]), list(text[1:]))
            assert first is None and logprobs == pytest.approx(expected, abs=1e-5)
        too_long = client.post("/v1/completions", json=scoring | {"prompt": [5] * 300})
        assert (too_long.status_code, too_long.json()["error"]["code"]) == (400, "context_length_exceeded")
        elsewhere = client.post("/v1/completions", json=scoring | {"model": "other"})
        assert elsewhere.status_code == 404
        assert client.post("/v1/completions", json={"model": "sums", "prompt": "5 6"}).status_code == 200
    assert [turn.prompt_tokens for turn in turns(settings, "default")] == [2], "a score is no turn"


def test_a_model_without_weights_scores_no_text_and_says_so(server: Served) -> None:
    scoring = {"model": "sums", "prompt": "hi", "echo": True, "logprobs": 1, "max_tokens": 1, "temperature": 0}
    answer = httpx.post(f"{server.url}/v1/completions", json=scoring, timeout=300)
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, "echo")
    assert "policy.engine=scripted has no weights" in error["message"]


def test_what_agents_and_clients_of_others_asked_leaves_the_same_runs(kafka_bootstrap: str, tmp_path: Path) -> None:
    """Recorded by `make test-strangers`."""
    settings, headers = agents_of_others.settings(kafka_bootstrap, tmp_path), {"content-type": "application/json"}
    with serving(settings) as url, httpx.Client(base_url=url, headers=headers, timeout=300) as client:
        assert differences(client, exchanges.recorded(agents_of_others.FILE)) == []
    for name, found in json.loads(agents_of_others.FINDINGS.read_text(encoding="utf-8"))["frameworks"].items():
        assert agents_of_others.tree(turns(settings, name)) == found["turns"], name
