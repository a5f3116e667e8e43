"""Conversations to tokens and back, by the model's own chat template, without touching what was sampled.

    recorded prompt and answer, verbatim ──┬──► the next prompt
    render the conversation with the new   │
    messages ──► what comes behind the ────┘
    answer ──► tokens

An answer is never tokenized again: decoding and encoding sampled tokens may give others. So the next prompt is what the
log has, and behind it what the template writes behind the answer: its end of turn, the new messages, and the beginning
of the next answer. Where the answer ends in the template's text is found by a mark put in its place.

A template may write earlier turns differently once there are new ones: without their reasoning, with another system
prompt or date, with a text twice. Then the recorded tokens are not what the template would have the model see, and
`extend` returns the reason in place of tokens. An end-of-turn token that was sampled stays, whichever of them the
template writes there.

Tokens are made for the new messages only. The text is rendered whole, since a template is a program over all messages.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from hashlib import sha256
from itertools import count
from typing import Any

from schemas.events import Message, Tool, ToolCall
from streams.engines.rendering.answer_form import AnswerForm, grammar_of
from streams.engines.rendering.chat_template import ChatTemplate
from streams.engines.rendering.tool_calls import FORMATS, ToolCallFormat
from streams.errors import EventError, SettingsError

RULE = 1
"""Part of the template's digest; raise it when `extend` gives other tokens."""


class ChatRendering:
    """A `Rendering` by a chat template."""

    def __init__(self, tokenizer: Any, ends: Collection[int], tokenizer_digest: str) -> None:
        """`ends` are the model's end-of-turn tokens. Raises SettingsError for a tokenizer that cannot be used."""
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
        self._ends = {token: str(tokenizer.convert_ids_to_tokens(token)) for token in sorted(ends)}
        self._calls = next((each for each in FORMATS if self._writes(each)), None)
        self.markers: tuple[str, ...] = () if self._calls is None else self._calls.markers
        added = tokenizer.added_tokens_decoder
        marker = None if self._calls is None else self._calls.special
        self._special = next((token for token, kind in added.items() if kind.content == marker), None)
        self._added = frozenset(added)
        silent = {*self._ends, *(token for token, kind in added.items() if kind.special)}
        self._silent = frozenset(silent - {self._special})
        self._bytes = _byte_alphabet() if '"ByteLevel"' in json.dumps(json.loads(core)["decoder"]) else {}

    def first(self, messages: Sequence[Message], tools: Sequence[Tool]) -> tuple[int, ...]:
        """Return a conversation up to where the answer begins. Raises EventError if the template refuses it."""
        if tools or any(message.tool_calls for message in messages):
            self._check_calls()
        return self._template.tokens(self._render(messages, tools))

    def extend(
        self,
        known: Sequence[int],
        finished: bool,
        before: Sequence[Message],
        new: Sequence[Message],
        tools: Sequence[Tool],
    ) -> tuple[int, ...] | str:
        """Return what comes behind `known`, or why the template does not leave that as it is.

        `before` is the conversation of `known`; its last message is the answer, which `finished` says is complete.
        """
        try:
            behind = self._behind_answer(before, new, tools)
            close = self._close(before[:-1], tools)
        except EventError as exc:
            return str(exc)
        end = known[-1] if finished else next(iter(self._ends), None)
        tokens = self._template.tokens(behind)
        if end is not None and (not tokens or tokens[0] not in self._added):  # as it would be behind the end of a turn
            tokens = self._template.tokens(self._ends[end] + behind)[1:]
        written = str(self._tokenizer.convert_ids_to_tokens(tokens[0])) if tokens else ""
        ends_twice = tokens and tokens[0] in self._added and (tokens[0] == end or close.startswith(written))
        return tokens[1:] if finished and ends_twice else tokens

    def parse(
        self, token_ids: Sequence[int], tools: Sequence[Tool], turn_id: str, stop: str | None = None
    ) -> tuple[Message, str | None]:
        """Return the answer in these tokens, before `stop`, and why a tool call in it cannot be read, if one cannot.

        Of a call's arguments it is only checked that they are a JSON object: the agent that offers a tool judges them.
        """
        text = self.text(token_ids).partition(stop)[0] if stop else self.text(token_ids)
        if not tools or self._calls is None:
            return Message(role="assistant", content=text), None
        return self._calls.read(text, turn_id)

    def grammar(self, form: AnswerForm, tools: Sequence[Tool]) -> str:
        """Return the grammar of an answer of this form. Raises EventError as `first` does for tools."""
        if form.tools:
            self._check_calls()
        return grammar_of(form, tools, self._calls, self._special)

    def plain(self, text: str) -> tuple[int, ...]:
        """Return the tokens of `text` alone."""
        return self._template.tokens(text)

    def text(self, token_ids: Sequence[int]) -> str:
        """Return the text of tokens, without those that stand for no text."""
        spoken = [token for token in token_ids if token not in self._silent]
        return str(self._tokenizer.decode(spoken, skip_special_tokens=False, clean_up_tokenization_spaces=False))

    def token_bytes(self, token: int) -> bytes:
        """Return what a token adds to the text; of a token that is part of a character, its bytes."""
        if token in self._silent:
            return b""
        name = str(self._tokenizer.convert_ids_to_tokens(token))
        if self._bytes:
            known = [self._bytes.get(character) for character in name]
            return name.encode() if None in known else bytes(byte for byte in known if byte is not None)
        if len(name) == 6 and name.startswith("<0x") and name.endswith(">"):
            return bytes.fromhex(name[3:5])
        return name.replace("▁", " ").encode()

    # --- what the template writes -------------------------------------------------------------------------------------

    def _render(self, messages: Sequence[Message], tools: Sequence[Tool], *, answer: bool = True) -> str:
        """Return a conversation as text. Raises EventError."""
        try:
            return self._template.render([self._as_written(each) for each in messages], tools, answer=answer)
        except Exception as exc:  # a template is a program, and a client chooses what it runs on
            what = f"the chat template refuses the messages: {exc}; check their roles, order and tool calls"
            raise EventError(what, reason="template_refuses") from exc

    def _behind_answer(self, before: Sequence[Message], new: Sequence[Message], tools: Sequence[Tool]) -> str:
        """Return the text behind the last message of `before`. Raises EventError if what is before it changes."""
        earlier, answer = before[:-1], before[-1]
        opened, whole = self._render(earlier, tools), self._render((*before, *new), tools)
        same = next((n for n, (a, b) in enumerate(zip(opened, whole, strict=False)) if a != b), len(opened))
        _check(whole.startswith(opened), f"it writes {whole[same : same + 20]!r} for {opened[same : same + 20]!r}")
        text_mark, call_mark = _unused(whole)
        marked = replace(answer, content=text_mark if answer.content.strip() or not answer.tool_calls else "")
        if answer.tool_calls:
            *calls, last = answer.tool_calls
            marked = replace(marked, tool_calls=(*calls, replace(last, arguments=f'{{"a": "{call_mark}"}}')))
        text = self._render((*earlier, marked, *new), tools)
        times = text.count(text_mark)
        _check(times == bool(marked.content), f"it writes the text of an answer {times} times")
        _check(not answer.tool_calls or call_mark in text, "it leaves out a tool call")
        behind = text.rpartition(call_mark if answer.tool_calls else text_mark)[2]
        if answer.tool_calls:
            behind = self._behind_call(behind, self._close(earlier, tools))
        room = len(whole) - len(opened) - len(behind)
        _check(room >= 0 and whole.endswith(behind), "it writes new messages by what the answer says")
        shown = "".join(whole[len(opened) : len(opened) + room].split())
        _check("".join(answer.content.split()) in shown, "it leaves out a part of the answer")
        return behind

    def _behind_call(self, text: str, close: str) -> str:
        """Return `text` from where a turn ends that ends with a tool call. Raises EventError."""
        places = [text.find(end) for end in (close, *self._ends.values()) if end.strip() and end in text]
        _check(bool(places), "it does not show where a tool call ends")
        return text[min(places) :]

    def _close(self, earlier: Sequence[Message], tools: Sequence[Tool]) -> str:
        """Return what the template writes behind the text of the last answer. Raises EventError."""
        mark, _ = _unused(self._render(earlier, tools))
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

    def _as_written(self, message: Message) -> Message:
        """Return the message with its ids as the template takes them."""
        if self._calls is None or not (message.tool_calls or message.tool_call_id):
            return message
        known, made = message.tool_call_id, message.tool_calls
        return replace(
            message,
            tool_call_id=None if known is None else self._calls.template_id(known),
            tool_calls=tuple(replace(call, id=self._calls.template_id(call.id)) for call in made),
        )

    def _writes(self, calls: ToolCallFormat) -> bool:
        """Return whether the template shows tools, and writes a call so that `calls` reads the same one."""
        asked, tool = Message(role="user", content="x"), Tool(name="probe_name")
        call = ToolCall(id="abcdefghi", name=tool.name, arguments='{"probe_key": "probe value"}')
        answer = Message(role="assistant", content="", tool_calls=(call,))
        try:
            opened = self._render((asked,), (tool,))
            text = self._render((asked, answer), (tool,), answer=False).removeprefix(opened)
        except EventError:
            return False
        for end in self._ends.values():
            text = text.partition(end)[0]
        read, malformed = calls.read(text, "")
        same = [(one.name, json.loads(one.arguments)) for one in read.tool_calls] == [
            (call.name, json.loads(call.arguments))
        ]
        return tool.name in opened and malformed is None and same


def _check(holds: bool, otherwise: str) -> None:
    if not holds:
        raise EventError(f"the chat template changes history: {otherwise}", reason="template_changes_history")


def _unused(text: str) -> tuple[str, str]:
    """Return two words, neither in `text` nor in the other."""

    def words() -> Iterator[str]:
        return (word for word in (f"mark{number}x" for number in count()) if word not in text)

    found = words()
    return next(found), next(found)


def _byte_alphabet() -> dict[str, int]:
    """Return the byte of each character by which byte-level tokenizers write bytes, as GPT-2 does."""
    printed = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printed]
    return {chr(byte): byte for byte in printed} | {chr(256 + n): byte for n, byte in enumerate(others)}
