"""Conversations to tokens and back, by the model's own chat template, without changing sampled tokens.

    recorded prompt and answer, verbatim ──┬──► the next prompt
    render the conversation with the new   │
    messages ──► the text after the ───────┘
    answer ──► tokens

An answer is never tokenized again: decoding and encoding sampled tokens may give others. So the next prompt is the
recorded tokens, followed by the template's text after the answer: its end of turn, the new messages, and the beginning
of the next answer. The end of the answer in the template's text is found by a mark put in its place.

A template may write earlier turns differently when new ones follow: without their reasoning, with another system prompt
or date, with a text twice. Then the recorded tokens differ from the template's, and `extend` returns the reason instead
of tokens. A sampled end-of-turn token stays, even if the template writes another one there.

Tokens are made for the new messages only. The text is rendered whole, since a template is a program over all messages.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from hashlib import sha256
from itertools import count
from typing import Any, TypeVar

from schemas.events import Message, Tool, ToolCall
from streams.engines.rendering.answer_form import AnswerForm, grammar_of
from streams.engines.rendering.chat_template import ChatTemplate
from streams.engines.rendering.control_tokens import RenderedText
from streams.engines.rendering.token_table import TokenTable
from streams.engines.rendering.tool_calls import FORMATS, ToolCallFormat
from streams.errors import EventError, SettingsError

T = TypeVar("T")
RULE = 1
"""Part of the template's digest; increment it when `extend` gives other tokens."""


class ChatRendering:
    """A `Rendering` by a chat template."""

    def __init__(self, tokenizer: Any, token_table: TokenTable, tokenizer_digest: str) -> None:
        """Raises SettingsError for an unusable tokenizer."""
        if not tokenizer.chat_template or not tokenizer.is_fast:
            raise SettingsError(
                "model.base: expected a chat template and a tokenizer.json, and one of them is missing; "
                "set it to an instruct or chat model that has both"
            )
        self.tokenizer_digest = tokenizer_digest
        core = tokenizer.backend_tokenizer.to_str()
        special = {name: str(token) for name, token in tokenizer.special_tokens_map.items()}
        rules = json.dumps([RULE, tokenizer.chat_template, special, core], sort_keys=True)
        self.template_digest = sha256(rules.encode()).hexdigest()
        self._tokenizer, self._template = tokenizer, ChatTemplate(tokenizer)
        self.longest_token = max(map(len, tokenizer.get_vocab()))
        self._calls: ToolCallFormat | None = None
        self._ends = {token: str(tokenizer.convert_ids_to_tokens(token)) for token in sorted(token_table.ends)}
        self._calls = next((calls for calls in FORMATS if self._writes(calls)), None)
        self.markers: tuple[str, ...] = () if self._calls is None else self._calls.markers
        self.call_end = "" if self._calls is None or self._calls.single else self._calls.end
        added = tokenizer.added_tokens_decoder
        marker = None if self._calls is None else self._calls.special
        self._special = next((token for token, kind in added.items() if kind.content == marker), None)
        self._added = frozenset(added)
        self._silent = token_table.silent - {self._special}
        self._bytes = byte_alphabet() if '"ByteLevel"' in json.dumps(json.loads(core)["decoder"]) else {}

    def first(self, messages: Sequence[Message], tools: Sequence[Tool]) -> tuple[int, ...]:
        """Return a conversation up to the beginning of the answer. Raises EventError if the template refuses it."""
        rendered = self._apply(self._template.render_with_sources, messages, tools)
        if tools or any(message.tool_calls for message in messages):
            self._check_calls()
        return self._template.tokens(*rendered)

    def extend(
        self,
        recorded: Sequence[int],
        finished: bool,
        before: Sequence[Message],
        new: Sequence[Message],
        tools: Sequence[Tool],
    ) -> tuple[int, ...] | str:
        """Return the tokens after `recorded`, or why the template changes those.

        `before` is the conversation of `recorded`; its last message is the answer, which is complete if `finished`.
        """
        try:
            text = self._text_after_answer(before, new, tools)
            close = self._close(before[:-1], tools)
        except EventError as exc:
            return str(exc)
        end = recorded[-1] if finished else next(iter(self._ends), None)
        tokens = self._template.tokens(*text)
        if end is not None and (not tokens or tokens[0] not in self._added):  # as it would be after the end of a turn
            tokens = self._template.tokens(*text.after(self._ends[end]))[1:]
        written = str(self._tokenizer.convert_ids_to_tokens(tokens[0])) if tokens else ""
        ends_twice = tokens and tokens[0] in self._added and (tokens[0] == end or close.startswith(written))
        return tokens[1:] if finished and ends_twice else tokens

    def parse(
        self, token_ids: Sequence[int], tools: Sequence[Tool], turn_id: str, stop: str | None = None
    ) -> tuple[Message, str | None]:
        """Return the answer in these tokens, before `stop`, and why a tool call in it cannot be read, if so. A call's
        arguments are only checked to be a JSON object: the agent that offers the tool judges them.
        """
        text = self.text(token_ids)
        if not tools or self._calls is None:
            return Message(role="assistant", content=text.partition(stop)[0] if stop else text), None
        return self._calls.read_until(text, stop or None, turn_id)

    def grammar(self, form: AnswerForm, tools: Sequence[Tool]) -> str:
        """Return the grammar of an answer of this form. Raises EventError as `first` does for tools."""
        if form.tools:
            self._check_calls()
        return grammar_of(form, tools, self._calls, self._special)

    def plain(self, text: str, special_tokens: bool = False) -> tuple[int, ...]:
        """Return the tokens of `text`; `special_tokens`: with those that the tokenizer adds around a text, such as
        <s>."""
        return tuple(self._tokenizer(text)["input_ids"]) if special_tokens else self._template.tokens(text)

    def text(self, token_ids: Sequence[int]) -> str:
        """Return the text of tokens, without those that have no text."""
        spoken = [token for token in token_ids if token not in self._silent]
        return str(self._tokenizer.decode(spoken, skip_special_tokens=False, clean_up_tokenization_spaces=False))

    def token_bytes(self, token: int) -> bytes:
        """Return a token's text; for a token that is part of a character, its bytes."""
        if token in self._silent:
            return b""
        name = self._tokenizer.convert_ids_to_tokens(token)
        if name is None:  # not a token of this tokenizer
            return b""
        return bytes_of_name(str(name), self._bytes)

    # --- what the template writes -------------------------------------------------------------------------------------

    def _render(self, messages: Sequence[Message], tools: Sequence[Tool], *, answer: bool = True) -> str:
        """Return a conversation as text. Raises EventError."""
        return self._apply(self._template.render, messages, tools, answer=answer)

    def _apply(
        self, render: Callable[..., T], messages: Sequence[Message], tools: Sequence[Tool], *, answer: bool = True
    ) -> T:
        """Return the result of `render`, a function of the template. Raises EventError."""
        try:
            return render([self._with_template_ids(message) for message in messages], tools, answer=answer)
        except EventError:  # the parts that the template leaves out
            raise
        except Exception as exc:  # a template is a program, and a client chooses what it runs on
            error = f"the chat template refuses the messages: {exc}; check their roles, order and tool calls"
            raise EventError(error, reason="template_refuses") from exc

    def _text_after_answer(
        self, before: Sequence[Message], new: Sequence[Message], tools: Sequence[Tool]
    ) -> RenderedText:
        """Return the text after the last message of `before`. Raises EventError if the text before it changes."""
        earlier, answer = before[:-1], before[-1]
        rendered = self._apply(self._template.render_with_sources, (*before, *new), tools)
        prompt, whole = self._render(earlier, tools), rendered.text
        place = next((n for n, (a, b) in enumerate(zip(prompt, whole, strict=False)) if a != b), len(prompt))
        _check(whole.startswith(prompt), f"it writes {whole[place : place + 20]!r} for {prompt[place : place + 20]!r}")
        text_mark, call_mark = _two_marks(whole)
        marked = replace(answer, content=text_mark if answer.content.strip() or not answer.tool_calls else "")
        if answer.tool_calls:
            *calls, last = answer.tool_calls
            marked = replace(marked, tool_calls=(*calls, replace(last, arguments=f'{{"a": "{call_mark}"}}')))
        text = self._render((*earlier, marked, *new), tools)
        times = text.count(text_mark)
        _check(times == bool(marked.content), f"it writes the text of an answer {times} times")
        _check(not answer.tool_calls or call_mark in text, "it leaves out a tool call")
        after = text.rpartition(call_mark if answer.tool_calls else text_mark)[2]
        if answer.tool_calls:
            after = self._text_after_call(after, self._close(earlier, tools))
        length = len(whole) - len(prompt) - len(after)
        _check(length >= 0 and whole.endswith(after), "it writes new messages by what the answer says")
        between = "".join(whole[len(prompt) : len(prompt) + length].split())
        _check("".join(answer.content.split()) in between, "it leaves out a part of the answer")
        return rendered.since(len(whole) - len(after))

    def _text_after_call(self, text: str, close: str) -> str:
        """Return `text` from the end of a turn that ends with a tool call. Raises EventError."""
        places = [text.find(end) for end in (close, *self._ends.values()) if end.strip() and end in text]
        _check(bool(places), "it does not show where a tool call ends")
        return text[min(places) :]

    def _close(self, earlier: Sequence[Message], tools: Sequence[Tool]) -> str:
        """Return the template's text after the last answer. Raises EventError."""
        mark, _ = _two_marks(self._render(earlier, tools))
        text = self._render((*earlier, Message(role="assistant", content=mark)), tools, answer=False)
        return text.rpartition(mark)[2]

    def _check_calls(self) -> None:
        """Raise EventError if this model's calls cannot be read."""
        if self._calls is None:
            raise EventError(
                "the model's chat template writes tools and calls in none of the formats that are read here (those of "
                "Hermes and Qwen, Llama 3.1, and Mistral); leave out the tools, or serve a model that has one of them",
                reason="tools_unsupported",
            )

    def _with_template_ids(self, message: Message) -> Message:
        """Return the message with ids in the template's form."""
        if self._calls is None or not (message.tool_calls or message.tool_call_id):
            return message
        result_of = message.tool_call_id
        return replace(
            message,
            tool_call_id=None if result_of is None else self._calls.template_id(result_of),
            tool_calls=tuple(replace(call, id=self._calls.template_id(call.id)) for call in message.tool_calls),
        )

    def _writes(self, calls: ToolCallFormat) -> bool:
        """Return whether the template shows tools, and writes a call so that `calls` reads the same one."""
        question, tool = Message(role="user", content="x"), Tool(name="probe_name")
        call = ToolCall(id="abcdefghi", name=tool.name, arguments='{"probe_key": "probe value"}')
        answer = Message(role="assistant", content="", tool_calls=(call,))
        try:
            prompt = self._render((question,), (tool,))
            text = self._render((question, answer), (tool,), answer=False).removeprefix(prompt)
        except EventError:
            return False
        for end in self._ends.values():
            text = text.partition(end)[0]
        read, malformed = calls.read(text, "")
        calls_read = [(written.name, json.loads(written.arguments)) for written in read.tool_calls]
        is_same = calls_read == [(call.name, json.loads(call.arguments))]
        return tool.name in prompt and malformed is None and is_same


def _check(holds: bool, otherwise: str) -> None:
    if not holds:
        raise EventError(f"the chat template changes history: {otherwise}", reason="template_changes_history")


def _two_marks(text: str) -> tuple[str, str]:
    """Return two words, neither in `text` nor in the other."""

    candidates = (f"mark{number}x" for number in count())
    words = (word for word in candidates if word not in text)
    return next(words), next(words)


def bytes_of_name(name: str, alphabet: Mapping[str, int]) -> bytes:
    """Return the bytes of a token with a name; `alphabet`: of a byte-level tokenizer, empty for any other."""
    if alphabet:
        values = [alphabet.get(character) for character in name]
        return name.encode() if None in values else bytes(byte for byte in values if byte is not None)
    if len(name) == 6 and name.startswith("<0x") and name.endswith(">"):
        return bytes.fromhex(name[3:5])
    return name.replace("▁", " ").encode()


def byte_alphabet() -> dict[str, int]:
    """Return the byte for each character with which byte-level tokenizers such as GPT-2's write bytes."""
    printed = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    shifted = [byte for byte in range(256) if byte not in printed]
    return {chr(byte): byte for byte in printed} | {chr(256 + n): byte for n, byte in enumerate(shifted)}
