"""One answer while it is decoded: what it has drawn, and whether it is done.

    logits [rows, V] ──► a token for each row ──► an end of turn, a stop text, or no room: the row is done

A row's next token depends on its key, its slot and how many tokens it has (token_draw.py), so it may be decoded in any
company, be put back, and go on later.

A constraint leaves tokens out before one is drawn. The logprob of the one that is drawn is the policy's own, at the
row's temperature and with no token left out: not that of the draw, but what others compute for the same token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from schemas.events import FinishReason, Sampling
from streams.engines.constraint import AllowedTokens
from streams.engines.local.token_draw import draw
from streams.engines.protocol import uniform
from streams.engines.rendering.prompts import Prompts
from streams.errors import EventError


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
    allowed: AllowedTokens | None = None  # what may come next, if not everything


def draw_next(
    rows: Sequence[DecodingRow],
    logits: Tensor,  # [rows, V] float32, after each row's last token; overwritten
    prompts: Prompts,
) -> Tensor:  # [rows] int64
    """Draw a token for every row, append it to those that are not done, and return all tokens."""
    numbers = [uniform(row.key, row.slot, len(row.tokens)) for row in rows]
    samplings = [row.sampling for row in rows]
    own = _leave_out(rows, logits)
    tokens, logprobs = draw(logits, [s.temperature for s in samplings], [s.top_p for s in samplings], numbers)
    for place, before in own.items():
        logprobs[place] = (before / (samplings[place].temperature or 1.0)).log_softmax(-1)[tokens[place]]
    drawn = zip(rows, tokens.tolist(), logprobs.tolist(), logprobs.isfinite().tolist(), strict=True)
    for row, token, logprob, finite in drawn:
        if row.finish is not None:
            continue
        if not finite:
            row.finish, row.error = "error", "the model gave logits that are not finite; roll the adapter back"
            continue
        row.tokens.append(token)
        if row.allowed is not None:
            row.allowed.take(token)
        row.logprobs.append(logprob)
        row.text = prompts.cut(row.tokens, row.sampling.stop)
        if token in prompts.ends or row.text is not None:
            row.finish = "stop"
        elif len(row.tokens) == row.room:
            row.finish = "length"
    return tokens


def _leave_out(rows: Sequence[DecodingRow], logits: Tensor) -> dict[int, Tensor]:
    """Leave out, in place, the tokens that may not follow. Return what the logits of those rows were, by row."""
    own: dict[int, Tensor] = {}
    for place, row in enumerate(rows):
        if row.allowed is None or row.finish is not None:
            continue
        try:
            mask = row.allowed.mask()
        except EventError as exc:
            row.finish, row.error = "error", str(exc)
            continue
        own[place] = logits[place].clone()
        allowed = torch.frombuffer(bytearray(mask), dtype=torch.uint8).to(logits.device)
        logits[place, allowed == 0] = -torch.inf
    return own
