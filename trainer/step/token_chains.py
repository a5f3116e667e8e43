"""The chains of a response that the trainer runs, and the tokens on which each bears loss.

    AdvantagedGroup, one of its responses ──► its own chain, then its branches ──► [TokenChain]
                                                 a branch begins with the tokens that it shares with the chain it leaves

Every sampled token bears loss in one chain, and is context in the others.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from schemas.events import AdvantagedGroup, Branch, GroupResponse
from schemas.tokens import Logprobs, LossMask, TokenIds


class TokenChain(NamedTuple):
    """One path of tokens through the model."""

    context: TokenIds
    """All tokens before: the prompt, and in a branch all other shared tokens."""
    tokens: TokenIds
    """Tokens that only this chain has, the policy's and others."""
    loss_mask: LossMask
    logprobs: Logprobs
    advantages: NDArray[np.float32]
    """Advantage of each token: that of its span, else that of the response."""


def tokens_of(group: AdvantagedGroup) -> int:
    """Return the number of tokens of a group, counting tokens shared by its responses once."""
    own_tokens = (len(response.prompt_token_ids) + response.completion_tokens for response in group.responses)
    return len(group.prompt_token_ids) + sum(own_tokens)


def chains(group: AdvantagedGroup, response: GroupResponse) -> list[TokenChain]:
    """Return the chains of a response: its own, and each branch that bears loss.

    A branch's tokens before its first one with loss, such as a sub-agent's prompt, are context.
    """
    prompt = TokenIds(group.prompt_token_ids.data + response.prompt_token_ids.data)
    whole = [prompt.data + response.completion_token_ids.data]
    chains_with_loss = [_chain(response, response, 0, prompt)]
    for number, branch in enumerate(response.branches, 1):
        shared = whole[branch.leaves][: branch.shared_tokens * TokenIds.BYTES]
        whole.append(shared + branch.completion_token_ids.data)
        if branch.loss_mask.trained_tokens:
            chains_with_loss.append(_from_loss(_chain(response, branch, number, TokenIds(shared))))
    return chains_with_loss


def _chain(response: GroupResponse, path: GroupResponse | Branch, number: int, context: TokenIds) -> TokenChain:
    advantages = np.full(len(path.completion_token_ids), response.advantage, np.float32)
    for span in response.spans:
        if span.chain == number:
            advantages[span.start : span.end] = span.advantage
    return TokenChain(context, path.completion_token_ids, path.loss_mask, path.logprobs, advantages)


def _from_loss(chain: TokenChain) -> TokenChain:
    """Return the chain with the tokens before its first one with loss in its context."""
    first = chain.loss_mask.data.index(1)
    return TokenChain(
        TokenIds(chain.context.data + chain.tokens[:first].data),
        chain.tokens[first:],
        chain.loss_mask[first:],
        chain.logprobs[first:],
        chain.advantages[first:],
    )
