"""Rows of a data set as examples.

    NAME@DIGEST ──► dataset_rebuild.py: the runs of that build, out of the log ──► fit for the model? ──► TunedExample

Nothing is tokenized: an example has the tokens that were sampled.
"""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from plugins.tuning.from_log import TokenLimits, unfit
from streams.errors import NotFoundError
from trainer.examples.tuned_examples import DatasetExamples, TunedExample


class FittingExamples(NamedTuple):
    """The examples that a model can be tuned on, and how many it cannot, by reason."""

    examples: list[TunedExample]
    left_out: Counter[str]


def choose(dataset: DatasetExamples, limits: TokenLimits) -> FittingExamples:
    """Return the examples that fit the model. Raises NotFoundError if none does, and says why."""
    examples: list[TunedExample] = []
    left_out: Counter[str] = Counter()
    for tokenizer_digest, example in dataset.rows:
        other = tokenizer_digest != limits.tokenizer_digest
        if (reason := "of another tokenizer" if other else unfit(example, limits)) is None:
            examples.append(example)
        else:
            left_out[reason] += 1
    if not examples:
        reasons = ", ".join(f"{number} {reason}" for reason, number in left_out.most_common()) or "it has none"
        raise NotFoundError(
            f"data set {dataset.dataset}@{dataset.digest[:12]}: none of {len(dataset.rows)} examples fits ({reasons}); "
            "tune the model that sampled them, or build another set"
        )
    return FittingExamples(examples, left_out)
