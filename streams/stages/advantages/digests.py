"""Digests of what events say: equal for equal content, in any process and any year.

    Response, components, values ──► a few hex digits, kept in the state in place of the content

They tell a repetition from a contradiction once a group keeps no more of an event than its id.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping
from functools import lru_cache
from operator import attrgetter

from schemas.events import Response, Sampling, derive_id


def digest_of(*values: object) -> str:
    """Return 13 characters (48 bits) that identify these values among the few dozen of one task."""
    return derive_id(*map(repr, values))[:13]


def short_id(event_id: str) -> str:
    """Return the first 48 bits of an id: enough to tell the few dozen events of one task apart."""
    return event_id[:13]


def request_digest(*parts: object) -> str:
    """Return a digest of what a task asks: its messages, sampling, verifier and reward sources."""
    return derive_id(*map(repr, parts))[:8]


def response_digest(response: Response, shared: str) -> str:
    """Return a digest of a response's content. Time, latency and trace are not part of it.

    `shared` is its `shared_digest`.
    """
    content = hashlib.sha256()
    for per_token in (response.completion_token_ids, response.logprobs, response.loss_mask):
        content.update(per_token.data)
    texts = (response.text, response.engine, response.finish_reason, shared, repr(_sampling_values(response.sampling)))
    content.update("\x1f".join(texts).encode())
    return content.hexdigest()[:8]


_sampling_values = attrgetter(*(field.name for field in dataclasses.fields(Sampling)))


def components_digest(components: Mapping[str, float]) -> str:
    """Return a digest of a reward's components; "" if there are none."""
    if not components:
        return ""
    return _components_digest(*sorted((name, value + 0.0) for name, value in components.items()))


@lru_cache(maxsize=1024)  # most scorers give only a few different scores
def _components_digest(*components: tuple[str, float]) -> str:
    return derive_id(*(f"{name!r} {value!r}" for name, value in components))[:8]


def shared_digest(response: Response) -> str:
    """Return a digest of what the responses of one sampling must share, as their group states it once; "" if failed.

    Seeds may differ from slot to slot, and a failed slot may not have got as far as its prompt.
    """
    if response.error is not None:
        return ""
    # + 0.0 turns -0.0 into 0.0, which the cache takes for the same key
    drawn = (response.sampling.temperature + 0.0, response.sampling.top_p)
    return _shared_digest(response.base_digest, response.tokenizer_digest, drawn, response.prompt_token_ids.data)


@lru_cache(maxsize=256)  # the slots of a sampling come one after another, each with the whole prompt
def _shared_digest(*shared: object) -> str:
    return derive_id(*shared)[:13]
