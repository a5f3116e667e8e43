"""Questions that are almost the same, and how often their answers were not.

    question ──► same tenant, version, conversation before, sampling, and the same words ──► cosine ──► similar
    both were answered ──► the same answer? ──► Trials ──► a bound on the share of wrong ones, valid at every look

No threshold of a cosine tells a paraphrase from its opposite: "safe to mix" and "unsafe to mix" are closer than most
paraphrases. So similar questions have the same words, but for articles and courtesies; the cosine judges their order.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, NamedTuple

from plugins.cache.cache_settings import Cache
from schemas.events import Message
from streams.plugins.plugin import load_reference

WORDS = re.compile(r"\d+(?:[.,]\d+)*|\w+|[^\w\s.,;:!?'\"]")
"""Words, numbers with their decimals, and signs, which may be units."""
COURTESIES = frozenset(("a", "an", "the", "please", "hi", "hello"))
"""Words that change no question."""
CONFIDENCE = 0.95
MOST_PER_PLACE = 64
"""Maximum number of questions with the same words that are compared."""

Vector = Mapping[str, float]


class SimilarAnswer(NamedTuple):
    """The answer to a similar question."""

    turn_id: str
    key: bytes
    """That of its own question in the cache."""
    reply: str


class SimilarQuestions:
    """The questions that were answered, by everything that has to be the same."""

    def __init__(self, rule: Cache) -> None:
        """Raises SettingsError if the embedder cannot be imported."""
        self._least = rule.similarity
        self._embed = trigrams if not rule.embedder else _embedder(rule.embedder)
        self._answers: dict[bytes, list[tuple[Vector, SimilarAnswer]]] = {}

    def find(self, place: bytes, question: str) -> SimilarAnswer | None:
        """Return the answer to the most similar question of a place, if any is similar enough."""
        answers = self._answers.get(place)
        if not answers:
            return None
        vector = self._embed(question)
        likeness, answer = max(((cosine(vector, other), answer) for other, answer in answers), key=lambda pair: pair[0])
        return answer if likeness >= self._least else None

    def add(self, place: bytes, question: str, answer: SimilarAnswer) -> None:
        """Take in an answered question."""
        answers = self._answers.setdefault(place, [])
        answers.append((self._embed(question), answer))
        del answers[:-MOST_PER_PLACE]


def place_of(tenant: str, request: tuple[Any, ...], messages: Sequence[Message]) -> tuple[bytes, str] | None:
    """Return everything that similar questions share, as a digest, and the question.

    None if it has no similar ones: it is not a user's, may call tools, or is answered differently each time.
    """
    _, _, tools, sampling, *_ = request
    if not messages or messages[-1].role != "user" or tools or sampling.temperature > 0:
        return None
    question = messages[-1].content
    return sha256(repr((tenant, request, messages[:-1], sorted(words_of(question)))).encode()).digest(), question


def words_of(text: str) -> list[str]:
    """Return the words, numbers and signs of a text that matter, in order."""
    return [word for word in WORDS.findall(text.casefold()) if word not in COURTESIES]


def trigrams(text: str) -> Vector:
    """Return the counts of the trigrams of a text's words."""
    text = f" {' '.join(words_of(text))} "
    return Counter(text[start : start + 3] for start in range(len(text) - 2))


def cosine(vector: Vector, other: Vector) -> float:
    """Return the cosine of two vectors; 0 if one has no length."""
    product = sum(weight * other.get(name, 0.0) for name, weight in vector.items())
    lengths = math.hypot(*vector.values()) * math.hypot(*other.values())
    return product / lengths if lengths else 0.0


def _embedder(reference: str) -> Callable[[str], Vector]:
    embed = load_reference(reference, f"cache.embedder: {reference} cannot be loaded")
    return lambda text: {str(place): float(value) for place, value in enumerate(embed([text])[0])}


@dataclass(slots=True)
class Trials:
    """Similar questions that were both answered: how many, and how often differently."""

    compared: int = 0
    wrong: int = 0

    def take(self, *, is_same: bool) -> None:
        """Take in one more."""
        self.compared += 1
        self.wrong += not is_same

    @property
    def upper_limit(self) -> float:
        """Upper bound of the share of wrong answers, valid at every look with probability CONFIDENCE.

            p is excluded once B(k + 1/2, n - k + 1/2) / B(1/2, 1/2) >= p^k (1 - p)^(n - k) / (1 - CONFIDENCE)

        The ratio is a martingale under p, whatever the times of the looks (Robbins 1970; Ville's inequality).
        """
        n, k = self.compared, self.wrong
        mixture = _log_beta(k + 0.5, n - k + 0.5) - _log_beta(0.5, 0.5)
        low, high = k / n if n else 1.0, 1.0
        for _ in range(50):
            p = (low + high) / 2
            likelihood = (k * math.log(p) if k else 0.0) + ((n - k) * math.log1p(-p) if n > k and p < 1 else 0.0)
            is_excluded = (p == 1 and n > k) or mixture - likelihood >= -math.log(1 - CONFIDENCE)
            low, high = (low, p) if is_excluded else (p, high)
        return high


def _log_beta(a: float, b: float) -> float:
    return math.lgamma(a) + math.lgamma(b) - math.lgamma(a + b)
