"""Answer generations by the script, a token a step, without weights: thousands of calls a second.

    prompt tokens = bytes ──► the script's replies, else an echo ──► bytes, END_OF_TURN ──► streams, in turn

Thread, admission and cancelling are the same as with a model, so this measures and tests everything around one. A
constraint applies here, too: the allowed part of the script's reply, and then the tokens that end it soonest.
"""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal

from schemas.events import Message, Tool
from streams.engines.constraint import AllowedTokens, Constraint, ConstraintCompiler
from streams.engines.decoding_loop import DecodingLoop
from streams.engines.protocol import EngineCounts, TextScores, check_folder, check_generation
from streams.engines.rendering.answer_form import AnswerForm, grammar_of
from streams.engines.rendering.token_table import TokenTable
from streams.engines.scripted.scripted_engine import (
    CALLS,
    END_OF_TURN,
    Script,
    ScriptedEngine,
    lines_of,
    logprob,
    read_script,
    spell,
)
from streams.engines.token_stream import Generation, TokenStream
from streams.errors import EventError
from streams.settings.model import Settings

LONGEST_NAP_S = 0.001
"""How often new and cancelled rows are checked while every row waits for its latency."""


class ScriptedRendering:
    """Messages to tokens and back; a token is a byte, or END_OF_TURN."""

    template_digest = sha256(b"role: content, a line each").hexdigest()
    tokenizer_digest = ScriptedEngine.tokenizer_digest
    markers: tuple[str, ...] = CALLS.markers
    call_end: str | None = CALLS.end
    longest_token = 1

    def first(self, messages: Sequence[Message], tools: Sequence[Tool]) -> tuple[int, ...]:
        """Return the tokens of a conversation, up to the beginning of the answer."""
        offered = f"tools: {json.dumps([asdict(tool) for tool in tools])}\n" if tools else ""
        return self.plain(offered + lines_of(messages) + "assistant: ")

    def extend(
        self,
        recorded: Sequence[int],
        finished: bool,
        before: Sequence[Message],
        new: Sequence[Message],
        tools: Sequence[Tool],
    ) -> tuple[int, ...] | str:
        """Return the tokens after an answer; `finished`: it has its END_OF_TURN."""
        return (*(() if finished else (END_OF_TURN,)), *self.plain(f"\n{lines_of(new)}assistant: "))

    def parse(
        self, token_ids: Sequence[int], tools: Sequence[Tool], turn_id: str, stop: str | None = None
    ) -> tuple[Message, str | None]:
        """Return the answer before `stop`, and why a tool call in it cannot be read."""
        text = self.text(token_ids)
        if not tools:
            return Message(role="assistant", content=text.partition(stop)[0] if stop else text), None
        return CALLS.read_until(text, stop or None, turn_id)

    def grammar(self, form: AnswerForm, tools: Sequence[Tool]) -> str:
        """Return the grammar of an answer of this form."""
        return grammar_of(form, tools, CALLS, None)

    def plain(self, text: str, special_tokens: bool = False) -> tuple[int, ...]:
        """Return the tokens of only `text`: none are added around it."""
        return tuple(text.encode())

    def text(self, token_ids: Sequence[int]) -> str:
        """Return the text of tokens, without END_OF_TURN."""
        return b"".join(map(self.token_bytes, token_ids)).decode(errors="replace")

    def token_bytes(self, token: int) -> bytes:
        """Return a token's text."""
        return b"" if token == END_OF_TURN else bytes((token,))


@dataclass(slots=True)
class ScriptedRow:
    """A stream and its coming answer."""

    stream: TokenStream
    next_at: float  # monotonic seconds
    token_s: float  # from a token to the next
    tokens: Iterator[tuple[int, int]]  # number, token
    ending: Literal["stop", "length"]
    stop: str | None


class ScriptedTokenEngine:
    """A `TokenEngine` that serves a `Script`."""

    name = ScriptedEngine.name
    base_digest, tokenizer_digest = ScriptedEngine.base_digest, ScriptedEngine.tokenizer_digest
    token_table = TokenTable.of_ids(END_OF_TURN + 1, {END_OF_TURN})

    def __init__(self, script: str = "{}") -> None:
        """Take the script as a JSON object, and start the thread. Raises SettingsError as `ScriptedEngine` does."""
        self.script = read_script(script)
        self.context_tokens = self.script.context_tokens
        self._versions = {0}
        self._decoder = ScriptedDecoder(self.script)
        self._loop = DecodingLoop(self._decoder)
        self._constraints = ConstraintCompiler(_vocabulary)

    def load(self, version: int, adapter: Path | None) -> None:
        """Pretend to load `version`; see `TokenEngine.load`."""
        check_folder(version, adapter)
        self._versions.add(version)

    def unload(self, version: int) -> None:
        """Refuse `version` from now on, unless it is the base."""
        self._versions -= {version} - {0}

    def constrain(self, grammar: str) -> Constraint:
        """Compile a grammar; see `TokenEngine.constrain`."""
        return self._constraints.compile(grammar)

    def submit(self, generation: Generation) -> TokenStream:
        """Begin to answer; see `TokenEngine.submit`."""
        check_generation(generation, self, self._versions)
        return self._loop.submit(TokenStream(generation))

    def score(self, version: int, tokens: tuple[int, ...], top: int) -> TextScores:
        """Refuse: a script's answers have no likelihood."""
        error = "policy.engine=scripted has no weights, so it cannot say how likely a text is"
        raise EventError(f"{error}; use policy.engine=transformers", reason="cannot_score")

    def counts(self) -> EngineCounts:
        """Return the present work."""
        return EngineCounts(rows_running=len(self._decoder.rows), tokens_drawn=self._decoder.tokens_drawn)

    def close(self) -> None:
        """End the thread."""
        self._loop.close()


def build_tokens(settings: Settings) -> tuple[ScriptedTokenEngine, ScriptedRendering]:
    """Return the token engine of `policy.script` and its rendering. Raises SettingsError for a bad script."""
    return ScriptedTokenEngine(settings.policy.script), ScriptedRendering()


class ScriptedDecoder:
    """Gives every row its next token."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.rows: deque[ScriptedRow] = deque()
        self.tokens_drawn = 0

    def admit(self, stream: TokenStream) -> None:
        """Decide the answer of the stream."""
        generation, sampling = stream.generation, stream.generation.sampling
        try:
            self.script.check_fail_rate(generation.draw_key, generation.slot)
            text, token_ms = reply(self.script, generation)
            if generation.constraint is not None:
                text = allowed_text(text, generation.constraint.begin(), sampling.max_tokens)
        except EventError as exc:
            stream.finish("error", error=str(exc))
            return
        tokens, ending, stop = spell(text, sampling)
        if stop is not None:  # a model has drawn a stop text before it can be seen
            tokens = (*tokens[:-1], *stop.encode())
        room = min(sampling.max_tokens, self.script.context_tokens - len(generation.prompt_token_ids))
        if len(tokens) > room:
            tokens, ending, stop = tokens[:room], "length", None
        begins_at = time.monotonic() + self.script.latency_ms / 1000
        self.rows.append(ScriptedRow(stream, begins_at, token_ms / 1000, enumerate(tokens), ending, stop))

    def drop(self, stream: TokenStream) -> None:
        """Forget a stream that was cancelled."""
        self.rows = deque(row for row in self.rows if row.stream is not stream)

    def step(self) -> None:
        """Push a token to every row that is due."""
        now = time.monotonic()
        soonest = min((row.next_at for row in self.rows), default=now)
        if soonest > now:
            time.sleep(min(soonest - now, LONGEST_NAP_S))
            return
        for _ in range(len(self.rows)):
            row = self.rows.popleft()
            if row.next_at > now or self._push(row):
                self.rows.append(row)

    def clear(self) -> None:
        """Forget every stream."""
        self.rows.clear()

    def _push(self, row: ScriptedRow) -> bool:
        """Push the row's next token, and return whether another follows."""
        drawn = next(row.tokens, None)
        if drawn is None:
            row.stream.finish(row.ending, stop=row.stop)
            return False
        number, token = drawn
        generation = row.stream.generation
        row.stream.push(token, logprob(generation.draw_key, generation.slot, number))
        if row.token_s:
            row.next_at = time.monotonic() + row.token_s
        self.tokens_drawn += 1
        return True


def reply(script: Script, generation: Generation) -> tuple[str, float]:
    """Return the script's reply to a conversation, and the milliseconds between its tokens."""
    prompt = bytes(token for token in generation.prompt_token_ids if token < END_OF_TURN).decode(errors="replace")
    script = script.by(generation.version, "")
    matches = [(prompt.rfind(rule.when), rule) for rule in script.replies]
    place, rule = max(matches, default=(-1, None), key=lambda match: match[0])
    if place < 0 or rule is None:
        text, token_ms = "" if script.answers == "nothing" else _echo(prompt), 0.0
    else:
        text, token_ms = rule.reply, rule.token_ms
    return text + " " * script.padding, token_ms


def _echo(prompt: str) -> str:
    lines = [line for line in prompt.splitlines() if line.strip() not in ("", "assistant:")]
    if not lines:
        return ""
    return lines[-1].partition(": ")[2] or lines[-1]


def allowed_text(text: str, allowed: AllowedTokens, max_tokens: int) -> str:
    """Return the allowed part of `text`, and then the shortest possible end; at most `max_tokens`."""
    script, tokens = iter(text.encode()), list[int]()
    while len(tokens) < max_tokens:
        mask = allowed.mask()
        token = next(script, None)
        if token is None or not mask[token]:
            script = iter(())
            token = _shortest_end(mask)
        if token == END_OF_TURN:
            break
        allowed.take(token)
        tokens.append(token)
    return bytes(tokens).decode(errors="replace")


def _shortest_end(mask: bytes) -> int:
    """Return the token that ends an answer, or a part of its JSON, soonest; or the first that is allowed."""
    in_text = mask[ord('"')] and mask[ord("a")]
    order: tuple[int, ...] = (END_OF_TURN, *(b'"' if in_text else b""), *b'}]"0123456789', *range(END_OF_TURN))
    return next(token for token in order if mask[token])


class ScriptedVocabulary:
    """The scripted engine's vocabulary in llguidance's form."""

    eos_token_id, bos_token_id = END_OF_TURN, None
    tokens = (*(bytes((byte,)) for byte in range(END_OF_TURN)), b"<end of turn>")
    special_token_ids = (END_OF_TURN,)

    def __call__(self, text: bytes) -> list[int]:
        return list(text)


def _vocabulary() -> Any:
    from llguidance import LLTokenizer, TokenizerWrapper

    return LLTokenizer(TokenizerWrapper(ScriptedVocabulary()))
