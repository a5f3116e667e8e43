"""Each protocol has a row for every parameter of its official client, and refuses by name what it cannot honor."""

from __future__ import annotations

import json
from typing import Any

import pytest
from anthropic.types import MessageCountTokensParams
from anthropic.types.beta.message_create_params import MessageCreateParamsBase
from openai.types.chat.completion_create_params import CompletionCreateParamsBase as ChatParamsBase
from openai.types.completion_create_params import CompletionCreateParamsBase
from openai.types.responses.response_create_params import ResponseCreateParamsBase

from gateway.agents import anthropic, chat as gateway_chat, responses as gateway_responses
from gateway.agents.anthropic import CountTokensBody, MessagesBody
from gateway.agents.caller import Caller
from gateway.agents.chat import ChatBody
from gateway.agents.completions import CompletionsBody
from gateway.agents.responses_body import ResponsesBody
from gateway.http.body import Body, ignored, read, use
from schemas.events import ToolCall
from streams.engines.rendering.answer_form import AnswerForm
from streams.errors import CallError
from streams.stages.agents.recording.calls import ModelCall

HEADERS = {"betas", "user_profile_id", "workspace_id"}
"""Parameters of Anthropic's client that are headers of the request."""
NEWEST = {"compaction", "fallback_credit_token", "fallbacks"}
"""Those of Anthropic's beta interface alone: unknown here, and refused as such."""


CALLER = Caller("default", None, "digest", None)


def message(**parameters: Any) -> dict[str, Any]:
    return {"model": "sums", "max_tokens": 8, "messages": [{"role": "user", "content": "hi"}], **parameters}


@pytest.mark.parametrize(
    ("body", "official", "elsewhere"),
    [
        (ChatBody, ChatParamsBase, {"stream"}),
        (CompletionsBody, CompletionCreateParamsBase, {"stream"}),
        (ResponsesBody, ResponseCreateParamsBase, {"stream"}),
        (CountTokensBody, MessageCountTokensParams, HEADERS),
        (MessagesBody, MessageCreateParamsBase, HEADERS | NEWEST | {"stream"}),
    ],
)
def test_every_parameter_of_the_official_client_is_in_the_table(
    body: type[Body], official: type, elsewhere: set[str]
) -> None:
    assert set(official.__annotations__) - set(body.model_fields) - elsewhere == set()


@pytest.mark.parametrize("body", [ChatBody, CompletionsBody, ResponsesBody, CountTokensBody, MessagesBody])
def test_every_parameter_says_what_becomes_of_it(body: type[Body]) -> None:
    assert [name for name in body.model_fields if not use(body, name)[1]] == []


def responses(**parameters: Any) -> dict[str, Any]:
    return {"model": "sums", "input": "hi", **parameters}


def chat(**parameters: Any) -> dict[str, Any]:
    return {"model": "sums", "messages": [{"role": "user", "content": "hi"}], **parameters}


def called(arguments: str) -> dict[str, Any]:
    return {"id": "c1", "type": "function", "function": {"name": "calc", "arguments": arguments}}


def completions(**parameters: Any) -> dict[str, Any]:
    return {"model": "sums", "prompt": "hi", **parameters}


def refusal(body: type[Body], value: object) -> CallError:
    with pytest.raises(CallError) as caught:
        read(body, json.dumps(value).encode())
    return caught.value


def test_the_limit_of_a_seed_is_printed_to_its_last_digit() -> None:
    with pytest.raises(CallError, match=f"less than or equal to {2**63 - 1} "):
        read(ChatBody, json.dumps(chat(seed=2**63)).encode())


@pytest.mark.parametrize(
    ("body", "value", "kind", "parameter"),
    [
        (MessagesBody, message(messages="not-an-array"), "invalid", "messages"),
        (MessagesBody, message(max_tokens=None), "invalid", "max_tokens"),
        (MessagesBody, message(max_tokens="8"), "invalid", "max_tokens"),
        (MessagesBody, message(colour="blue"), "unknown_parameter", "colour"),
        (MessagesBody, message(thinking={"type": "enabled", "budget_tokens": 9}), "unsupported", "thinking.type"),
        (MessagesBody, message(top_k=7), "invalid", "top_k"),
        (
            MessagesBody,
            message(messages=[{"role": "user", "content": [{"type": "image", "source": {}}]}]),
            "unsupported",
            "messages[0].content[0]",
        ),
        (
            MessagesBody,
            message(messages=[{"role": "user", "content": [{"type": "text", "text": "a", "color": 1}]}]),
            "unknown_parameter",
            "messages[0].content[0].color",
        ),
        (MessagesBody, message(tools=[{"name": "f"}]), "invalid", "tools[0].input_schema"),
        (
            MessagesBody,
            message(tools=[{"name": "f", "input_schema": {"type": "array"}}]),
            "invalid",
            "tools[0].input_schema",
        ),
        (ChatBody, chat(colour="blue"), "unknown_parameter", "colour"),
        (ChatBody, chat(tool_choice="always"), "invalid", "tool_choice"),
        (ChatBody, chat(tool_choice={"type": "custom", "custom": {"name": "f"}}), "invalid", "tool_choice.type"),
        (ChatBody, chat(tool_choice={"type": "function", "function": {}}), "invalid", "tool_choice.function.name"),
        (ChatBody, chat(frequency_penalty=0.5), "unsupported", "frequency_penalty"),
        (ChatBody, chat(response_format={"type": "yaml"}), "invalid", "response_format"),
        (ResponsesBody, responses(text={"format": {"type": "json_schema"}}), "invalid", "text.format.schema"),
        (MessagesBody, message(output_config={"task_budget": 9}), "unsupported", "output_config.task_budget"),
        (ChatBody, chat(messages=[{"role": "wizard", "content": "hi"}]), "invalid", "messages[0].role"),
        (ChatBody, chat(messages=[]), "invalid", "messages"),
        (
            ChatBody,
            chat(messages=[{"role": "assistant", "tool_calls": [called("{")]}]),
            "invalid",
            "messages[0].tool_calls[0].function.arguments",
        ),
        (
            ChatBody,
            chat(messages=[{"role": "assistant", "tool_calls": [called("[]")]}]),
            "invalid",
            "messages[0].tool_calls[0].function.arguments",
        ),
        (
            ChatBody,
            chat(tools=[{"type": "function", "function": {"name": "f", "parameters": {"required": "a"}}}]),
            "invalid",
            "tools[0].function.parameters",
        ),
        (ChatBody, chat(stop=""), "invalid", "stop"),
        (ChatBody, chat(stop=["a", ""]), "invalid", "stop[1]"),
        (ChatBody, chat(stop=["a"] * 5), "invalid", "stop"),
        (ResponsesBody, responses(input=42), "invalid", "input"),
        (ResponsesBody, responses(background=True), "unsupported", "background"),
        (ResponsesBody, responses(tools=[{"type": "shell"}]), "invalid", "tools[0]"),
        (ResponsesBody, responses(input=[{"type": "compaction", "id": "a"}]), "invalid", "input[0]"),
        (
            ResponsesBody,
            responses(tools=[{"type": "function", "name": "f", "parameters": {"properties": [1]}}]),
            "invalid",
            "tools[0].parameters",
        ),
        (CompletionsBody, completions(prompt=["a", 1]), "invalid", "prompt"),
        (CompletionsBody, completions(logit_bias={"1": 5}), "unsupported", "logit_bias"),
        (CompletionsBody, completions(temperature=float("nan")), "invalid", "temperature"),
        (CompletionsBody, [], "invalid", None),
        (ChatBody, chat(model="\ud800"), "invalid", None),
        (ChatBody, chat(max_tokens=1e300), "invalid", "max_tokens"),
        (CompletionsBody, completions(max_tokens=2**31), "invalid", "max_tokens"),
        (MessagesBody, message(max_tokens=2**31), "invalid", "max_tokens"),
        (MessagesBody, message(stop_sequences=["a"] * 65), "invalid", "stop_sequences"),
        (MessagesBody, message(stop_sequences=["a" * 1001]), "invalid", "stop_sequences[0]"),
    ],
)
def test_what_is_wrong_is_refused_by_its_name(
    body: type[Body], value: object, kind: str, parameter: str | None
) -> None:
    error = refusal(body, value)
    assert (error.kind, error.parameter) == (kind, parameter)


def test_all_that_is_wrong_in_a_body_is_said_at_once_with_the_way_out() -> None:
    error = refusal(
        ChatBody,
        chat(colour="blue", frequency_penalty=0.5, n="two", stop=["", ""], messages=[{"role": "user", "content": 7}]),
    )
    assert (error.kind, error.parameter) == ("invalid", "messages[0].content")
    assert error.message.split(" | ") == [
        "messages[0].content: expected a text, or a list of parts of text (got 7)",
        "n: Input should be a valid integer (got 'two')",
        "stop[0]: String should have at least 1 character (got '')",
        "stop[1]: String should have at least 1 character (got '')",
        "frequency_penalty is not supported: logprobs would not be the policy's own; leave it out, or send 0",
        f"there is no field colour; known: {', '.join(sorted(ChatBody.model_fields))}",
    ]


def test_of_a_body_in_which_nothing_is_right_the_first_mistakes_are_said_and_the_others_counted() -> None:
    error = refusal(ChatBody, chat(**{f"colour{number}": "blue" for number in range(25)}))
    assert error.message.endswith(" | there is no field colour8 | there is no field colour9 | and 15 more")
    assert error.message.count("known:") == 1


def test_alternatives_to_one_value_are_one_problem() -> None:
    assert refusal(CompletionsBody, completions(prompt=7)).message == "prompt: Input should be a valid string (got 7)"


NAMESPACE = {
    "type": "namespace",
    "name": "agents",
    "description": "d",
    "tools": [{"type": "function", "name": "spawn"}],
}


@pytest.mark.parametrize(
    ("body", "value", "names"),
    [
        (
            ResponsesBody,
            responses(
                client_metadata={"x": "y"},
                reasoning={"summary": "auto"},
                tools=[
                    {"type": "function", "name": "f"},
                    NAMESPACE,
                    {"type": "web_search", "search_context_size": "low"},
                ],
            ),
            ("client_metadata", "reasoning.summary", "tools.namespace", "tools.web_search"),
        ),
        (
            MessagesBody,
            message(
                thinking={"type": "adaptive", "display": "summarized"},
                output_config={"effort": "high"},
                context_management={"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
            ),
            ("output_config.effort", "thinking.display"),
        ),
        (ChatBody, chat(reasoning_effort="low", top_logprobs=3), ("reasoning_effort", "top_logprobs")),
        (ResponsesBody, responses(reasoning={"effort": "low"}, top_logprobs=3), ("reasoning.effort", "top_logprobs")),
    ],
    ids=["codex", "claude code", "effort in chat", "effort in responses"],
)
def test_what_changes_no_answer_is_named_and_not_refused(
    body: type[Body], value: dict[str, Any], names: tuple[str, ...]
) -> None:
    assert ignored(read(body, json.dumps(value).encode())) == names


def test_of_the_tools_of_a_response_the_model_is_shown_the_clients_own() -> None:
    body = responses(tools=[NAMESPACE, {"type": "web_search"}, {"type": "function", "name": "f"}])
    call = gateway_responses.call(read(ResponsesBody, json.dumps(body).encode()), CALLER)
    assert [tool.name for tool in call.tools] == ["f"]


@pytest.mark.parametrize("raw", [b"", b"{", b"\xff", b"[" * 100_000])
def test_a_body_that_is_no_json_is_refused(raw: bytes) -> None:
    with pytest.raises(CallError, match="not JSON"):
        read(MessagesBody, raw)


def test_a_key_that_is_there_twice_is_refused_by_its_name() -> None:
    with pytest.raises(CallError, match='the body: the key "content" is there twice; remove one'):
        read(ChatBody, b'{"model": "sums", "messages": [{"role": "user", "content": "a", "content": "b"}]}')


def test_a_whole_surrogate_pair_is_a_character() -> None:
    raw = json.dumps(chat(messages=[{"role": "user", "content": "\U0001f600"}])).encode()
    assert b"\\ud83d" in raw and read(ChatBody, raw).model == "sums"


def test_a_value_that_asks_for_nothing_is_no_reason_to_refuse() -> None:
    neutral = completions(best_of=1, echo=False, suffix=None, frequency_penalty=0.0, presence_penalty=0, logit_bias={})
    assert ignored(read(CompletionsBody, json.dumps(neutral).encode())) == ()


@pytest.mark.parametrize(
    ("body", "least"),
    [
        (ChatBody, chat()),
        (CompletionsBody, completions()),
        (ResponsesBody, responses()),
        (MessagesBody, message()),
    ],
)
def test_null_is_the_default_wherever_it_may_be_sent(body: type[Body], least: dict[str, Any]) -> None:
    empty = {name: None for name, field in body.model_fields.items() if field.default is None}
    assert read(body, json.dumps({**empty, **least}).encode()) == read(body, json.dumps(least).encode())


def test_a_whole_number_may_be_written_with_a_point() -> None:
    numbers = completions(prompt=[104.0, 105], max_tokens=16.0, n=2.0, seed=3.0)
    body = read(CompletionsBody, json.dumps(numbers).encode())
    assert (body.prompt, body.max_tokens, body.n, body.seed) == ([104, 105], 16, 2, 3)
    assert refusal(CompletionsBody, completions(max_tokens=16.5)).parameter == "max_tokens"
    assert refusal(CompletionsBody, completions(n=True)).parameter == "n"


def test_what_is_ignored_is_named_once_wherever_it_is() -> None:
    marked = {"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}}
    body = message(messages=[{"role": "user", "content": [marked, marked]}], metadata={"user_id": "u"}, system="s")
    assert ignored(read(MessagesBody, json.dumps(body).encode())) == ("messages.content.cache_control", "metadata")


def test_the_same_conversation_is_the_same_messages_in_every_protocol() -> None:
    arguments = '{"a":47,"b":83}'
    history = anthropic.call(
        read(
            MessagesBody,
            json.dumps(
                message(
                    system=[{"type": "text", "text": "Use the tool."}],
                    messages=[
                        {"role": "user", "content": "47 * 83?"},
                        {
                            "role": "assistant",
                            "content": [
                                {"type": "text", "text": "One moment."},
                                {"type": "tool_use", "id": "c1", "name": "calc", "input": {"a": 47, "b": 83}},
                            ],
                        },
                        {
                            "role": "user",
                            "content": [
                                {"type": "tool_result", "tool_use_id": "c1", "content": "3901"},
                                {"type": "text", "text": "Well?"},
                            ],
                        },
                    ],
                )
            ).encode(),
        ),
        CALLER,
    ).messages
    same = gateway_responses.call(
        read(
            ResponsesBody,
            json.dumps(
                responses(
                    instructions="Use the tool.",
                    input=[
                        {"role": "user", "content": [{"type": "input_text", "text": "47 * 83?"}]},
                        {
                            "type": "message",
                            "role": "assistant",
                            "id": "msg_1",
                            "status": "completed",
                            "content": [{"type": "output_text", "text": "One moment.", "annotations": []}],
                        },
                        {"type": "function_call", "call_id": "c1", "name": "calc", "arguments": arguments},
                        {"type": "function_call_output", "call_id": "c1", "output": "3901"},
                        {"role": "user", "content": "Well?"},
                    ],
                )
            ).encode(),
        ),
        CALLER,
    ).messages
    third = gateway_chat.call(
        read(
            ChatBody,
            json.dumps(
                chat(
                    messages=[
                        {"role": "developer", "content": "Use the tool."},
                        {"role": "user", "content": [{"type": "text", "text": "47 * 83?"}]},
                        {"role": "assistant", "content": "One moment.", "tool_calls": [called(arguments)]},
                        {"role": "tool", "tool_call_id": "c1", "content": "3901"},
                        {"role": "user", "content": "Well?"},
                    ]
                )
            ).encode(),
        ),
        CALLER,
    ).messages
    assert history == same == third
    assert [turn.role for turn in history] == ["system", "user", "assistant", "tool", "user"]
    assert history[2].tool_calls == (ToolCall(id="c1", name="calc", arguments=arguments),)


WEATHER = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}


def asked(protocol: str, choice: str | None = None, *, several: bool = True, schema: Any = None) -> ModelCall:
    """A call of a protocol with the tools weather and time, unless it is asked for without tools."""
    names = () if choice == "toolless" else ("weather", "time")
    forced = {"toolless": None, "required": "any"}.get(choice or "", choice)
    named = forced is not None and forced not in ("any", "auto", "none")
    if protocol == "messages":
        tools = [{"name": name, "input_schema": WEATHER} for name in names]
        kind = {"type": "tool", "name": forced} if named else {"type": forced or "auto"}
        body = message(tools=tools, tool_choice=kind | ({} if several else {"disable_parallel_tool_use": True}))
        body |= {} if schema is None else {"output_config": {"format": {"type": "json_schema", "schema": schema}}}
        return anthropic.call(read(MessagesBody, json.dumps(body).encode()), CALLER)
    functions = [{"name": name, "parameters": WEATHER} for name in names]
    plain = "required" if forced == "any" else forced
    parallel = {} if several else {"parallel_tool_calls": False}
    if protocol == "responses":
        choose: Any = {"type": "function", "name": forced} if named else plain
        format_ = {"type": "json_schema", "name": "n", "schema": schema}
        body = responses(tools=[{"type": "function", **each} for each in functions], tool_choice=choose, **parallel)
        body |= {} if schema is None else {"text": {"format": format_}}
        return gateway_responses.call(read(ResponsesBody, json.dumps(body).encode()), CALLER)
    choose = {"type": "function", "function": {"name": forced}} if named else plain
    format_ = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}
    body = chat(tools=[{"type": "function", "function": each} for each in functions], tool_choice=choose, **parallel)
    body |= {} if schema is None else {"response_format": format_}
    return gateway_chat.call(read(ChatBody, json.dumps(body).encode()), CALLER)


PROTOCOLS = pytest.mark.parametrize("protocol", ["chat", "responses", "messages"])


@PROTOCOLS
@pytest.mark.parametrize(
    ("wanted", "form"),
    [
        ({}, None),
        ({"choice": "none"}, None),
        ({"choice": "required"}, AnswerForm(tools=("weather", "time"))),
        ({"choice": "time"}, AnswerForm(tools=("time",))),
        ({"choice": "required", "several": False}, AnswerForm(tools=("weather", "time"), several=False)),
        ({"schema": WEATHER}, AnswerForm(schema=json.dumps(WEATHER, separators=(",", ":")), tools=("weather", "time"))),
        ({"schema": {}, "choice": "none"}, AnswerForm(schema="{}")),
        ({"schema": {}, "choice": "toolless"}, AnswerForm(schema="{}")),
        ({"schema": {}, "choice": "required"}, AnswerForm(tools=("weather", "time"))),
    ],
)
def test_the_same_form_is_forced_in_every_protocol(protocol: str, wanted: dict[str, Any], form: AnswerForm) -> None:
    call = asked(protocol, **wanted)
    assert call.form == form
    assert call.tool_choice == ("none" if wanted.get("choice") == "none" else "auto")


@PROTOCOLS
def test_a_choice_that_cannot_be_made_is_refused_by_its_name(protocol: str) -> None:
    with pytest.raises(CallError) as caught:
        asked(protocol, "dance")
    assert caught.value.kind == "invalid" and "tool_choice" in (caught.value.parameter or "")


@PROTOCOLS
def test_at_most_one_call_is_asked_for_where_a_call_is_free_and_forced_where_it_is_not(protocol: str) -> None:
    parameter = "tool_choice.disable_parallel_tool_use" if protocol == "messages" else "parallel_tool_calls"
    assert asked(protocol, several=False).one_call == parameter
    assert asked(protocol).one_call is None
    for wanted in ({"choice": "none"}, {"choice": "required"}, {"schema": WEATHER}):
        assert asked(protocol, several=False, **wanted).one_call is None


def test_any_json_object_may_be_asked_for() -> None:
    by_chat = chat(response_format={"type": "json_object"})
    by_responses = responses(text={"format": {"type": "json_object"}})
    first = gateway_chat.call(read(ChatBody, json.dumps(by_chat).encode()), CALLER)
    second = gateway_responses.call(read(ResponsesBody, json.dumps(by_responses).encode()), CALLER)
    assert first.form == second.form == AnswerForm(schema='{"type":"object"}')
    assert (first.form_parameter, second.form_parameter) == ("response_format", "text.format")
