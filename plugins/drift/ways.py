"""The eight ways in which a conversation that is tokenized again differs from the tokens that were sampled.

    a prompt, an answer as sampled ──► the usual loop: the template over all messages, tokenized ──┐
                                   └─► ChatRendering: recorded tokens, and what follows them ──────┴──► Drift, or None

The usual loop keeps messages and tokenizes them for training: F1 to F8 of docs/known-failures.md are what it loses. A
way has conversations from the smallest on; the first that drifts is shown. No weights are read, and nothing is sampled:
an answer's tokens are those that a model may draw.

Not covered: templates that change with the day, and images.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import takewhile
from typing import Any, NamedTuple

from schemas.events import Message, Tool, ToolCall
from streams.engines.rendering.chat_template import ChatTemplate
from streams.engines.rendering.template_rendering import ChatRendering
from streams.engines.rendering.token_table import TokenTable
from streams.errors import EventError

SHOWN = 32
"""Characters that are shown before and after the first difference."""
EXACT, OWN_CHAIN, REFUSED = "exact", "its own chain", "refused"
"""What the recorder does: the sampled tokens stay in the next prompt; the next call begins a chain of its own, with the
reason; the conversation is refused, with the reason if it has one."""
QUESTION, NEXT = Message(role="user", content="2+2?"), Message(role="user", content="Sure?")
TOOL = Tool(name="add", parameters='{"type": "object", "properties": {"a": {"type": "integer"}}}')
CALL = ToolCall(id="abcdefghi", name=TOOL.name, arguments='{"a": 2, "b": [1, 2]}')
RESULT = Message(role="tool", content="4", tool_call_id=CALL.id, name=TOOL.name)


class Drift(NamedTuple):
    """Where the usual loop's tokens leave the sampled ones."""

    conversation: tuple[Message, ...]
    """Up to the answer, which is its last message; of `control names` up to the question."""
    sampled: str
    """Text around the first difference, with | between the tokens."""
    again: str


class Way(NamedTuple):
    """One way to drift."""

    name: str
    fault: str
    """What it is called in docs/known-failures.md."""
    find: Callable[[DriftModel], tuple[Drift | None, str]]
    """Returns the smallest drift, and what the recorder does with that conversation; without one with the last tried.

    Raises any error where the template takes no such conversation.
    """


class WayReport(NamedTuple):
    """A way, with what was seen."""

    name: str
    fault: str
    drift: Drift | None
    here: str
    """EXACT, OWN_CHAIN or REFUSED, with the reason; "" where the template takes no such conversation."""


class DriftModel:
    """A tokenizer with its chat template."""

    def __init__(self, tokenizer: Any) -> None:
        """Raises SettingsError if the template or the tokenizer cannot be used."""
        table = TokenTable.of(tokenizer)
        self.tokenizer, self.rendering = tokenizer, ChatRendering(tokenizer, table, "")
        self._template = ChatTemplate(tokenizer)
        self.ends = tuple(table.ends)[:1] if self._template.end is None else (self._template.end,)
        """The token that ends an answer; none if there is no such."""

    def ids(self, text: str) -> list[int]:
        """Return the tokens of a text, with control tokens by their names and none added."""
        return list(self.tokenizer(text, add_special_tokens=False)["input_ids"])

    def render(self, messages: Sequence[Message], tools: Sequence[Tool] = (), *, answer: bool = False) -> str:
        """Return a conversation as the template writes it. Raises the template's errors."""
        return self._template.render(messages, tools, answer=answer)

    def text_of(self, tokens: Sequence[int]) -> str:
        """Return tokens as text with | between them."""
        return "|".join(self.tokenizer.decode([token]) for token in tokens)


def reports(model: DriftModel) -> Iterator[WayReport]:
    """Yield what was seen of each way."""
    for way in WAYS:
        try:
            drift, here = way.find(model)
        except Exception:  # a template is a program, and may refuse a conversation in any way
            drift, here = None, ""
        yield WayReport(way.name, way.fault, drift, here)


# --- the usual loop, and the recorder ---------------------------------------------------------------------------------


def _continuation(
    model: DriftModel, answer: Message, sampled: Sequence[int], new: Message = NEXT, tools: Sequence[Tool] = ()
) -> tuple[Drift | None, str]:
    """Return where a conversation drifts once it continues, and what the recorder does."""
    before = (QUESTION,)
    prompt = model.ids(model.render(before, tools, answer=True))
    recorded = [*prompt, *sampled, *model.ends]
    again = model.ids(model.render((*before, answer, new), tools))
    written = recorded[: len(prompt) + len(sampled)]
    return _difference(model, (*before, answer), written, again), _here(model, recorded, (*before, answer), new, tools)


def _difference(
    model: DriftModel, conversation: tuple[Message, ...], sampled: Sequence[int], again: Sequence[int]
) -> Drift | None:
    same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(sampled, again, strict=False)))
    if same == len(sampled):
        return None
    first = max(0, same - 1)
    return Drift(conversation, *(model.text_of(tokens[first : first + SHOWN])[:SHOWN] for tokens in (sampled, again)))


def _here(
    model: DriftModel, recorded: Sequence[int], before: Sequence[Message], new: Message, tools: Sequence[Tool]
) -> str:
    try:
        tokens = model.rendering.extend(recorded, bool(model.ends), before, [new], tools)
    except EventError as exc:
        return f"{REFUSED}: {exc}"
    return f"{OWN_CHAIN}: {tokens}" if isinstance(tokens, str) else EXACT


def _smallest(found: Iterator[tuple[Drift | None, str]]) -> tuple[Drift | None, str]:
    """Return the first that drifts, or else the last."""
    latest: tuple[Drift | None, str] = None, ""
    for latest in found:
        if latest[0] is not None:
            break
    return latest


# --- the ways ---------------------------------------------------------------------------------------------------------


def _other_tokens(model: DriftModel) -> tuple[Drift | None, str]:
    """An answer whose tokens are not those of its text: a model may draw "s" and "o" where the text is one token."""
    texts = ("so", "four", "4 4", "hello there", " hello")
    return _smallest(
        _continuation(model, Message(role="assistant", content=text), [*model.ids(text[:cut]), *model.ids(text[cut:])])
        for text in texts
        for cut in range(1, len(text))
    )


def _whitespace(model: DriftModel) -> tuple[Drift | None, str]:
    return _texts(model, "4 ", " 4", "4\n", "\n\n4", "4\n\n")


def _reasoning(model: DriftModel) -> tuple[Drift | None, str]:
    return _texts(model, "<think>\n2 and 2\n</think>\n\n4", "2 and 2\n</think>\n\n4")


def _texts(model: DriftModel, *texts: str) -> tuple[Drift | None, str]:
    return _smallest(_continuation(model, Message(role="assistant", content=text), model.ids(text)) for text in texts)


def _tool_calls(model: DriftModel) -> tuple[Drift | None, str]:
    """A call whose JSON has other blanks than the template's; models write both."""
    answer = Message(role="assistant", content="", tool_calls=(CALL,))
    prompt = model.render((QUESTION,), (TOOL,), answer=True)
    written = model.render((QUESTION, answer), (TOOL,)).removeprefix(prompt)
    for end in model.tokenizer.convert_ids_to_tokens(model.ends):
        written = written.partition(end)[0]
    compact = written.replace('", "', '","').replace('": ', '":').replace(", ", ",")
    model.rendering.first((QUESTION,), (TOOL,))
    found = (written, compact) if CALL.name in written else ()
    return _smallest(_continuation(model, answer, model.ids(text), RESULT, (TOOL,)) for text in found)


def _beginning(model: DriftModel) -> tuple[Drift | None, str]:
    """The template's text is tokenized like any text, with the token that begins one: it is there twice."""
    text = model.render((QUESTION,), answer=True)
    sampled, again = model.ids(text), list(model.tokenizer(text)["input_ids"])
    drift = None if sampled == again else _difference(model, (QUESTION,), again, sampled)
    here = EXACT if list(model.rendering.first((QUESTION,), ())) == sampled else REFUSED
    return drift and drift._replace(sampled=drift.again, again=drift.sampled), here


def _generation_prompt(model: DriftModel) -> tuple[Drift | None, str]:
    """The beginning of an answer, as the model saw it, is not what the template writes before one in history."""
    return _texts(model, "4")


def _control_names(model: DriftModel) -> tuple[Drift | None, str]:
    """A user writes the name of a control token, and it becomes one."""
    names = sorted(kind.content for kind in model.tokenizer.added_tokens_decoder.values() if kind.special)

    def attempts() -> Iterator[tuple[Drift | None, str]]:
        for name in names:
            asked = (Message(role="user", content=name),)
            again = model.ids(model.render(asked, answer=True))
            try:
                sampled, here = list(model.rendering.first(asked, ())), EXACT
            except EventError as exc:
                sampled, here = [], f"{REFUSED}: {exc}"
            yield _difference(model, asked, sampled or [-1], again), here

    return _smallest(attempts())


def _truncation(model: DriftModel) -> tuple[Drift | None, str]:
    """A conversation is cut to a length, on the tokenizer's side: the beginning is lost, or the answer's end."""
    answer = Message(role="assistant", content="4")
    sampled = [*model.ids(model.render((QUESTION,), answer=True)), *model.ids(answer.content), *model.ends]
    text, limit = model.render((QUESTION, answer)), len(sampled) - 1
    cut = model.tokenizer(text, add_special_tokens=False, truncation=True, max_length=limit)["input_ids"]
    return _difference(model, (QUESTION, answer), sampled, cut), _here(model, sampled, (QUESTION, answer), NEXT, ())


WAYS = (
    Way("merged tokens", "F1", _other_tokens),
    Way("blanks stripped", "F1", _whitespace),
    Way("reasoning removed", "F4", _reasoning),
    Way("tool calls rewritten", "F8", _tool_calls),
    Way("beginning twice", "F6", _beginning),
    Way("generation prompt", "F6", _generation_prompt),
    Way("control names", "F6", _control_names),
    Way("truncation", "F2", _truncation),
)
