"""One answer while it is decoded: what it has drawn, and whether it is done.

    logits [rows, V] ──► a token for each row ──► an end of turn, a stop text, or no room: the row is done

A row's next token depends on its key, its slot and how many tokens it has (token_draw.py), so it may be decoded in any
company, be put back, and go on later.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from torch import Tensor

from schemas.events import FinishReason, Sampling
from streams.engines.prompts import Prompts
from streams.engines.protocol import uniform
from streams.engines.token_draw import draw


@dataclass(slots=True)
class DecodingRow:
    """One slot while it is being decoded."""

    request: int  # rows of one request have one prompt
    slot: int
    prompt: tuple[int, ...]
    sampling: Sampling
    key: str
    room: int  # tokens it may draw
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    finish: FinishReason | None = None
    text: str | None = None  # set when a stop text cut it
    error: str | None = None


def draw_next(
    rows: Sequence[DecodingRow],
    logits: Tensor,  # [rows, V] float32, after each row's last token; overwritten
    prompts: Prompts,
) -> Tensor:  # [rows] int64
    """Draw a token for every row, append it to those that are not done, and return all tokens."""
    numbers = [uniform(row.key, row.slot, len(row.tokens)) for row in rows]
    samplings = [row.sampling for row in rows]
    tokens, logprobs = draw(logits, [s.temperature for s in samplings], [s.top_p for s in samplings], numbers)
    drawn = zip(rows, tokens.tolist(), logprobs.tolist(), logprobs.isfinite().tolist(), strict=True)
    for row, token, logprob, finite in drawn:
        if row.finish is not None:
            continue
        if not finite:
            row.finish, row.error = "error", "the model gave logits that are not finite; roll the adapter back"
            continue
        row.tokens.append(token)
        row.logprobs.append(logprob)
        row.text = prompts.cut(row.tokens, row.sampling.stop)
        if token in prompts.ends or row.text is not None:
            row.finish = "stop"
        elif len(row.tokens) == row.room:
            row.finish = "length"
    return tokens
