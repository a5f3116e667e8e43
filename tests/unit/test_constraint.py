"""An answer of a forced form has it, is drawn like any other, and its logprobs are the policy's own."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from schemas.events import Sampling, Tool
from streams.engines.base_model import Base
from streams.engines.local.continuous import ContinuousEngine
from streams.engines.protocol import TokenEngine
from streams.engines.rendering.answer_form import JSON_OBJECT, AnswerForm
from streams.engines.rendering.rendering import Rendering
from streams.engines.rendering.template_rendering import ChatRendering
from streams.engines.scripted.scripted_tokens import ScriptedRendering, ScriptedTokenEngine
from streams.engines.token_stream import Generation, TokenStream
from streams.errors import EventError
from tests.support.models.chat import END, KEEPS, chat_tokenizer
from tests.support.models.tiny import sampled_logps, tiny_model
from tests.unit.test_continuous import tokens
from tests.unit.test_engines import base

PERSON = json.dumps(
    {
        "type": "object",
        "properties": {
            "name": {"enum": ["Ada", "Grace \u00fc"]},
            "age": {"type": "integer", "minimum": 1, "maximum": 99},
        },
        "required": ["name", "age"],
        "additionalProperties": False,
    }
)
CLOSED = {"required": ["city"], "additionalProperties": False}
WEATHER = Tool(name="weather", parameters=json.dumps({"properties": {"city": {"enum": ["Ulm", "Bonn"]}}, **CLOSED}))
TIME = Tool(name='ti"me', parameters='{"type": "object", "additionalProperties": false}')
TOOLS = (WEATHER, TIME)
PROMPT = tuple(range(50, 70))


class Served:
    """An engine, and the rendering of its model."""

    def __init__(self, engine: TokenEngine, rendering: Rendering) -> None:
        self.engine, self.rendering = engine, rendering

    def asked(self, form: AnswerForm | None, **changes: Any) -> Generation:
        grammar = None if form is None else self.rendering.grammar(form, TOOLS)
        sampling = Sampling(max_tokens=changes.pop("max_tokens", 400), temperature=changes.pop("temperature", 1.0))
        whole = {"prompt_token_ids": PROMPT, "sampling": sampling, "draw_key": "k", **changes}
        return Generation(**whole, constraint=None if grammar is None else self.engine.constrain(grammar))

    def said(self, form: AnswerForm | None, **changes: Any) -> tuple[str, TokenStream]:
        stream = self.engine.submit(self.asked(form, **changes))
        return self.rendering.text(tokens(stream)), stream


@pytest.fixture(scope="module")
def model() -> Iterator[Served]:
    tokenizer = chat_tokenizer(KEEPS)
    network = tiny_model(vocabulary=640)
    network.generation_config.eos_token_id = tokenizer.convert_tokens_to_ids(END)
    network.config.max_position_embeddings = 1024
    engine = ContinuousEngine(Base.of(network, tokenizer, "base", "tokenizer"))
    yield Served(engine, ChatRendering(tokenizer, engine.token_table, "tokenizer"))
    engine.close()


@pytest.fixture(scope="module")
def script() -> Iterator[Served]:
    call = '<tool_call>\n{"name": "weather", "arguments": {"city": "Bonn"}}\n</tool_call>'
    replies = [{"when": "age?", "reply": '{"age": 7, "name": 3}'}, {"when": "both?", "reply": f"{call}\n{call}"}]
    engine = ScriptedTokenEngine(json.dumps({"replies": replies}))
    yield Served(engine, ScriptedRendering())
    engine.close()


@pytest.fixture(params=["model", "script"])
def served(request: pytest.FixtureRequest) -> Served:
    found: Served = request.getfixturevalue(request.param)
    return found


@pytest.mark.parametrize("seed", range(4))
def test_text_of_a_schema_is_json_of_it(served: Served, seed: int) -> None:
    text, stream = served.said(AnswerForm(schema=PERSON), draw_key=str(seed))
    value = json.loads(text)
    assert stream.ending == "stop"
    assert set(value) == {"name", "age"} and value["name"] in ("Ada", "Grace \u00fc") and 1 <= value["age"] <= 99


@pytest.mark.parametrize("seed", range(3))
def test_a_call_that_has_to_be_made_is_one_of_the_tools_with_its_arguments(served: Served, seed: int) -> None:
    form = AnswerForm(tools=("weather", 'ti"me'), several=False)
    stream = served.engine.submit(served.asked(form, draw_key=str(seed)))
    reply, malformed = served.rendering.parse(tokens(stream), TOOLS, "turn")
    [call] = reply.tool_calls
    assert malformed is None and not reply.content and call.name in form.tools
    known = {"weather": {"Ulm", "Bonn"}}.get(call.name, {None})
    assert json.loads(call.arguments).get("city") in known


@pytest.mark.parametrize(("several", "count"), [(True, 2), (False, 1)])
def test_there_may_be_several_calls_unless_that_is_ruled_out(script: Served, several: bool, count: int) -> None:
    form, prompt = AnswerForm(tools=("weather",), several=several), tuple(b"user: both?\nassistant: ")
    stream = script.engine.submit(script.asked(form, prompt_token_ids=prompt))
    reply, malformed = script.rendering.parse(tokens(stream), TOOLS, "turn")
    assert malformed is None and [call.arguments for call in reply.tool_calls] == ['{"city": "Bonn"}'] * count


def test_where_tools_are_offered_a_format_leaves_the_choice(model: Served) -> None:
    seen = set()
    form = AnswerForm(schema=PERSON, tools=("weather",), several=False)
    for seed in range(12):
        stream = model.engine.submit(model.asked(form, draw_key=str(seed)))
        reply, malformed = model.rendering.parse(tokens(stream), TOOLS, "turn")
        seen.add("calls" if reply.tool_calls else "text")
        assert malformed is None and (reply.tool_calls or json.loads(reply.content)["age"])
    assert seen == {"calls", "text"}


def test_an_answer_that_is_cut_off_says_so(served: Served) -> None:
    text, stream = served.said(AnswerForm(tools=("weather",)), max_tokens=9)
    assert stream.ending == "length" and len(stream.drawn) == 9 and "<tool_call>".startswith(text[:11])


def test_logprobs_are_the_policy_s_own_and_tokens_do_not_depend_on_company(model: Served) -> None:
    form = AnswerForm(schema=PERSON)
    company = [model.engine.submit(model.asked(None, draw_key=str(n), max_tokens=40)) for n in range(3)]
    beside = model.engine.submit(model.asked(form))
    alone, stream = model.said(form)
    assert tokens(beside) == tokens(stream) and alone == model.rendering.text(tokens(beside))
    for other in company:
        tokens(other)
    fresh = Base.of(tiny_model(vocabulary=640), chat_tokenizer(KEEPS), "base", "tokenizer").model
    expected = sampled_logps(fresh, list(PROMPT), list(tokens(stream)))
    assert [p for _, p in stream.drawn] == pytest.approx(expected, abs=1e-3)


def test_greedy_takes_the_likeliest_of_what_may_follow(model: Served) -> None:
    first, _ = model.said(AnswerForm(schema=PERSON), temperature=0.0)
    assert json.loads(first) and first == model.said(AnswerForm(schema=PERSON), temperature=0.0, draw_key="other")[0]


def test_a_slot_s_own_answer_is_free_where_nothing_is_forced(model: Served) -> None:
    text, _ = model.said(None, max_tokens=40)
    with pytest.raises(ValueError, match="Expecting"):
        json.loads(text)


def test_the_script_s_reply_is_given_as_far_as_it_is_allowed(script: Served) -> None:
    prompt = tuple(b"user: age?\nassistant: ")
    assert script.said(AnswerForm(schema=JSON_OBJECT), prompt_token_ids=prompt)[0] == '{"age": 7, "name": 3}'
    named = {"type": "object", "properties": {"age": {}, "name": {"type": "string"}}, "required": ["name"]}
    assert script.said(AnswerForm(schema=json.dumps(named)), prompt_token_ids=prompt)[0] == '{"age": 7, "name": ""}'
    assert script.said(AnswerForm(schema=JSON_OBJECT))[0] == "{}"


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        ({"if": {"type": "string"}, "then": {}}, '"if"'),
        ({"type": "object", "properties": {"a": {"type": "array", "uniqueItems": True}}}, "uniqueItems"),
        ({"not": {"type": "string"}}, '"not"'),
        ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, "oneOf"),
        ({"type": "strin"}, "strin"),
        ({"type": "string", "pattern": "(?=a)a"}, "look-around"),
        ({"$ref": "https://example.com/schema"}, "example.com"),
        ({"x-guidance": {"lenient": True}, "not": {}}, '"not"'),
    ],
)
def test_a_schema_that_cannot_be_forced_is_refused_by_what_it_has(script: Served, schema: Any, why: str) -> None:
    with pytest.raises(EventError, match=re.escape(why)) as caught:
        script.asked(AnswerForm(schema=json.dumps(schema)))
    assert caught.value.reason == "bad_constraint" and "%json" not in str(caught.value)


def test_a_tokenizer_that_cannot_be_read_is_an_error_and_not_another_vocabulary() -> None:
    engine = ContinuousEngine(base())
    try:
        with pytest.raises(EventError, match="tokenizer cannot be constrained"):
            engine.constrain("start: %json {}")
    finally:
        engine.close()


def test_a_form_is_in_the_log_as_json() -> None:
    assert json.loads(str(AnswerForm(schema=JSON_OBJECT))) == {"schema": {"type": "object"}}
    forced = AnswerForm(tools=("weather",), several=False)
    assert json.loads(str(forced)) == {"tools": ["weather"], "several": False}
