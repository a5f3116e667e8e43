"""A model's own chat template and tokenizer: the one place where messages become text, and text tokens.

The contents of messages are data: the name of a control token in them stays text. Stand-ins (stand_ins.py) show which
characters of a rendered conversation come from messages; control_tokens.py makes tokens of it. A conversation is
refused if the template leaves out a tool, a call or its result (left_out.py).

Not covered: the prompt of a completion (/v1/completions). It is not a conversation, but a text with all its tokens and
those that the tokenizer adds.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any, NamedTuple

from schemas import json_text
from schemas.events import Message, Tool
from streams.engines.rendering.control_tokens import ANSWER, MESSAGE, ControlTokens, RenderedText, any_of
from streams.engines.rendering.left_out import check_all_written
from streams.engines.rendering.stand_ins import StandIns, sources_of


class ChatTemplate:
    """Renders messages, and tokenizes the result."""

    def __init__(self, tokenizer: Any) -> None:
        """`tokenizer` is one of transformers, with a chat template."""
        self.tokenizer = tokenizer
        self._control = ControlTokens(tokenizer)
        self._names = {source: self._control.names(source) for source in (MESSAGE, ANSWER)}
        edges = any_of(name.strip()[place] for name in self._names[MESSAGE] for place in (0, -1))
        self._edges = StandIns({MESSAGE: edges, ANSWER: edges}, "\n".join(self._names[MESSAGE]))

    def render(self, messages: Sequence[Message], tools: Sequence[Tool] = (), *, answer: bool = True) -> str:
        """Return the conversation as text; `answer`: up to the beginning of the next answer. Raises the template's
        errors, and ValueError for tool calls or tools that are not JSON.
        """
        return self._text(_Chat.of(messages, tools, answer))

    def render_with_sources(
        self, messages: Sequence[Message], tools: Sequence[Tool] = (), *, answer: bool = True
    ) -> RenderedText:
        """Return the conversation with the sources of its text.

        Raises as `render`, and EventError (tools_unsupported) if the template leaves out a tool, a call or its result.

        First every possible beginning or end of a name has stand-ins, so that a name is found even if a template joins
        its parts. Templates that search a message for <think> or similar then write something else: for them only whole
        names have stand-ins. Raises ValueError if a template searches for those, too.
        """
        chat = _Chat.of(messages, tools, answer)
        text = self._text(chat)
        check_all_written(
            text, chat.messages, chat.tools, lambda messages, tools: self._text(_Chat(messages, tools, chat.answer))
        )
        with_edges = chat.with_stand_ins(self._edges)
        if with_edges == chat:
            return RenderedText(text, bytes(len(text)))
        sources = self._sources(text, with_edges)
        if sources is None:
            sources = self._sources(
                text, chat.with_stand_ins(_stand_ins_for(self._names[MESSAGE], self._names[ANSWER]))
            )
        if sources is None:  # reasoning that a template removes from an answer stays where it looks for it
            written = [name for name in self._names[ANSWER] if name in text]
            of_answers = [name for name in written if self._is_separable(text, chat, (), (name,))]
            sources = self._sources(text, chat.with_stand_ins(_stand_ins_for(self._names[MESSAGE], of_answers)))
        if sources is None:
            written = [name for name in self._names[MESSAGE] if name in text]
            names = [name for name in written if not self._is_separable(text, chat, (name,), ())]
            raise ValueError(
                f"it looks for {', '.join(sorted(names)) or 'a control token'} in the content of messages, so "
                "that this cannot be distinguished from its own text; leave it out of the messages"
            )
        return RenderedText(text, sources)

    def ids(self, messages: Sequence[Message], tools: Sequence[Tool] = (), *, answer: bool = True) -> tuple[int, ...]:
        """Return the tokens of a conversation. Raises as `render_with_sources`."""
        return self.tokens(*self.render_with_sources(messages, tools, answer=answer))

    def tokens(self, text: str, sources: bytes = b"") -> tuple[int, ...]:
        """Return the tokens of `text`, none added; without `sources` each name of a control token is one."""
        return self._control.tokens(text, sources)

    @cached_property
    def end(self) -> int | None:
        """The control token that the template writes after an answer, or None. Some write one only if another message
        follows.
        """
        question, answer = Message(role="user", content="a question"), Message(role="assistant", content="an answer")
        for conversation in ([question, answer], [question, answer, question]):
            try:
                text = self.render(conversation, answer=False)
            except Exception:  # noqa: S112 - a template is a program, and may refuse a conversation that has ended
                continue
            _, is_written, after = text.rpartition(answer.content)
            end = self._control.first_in(after.lstrip()) if is_written else None
            if end is not None:
                return end
        return None

    @cached_property
    def own_tokens(self) -> frozenset[int]:
        """Control tokens that the template writes around a question."""
        try:
            tokens = self.tokens(self.render([Message(role="user", content="a question")]))
        except Exception:  # a template is a program, and may need more than a question
            return frozenset()
        return frozenset(filter(self._control.has, tokens))

    @cached_property
    def inseparable(self) -> tuple[str, ...]:
        """Names that a user cannot write, since the template looks for them in messages."""

        def is_refused(*names: str) -> bool:
            try:
                self.render_with_sources([Message(role="user", content="x".join(("", *names, "")))])
            except ValueError:
                return True
            except Exception:  # a template is a program: it may raise anything, and does so without names, too
                return False
            return False

        names = sorted(self._names[MESSAGE])
        return tuple(name for name in names if is_refused(name)) if is_refused(*names) else ()

    def _text(self, chat: _Chat) -> str:
        text = self.tokenizer.apply_chat_template(
            chat.messages, tools=chat.tools or None, add_generation_prompt=chat.answer, tokenize=False
        )
        return str(text)

    def _sources(self, text: str, with_stand_ins: _Chat) -> bytes | None:
        """Return the sources of `text`; None if the template writes something else with these stand-ins."""
        try:
            return sources_of(text, self._text(with_stand_ins))
        except Exception:  # a template is a program, and may refuse what it does not know
            return None

    def _is_separable(self, text: str, chat: _Chat, names: Iterable[str], answer_names: Iterable[str]) -> bool:
        return self._sources(text, chat.with_stand_ins(_stand_ins_for(names, answer_names))) is not None


class _Chat(NamedTuple):
    """A conversation in the form for chat templates."""

    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]]
    answer: bool

    @classmethod
    def of(cls, messages: Sequence[Message], tools: Sequence[Tool], answer: bool) -> _Chat:
        """Raises ValueError as `ChatTemplate.render`."""
        return cls([_as_dictionary(message) for message in messages], [_as_function(tool) for tool in tools], answer)

    def with_stand_ins(self, stand_ins: StandIns) -> _Chat:
        """Return it with stand-ins for the content of messages and tools."""
        messages = [stand_ins.message(fields) for fields in self.messages]
        return _Chat(messages, [stand_ins.value(tool) for tool in self.tools], self.answer)


def _stand_ins_for(names: Iterable[str], answer_names: Iterable[str]) -> StandIns:
    """Return stand-ins for whole names."""
    return StandIns({MESSAGE: any_of(names), ANSWER: any_of(answer_names)})


def _as_function(tool: Tool) -> dict[str, Any]:
    """Return the tool as chat templates expect it. Raises ValueError if its parameters are not JSON."""
    function = {"name": tool.name, "description": tool.description, "parameters": json_text.parse(tool.parameters)}
    return {"type": "function", "function": function}


def _as_dictionary(message: Message) -> dict[str, Any]:
    """Return the message as chat templates expect it, without absent fields. Raises ValueError as `_as_function`."""
    fields: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.name is not None:
        fields["name"] = message.name
    if message.tool_call_id is not None:
        fields["tool_call_id"] = message.tool_call_id
    if message.tool_calls:
        fields["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": json_text.parse(call.arguments)},
            }
            for call in message.tool_calls
        ]
    return fields
