"""Tool calls in the text of an answer, in the formats that chat models write.

    Hermes, Qwen, SmolLM3   Let me look. <tool_call>{"name": "weather", "arguments": {"city": "Ulm"}}</tool_call>
    Llama 3.1 to 3.3        {"name": "weather", "parameters": {"city": "Ulm"}}
    Mistral                 [TOOL_CALLS][{"name": "weather", "arguments": {"city": "Ulm"}, "id": "9dPkq3aZb"}]

The chat template of a model shows which one it has (template_rendering.py). Nothing is repaired: an answer with an
unreadable call is text, with the reason. The ids of calls derive from the turn's id, so the same call in a later turn
has another id.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from hashlib import sha256
from typing import NamedTuple

from schemas import json_text
from schemas.events import Message, ToolCall, derive_id

MOST_CALLS = 16
"""Maximum calls in an answer that must be calls: a small model would otherwise never stop making them."""
EXCERPT = 80
"""Maximum characters of an unreadable call in the reason."""


class ReadAnswer(NamedTuple):
    """An answer, and why a tool call in it cannot be read; then the reply has all of it as text."""

    reply: Message
    malformed: str | None


class WrittenCall(NamedTuple):
    """A call, and its end in the answer."""

    name: str
    arguments: dict[str, object]
    call_id: str | None
    """Its id as the model wrote it, if its format has ids."""
    end: int
    """Place at which the text after it begins."""


class UnreadableCall(ValueError):
    """A call cannot be read."""

    def __init__(self, number: int, place: int, reason: str) -> None:
        """`number`: counted from 1; `place`: its beginning."""
        super().__init__(reason)
        self.number, self.place = number, place


class ToolCallFormat(ABC):
    """The format in which one family of models writes calls."""

    markers: tuple[str, ...]
    """Texts with which a call may begin; while an answer is streamed, the text after one is held back."""
    end: str | None = None
    """The text that ends each call; None: the answer does not show where the first of several ends."""
    single: bool = False
    """Whether an answer has at most one call."""
    special: str | None = None
    """A token that is part of the text in this format, but otherwise left out."""

    def read(self, text: str, turn_id: str) -> ReadAnswer:
        """Return the answer in `text`: the text before the first call, and the calls."""
        begin = self._begin(text)
        if begin is None:
            return ReadAnswer(Message(role="assistant", content=text), None)
        try:
            written = self._calls(text, begin)
        except UnreadableCall as exc:
            malformed = f"tool call {exc.number}, {text[exc.place :][:EXCERPT]!r}: {exc}"
            return ReadAnswer(Message(role="assistant", content=text), malformed)
        calls = tuple(
            ToolCall(
                id=call.call_id or self.template_id(f"call_{derive_id(turn_id, number)}"),
                name=call.name,
                arguments=json.dumps(call.arguments, ensure_ascii=False),
            )
            for number, call in enumerate(written)
        )
        return ReadAnswer(Message(role="assistant", content=text[:begin].rstrip(), tool_calls=calls), None)

    def read_until(self, text: str, stop: str | None, turn_id: str) -> ReadAnswer:
        """Return the answer in `text`, which a stop text ended: `stop` is not part of it, unless a call ends with
        it."""
        if stop is None:
            return self.read(text, turn_id)
        before = text.partition(stop)[0]
        answer = self.read(before + stop if stop == self.end else before, turn_id)
        return answer if answer.reply.tool_calls or answer.malformed else self.read(before, turn_id)

    def template_id(self, call_id: str) -> str:
        """Return the id of a call in the form for these models' templates."""
        return call_id

    @abstractmethod
    def one_call(self, name: str, arguments: str) -> str:
        """Return the grammar of a call; `arguments` is the name of their rule."""

    @abstractmethod
    def all_calls(self, parallel: bool, special: int | None) -> str:
        """Return the grammar of an answer of calls, each a `call`; `special`: the id of the token `special`.
        `parallel`: several calls are allowed.
        """

    @abstractmethod
    def _begin(self, text: str) -> int | None:
        """Return where the first call begins."""

    @abstractmethod
    def _calls(self, text: str, start: int) -> list[WrittenCall]:
        """Return the calls that begin at `start`. Raises UnreadableCall."""


class HermesCalls(ToolCallFormat):
    """Each call between two tags, and text before the first."""

    begin, end = "<tool_call>", "</tool_call>"
    markers = (begin,)

    def one_call(self, name: str, arguments: str) -> str:
        """Return the tags, and the call on a line between them."""
        return _rule(f'{self.begin}\n{{"name": {_quote(name)}, "arguments": ', arguments, f"}}\n{self.end}")

    def all_calls(self, parallel: bool, special: int | None) -> str:
        """Return calls below each other."""
        return f'call ("\\n" call){{0,{MOST_CALLS - 1}}}' if parallel else "call"

    def _begin(self, text: str) -> int | None:
        return _place(text, self.begin)

    def _calls(self, text: str, start: int) -> list[WrittenCall]:
        calls: list[WrittenCall] = []
        while start < len(text):
            inside = start + len(self.begin)
            try:
                call = _read(text, inside, {"name", "arguments"})
                start = _skip(text, _end_of_mark(text, call.end, self.end))
                if start < len(text) and not text.startswith(self.begin, start):
                    raise ValueError(f"text between or after calls: {text[start : start + EXCERPT]!r}")
            except ValueError as exc:
                raise UnreadableCall(len(calls) + 1, inside, str(exc)) from exc
            calls.append(call)
        return calls


class LlamaCalls(ToolCallFormat):
    """One call, which is the whole answer."""

    single = True
    tag = "<|python_tag|>"
    markers = (tag, '{"name"')
    special = tag

    def one_call(self, name: str, arguments: str) -> str:
        """Return the call; the tag before it, which some models write, is left out."""
        return _rule(f'{{"name": {_quote(name)}, "parameters": ', arguments, "}")

    def all_calls(self, parallel: bool, special: int | None) -> str:
        """Return the one call: the templates of these models refuse several."""
        return "call"

    def _begin(self, text: str) -> int | None:
        start = _skip(text, 0)
        return start if text.startswith(self.markers, start) else None

    def _calls(self, text: str, start: int) -> list[WrittenCall]:
        try:
            begin = start + len(self.tag) if text.startswith(self.tag, start) else start
            call = _read(text, begin, {"name", "parameters"})
            if text[call.end :].strip():
                raise ValueError(f"text after the call: {text[call.end :][:EXCERPT]!r}")
        except ValueError as exc:
            raise UnreadableCall(1, start, str(exc)) from exc
        return [call]


class MistralCalls(ToolCallFormat):
    """A list of calls after a token of its own, and text before it. Ids have nine letters and digits."""

    begin = "[TOOL_CALLS]"
    markers = (begin,)
    special = begin

    def template_id(self, call_id: str) -> str:
        """Return the id if it is valid here, else one derived from it."""
        fits = len(call_id) == 9 and call_id.isascii() and call_id.isalnum()
        return call_id if fits else sha256(call_id.encode()).hexdigest()[:9]

    def one_call(self, name: str, arguments: str) -> str:
        """Return the call without an id."""
        return _rule(f'{{"name": {_quote(name)}, "arguments": ', arguments, "}")

    def all_calls(self, parallel: bool, special: int | None) -> str:
        """Return the token, and a list of calls."""
        begin = json.dumps(self.begin) if special is None else f"<[{special}]>"
        more_calls = f'(", " call){{0,{MOST_CALLS - 1}}}' if parallel else ""
        return f'{begin} " "? "[" call {more_calls} "]"'

    def _begin(self, text: str) -> int | None:
        return _place(text, self.begin)

    def _calls(self, text: str, start: int) -> list[WrittenCall]:
        calls: list[WrittenCall] = []
        place = start + len(self.begin)
        while True:
            try:
                begin = _end_of_mark(text, place, "," if calls else "[")
                call = _read(text, begin, {"name", "arguments"}, ids=True)
                place = _skip(text, call.end)
                if not text.startswith(",", place) and (after := text[_end_of_mark(text, place, "]") :].strip()):
                    raise ValueError(f"text after the calls: {after[:EXCERPT]!r}")
            except ValueError as exc:
                raise UnreadableCall(len(calls) + 1, place, str(exc)) from exc
            calls.append(call)
            if text.startswith("]", place):
                return calls


FORMATS: tuple[ToolCallFormat, ...] = (HermesCalls(), LlamaCalls(), MistralCalls())


def _read(text: str, start: int, keys: set[str], *, ids: bool = False) -> WrittenCall:
    """Return the call at `start`. Raises ValueError, also for values that the log and its readers cannot hold."""
    value, end = json_text.parse_first(text, start)
    try:
        json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    except (ValueError, RecursionError) as exc:
        raise ValueError(f"expected JSON without NaN, infinity and halves of surrogate pairs ({exc})") from exc
    present = set(value) if isinstance(value, dict) else set()
    if ids:
        present.discard("id")
    if present != keys or not all(isinstance(value.get(key, ""), str) for key in ("name", "id")):
        raise ValueError(f"expected an object with {' and '.join(sorted(keys, key=len))}, and nothing else")
    [arguments] = [value[key] for key in keys - {"name"}]
    if not isinstance(arguments, dict):
        raise ValueError("expected an object as arguments")
    return WrittenCall(value["name"], arguments, value.get("id"), end)


def _rule(head: str, arguments: str, tail: str) -> str:
    """Return the grammar of the rule `arguments` between two texts."""
    return f"{json.dumps(head)} {arguments} {json.dumps(tail)}"


def _quote(name: str) -> str:
    return json.dumps(name, ensure_ascii=False)


def _end_of_mark(text: str, start: int, mark: str) -> int:
    """Return the end of a mark, which may follow spaces. Raises ValueError for any other text."""
    begin = _skip(text, start)
    if not text.startswith(mark, begin):
        raise ValueError(f"{mark} is missing")
    return begin + len(mark)


def _skip(text: str, start: int) -> int:
    """Return the first place from `start` on that is not a space."""
    return len(text) - len(text[start:].lstrip())


def _place(text: str, mark: str) -> int | None:
    place = text.find(mark)
    return None if place < 0 else place
