"""An answer's words by the probability of each token when it was sampled, and by whether it bears loss.

    responses: token ids, logprobs, loss mask ──► a tokenizer ──► AnswerWords: a text, a percentage and a band each

Characters whose bytes are divided between tokens belong to the last of them.
"""

from __future__ import annotations

import codecs
import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from streams.tools.query.views import literal
from streams.tools.views.log_view import LogSnapshot, Row
from streams.tools.views.side_by_side import TokenTexts

BANDS = (0.05, 0.25, 0.6, 0.9)
"""Probabilities that divide the bands of colour; the last one has none."""
WORDS_SHOWN = 2_000
"""Tokens of an answer that are coloured; a longer answer is plain text."""


class AnswerWord(NamedTuple):
    """A token as text."""

    text: str
    percent: float | None
    """Its probability when it was sampled."""
    band: int
    """0 is the least probable; without a logprob the last."""
    bears_loss: bool

    @property
    def about(self) -> str:
        """Its probability in words, for a reader who points at it."""
        chance = "no probability is recorded" if self.percent is None else f"{self.percent:.3g} %"
        return chance if self.bears_loss else f"{chance}, bears no loss"


def answer_words(row: Row, texts: TokenTexts) -> list[AnswerWord]:
    """Return the words of a response, of which `row` has tokens, logprobs and mask."""
    ids: Sequence[int] = row["completion_token_ids"] or ()
    logprobs, mask = row["logprobs"] or (), row["loss_mask"] or ()
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    words = []
    for number, token in enumerate(ids):
        text = decoder.decode(texts.token_bytes(token), number == len(ids) - 1)
        chance = math.exp(logprobs[number]) if number < len(logprobs) else None
        band = len(BANDS) if chance is None else sum(chance >= end for end in BANDS)
        bears_loss = bool(mask[number]) if number < len(mask) else True
        words.append(AnswerWord(text, None if chance is None else 100 * chance, band, bears_loss))
    return words


RESPONSES = (
    "SELECT response_id AS id, completion_token_ids, logprobs, loss_mask, tokenizer_digest, _offset FROM responses"
)
TURNS = "SELECT turn_id AS id, completion_token_ids, logprobs, NULL AS loss_mask, tokenizer_digest, _offset FROM turns"


def words_by_id(
    log: LogSnapshot, ids: Iterable[str], texts: TokenTexts | None, *, of: str = RESPONSES, shared: str = ""
) -> dict[str, list[AnswerWord]]:
    """Return the words of answers that were made with this tokenizer, by id, after what all begin with.

    `of`: RESPONSES or TURNS.
    """
    names = ", ".join(map(literal, ids))
    if texts is None or not names:
        return {}
    rows = log.rows(
        f"SELECT * FROM ({of}) WHERE id IN ({names}) AND tokenizer_digest = {literal(texts.tokenizer_digest)} "  # noqa: S608
        f"AND len(logprobs) BETWEEN 1 AND {WORDS_SHOWN} "
        "QUALIFY row_number() OVER (PARTITION BY id ORDER BY _offset) = 1"
    )
    return {row["id"]: _after(answer_words(row, texts), shared) for row in rows}


def _after(words: list[AnswerWord], shared: str) -> list[AnswerWord]:
    """Return the words that do not belong to the shared beginning alone."""
    length = 0
    for number, word in enumerate(words):
        length += len(word.text)
        if length > len(shared):
            return words[number:]
    return []
