"""The tokens of one answer: how likely each was when it was sampled, and what is known of the trainer's ratio.

    response ──► ids, logprobs, loss mask ──► a row each, from the first that differs from its siblings' on marked
    group ──► batch ──► version ──► what its trainer measured over all tokens of the step

The texts of tokens are not in the log. Where a tokenizer is at hand (the server's own), and it is the one that the
answer was made with, each token is shown as its text; else as its id.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from streams.errors import NotFoundError
from streams.tools.query.views import literal
from streams.tools.views import side_by_side
from streams.tools.views.log_view import Look, Row
from streams.tools.views.task import group_of

MOST = 2_000
"""Tokens of one answer that are shown."""


class TokenTexts(Protocol):
    """A tokenizer: an engine's `Rendering`."""

    tokenizer_digest: str

    def token_bytes(self, token: int) -> bytes:
        """Return what a token adds to the text."""


def one(look: Look, partition: int, offset: int, texts: TokenTexts | None) -> dict[str, Any]:
    """Return what the page of an answer's tokens shows. Raises NotFoundError without such a response."""
    most = 2**63 - 1
    place = f"_partition = {min(partition, most)} AND _offset = {min(offset, most)}"
    row = look.first(f"SELECT * EXCLUDE (prompt_token_ids, branches) FROM responses WHERE {place}")  # noqa: S608
    if row is None:
        raise NotFoundError(f"responses[{partition}]@{offset}: there is no such response in what this page reads")
    siblings = look.rows(
        "SELECT completion_token_ids FROM responses WHERE error IS NULL "  # noqa: S608
        f"AND task_id = {literal(row['task_id'])} AND sampling_id = {literal(row['sampling_id'])} "
        "QUALIFY row_number() OVER (PARTITION BY response_id ORDER BY _offset) = 1"
    )
    known = texts if texts is not None and texts.tokenizer_digest == row["tokenizer_digest"] else None
    ids = [one["completion_token_ids"] or [] for one in siblings]
    return {
        "response": row,
        "tokens": rows(row, known)[:MOST],
        "left": max(0, len(row["completion_token_ids"] or ()) - MOST),
        "differs": side_by_side.common(ids) if len(ids) > 1 else None,
        "has_texts": known is not None,
        "ratio": ratio(look, row),
        "at": look.at,
    }


def rows(response: Row, texts: TokenTexts | None) -> list[Row]:
    """Return a row for each token: its place, id, text if it is known, logprob in nats, and whose it is."""
    ids: Sequence[int] = response["completion_token_ids"] or ()
    logprobs, mask = response["logprobs"] or (), response["loss_mask"] or ()
    return [
        {
            "number": number,
            "id": token,
            "text": None if texts is None else texts.token_bytes(token).decode(errors="replace"),
            "logprob": logprobs[number] if number < len(logprobs) else None,
            "probability": math.exp(logprobs[number]) if number < len(logprobs) else None,
            "own": bool(mask[number]) if number < len(mask) else True,
        }
        for number, token in enumerate(ids)
    ]


def ratio(look: Look, response: Row) -> str:
    """Return what the log says of the trainer's ratio of these tokens.

    ratio = pi(token) / pi_sampled(token)        PPO, arXiv:1707.06347 section 3
    """
    group = group_of(look, response["task_id"])
    if group is None or group["trained"] is None:
        return "No trainer has learned from this answer, so its tokens have no ratio."
    made = look.first(
        f"SELECT metrics FROM adapters WHERE policy = {literal(group['policy'])} AND kind = 'trained' "  # noqa: S608
        f"AND version = {group['trained']} ORDER BY _offset"
    )
    return said(group["trained"], {} if made is None else made["metrics"] or {})


def said(version: int, metrics: Mapping[str, float]) -> str:
    """Return what a step's metrics say of the ratios of its tokens.

    >>> said(3, {})
    'The ratio of each token is not recorded, nor what it was in the step that made version 3.'
    """
    text = "The ratio of each token is not recorded"
    if "ratio" not in metrics:
        return f"{text}, nor what it was in the step that made version {version}."
    over = f"{metrics['tokens']:,.0f} tokens" if "tokens" in metrics else "all tokens"
    text += f". Over {over} of the step that made version {version} its mean was {metrics['ratio']:.4g}"
    if "clipped" in metrics:
        text += f", {100 * metrics['clipped']:.3g} % were clipped"
    if (largest := metrics.get("mismatch_max")) is not None and largest < 700:
        text += f", and none was outside {math.exp(-largest):.4g} to {math.exp(largest):.4g}"
    return f"{text}."
