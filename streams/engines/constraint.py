"""The grammar of an answer: it says, after each of its tokens, which may follow.

    grammar (Lark) ──► compiled for an engine's tokens ──► Constraint ──► AllowedTokens, one for each row

The tokens that may not follow are taken out before one is drawn, so that a constrained answer is drawn from another
distribution than the policy's. Its logprobs are the policy's own all the same (decoding_row.py), and it bears no loss.

llguidance compiles a grammar in milliseconds and finds what may follow in less than one. It is imported with the first
constraint.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from streams.errors import EventError

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

FRAME = re.compile(r"^at \d+\(\d+\): (failed to compile JSON schema: )?|\n +\d+ \| .*", re.DOTALL)
"""What llguidance writes around an error: places in a grammar that no user sees."""


class AllowedTokens:
    """Which tokens may follow those that an answer has. One thread at a time."""

    def __init__(self, matcher: LLMatcher) -> None:
        self._matcher = matcher

    def mask(self) -> bytes:
        """Return a byte for each token of the vocabulary, 0 if it may not come next.

        Raises EventError (constraint_failed) if finding that takes too much time or memory.
        """
        allowed: bytes = self._matcher.compute_logit_bias()
        if self._matcher.is_error():
            error = f"the form of the answer cannot be followed: {self._matcher.get_error()}; ask for a simpler one"
            raise EventError(error, reason="constraint_failed")
        return allowed

    def take(self, token: int) -> None:
        """Append a token that may come next."""
        self._matcher.consume_token(token)


class Constraint:
    """A grammar, compiled for the tokens of one engine."""

    def __init__(self, matcher: LLMatcher) -> None:
        self._matcher = matcher

    def begin(self) -> AllowedTokens:
        """Return the tokens that an answer may begin with."""
        return AllowedTokens(self._matcher.deep_copy())


class ConstraintCompiler:
    """Compiles grammars for one vocabulary. Any thread may call it."""

    def __init__(self, tokenizer: Callable[[], LLTokenizer]) -> None:
        """`tokenizer` is called once, with the first grammar."""
        self._make_tokenizer, self._lock = tokenizer, threading.Lock()
        self._tokenizer: LLTokenizer | None = None

    def compile(self, grammar: str) -> Constraint:
        """Return the constraint. Raises EventError (bad_constraint) that says what the grammar has and cannot have."""
        from llguidance import LLMatcher

        matcher = LLMatcher(self._vocabulary(), LLMatcher.grammar_from_lark(grammar), log_level=0)
        if matcher.is_error():
            raise EventError(" ".join(FRAME.sub("", matcher.get_error()).split()), reason="bad_constraint")
        return Constraint(matcher)

    def _vocabulary(self) -> LLTokenizer:
        with self._lock:
            if self._tokenizer is None:
                try:
                    self._tokenizer = self._make_tokenizer()
                except Exception as exc:  # whatever a tokenizer.json holds that the library does not read
                    error = f"the model's tokenizer cannot be constrained: {exc}; leave the form of the answer open"
                    raise EventError(error, reason="bad_constraint") from exc
            return self._tokenizer
