"""Digests of the content of events: equal content has equal digests, in every process and release.

    bodies of responses, parts of rewards, values ──► a few hex digits, kept in the state instead of the content

They tell a repetition from a contradiction when a group keeps only the id of an event.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

from schemas.events import derive_id

if TYPE_CHECKING:
    from schemas.events import Branch
    from streams.stages.advantages.incoming import ResponseBody


def digest_of(*values: object) -> str:
    """Return 13 characters (48 bits) that identify these values among the few dozen of one task."""
    return derive_id(*map(repr, values))[:13]


def short_id(event_id: str) -> str:
    """Return the first 48 bits of an id: enough to tell the few dozen events of one task apart."""
    return event_id[:13]


def request_digest(*parts: object) -> str:
    """Return a digest of a task's request: its messages, sampling, verifier and reward sources."""
    return derive_id(*map(repr, parts))[:8]


def response_digests(bodies: Sequence[ResponseBody], prompts: Sequence[bytes], *texts: Sequence[str]) -> list[str]:
    """Return a digest of each response's content: its body, the prompt of its own, and its text in these columns.

    Time, latency and trace are not part of it.
    """
    digests, sha256 = [], hashlib.sha256
    drawn = [repr(body.sampling) if 0.0 in body.sampling else _repr(body.sampling) for body in bodies]
    contents = map(str.encode, map("\x1f".join, zip(*texts, drawn, strict=True)))
    for (_, _, _, _, completion, logprobs, mask, _, _, branches, *_), prompt, words in zip(
        bodies, prompts, contents, strict=True
    ):
        parts: tuple[bytes, ...] = (prompt, completion, logprobs, mask)
        if branches:
            parts += tuple(part for branch in branches for part in _branch_parts(branch))
        digests.append(sha256(b"".join((*parts, words))).hexdigest()[:8])
    return digests


def _branch_parts(branch: Branch) -> tuple[bytes, ...]:
    place = f"{branch.leaves} {branch.shared_tokens} {len(branch.completion_token_ids)}"
    return place.encode(), branch.completion_token_ids.data, branch.logprobs.data, branch.loss_mask.data


_repr = lru_cache(maxsize=256)(repr)
"""Only for values without 0.0, which a cache takes for the same key as -0.0."""


def parts_digest(components: Mapping[str, float], steps: Sequence[float]) -> str:
    """Return a digest of a reward's components and its turns' shares; "" if it has none."""
    return _parts_digest(tuple(components.items()), tuple(steps)) if components or steps else ""


@lru_cache(maxsize=1024)  # most scorers give only a few different scores
def _parts_digest(components: tuple[tuple[str, float], ...], steps: tuple[float, ...]) -> str:
    # + 0.0 turns -0.0 into 0.0, which the cache takes for the same key
    named = (f"{name!r} {value + 0.0!r}" for name, value in sorted(components))
    return derive_id(*named, *(f"{step + 0.0!r}" for step in steps))[:8]


def shared_digest(body: ResponseBody, prompt: bytes) -> str:
    """Return a digest of the values that all responses of one sampling share, and that their group states once.
    `prompt` is their common beginning. Seeds may differ from slot to slot.
    """
    temperature, top_p, *_ = body.sampling
    drawn = (temperature + 0.0, top_p + 0.0)  # -0.0 becomes 0.0, which the cache takes for the same key
    of_line = () if body.trained_batches is None else (body.trained_batches,)
    of_prompt = () if body.prompt_version is None else (body.prompt_version,)
    return _shared_digest(body.base_digest, body.tokenizer_digest, drawn, prompt, *of_line, *of_prompt)


@lru_cache(maxsize=256)  # the slots of a sampling come one after another, each with the whole prompt
def _shared_digest(*shared: object) -> str:
    return derive_id(*shared)[:13]
