"""Which recorded turn a model call continues: the forest that the calls of one trajectory form.

    messages as sent ──► digest of each prefix ──► the turn that ends there ──► extends, forks
                                             └─► none does ──► first, rewrites, auxiliary

The server asks before each call, and the fold asks again for every turn in the log, so both agree about a log that has
no other writer. A call extends a turn if its messages begin with all of that turn's, and with the reply, as the client
got it. Of tool calls the ids are not compared, since clients and proxies replace them, and the arguments are compared
as JSON; nor is the name that a client gives the assistant.

A root is a call that continues no turn. Its kind follows from its system prompt and its tools; the conversation has
those of the first root with tools, or else of the first root. A root with other ones and without tools is auxiliary (a
title, a summary); with tools it begins the chain of a sub-agent; and if it repeats replies of the trajectory, its
history was rewritten, whatever else changed. A rewriting root without tools may be a summary after all: the fold
decides that at the end (`Chains.is_aside`).

Not covered: whether a chain of the same system prompt and tools is a rewritten history or a sub-agent of the same kind;
both are `rewrites`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from hashlib import sha256
from itertools import pairwise
from typing import Literal, NamedTuple

from schemas.events import Continuity, Message, Tool, Turn
from schemas.tokens import TokenIds

SYSTEM_ROLES = ("system", "developer")
Role = Literal["conversation", "sub_agent", "auxiliary"]
NAMED = "the reply of turn {} has a name now"
"""Why a call does not continue a reply that its client named, where the template prints names."""
HANDED_OVER = "another agent took over: it has another system prompt and other tools, so its tokens begin anew"
"""Why a handoff rewrites: the history stays, but the tokens before it change."""


class Placement(NamedTuple):
    """How a call relates to the turns before it."""

    continuity: Continuity
    reason: str
    parent: Turn | None
    """The turn whose tokens its prompt begins with."""
    new: tuple[Message, ...]
    """Its messages after the parent's reply; all of them without a parent."""
    new_from: int = 0
    """Number of the parent's tokens in a prompt that was given as tokens."""


class Kind(NamedTuple):
    """Distinguishes one agent's calls from another's."""

    system: bytes
    """Digest of the system messages at the beginning."""
    tools: bytes
    """Digest of the tools; empty without any."""


@dataclass(slots=True, eq=False)
class PlacedTurn:
    """A recorded turn, with its place in the forest."""

    turn: Turn
    place: int
    """Its number in the order of the log."""
    parent: PlacedTurn | None
    kind: Kind
    prompt_end: bytes
    """Digest of every message of its prompt."""
    end: bytes
    """Digest of those and its reply."""
    body_end: bytes
    """Digest of those without the leading system messages."""
    length: int
    """Tokens of prompt and completion."""
    broken: str | None
    """Why its tokens cannot be trusted."""
    of_root: PlacedTurn | None = None
    """The first call of its chain, unless it is that."""
    rewrites: PlacedTurn | None = None
    """For a root, the newest turn with a reply that it repeats."""
    continuity: Continuity = "first"
    reason: str = ""
    children: list[PlacedTurn] = field(default_factory=list)
    replaced_by: int | None = None
    """Number of the first turn in which the client had replaced this turn's tool call by another."""

    @property
    def root(self) -> PlacedTurn:
        """The first call of its chain."""
        return self if self.of_root is None else self.of_root

    @property
    def continues_well(self) -> bool:
        """Whether a client can have received this answer."""
        return self.broken is None and self.turn.error is None and (self.turn.delivered or bool(self.children))


class Digests:
    """Digests by which a call's history is recognized: of its first 0, 1, … messages, and of the tools it offers. They
    are computed on demand, and not again for a beginning with a known digest.
    """

    def __init__(self, messages: Sequence[Message], offered: Sequence[Tool]) -> None:
        self.messages, self.offered = messages, offered
        self._begin, self._digest = 0, b""

    def begin_at(self, count: int, digest: bytes) -> None:
        """Take the digest of the first `count` messages as known; call it before any is read."""
        self._begin, self._digest = count, digest

    @cached_property
    def tools(self) -> bytes:
        """Digest of the tools."""
        return tools_digest(tuple(self.offered))

    @cached_property
    def prefixes(self) -> list[bytes]:
        """Digests of the first 0, 1, … messages."""
        known = prefixes(self.messages[: self._begin])
        return [*known[:-1], *self._rest]

    def longest_first(self) -> Iterator[tuple[int, bytes]]:
        """Yield the number of messages of each beginning, and its digest; the shortest has one message."""
        for count in range(len(self.messages), max(self._begin, 1) - 1, -1):
            yield count, self._rest[count - self._begin]
        for count in range(self._begin - 1, 0, -1):
            yield count, self.prefixes[count]

    def since(self, count: int) -> list[bytes]:
        """Return the digests of the beginnings of `count` messages and more."""
        return self._rest[count - self._begin :] if count >= self._begin else self.prefixes[count:]

    @cached_property
    def _rest(self) -> list[bytes]:
        """The known digest, and those after it."""
        return prefixes(self.messages[self._begin :], self._digest)


class CallHistory(NamedTuple):
    """Digests of the first 0, 1, … messages of a history."""

    digests: list[bytes]
    system: int
    """Number of leading system messages."""


class Chains:
    """The forest of one trajectory. Not thread-safe."""

    def __init__(self) -> None:
        self.turns: dict[str, PlacedTurn] = {}
        """Turns by turn_id, in the order of the log."""
        self._ends: dict[tuple[bytes, bytes], list[PlacedTurn]] = {}
        """Turns by tools and by the digest of their history with their reply."""
        self._token_ends: dict[int, dict[bytes, PlacedTurn]] = {}
        """Turns without messages by the number and the digest of their tokens."""
        self._prefixes: dict[bytes, PlacedTurn] = {}
        """The first turn that had these messages at its beginning."""
        self._prompts: dict[tuple[bytes, bytes], list[PlacedTurn]] = {}
        """Turns by tools and by the digest of their prompt."""
        self._bodies: dict[bytes, PlacedTurn] = {}
        """The newest turn by the digest of its history without the system messages."""
        self._roots: list[PlacedTurn] = []
        self._main: Kind | None = None
        """The kind of the conversation itself: that of the first root with tools, or of the first root."""
        self._roles: dict[PlacedTurn, Role] = {}
        """Cache for roots, valid until `_main` changes."""

    # --- asking ---------------------------------------------------------------------------------------------------

    def place(
        self,
        messages: Sequence[Message],
        tools: Sequence[Tool] = (),
        prompt: TokenIds | None = None,
        digests: Digests | None = None,
    ) -> Placement:
        """Return how a call with this whole history relates to earlier ones. `prompt`: the tokens, if no messages were
        sent."""
        if prompt is not None:
            return self._place_tokens(prompt)
        digests = digests or Digests(messages, tools)
        for count, digest in digests.longest_first():
            parent = _newest(self._ends.get((digests.tools, digest), ()))
            if parent is not None:
                new = tuple(messages[count:])
                return Placement(*_continuity_after(parent, new, digests.since(count)), parent.turn, new)
        history = CallHistory(digests.prefixes, _system_messages(messages))
        kind = Kind(history.digests[history.system], digests.tools)
        continuity, reason = self._place_root(kind, history, messages)[:2]
        return Placement(continuity, reason, None, tuple(messages))

    def recognize(self, digests: Digests) -> bool:
        """Give `digests` the digest of the beginning shared with the newest turn, and return whether they share one.
        Comparing messages takes a tenth of the time of digesting them.
        """
        count, digest = 0, b""
        for added, end in self._newest_history():
            sent = digests.messages[count : count + len(added)]
            if len(sent) < len(added) or not all(map(_is_same, added, sent)):
                break
            count, digest = count + len(added), end
        if count:
            digests.begin_at(count, digest)
        return count > 0

    def _newest_history(self) -> Iterator[tuple[Sequence[Message], bytes]]:
        """Yield the messages of the newest turn, part by part, each with the digest of all up to its end."""
        for node in self.path(next(reversed(self.turns), "")):
            if node.kind == _TOKENS:
                return
            yield node.turn.messages, node.prompt_end
            yield (node.turn.reply,), node.end

    def role(self, node: PlacedTurn) -> Role:
        """Return the agent of a turn's call, judged by the turns so far."""
        walked = [node.root]
        while (root := walked[-1]) not in self._roles:
            if root.kind != self._main and root.rewrites is not None:
                walked.append(root.rewrites.root)
                continue
            other: Role = "sub_agent" if root.kind.tools else "auxiliary"
            self._roles[root] = "conversation" if root.kind == self._main else other
        role = self._roles[root]
        self._roles.update(dict.fromkeys(walked, role))
        return role

    def is_aside(self, root: PlacedTurn) -> bool:
        """Return whether a call repeats a conversation with tools, offers none, and no call so far has its answer.
        Agents that ask for a summary or a title under their own system prompt do so.
        """
        offers_none = self._main is not None and bool(self._main.tools) and not root.kind.tools
        if root.parent is not None or root.rewrites is None or not offers_none:
            return False
        return not root.children and not any(_repeats(node, root) for node in self.turns.values())

    def tokens(self, turn_id: str) -> TokenIds:
        """Return all tokens of a turn, its whole prompt and its completion, as they were recorded."""
        return TokenIds(b"".join(part.data for node in self.path(turn_id) for part in _token_parts(node.turn)))

    def messages(self, turn_id: str) -> tuple[Message, ...]:
        """Return all messages of a turn, its reply included."""
        return tuple(m for node in self.path(turn_id) for m in (*node.turn.messages, node.turn.reply))

    def named_reply(self, turn_id: str, messages: Sequence[Message]) -> str | None:
        """Return the first reply up to a turn that has a name in a history that begins with it; None if none has."""
        place, reason = 0, None
        for node in self.path(turn_id):
            place += len(node.turn.messages) + 1
            reason = NAMED.format(node.turn.number) if messages[place - 1].name else reason
        return reason

    def path(self, turn_id: str) -> list[PlacedTurn]:
        """Return a turn and everything that it continues, the root first."""
        path, node = list[PlacedTurn](), self.turns.get(turn_id)
        while node is not None:
            path.append(node)
            node = node.parent
        return path[::-1]

    # --- recording ------------------------------------------------------------------------------------------------

    def add(self, turn: Turn) -> PlacedTurn:
        """Add the next turn of the log, and return its node. A known turn is not added again."""
        if (earlier := self.turns.get(turn.turn_id)) is not None:
            return earlier
        parent = None if turn.parent_id is None else self.turns.get(turn.parent_id)
        node = self._new_root(turn) if parent is None else _new_child(turn, len(self.turns), parent)
        self.turns[turn.turn_id] = node
        if node.broken is None and turn.error is None:
            self._index(node)
        return node

    def _new_root(self, turn: Turn) -> PlacedTurn:
        if turn.messages:
            history = CallHistory(prefixes(turn.messages), _system_messages(turn.messages))
            kind = Kind(history.digests[history.system], tools_digest(tuple(turn.tools)))
        else:
            history, kind = _history_of_tokens(turn.prompt_token_ids), _TOKENS
        continuity, reason, rewrites = self._place_root(kind, history, turn.messages)
        end = _next(history.digests[-1], turn.reply)
        node = PlacedTurn(
            turn=turn,
            place=len(self.turns),
            parent=None,
            kind=kind,
            prompt_end=history.digests[-1],
            end=end,
            body_end=_next(prefixes(turn.messages[history.system :])[-1], turn.reply),
            length=len(turn.prompt_token_ids) + len(turn.completion_token_ids),
            broken=_broken(turn, None),
            rewrites=rewrites,
            continuity=continuity,
            reason=reason,
        )
        if node.broken is None and turn.error is None:
            self._roots.append(node)
            if self._main is None or (kind.tools and not self._main.tools):
                self._main = kind
                self._roles.clear()
            for digest in (*history.digests[1:], end):
                self._prefixes.setdefault(digest, node)
        return node

    def _index(self, node: PlacedTurn) -> None:
        turn, digest = node.turn, node.prompt_end
        if node.parent is not None:
            node.parent.children.append(node)
            digest = node.parent.end
            for message in turn.messages:
                digest = _next(digest, message)
                self._prefixes.setdefault(digest, node)
            self._prefixes.setdefault(node.end, node)
        if node.kind == _TOKENS:
            ends = self._token_ends.setdefault(node.length, {})
            ends[sha256(self.tokens(turn.turn_id).data).digest()] = node
            return
        if any(message.role == "assistant" for message in turn.messages):
            self._note_replaced(node)
        self._prompts.setdefault((node.kind.tools, node.prompt_end), []).append(node)
        self._ends.setdefault((node.kind.tools, node.end), []).append(node)
        self._bodies[node.body_end] = node

    def _note_replaced(self, node: PlacedTurn) -> None:
        """Mark the turns that a new turn's messages replace by another tool call."""
        digest = b"" if node.parent is None else node.parent.end
        for message in node.turn.messages:
            alike = self._prompts.get((node.kind.tools, digest), ()) if message.role == "assistant" else ()
            if not any(_is_same(other.turn.reply, message) for other in alike):  # one of several answers to one call
                for other in alike:
                    if other.replaced_by is None and _is_replaced(other.turn.reply, message):
                        other.replaced_by = node.turn.number
            digest = _next(digest, message)

    # --- what a call is -------------------------------------------------------------------------------------------

    def _place_tokens(self, prompt: TokenIds) -> Placement:
        hashed, begin, parent = sha256(), 0, None
        for length in sorted(length for length in self._token_ends if length <= len(prompt)):
            hashed.update(prompt.data[begin * prompt.BYTES : length * prompt.BYTES])
            begin = length
            parent = self._token_ends[length].get(hashed.digest(), parent)
        if parent is None:
            continuity, reason = self._place_root(_TOKENS, _history_of_tokens(prompt), ())[:2]
            return Placement(continuity, reason, None, ())
        return Placement(*_continuity_after(parent, (), [parent.end]), parent.turn, (), parent.length)

    def _place_root(
        self, kind: Kind, history: CallHistory, messages: Sequence[Message]
    ) -> tuple[Continuity, str, PlacedTurn | None]:
        """Return the kind of a call without a parent, the reason, and the newest turn with a reply that it repeats."""
        if self._main is None:
            return "first", "the first call of its trajectory", None
        shared = max(count for count, digest in enumerate(history.digests) if count == 0 or digest in self._prefixes)
        like = self._prefixes.get(history.digests[shared]) if shared else None
        body = prefixes(messages[history.system :])
        repeats = next((self._bodies[digest] for digest in reversed(body) if digest in self._bodies), None)
        if like is not None and like.kind == kind and like.parent is None:
            if like.prompt_end == history.digests[-1]:
                return "forks", f"its prompt is that of turn {like.turn.number}", like
            if like.prompt_end == history.digests[shared] and messages[shared].role == "assistant":
                return "forks", f"the reply of turn {like.turn.number} was changed", like
        if kind == self._main or repeats is not None:
            return "rewrites", self._what_changed(kind, history, shared, messages), repeats
        if kind.tools:
            if not self._main.tools:
                return "first", "the first call with tools", None
            return "first", "another system prompt or other tools: the chain of a sub-agent", None
        return "auxiliary", "another system prompt, and no tools", None

    def _what_changed(self, kind: Kind, history: CallHistory, shared: int, messages: Sequence[Message]) -> str:
        like = self._prefixes.get(history.digests[shared]) if shared else None
        if kind == _TOKENS:
            return "a prompt of tokens that continues none before"
        other_system = shared < history.system or (like is None and history.system > 0)
        if all(root.kind.tools != kind.tools for root in self._roots):
            return HANDED_OVER if other_system and kind.tools else "it offers other tools"
        if other_system:
            return "it has another system prompt"
        named = (n for n in range(shared, 0, -1) if messages[n - 1].role == "assistant" and messages[n - 1].name)
        if (known := next(named, None)) is not None:
            return NAMED.format(self._prefixes[history.digests[known]].turn.number)
        if shared == len(messages):
            return "its messages are known, and its tokens begin anew"
        return f"message {shared} of {len(messages)} is in no history before"


def prefixes(messages: Sequence[Message], before: bytes = b"") -> list[bytes]:
    """Return the digests of the first 0, 1, … messages, which follow those with the digest `before`."""
    digests = [before]
    for message in messages:
        digests.append(_next(digests[-1], message))
    return digests


def exchanges(messages: Sequence[Message]) -> Iterator[bytes]:
    """Yield a digest of each answer of the model with the message before it, ignoring spaces around their texts."""
    for before, reply in pairwise(messages):
        if reply.role == "assistant" and before.role not in SYSTEM_ROLES:
            trimmed = [replace(message, content=message.content.strip()) for message in (before, reply)]
            yield prefixes(trimmed)[-1]


def _system_messages(messages: Sequence[Message]) -> int:
    """Return the number of leading system messages."""
    return next((n for n, message in enumerate(messages) if message.role not in SYSTEM_ROLES), len(messages))


def opening(messages: Sequence[Message]) -> bytes:
    """Return the digest of the messages before the model's first answer."""
    answers = (n for n, message in enumerate(messages) if message.role == "assistant")
    return prefixes(messages[: next(answers, len(messages))])[-1]


def _is_same(recorded: Message, sent: Message) -> bool:
    """Return whether two messages have the same digest in the same place."""
    if recorded == sent:
        return True
    if (recorded.role, _name_of(recorded), recorded.content) != (sent.role, _name_of(sent), sent.content):
        return False
    return _calls_of(recorded) == _calls_of(sent)


def _name_of(message: Message) -> str:
    """Return the name that tells one sender from another. A client may name the assistant, but its reply has no
    name."""
    return "" if message.role == "assistant" else message.name or ""


def _calls_of(message: Message) -> list[tuple[str, str]]:
    return [(call.name, _canonical(call.arguments)) for call in message.tool_calls]


def _is_replaced(reply: Message, sent: Message) -> bool:
    """Return whether a client replaced a reply by its own call, rather than sending the reply in another form.

    Clients write calls as text, and read them from text: then the tools' names are in both.
    """
    if reply.tool_calls and sent.tool_calls:
        return _calls_of(reply) != _calls_of(sent)
    called, text = (reply, sent.content) if reply.tool_calls else (sent, reply.content)
    return any(call.name not in text for call in called.tool_calls)


@lru_cache(64)
def conversation_digest(digests: Digests) -> str:
    """Return the SHA-256 of a call's messages and tools, in hexadecimal, as `ForkPoint.messages_digest` has it."""
    return sha256(digests.prefixes[-1] + digests.tools).hexdigest()


def tools_digest(tools: tuple[Tool, ...]) -> bytes:
    """Return a digest of the tools; empty without any. Agents offer the same tools with each call."""
    fields = [(tool.name, tool.description, _canonical(tool.parameters)) for tool in tools]
    return sha256(repr(fields).encode()).digest() if fields else b""


def _next(before: bytes, message: Message) -> bytes:
    """Return the digest of a history and one more message."""
    fields = [message.role, _name_of(message)]
    for call in _calls_of(message):
        fields += call
    fields.append(message.content)
    lengths = ",".join([str(len(part)) for part in fields])  # not its repr: that of a long text costs more than this
    parts = [part.encode(errors="surrogatepass") for part in fields]
    return sha256(b"".join([before, lengths.encode(), *parts])).digest()


def _canonical(text: str) -> str:
    """Return JSON in a normal form, independent of spaces, key order and 1.0 for 1. Other text is unchanged."""
    try:
        return json.dumps(json.loads(text, parse_float=_number), sort_keys=True)
    except (ValueError, RecursionError):
        return text


def _number(text: str) -> float:
    """Return an integer for a float without a fraction: JavaScript writes 1.0 as 1."""
    value = float(text)
    return int(value) if value.is_integer() else value


_TOKENS = Kind(b"tokens", b"")
"""Tools digest of calls without messages, which have a prompt of tokens."""


def _history_of_tokens(prompt: TokenIds) -> CallHistory:
    """Return the digests of a prompt that was given as tokens: the whole prompt is its only beginning."""
    return CallHistory([b"", sha256(prompt.data).digest()], 0)


def _newest(candidates: Iterable[PlacedTurn]) -> PlacedTurn | None:
    """Return which of several turns with the same history and reply a client continues: the newest that it received."""
    return max(candidates, key=lambda node: (node.turn.delivered, node.place), default=None)


def _token_parts(turn: Turn) -> tuple[TokenIds, TokenIds]:
    return turn.prompt_token_ids, turn.completion_token_ids


def _continuity_after(parent: PlacedTurn, new: Sequence[Message], digests: Sequence[bytes]) -> tuple[Continuity, str]:
    """Return how the next call after a turn relates to it. `digests`: of the history before each new message, and of
    all."""
    siblings = [child for child in parent.children if child.continues_well]
    for other in siblings:
        if other.prompt_end == digests[-1]:
            return "forks", f"its prompt is that of turn {other.turn.number}"
        if any(digest == other.prompt_end and m.role == "assistant" for digest, m in zip(digests, new, strict=False)):
            return "forks", f"the reply of turn {other.turn.number} was changed"
    if siblings:
        return "forks", f"turn {parent.turn.number} was already continued by turn {siblings[0].turn.number}"
    return "extends", f"it continues turn {parent.turn.number}"


def _new_child(turn: Turn, place: int, parent: PlacedTurn) -> PlacedTurn:
    digests, body = [parent.end], parent.body_end
    for message in turn.messages:
        digests.append(_next(digests[-1], message))
        body = _next(body, message)
    continuity, reason = _continuity_after(parent, turn.messages, digests)
    return PlacedTurn(
        turn=turn,
        place=place,
        parent=parent,
        of_root=parent.root,
        kind=parent.kind,
        prompt_end=digests[-1],
        end=_next(digests[-1], turn.reply),
        body_end=_next(body, turn.reply),
        length=parent.length + len(turn.prompt_token_ids) + len(turn.completion_token_ids),
        broken=_broken(turn, parent),
        continuity=continuity,
        reason=reason,
    )


def _repeats(node: PlacedTurn, root: PlacedTurn) -> bool:
    """Return whether the history of a turn has the answer of a root."""
    if node.parent is None:
        return node.rewrites is root
    digest = node.parent.end
    for message in node.turn.messages:
        digest = _next(digest, message)
        if digest == root.end:
            return True
    return False


def _broken(turn: Turn, parent: PlacedTurn | None) -> str | None:
    """Return why the tokens with which a turn claims to begin are not its parent's, or None."""
    if parent is None and turn.parent_id is not None:
        return f"its parent {turn.parent_id} is not in the log before it"
    before = 0 if parent is None else parent.length
    if turn.prompt_tokens != before + len(turn.prompt_token_ids):
        return f"its prompt had {turn.prompt_tokens} tokens, and the log has {before + len(turn.prompt_token_ids)}"
    if parent is None:
        return None
    if parent.broken is not None:
        return f"turn {parent.turn.number}, which it continues, is broken"
    if parent.turn.error is not None:
        return f"turn {parent.turn.number}, which it continues, has no answer"
    for name in ("tokenizer_digest", "template_digest"):
        if getattr(turn, name) != getattr(parent.turn, name):
            return f"its {name} is not that of turn {parent.turn.number}, which it continues"
    return None
