"""A guard of calls and answers, which a plugin declares: what it refuses, withholds, or tells the model.

    ModelCall ──► admit: refused, or the call with what the model is told ──► engine
    text as it is sampled ──► release: what may leave, words replaced ──► Delta …
                                └── withheld: the answer ends here, and its turn says by which rule
    events of both ──► written before the turn

Every protocol passes here, since the recorder answers the calls of all. Without a guard nothing is looked at.

Not covered: policy agents, which answer tasks without calls (streams/engines/task_guard.py); and texts that are only
scored (`echo`) or counted.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

from schemas.events import Event, Message
from streams.engines.rendering.rendering import Rendering
from streams.errors import CallError
from streams.observability.metrics import Meter
from streams.plugins.installed import load_only
from streams.settings.model import Settings
from streams.stages.agents.recording.calls import ModelCall, Token


class CallAdmission(NamedTuple):
    """The decision of a guard about a call."""

    call: ModelCall
    """As it is answered."""
    events: Sequence[Event] = ()
    refusal: CallError | None = None


class GuardedTurn(NamedTuple):
    """The turn that an answer becomes."""

    turn_id: str
    trajectory_id: str
    task_id: str | None
    policy: str
    is_learned_from: bool
    """Whether it is of a run that something is learned from: nothing may change it."""


class ReleasedText(NamedTuple):
    """The part of an answer that may leave so far."""

    text: str
    """As the client gets it; it begins with what was released before."""
    unchanged: int
    """Characters at its beginning that are what was sampled: the tokens of what follows never leave."""


class AnswerVerdict(NamedTuple):
    """The decision of a guard about a whole answer."""

    reply: Message
    """As the client gets it; its text begins with what was released before."""
    unchanged: int
    """As that of ReleasedText."""
    events: Sequence[Event] = ()


class AnswerGuard:
    """Looks at one answer."""

    withheld: str | None = None
    """The rule by which the rest of it is withheld; None: nothing is."""
    redacted: str | None = None
    """The first rule by which words of it are replaced; None: none are."""

    def release(self, text: str) -> ReleasedText:
        """Return what may leave of the text so far. Sets `withheld` and `redacted`."""
        raise NotImplementedError

    async def finish(self, reply: Message) -> AnswerVerdict:
        """Return the decision about a whole answer, tool calls included. Sets `withheld`, which withholds them, too,
        and `redacted`."""
        raise NotImplementedError

    @property
    def has_changed(self) -> bool:
        """Whether the answer is not given as it was sampled."""
        return self.withheld is not None or self.redacted is not None


class CallGuard:
    """Looks at the calls of a server, in its event loop."""

    async def admit(self, call: ModelCall, prompt: str | None, *, is_learned_from: bool) -> CallAdmission:
        """Return the decision about a call; `prompt`: the text that is continued, None for messages."""
        raise NotImplementedError

    def answer_guard(self, call: ModelCall, turn: GuardedTurn) -> AnswerGuard | None:
        """Return what looks at an answer; None: nothing does."""
        raise NotImplementedError

    def close(self) -> None:
        """Release everything it holds."""


GuardBuilder = Callable[[Settings, Meter], CallGuard | None]
"""Builds a guard, which counts what it finds; None: the settings ask for none."""


def build_guard(settings: Settings, meter: Meter) -> CallGuard | None:
    """Return the guard of the plugins, of which one at most has one. Raises SettingsError."""
    build: GuardBuilder | None = load_only(lambda plugin: plugin.guard, "guard calls")
    return None if build is None else build(settings, meter)


def prompt_text(call: ModelCall, rendering: Rendering) -> str | None:
    """Return the text that a call continues; None if it has messages."""
    return rendering.text(call.prompt) if isinstance(call.prompt, tuple) else call.prompt


class HeldAnswer:
    """Text of an answer, and its tokens, until a guard releases them."""

    def __init__(self, guard: AnswerGuard) -> None:
        self.guard = guard
        self._text, self._sent = "", 0
        self._unsent: deque[tuple[int, Token]] = deque()
        """Tokens, each with the length of the text that ends with it."""
        self._ends: list[int] = []

    def push(self, text: str, decoded: int, tokens: Sequence[Token]) -> tuple[str, list[Token]]:
        """Return the text and tokens that may leave, after further ones; `decoded`: length of all text so far."""
        self._text += text
        self._ends += [decoded] * len(tokens)
        self._unsent += ((decoded, token) for token in tokens)
        return self._leave(self.guard.release(self._text))

    def rest(self, whole: str) -> tuple[str, list[Token]]:
        """Return what has not left of an answer whose text is `whole`, after its end was decided."""
        text, tokens = self._leave(ReleasedText(whole, len(whole)))
        return text, tokens + [token for _, token in self._unsent]

    def cut(self, unchanged: int) -> int:
        """Return how many tokens leave of an answer of which so many characters are as they were sampled."""
        count = sum(end <= unchanged for end in self._ends)
        sent = len(self._ends) - len(self._unsent)
        self._unsent = deque(list(self._unsent)[: max(0, count - sent)])
        return max(count, sent)

    def _leave(self, released: ReleasedText) -> tuple[str, list[Token]]:
        start, self._sent = self._sent, max(self._sent, len(released.text))
        tokens = list[Token]()
        while self._unsent and self._unsent[0][0] <= released.unchanged:
            tokens.append(self._unsent.popleft()[1])
        return released.text[start : self._sent], tokens
