"""The tokens of one answer: their probabilities when sampled, and the known facts about the trainer's ratio.

    response ──► ids, logprobs, loss mask ──► a row each, and the first that differs from its siblings'
    group ──► batch ──► version ──► what its trainer measured over all tokens of the step

The texts of tokens are not in the log. With the tokenizer of the answer (the server has its own), each token has its
text; without it, only its id.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal

from plugins.page.views.answer_words import AnswerWord, answer_words
from streams.errors import NotFoundError
from streams.references import is_reference
from streams.tools.query.views import literal
from streams.tools.views.log_view import LogSnapshot, Row
from streams.tools.views.side_by_side import TokenTexts, shared_length
from streams.tools.views.task import group_of

TOKENS_SHOWN = 2_000
LARGEST_OFFSET = 2**63 - 1
LARGEST_EXPONENT = 700
"""Beyond it `exp` is no finite number."""
SMALLEST_DISTANCE = 5e-7
"""Below it a ratio is 1 to six digits."""


@dataclass(frozen=True, slots=True)
class AnswerToken:
    """One token of an answer."""

    number: int
    id: int
    text: str | None
    logprob: float | None
    """In nats."""
    by_policy: bool
    """Whether the policy sampled it; else an environment wrote it."""

    @property
    def probability(self) -> float | None:
        """How likely it was when it was sampled."""
        return None if self.logprob is None else math.exp(self.logprob)


@dataclass(frozen=True)
class AnswerTokens:
    """The tokens of one answer."""

    response: Row
    tokens: list[AnswerToken]
    not_shown: int
    """How many tokens follow those in `tokens`."""
    differs: int | None
    """The number of the first token that differs from its siblings'; None without siblings."""
    has_texts: bool
    ratio: str
    words: list[AnswerWord]
    """Its tokens as words, if their texts are known."""


def find_tokens(log: LogSnapshot, partition: int, offset: int, texts: TokenTexts | None) -> AnswerTokens:
    """Return the tokens of the response at an offset. Raises NotFoundError."""
    position = f"_partition = {min(partition, LARGEST_OFFSET)} AND _offset = {min(offset, LARGEST_OFFSET)}"
    response = log.first(f"SELECT * EXCLUDE (prompt_token_ids, branches) FROM responses WHERE {position}")  # noqa: S608
    if response is None:
        raise NotFoundError(f"responses[{partition}]@{offset}: there is no such response in what this page reads")
    siblings = log.rows(
        "SELECT completion_token_ids FROM responses WHERE error IS NULL "  # noqa: S608
        f"AND task_id = {literal(response['task_id'])} AND sampling_id = {literal(response['sampling_id'])} "
        "QUALIFY row_number() OVER (PARTITION BY response_id ORDER BY _offset) = 1"
    )
    ids = [row["completion_token_ids"] or [] for row in siblings]
    fitting = texts if texts is not None and texts.tokenizer_digest == response["tokenizer_digest"] else None
    return AnswerTokens(
        response,
        list_tokens(response, fitting)[:TOKENS_SHOWN],
        max(0, len(response["completion_token_ids"] or ()) - TOKENS_SHOWN),
        shared_length(ids) if len(ids) > 1 else None,
        fitting is not None,
        _ratio(log, response),
        [] if fitting is None else answer_words(response, fitting)[:TOKENS_SHOWN],
    )


def list_tokens(response: Row, texts: TokenTexts | None) -> list[AnswerToken]:
    """Return the tokens of a response, in order."""
    ids: Sequence[int] = response["completion_token_ids"] or ()
    logprobs, mask = response["logprobs"] or (), response["loss_mask"] or ()
    return [
        AnswerToken(
            number,
            token,
            None if texts is None else texts.token_bytes(token).decode(errors="replace"),
            logprobs[number] if number < len(logprobs) else None,
            bool(mask[number]) if number < len(mask) else True,
        )
        for number, token in enumerate(ids)
    ]


def _ratio(log: LogSnapshot, response: Row) -> str:
    """Return what the log says of the trainer's ratio of these tokens.

    ratio = pi(token) / pi_sampled(token)        PPO, arXiv:1707.06347 section 3
    """
    group = group_of(log, response["task_id"])
    if group is None or group["trained"] is None:
        return "No trainer has learned from this answer, so its tokens have no ratio."
    step = log.first(
        f"SELECT metrics, recipe FROM adapters WHERE policy = {literal(group['policy'])} AND kind = 'trained' "  # noqa: S608
        f"AND version = {group['trained']} ORDER BY _offset"
    )
    metrics, recipe = ({}, {}) if step is None else (step["metrics"] or {}, step["recipe"] or {})
    return describe_ratio(group["trained"], metrics, recipe)


def describe_ratio(version: int, metrics: Mapping[str, float], recipe: Mapping[str, str]) -> str:
    """Return a sentence on the ratios of a step's tokens, from its metrics and recipe.

    >>> describe_ratio(3, {}, {})
    'The ratio of each token is not recorded, nor what it was in the step that made version 3.'
    """
    text = "The ratio of each token is not recorded"
    if "ratio" not in metrics:
        return f"{text}, nor what it was in the step that made version {version}."
    tokens = f"{metrics['tokens']:,.0f} tokens" if "tokens" in metrics else "all tokens"
    text += f". Over {tokens} of the step that made version {version} its mean was {metrics['ratio']:.4g}"
    largest = metrics.get("mismatch_max")
    if largest is not None and largest < LARGEST_EXPONENT:
        text += f", and {_farthest(largest)}"
    return ". ".join(filter(None, (text, _clip(metrics, recipe)))) + "."


def _farthest(difference: float) -> str:
    """Return how far from 1 the ratios were, by the largest difference of two logprobs."""
    distance = math.expm1(difference)
    if difference == 0:
        return "each was 1"
    if distance < SMALLEST_DISTANCE:
        return "each was 1, to six digits"
    if distance < 0.01:
        return f"none differed from 1 by more than {Decimal(f'{distance:.2g}'):f}"
    return f"each was between {math.exp(-difference):.4g} and {math.exp(difference):.4g}"


def _clip(metrics: Mapping[str, float], recipe: Mapping[str, str]) -> str:
    """Return where the loss of a step clips ratios, and how many tokens were clipped, if recorded."""
    rule = clip_rule(recipe)
    if "clipped" not in metrics:
        return rule
    share = f"{100 * metrics['clipped']:.3g} % of the tokens"
    return f"{rule}; that held back {share}" if rule else f"{share} were clipped"


def clip_rule(recipe: Mapping[str, str]) -> str:
    """Return where the loss of a recipe clips ratios; empty if that is not recorded, or is the loss's own affair.

    >>> clip_rule({"trainer.loss": "dapo", "trainer.epsilon_low": "0.2", "trainer.epsilon_high": "0.28"})
    'Its loss, dapo, clips the ratio at 0.8 and 1.28'
    """
    loss = recipe.get("trainer.loss", "")
    try:
        low, high = (float(recipe.get(f"trainer.epsilon_{end}", "")) for end in ("low", "high"))
    except ValueError:
        return ""
    if not loss or is_reference(loss):
        return ""
    if loss == "cispo":
        return f"Its loss, {loss}, caps the ratio at {high:g}"
    ratio = "mean ratio of an answer" if loss == "gspo" else "ratio"
    return f"Its loss, {loss}, clips the {ratio} at {1 - low:g} and {1 + high:g}"
