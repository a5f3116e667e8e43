"""Digests that the audit compares in place of records' texts, which it does not keep.

    key, payload ──► mark_of: copies            fields ──► digest: what two records have to agree in

All have 64 bits.
"""

from __future__ import annotations

from functools import lru_cache
from hashlib import blake2b, sha256
from typing import Any

from schemas.events import GroupResponse, Response, Sampling
from schemas.tokens import TokenIds


def mark_of(key: bytes | None, payload: bytes | None) -> int:
    """Return a digest of a record's key and value, never 0; none at all differs from an empty one."""
    return mark_of_digests(*(None if part is None else sha256(part).hexdigest() for part in (key, payload)))


def mark_of_digests(key_sha256: str | None, payload_sha256: str | None) -> int:
    """Return `mark_of` a record of which only the digests are known."""
    return _digest(f"{key_sha256} {payload_sha256}".encode())


def digest(*parts: object) -> int:
    """Return a digest of values by their `repr`."""
    return _digest(repr(parts).encode())


def tokens_digest(of: Response | GroupResponse, common: TokenIds = TokenIds()) -> int:
    """Return a digest of the tokens of all chains, their logprobs and masks, and of the program that made the calls.

    `common`: before the tokens of its prompt.
    """
    # of a chain as many of each, so no two of them have the same bytes in a row
    chains = [(one.completion_token_ids.data, one.logprobs.data, one.loss_mask.data) for one in (of, *of.branches)]
    places = [len(of.completion_token_ids), *((one.leaves, one.shared_tokens) for one in of.branches)]
    prompt = (common.data, of.prompt_token_ids.data)
    made_by = () if of.program is None else (of.agent_id, of.program)
    return _digest(*prompt, *(part for parts in chains for part in parts), repr((*places, *made_by)).encode())


@lru_cache(maxsize=256)
def head_digest(base: str, tokenizer: str, sampling: Sampling, batches: int, prompt_version: str | None) -> int:
    """Return a digest of what a group says once of all its responses."""
    return digest(base, tokenizer, sampling, batches, prompt_version)


@lru_cache(maxsize=256)
def shared_digest(*shared: object) -> int:
    """Return `digest`, remembered: siblings share most of what it is made of."""
    return digest(*shared)


def _digest(*parts: Any) -> int:
    hashed = blake2b(digest_size=8)
    for part in parts:
        hashed.update(part)
    return int.from_bytes(hashed.digest(), "little") or 1


def content_digest(event: Any, *names: str) -> int:
    """Return a digest of an event without some of its fields."""
    return digest(*(getattr(event, name) for name in event.__slots__ if name not in names))
