"""The grammar of an answer: it decides, after each token, which tokens may follow.

    grammar (Lark) ──► compiled for an engine's tokens ──► Constraint ──► AllowedTokens, one for each row

Forbidden tokens are removed before one is drawn, so a constrained answer is drawn from another distribution than the
policy's. Its logprobs are still the policy's own (decoding_row.py), and it bears no loss. llguidance compiles a grammar
in milliseconds and finds the allowed tokens in less than one. It is imported with the first constraint.
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
"""Text that llguidance adds to an error: places in a grammar that no user sees."""


class AllowedTokens:
    """The tokens that may follow in an answer. For one thread at a time."""

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
        """Return the constraint. Raises EventError (bad_constraint), which names the unsupported part of the
        grammar."""
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
                except Exception as exc:  # a tokenizer.json may hold anything that the library cannot read
                    error = f"the model's tokenizer cannot be constrained: {exc}; leave the form of the answer open"
                    raise EventError(error, reason="bad_constraint") from exc
            return self._tokenizer
