"""A model call and its answer, independent of any protocol.

    chat, completions, responses, messages, threads, memory
        ──► ModelCall ──► recorder ──► CallInProgress ──► Begun, Delta, Done

Each protocol of `gateway/` translates its requests into a `ModelCall` and these pieces into its answers; the recorder
does the rest. One call has one `Begun`, any number of `Delta`, and one `Done` for each choice. A `Done` comes only
after its turn is acknowledged by the broker.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from schemas.events import Message, Observed, PromptUse, Sampling, Tool
from streams.engines.rendering.answer_form import AnswerForm
from streams.errors import CallError
from streams.stages.agents.trajectories.call_chains import Digests

NO_HISTORY = Digests((), ())

AnswerFinish = Literal["stop", "length", "tool_calls", "content_filter"]
CallProtocol = Literal["chat", "completions", "responses", "messages", "threads", "memory"]


@dataclass(frozen=True, kw_only=True)
class ModelCall:
    """One request for an answer of the policy."""

    agent_id: str
    subject: str | None = None
    """The person whose words it has; None: nothing is sealed."""
    trajectory_id: str | None = None
    """The trajectory it belongs to; None: the recorder finds the one it continues, or starts a new one."""
    model: str
    """`POLICY`, or `POLICY@7` for one version."""
    protocol: CallProtocol
    messages: tuple[Message, ...] = ()
    """The whole history, as sent."""
    prompt: str | tuple[int, ...] | None = None
    """Text or token ids to continue; then there are no messages."""
    special_tokens: bool = True
    """Whether the tokenizer adds special tokens around text; token ids go to the model unchanged."""
    tools: tuple[Tool, ...] = ()
    tool_choice: Literal["auto", "none"] = "auto"
    """none: text that looks like a tool call stays text."""
    form: AnswerForm | None = None
    """The form that the answer is forced into; None: it is sampled freely."""
    form_parameter: str | None = None
    """The parameter that asked for `form`."""
    one_call: str | None = None
    """The parameter that allows at most one tool call, if the answer is sampled freely; None: any number."""
    sampling: Sampling
    count: int = 1
    """Number of answers."""
    with_logprobs: bool = False
    """Whether the answer names the logprob of each token."""
    request_digest: str
    """SHA-256 of the body in canonical form: sorted keys, no spaces."""
    retry_key: str | None = None
    """The key that the client repeats with each attempt at the same call; `request_digest` in a retry without a key."""
    observed: Observed | None = None
    """What its environment showed before this call."""
    prompt_version: PromptUse | None = None
    """The prompt that its messages begin with."""
    failed_tools: tuple[str, ...] = ()
    """The ids of the calls whose results were sent as failed."""
    ignored: tuple[str, ...] = ()
    """Parameters that were sent and change no answer."""
    thread: str | None = None
    """The thread of which it is a run."""
    cache_control: str | None = None
    """The request's header Cache-Control."""
    limit_s: float | None = None
    """How long its client waits for the answer, seconds; None: not sent."""

    digests: Digests = field(default=NO_HISTORY, repr=False, compare=False)
    """Keys by which its history is recognized."""

    def __post_init__(self) -> None:
        if self.digests.messages is not self.messages or self.digests.offered is not self.tools:
            object.__setattr__(self, "digests", Digests(self.messages, self.tools))


class Token(NamedTuple):
    """A token that was sampled, or could have been."""

    id: int
    text: str
    """Its text; the bytes of a broken character are U+FFFD here."""
    bytes: bytes
    logprob: float
    """Nats, under the distribution it was drawn from."""


class PromptScores(NamedTuple):
    """Logprobs of the tokens of a text under a version."""

    model: str
    """`POLICY@7`: the version that scored it, whatever the call named."""
    fingerprint: str
    """As that of `Begun`."""
    tokens: tuple[Token, ...]
    """Tokens of the text. The logprob of the first is NaN: nothing comes before it."""
    likeliest: tuple[tuple[Token, ...], ...]
    """The likeliest tokens, in order, at each place except the first, and at the one after the text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Begun:
    """The call has a version and a prompt."""

    turn_id: str
    """Id of the first choice's turn; the answer's id in every protocol."""
    trajectory_id: str
    model: str
    """`POLICY@7`: the version that answers, whatever the call named."""
    version: int
    fingerprint: str
    """Changes when the same seed may give another answer: base model and version."""
    prompt_tokens: int
    cached_tokens: int = 0
    """Number of prompt tokens that the log already has, from the turn before."""
    ignored: tuple[str, ...] = ()
    """Parameters that were sent and change no answer, and those that the task of its run overrides."""
    origin: Mapping[str, str] = field(default_factory=dict)
    """`AnswerOrigin.notes`: where the answer is from, if not from the version and the engine that were asked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Delta:
    """Text of one choice, as it is sampled. It never holds the markup of a tool call."""

    choice: int = 0
    text: str
    tokens: tuple[Token, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """A choice is complete, and in the log."""

    choice: int = 0
    message: Message
    """The whole answer, with its tool calls."""
    finish_reason: AnswerFinish
    """content_filter: a guard withheld the rest."""
    tokens: tuple[Token, ...] = ()
    """Every token that was sampled, the one that ended the turn included."""
    stop: str | None = None
    """The stop text that ended it, if one did."""
    turn_id: str

    @property
    def token_ids(self) -> tuple[int, ...]:
        """The ids of `tokens`."""
        return tuple(token.id for token in self.tokens)


Piece = Begun | Delta | Done


class CallInProgress:
    """A call while it is answered: its pieces as they come, for any number of readers in one event loop. A retry made
    while the first attempt is in progress reads the same pieces, from the first. When the last reader has left,
    `abandon` is called, once.
    """

    def __init__(self, abandon: Callable[[], None]) -> None:
        self._pieces: list[Piece] = []
        self._readers = 0
        self._abandon = abandon
        self._news = asyncio.Event()
        self._error: CallError | None = None
        self.done = False
        self.abandoned = False

    def publish(self, piece: Piece) -> None:
        """Give a piece to every reader."""
        self._pieces.append(piece)
        self._wake()

    def finish(self, error: CallError | None = None) -> None:
        """End the answer; with `error` every reader raises it after the last piece."""
        self.done, self._error = True, error
        self._wake()

    def cancel(self) -> None:
        """End the answer where it is: its run is over, or its last reader has left."""
        if not self.done and not self.abandoned:
            self.abandoned = True
            self._abandon()

    async def pieces(self) -> AsyncGenerator[Piece, None]:
        """Yield every piece, from the first. Raises CallError."""
        self._readers += 1
        count = 0
        try:
            while True:
                news = self._news
                while count < len(self._pieces):
                    count += 1
                    yield self._pieces[count - 1]
                if self.done and count == len(self._pieces):
                    break
                await news.wait()
            if self._error is not None:
                raise self._error
        finally:
            self._readers -= 1
            if self._readers == 0:
                self.cancel()

    def _wake(self) -> None:
        news, self._news = self._news, asyncio.Event()
        news.set()


class ServedModel(NamedTuple):
    """A model name that a call may request."""

    name: str
    version: int
    created_at: int
    """Milliseconds since the epoch."""
    status: str
