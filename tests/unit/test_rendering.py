"""Tokens in, tokens out: what was sampled is in the next prompt as it was sampled, or there is a reason."""

from __future__ import annotations

import json
import random
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import trl
from llguidance import LLMatcher
from llguidance.hf import from_tokenizer

from schemas.events import Message, Tool, ToolCall
from streams.engines.base_model import digest_of_tokenizer, load_tokenizer
from streams.engines.rendering.answer_form import AnswerForm
from streams.engines.rendering.chat_template import ChatTemplate
from streams.engines.rendering.template_rendering import ChatRendering
from streams.engines.rendering.token_table import TokenTable
from streams.engines.rendering.tool_calls import HermesCalls, LlamaCalls, MistralCalls
from streams.errors import EventError
from tests.support.models import chat
from tests.support.thoroughness import FULL

WEATHER = Tool(name="weather", description="of a city", parameters='{"type": "object"}')
ASKS = (Message(role="user", content="Weather in Zürich?"),)
MORE = (Message(role="user", content="And 東京?"),)
CALL = ToolCall(id="abcdefghi", name="weather", arguments='{"city": "Zürich"}')
FOUND = (Message(role="tool", content="sunny", tool_call_id="abcdefghi"),)


def said(text: str, *calls: ToolCall) -> Message:
    return Message(role="assistant", content=text, tool_calls=calls)


def extended(render: ChatRendering, answer: Message, new: tuple[Message, ...], *, sampled: str = "x" + chat.END) -> str:
    """The text behind an answer, or the reason why there is none."""
    tools = (WEATHER,) if answer.tool_calls else ()
    known = (*render.first(ASKS, tools), *render.plain(sampled))
    behind = render.extend(known, sampled.endswith("|>"), (*ASKS, answer), new, tools)
    return behind if isinstance(behind, str) else render._tokenizer.decode(list(behind))


def test_behind_an_answer_come_the_rest_of_its_turn_and_the_new_messages() -> None:
    behind = "\n<|im_start|>user\nAnd 東京?<|im_end|>\n<|im_start|>assistant\n"
    assert extended(chat.rendering(chat.KEEPS), said("Sunny."), MORE) == behind


def test_answer_without_an_end_gets_the_template_s() -> None:
    behind = extended(chat.rendering(chat.KEEPS), said("Sun"), MORE, sampled="Sun")
    assert behind.startswith("<|im_end|>\n<|im_start|>user\n")


@pytest.mark.parametrize("end", [chat.END, chat.OTHER_END])
@pytest.mark.parametrize("template", [chat.KEEPS, chat.OTHER_END_IN_HISTORY])
def test_end_that_was_sampled_stays_alone_whichever_the_template_writes(template: str, end: str) -> None:
    assert extended(chat.rendering(template), said("x"), MORE, sampled="x" + end).startswith("\n<|im_start|>user\n")


def test_behind_a_tool_call_comes_its_result() -> None:
    behind = "\n<|im_start|>tool\nsunny<|im_end|>\n<|im_start|>assistant\n"
    assert extended(chat.rendering(chat.KEEPS), said("", CALL), FOUND) == behind
    assert extended(chat.rendering(chat.KEEPS), said("Let me see.", CALL, CALL), FOUND) == behind


@pytest.mark.parametrize(
    ("template", "answer", "new", "reason"),
    [
        (chat.STRIPS_REASONING, said("<think>warm</think>Sunny."), MORE, "leaves out a part of the answer"),
        (chat.COUNTS_IN_SYSTEM, said("Sunny."), MORE, "it writes '3"),
        (chat.WRITES_TWICE, said("Let me see.", CALL), FOUND, "the text of an answer 2 times"),
        (chat.DROPS_TEXT, said("Let me see.", CALL), FOUND, "the text of an answer 0 times"),
        (chat.THINKS_FIRST, said("warm</think>Sunny."), MORE, "for '<think>"),
    ],
)
def test_template_that_changes_history_is_a_reason(
    template: str, answer: Message, new: tuple[Message, ...], reason: str
) -> None:
    got = extended(chat.rendering(template), answer, new)
    assert got.startswith("the chat template changes history") and reason in got, got


def test_tools_that_the_template_does_not_write_are_refused() -> None:
    with pytest.raises(EventError, match="leaves out the tool weather"):
        chat.rendering(chat.NO_TOOLS).first(ASKS, (WEATHER,))
    with pytest.raises(EventError, match="in none of the formats"):
        chat.rendering(chat.NO_TOOLS).grammar(AnswerForm(tools=("weather",)), (WEATHER,))
    assert chat.rendering(chat.KEEPS).markers == ("<tool_call>",)


@pytest.mark.parametrize(
    ("lost", "instead", "missing"),
    [
        ("c.function.name", "c.id", "the tool call weather"),
        ("c.function.arguments", "{}", "the arguments of the tool call weather"),
        ("c.function.arguments", "c.function.arguments.keys() | list", "the arguments of the tool call weather"),
        ("m.get('tool_calls', [])", "m.get('tool_calls', [])[:1]", "the tool call weather"),
        ("{{ m['content'] }}", "{{ '' if m.role == 'tool' else m['content'] }}", "the result 'sunny'"),
        ("{{ m['content'] }}", "{{ m['content'][:20] }}", "the result 'sunny at last, and dry until Th"),
        ("tools | tojson", "tools | length", "the tool weather"),
    ],
)
def test_what_a_template_leaves_out_of_a_call_is_named(lost: str, instead: str, missing: str) -> None:
    """The name and the argument are also words of the question, and two calls differ only in their arguments."""
    question = Message(role="user", content="weather, city: Zürich, Ulm?")
    calls = (CALL, ToolCall(id="bbbbbbbbb", name="weather", arguments='{"city": "Ulm", "days": 2}'))
    result = Message(role="tool", content="sunny", tool_call_id="abcdefghi")
    if "[:20]" in instead:
        result = Message(role="tool", content="sunny at last, and dry until Thursday", tool_call_id="abcdefghi")
    conversation = (question, said("", *calls), result)
    chat.rendering(chat.KEEPS).first(conversation, (WEATHER,))
    assert lost in chat.KEEPS
    with pytest.raises(EventError, match=f"chat template leaves out {re.escape(missing)}") as refused:
        ChatTemplate(chat.chat_tokenizer(chat.KEEPS.replace(lost, instead))).ids(conversation, (WEATHER,))
    assert refused.value.reason == "tools_unsupported"


def test_a_template_that_refuses_marks_is_judged_by_the_texts_themselves() -> None:
    known = "{% for m in messages %}{% for c in m.tool_calls %}{% if c.function.name != 'weather' %}"
    strict = known + "{{ raise_exception('no such tool') }}{% endif %}{% endfor %}{% endfor %}"
    conversation = (*ASKS, said("", CALL), *FOUND)
    ChatTemplate(chat.chat_tokenizer(strict + chat.KEEPS)).ids(conversation)
    with pytest.raises(EventError, match="leaves out the tool call weather"):
        ChatTemplate(chat.chat_tokenizer(strict + chat.NO_TOOLS)).ids(conversation)


def test_digest_tells_templates_apart() -> None:
    digests = [chat.rendering(template).template_digest for template in (chat.KEEPS, chat.KEEPS, chat.NO_TOOLS)]
    assert digests[0] == digests[1] != digests[2]


def test_bytes_of_tokens_are_those_of_the_text() -> None:
    render = chat.rendering(chat.KEEPS)
    tokens = render.plain("Zürich 東京 … <|im_end|>")
    assert b"".join(map(render.token_bytes, tokens)).decode() == render.text(tokens) == "Zürich 東京 … "


def converse(render: ChatRendering, vocabulary: range, tools: tuple[Tool, ...]) -> None:
    """Hold conversations whose answers are random tokens; most decode to a text that encodes otherwise."""
    draw, ends = random.Random(7), sorted(render._ends)
    goal, sampled, reencoded = (50_000 if FULL else 4_000), 0, 0
    while sampled < goal:
        messages: tuple[Message, ...] = ASKS
        tokens = render.first(messages, tools)
        owned: list[tuple[int, tuple[int, ...]]] = []
        for _ in range(draw.randint(2, 6)):
            drawn = tuple(draw.choice(vocabulary) for _ in range(draw.randint(1, 60)))
            finished = draw.random() < 0.8
            drawn += (draw.choice(ends),) if finished else ()
            owned.append((len(tokens), drawn))
            answer, malformed = render.parse(drawn, tools, "turn")
            assert malformed is None
            reencoded += render.plain(answer.content) != drawn[: len(drawn) - finished]
            messages, known = (*messages, answer), (*tokens, *drawn)
            behind = render.extend(known, finished, messages, MORE, tools)
            assert isinstance(behind, tuple), behind
            messages, tokens = (*messages, *MORE), (*known, *behind)
        for place, drawn in owned:
            assert tokens[place : place + len(drawn)] == drawn
            sampled += len(drawn)
    assert reencoded


@pytest.mark.parametrize("template", [chat.KEEPS, chat.OTHER_END_IN_HISTORY])
def test_every_sampled_token_is_in_the_last_prompt_as_it_was_sampled(template: str) -> None:
    converse(chat.rendering(template), range(3, 600), (WEATHER,))


@pytest.mark.model
def test_smollm2_gets_its_own_tokens_again_and_the_prompts_that_transformers_makes() -> None:
    tokenizer: Any = load_tokenizer("smollm2-135m-instruct")
    render = ChatRendering(tokenizer, TokenTable.of(tokenizer), digest_of_tokenizer(tokenizer))
    asked = [{"role": "user", "content": ASKS[0].content}]
    whole = tokenizer.apply_chat_template(asked, add_generation_prompt=True, return_dict=True)["input_ids"]
    assert render.first(ASKS, ()) == tuple(whole)
    converse(render, range(17, len(tokenizer)), ())


def test_what_comes_behind_does_not_depend_on_the_length_of_history() -> None:
    render, tokenized = chat.rendering(chat.KEEPS), []
    encode = render._template.tokens
    render._template.tokens = lambda text, sources=b"": tokenized.append(len(text)) or encode(text, sources)  # type: ignore[method-assign, func-returns-value]
    for turns in (1, 50):
        history = (*ASKS, said("Sunny.")) * turns
        render.extend((1,), True, history, MORE, ())
    assert tokenized[0] == tokenized[1]


def test_call_as_the_template_writes_it_is_read_and_a_broken_one_is_text() -> None:
    render = chat.rendering(chat.KEEPS)
    call = '<tool_call>\n{"name": "weather", "arguments": {"city": "Zürich"}}\n</tool_call>'
    read, malformed = render.parse(render.plain(call + chat.END), (WEATHER,), "turn")
    assert malformed is None and json.loads(read.tool_calls[0].arguments) == {"city": "Zürich"}
    broken, why = render.parse(render.plain(call[:-20]), (WEATHER,), "turn")
    assert why and not broken.tool_calls and broken.content == call[:-20]
    stopped = render.plain(call + "\nObservation: sunny")
    assert render.parse(stopped, (WEATHER,), "turn", "\nObservation:") == (read, None)
    plain, why = render.parse(render.plain(call), (), "turn")
    assert why is None and plain.content == call


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("<tool_call>{</tool_call>", "tool call 1"),
        ('<tool_call>{"name": "a", "arguments": 1}</tool_call>', "expected an object as arguments"),
        ('<tool_call>{"name": "a"}</tool_call>', "name and arguments"),
        ('<tool_call>{"name": "a", "arguments": {}, "id": "7"}</tool_call>', "and nothing else"),
        ('<tool_call>{"name": "a", "arguments": {"x": NaN}}</tool_call>', "without NaN"),
        ('<tool_call>{"name": "a", "arguments": {"x": 1e999}}</tool_call>', "infinity"),
        ('<tool_call>{"name": "a", "arguments": {"x": "\\ud83d"}}</tool_call>', "surrogate"),
        ('<tool_call>{"name": "a", "arguments": {}}', "</tool_call> is missing"),
        ('<tool_call>{"name": "a", "arguments": {}}</tool_call> and', "after calls"),
    ],
)
def test_a_call_that_cannot_be_read_stays_text_and_says_why(text: str, why: str) -> None:
    reply, malformed = HermesCalls().read(text, "turn")
    assert (reply.content, reply.tool_calls) == (text, ())
    assert malformed is not None and why in malformed


def test_several_calls_are_read_in_order() -> None:
    one = '<tool_call>{"name": "%s", "arguments": {"n": %d}}</tool_call>'
    reply, malformed = HermesCalls().read("Both. " + one % ("a", 1) + "\n" + one % ("b", 2), "turn")
    assert (reply.content, malformed) == ("Both.", None)
    assert [(call.name, call.arguments) for call in reply.tool_calls] == [("a", '{"n": 1}'), ("b", '{"n": 2}')]


# --- how other families write calls -----------------------------------------------------------------------------------

REAL = Path(trl.__file__).parent / "chat_templates"
"""Templates as their makers ship them, in a package that is required anyway."""
MISTRAL = (
    "<s>{% for m in messages %}"
    "{% if m.role == 'user' %}"
    "{% if tools and not loop.index0 %}[AVAILABLE_TOOLS]{{ tools | tojson }}[/AVAILABLE_TOOLS]{% endif %}"
    "[INST]{{ m.content }}[/INST]"
    "{% elif m.tool_calls is defined %}[TOOL_CALLS]["
    "{% for c in m.tool_calls %}{% if c.id | length != 9 %}{{ raise_exception('ids have 9 characters') }}{% endif %}"
    '{{ (c.function | tojson)[:-1] }}, "id": "{{ c.id }}"}{{ \', \' if not loop.last }}{% endfor %}]</s>'
    "{% elif m.role == 'tool' %}{% if m.tool_call_id | length != 9 %}{{ raise_exception('so have these') }}{% endif %}"
    '[TOOL_RESULTS]{"content": {{ m.content }}, "call_id": "{{ m.tool_call_id }}"}[/TOOL_RESULTS]'
    "{% else %}{{ m.content }}</s>{% endif %}{% endfor %}"
)
"""What Mistral's templates write: calls behind a special token, ids of nine characters, nothing before an answer."""
FAMILIES = {
    "llama3_1": ("<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<|python_tag|>"),
    "llama3_2": ("<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<|python_tag|>"),
    "qwen2_5": ("<|im_start|>", "<|im_end|>"),
    "mistral": ("<s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[TOOL_CALLS]", "[TOOL_RESULTS]", "</s>"),
}
ENDS = {"llama3_1": "<|eot_id|>", "llama3_2": "<|eot_id|>", "qwen2_5": "<|im_end|>", "mistral": "</s>"}
WRITTEN = {
    "llama3_1": '{"name": "weather", "parameters": {"city": "Zürich"}}',
    "llama3_2": '<|python_tag|>{"name": "weather", "parameters": {"city": "Zürich"}}',
    "qwen2_5": 'I look.\n<tool_call>\n{"name": "weather", "arguments": {"city": "Zürich"}}\n</tool_call>',
    "mistral": '[TOOL_CALLS][{"name": "weather", "arguments": {"city": "Zürich"}}]',
}


@cache
def family(name: str) -> ChatRendering:
    template = MISTRAL if name == "mistral" else (REAL / f"{name}.jinja").read_text(encoding="utf-8")
    tokenizer = chat.chat_tokenizer(template)
    tokenizer.add_special_tokens({"additional_special_tokens": list(FAMILIES[name]), "bos_token": FAMILIES[name][0]})
    tokenizer.eos_token = ENDS[name]
    return ChatRendering(tokenizer, TokenTable.of(tokenizer), "tokenizer")


@pytest.mark.parametrize("name", FAMILIES)
def test_a_call_in_a_family_s_own_words_is_read_and_its_result_follows_the_sampled_tokens(name: str) -> None:
    render, tools = family(name), (WEATHER,)
    asked = render.first(ASKS, tools)
    sampled = render.plain(WRITTEN[name] + ENDS[name])
    reply, malformed = render.parse(sampled, tools, "turn")
    [call] = reply.tool_calls
    assert malformed is None and (call.name, json.loads(call.arguments)) == ("weather", {"city": "Zürich"})
    result = Message(role="tool", content="sunny", tool_call_id=call.id)
    behind = render.extend((*asked, *sampled), True, (*ASKS, reply), (result,), tools)
    if name == "qwen2_5":  # its text comes before the call in the answer, and its template writes it so
        assert "I look." in reply.content
    assert isinstance(behind, tuple), behind
    assert "sunny" in render._tokenizer.decode(list(behind)) and ENDS[name] not in render._tokenizer.decode([behind[0]])


@pytest.mark.parametrize("name", FAMILIES)
def test_a_call_that_is_forced_is_in_the_family_s_own_words(name: str) -> None:
    render, form = family(name), AnswerForm(tools=("weather",))
    vocabulary = from_tokenizer(render._tokenizer, eos_token=sorted(render._ends))
    matcher = LLMatcher(vocabulary, LLMatcher.grammar_from_lark(render.grammar(form, (WEATHER,))), log_level=0)
    assert matcher.get_error() == ""
    text = WRITTEN[name].removeprefix("I look.\n").removeprefix("<|python_tag|>")
    assert matcher.validate_tokens(list(render.plain(text + ENDS[name]))) == len(render.plain(text + ENDS[name]))


def test_a_call_of_llama_is_the_whole_answer_and_json_of_another_kind_is_text() -> None:
    llama = LlamaCalls()
    call = '{"name": "a", "parameters": {}}'
    assert llama.read(f"Sure: {call}", "turn") == (said(f"Sure: {call}"), None)
    assert llama.read('{"sum": 11}', "turn") == (said('{"sum": 11}'), None)
    for text, why in (
        (f"{call}; {call}", "text after the call"),
        ('{"name": "a", "arguments": {}}', "name and parameters"),
        ('<|python_tag|>print("x")', "Expecting value"),
    ):
        reply, malformed = llama.read(text, "turn")
        assert reply == said(text) and malformed is not None and why in malformed


def test_mistral_s_calls_keep_the_ids_that_the_model_wrote_and_others_are_made_to_fit() -> None:
    mistral, one = MistralCalls(), '{"name": "%s", "arguments": {}%s}'
    text = "Both. [TOOL_CALLS] [" + one % ("a", ', "id": "9dPkq3aZb"') + ", " + one % ("b", "") + "]"
    reply, malformed = mistral.read(text, "turn")
    first, second = (call.id for call in reply.tool_calls)
    assert (reply.content, malformed, first) == ("Both.", None, "9dPkq3aZb")
    assert len(second) == 9 and second == mistral.template_id(second) != mistral.template_id("toolu_01")
    for text, why in (
        ("[TOOL_CALLS]", "[ is missing"),
        ("[TOOL_CALLS][]", "Expecting value"),
        ("[TOOL_CALLS][" + one % ("a", ""), "] is missing"),
        ("[TOOL_CALLS][" + one % ("a", "") + "] and", "after the calls"),
        ("[TOOL_CALLS][" + one % ("a", ', "id": 7') + "]", "nothing else"),
    ):
        reply, malformed = mistral.read(text, "turn")
        assert reply == said(text) and malformed is not None and why in malformed


def test_a_call_may_have_the_marks_of_calls_in_its_arguments() -> None:
    inside = "</tool_call> [TOOL_CALLS] <tool_call>"
    text = f'<tool_call>{{"name": "write", "arguments": {{"content": "{inside}"}}}}</tool_call>'
    [call] = HermesCalls().read(text, "turn").reply.tool_calls
    assert json.loads(call.arguments) == {"content": inside}


def test_same_call_in_a_later_turn_has_another_id() -> None:
    text = '<tool_call>{"name": "a", "arguments": {}}</tool_call>' * 2
    ids = [call.id for turn in ("first", "second") for call in HermesCalls().read(text, turn).reply.tool_calls]
    assert len(set(ids)) == 4
