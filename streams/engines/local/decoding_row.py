"""One answer while it is decoded: draw its next token, independent of other rows, and check whether it is done.

    logits ──► / temperature ──► top_p ──► cumulative sums ──► the token under u        u = sha256(key, slot, step)
                                                                     └──► an end of turn, a stop text, or no room left

The random number of a draw is a function of key, slot and step, not of a generator's state, so a slot gets the same
tokens in any batch (up to rounding of the logits), and again after a restart or a second wait. One number per
draw suffices: it goes through the inverse of the cumulative distribution. Logprobs are those of the distribution that
was drawn from. There are no penalties, no top_k and no min_p: the trainer would have to know them too.

A constraint removes tokens before one is drawn. The logprob of the drawn token is the policy's own, at the row's
temperature and with no token removed: not that of the draw, but the one computed elsewhere for the same token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from schemas.events import FinishReason, Sampling
from streams.engines.constraint import AllowedTokens
from streams.engines.protocol import uniform
from streams.engines.rendering.prompts import Prompts, StopMatch
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
    stop: StopMatch | None = None  # the stop text that ended it
    error: str | None = None
    allowed: AllowedTokens | None = None  # the tokens that may come next; None: all

    def append(self, token: int, logprob: float, prompts: Prompts) -> None:
        """Append a drawn token, and finish if it is the last one."""
        self.tokens.append(token)
        self.logprobs.append(logprob)
        if self.allowed is not None:
            self.allowed.take(token)
        self.stop = prompts.first_stop(self.tokens, self.sampling.stop)
        if token in prompts.token_table.ends or self.stop is not None:
            self.finish = "stop"
        elif len(self.tokens) == self.room:
            self.finish = "length"

    def fail(self, error: str) -> None:
        """Finish with an error."""
        self.finish, self.error = "error", error


def draw_next(
    rows: Sequence[DecodingRow],
    logits: Tensor,  # [rows, V] float32, after each row's last token; overwritten
    prompts: Prompts,
) -> Tensor:  # [rows] int64
    """Draw a token for every row, append it to those that are not done, and return all tokens."""
    numbers = [uniform(row.key, row.slot, len(row.tokens)) for row in rows]
    samplings = [row.sampling for row in rows]
    unconstrained = _mask_disallowed(rows, logits)
    tokens, logprobs = draw(logits, [s.temperature for s in samplings], [s.top_p for s in samplings], numbers)
    for place, before in unconstrained.items():
        logprobs[place] = (before / (samplings[place].temperature or 1.0)).log_softmax(-1)[tokens[place]]
    drawn = zip(rows, tokens.tolist(), logprobs.tolist(), logprobs.isfinite().tolist(), strict=True)
    for row, token, logprob, is_finite in drawn:
        if row.finish is not None:
            continue
        if is_finite:
            row.append(token, logprob, prompts)
        else:
            row.fail("the model gave logits that are not finite; roll the adapter back")
    return tokens


def draw(
    logits: Tensor,  # [rows, vocabulary], float32; overwritten
    temperature: Sequence[float],  # per row; 0 takes the likeliest token
    top_p: Sequence[float],  # per row; 1 keeps all
    numbers: Sequence[float],  # per row, in [0, 1); see `protocol.uniform`
) -> tuple[Tensor, Tensor]:  # tokens [rows] int64, logprobs [rows] float32, nats
    """Return the drawn tokens and their logprobs. A row whose logits are not finite gets a logprob that is not finite.

    Greedy rows report the logprob at temperature 1.
    """
    if any(t not in (0.0, 1.0) for t in temperature):
        logits /= logits.new_tensor([t or 1.0 for t in temperature])[:, None]
    logits -= logits.amax(dim=-1, keepdim=True)
    for row, share in enumerate(top_p):
        if share < 1.0 and temperature[row] > 0:
            _keep_top(logits[row], share)
    shares = logits.exp()
    sums = shares.cumsum(dim=-1)  # on a CPU summed in float64 and rounded once
    total = shares.sum(dim=-1)
    last = sums[:, -1]
    target = (last.double() * torch.tensor(numbers, dtype=torch.float64, device=logits.device)).float()
    target = torch.minimum(target, torch.nextafter(last, torch.zeros_like(last)))
    tokens = torch.searchsorted(sums, target[:, None], right=True)[:, 0].clamp(max=logits.shape[-1] - 1)
    if 0.0 in temperature:
        greedy = torch.tensor([t == 0.0 for t in temperature], device=logits.device)
        tokens = torch.where(greedy, logits.argmax(dim=-1), tokens)
    return tokens, logits.gather(1, tokens[:, None])[:, 0] - total.log()


def _keep_top(logits: Tensor, share: float) -> None:
    """Mask, in place, all but the smallest set of likeliest tokens that holds `share` (arXiv:1904.09751)."""
    ordered, index = torch.softmax(logits, dim=-1).sort(descending=True, stable=True)
    before = ordered.double().cumsum(dim=-1) - ordered
    logits[index[before >= share]] = -torch.inf


def _mask_disallowed(rows: Sequence[DecodingRow], logits: Tensor) -> dict[int, Tensor]:
    """Mask, in place, the tokens that may not follow. Return the logits that these rows had before, by row."""
    unconstrained: dict[int, Tensor] = {}
    for place, row in enumerate(rows):
        if row.allowed is None or row.finish is not None:
            continue
        try:
            mask = row.allowed.mask()
        except EventError as exc:
            row.fail(str(exc))
            continue
        unconstrained[place] = logits[place].clone()
        allowed = torch.frombuffer(bytearray(mask), dtype=torch.uint8).to(logits.device)
        logits[place, allowed == 0] = -torch.inf
    return unconstrained
