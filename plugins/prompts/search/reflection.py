"""Search by reflection: a model reads answers with their rewards and proposes texts; gepa decides which to try and
keep.

    gepa ──► evaluate(text, questions) ──► a version of the prompt ──► SearchWorker: answers of the log, or new tasks
         ──► reflect(what went wrong) ──► an answer of the log, or the reflector ──► reflected ──► prompts
         ◄── the same text is not accepted a second time

gepa keeps its state in memory: no folder, no pickle. With one seed it makes the same calls in the same order, and each
of them is in the log: an answer by its task's id, a reflection by the digest of its request. So a search that was
killed is run again from its beginning, pays for nothing a second time, and continues where there is no answer yet.
Answers are counted here, not by gepa. Three sets of questions: reflections are made on one, candidates are picked
on the second, and the figures are those of the third, which no candidate has seen.

Only the system message is optimized. Measured with gepa 0.1.4; extra `prompts`.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from streams.errors import SettingsError

COMPONENT = "system"
GRAM = 5
"""Words in a row that a text shares with a question are a quotation."""
WORDS = re.compile(r"\w+")


class SearchEnded(BaseException):
    """The search is not continued now. No Exception: gepa continues after those of a reflection."""


@dataclass(frozen=True, slots=True)
class ReflectionPlan:
    """A search: its beginning, its questions, and its limits."""

    text: str
    """That it begins with."""
    training: tuple[int, ...]
    validation: tuple[int, ...]
    max_answers: int
    minibatch: int
    seed: int


@dataclass(frozen=True, slots=True)
class AnsweredQuestion:
    """What a text got for a question."""

    question: str
    answer: str
    reward: float
    expected: str


Evaluate = Callable[[str, Sequence[int]], Sequence[AnsweredQuestion]]
"""Answers of a text to questions, of the log or new. May raise SearchEnded."""
Reflect = Callable[[str], str]


def search(plan: ReflectionPlan, evaluate: Evaluate, reflect: Reflect, asked: Callable[[], int]) -> str:
    """Return the text that earned most on the validation questions. `asked`: different answers that it asked for.

    Raises SearchEnded, SettingsError without gepa.
    """
    try:
        import gepa
    except ImportError as exc:
        raise SettingsError("search by reflection needs gepa: install streamward[prompts]") from exc

    def is_over(_: object) -> bool:
        return asked() >= plan.max_answers

    result: Any = gepa.optimize(
        seed_candidate={COMPONENT: plan.text},
        trainset=list(plan.training),
        valset=list(plan.validation),
        adapter=_Adapter(evaluate),
        reflection_lm=reflect,
        reflection_minibatch_size=plan.minibatch,
        stop_callbacks=[is_over, _Idle()],
        acceptance_criterion=_NewText(),
        seed=plan.seed,
        logger=_Silent(),
        run_dir=None,
    )
    return str(result.best_candidate[COMPONENT])


def quotations(text: str, questions: Sequence[str]) -> list[str]:
    """Return the runs of GRAM words that a text has in common with questions: it may have learnt them by heart."""
    own = set(_grams(text))
    return sorted({" ".join(gram) for question in questions for gram in _grams(question) if gram in own})


def request_digest(model: str, request: str) -> str:
    """Return the sha256 of what a reflector is asked."""
    return hashlib.sha256(f"{model}\x1f{request}".encode()).hexdigest()


def _grams(text: str) -> list[tuple[str, ...]]:
    words = WORDS.findall(text.lower())
    return [tuple(words[start : start + GRAM]) for start in range(len(words) - GRAM + 1)]


class _Adapter:
    """What gepa calls."""

    propose_new_texts = None

    def __init__(self, evaluate: Evaluate) -> None:
        self._evaluate = evaluate

    def evaluate(self, batch: list[int], candidate: dict[str, str], capture_traces: bool = False) -> Any:
        from gepa import EvaluationBatch

        answers = list(self._evaluate(candidate[COMPONENT], batch))
        return EvaluationBatch(
            outputs=[answer.answer for answer in answers],
            scores=[answer.reward for answer in answers],
            trajectories=answers if capture_traces else None,
        )

    def make_reflective_dataset(
        self, candidate: dict[str, str], batch: Any, components: list[str]
    ) -> Mapping[str, Sequence[Mapping[str, Any]]]:
        del candidate
        records = [
            {
                "Inputs": answer.question,
                "Generated Outputs": answer.answer,
                "Feedback": f"It earned {answer.reward:g}."
                + (f" Expected: {answer.expected}" if answer.expected else ""),
            }
            for answer in batch.trajectories
        ]
        return dict.fromkeys(components, records)


class _NewText:
    """Accepts a better candidate, unless its text is there already."""

    def should_accept(self, proposal: Any, state: Any) -> bool:
        text = proposal.candidate[COMPONENT].strip()
        known = {candidate[COMPONENT].strip() for candidate in state.program_candidates}
        return text not in known and sum(proposal.subsample_scores_after or []) > sum(
            proposal.subsample_scores_before or []
        )


class _Idle:
    """Stops a search that proposes nothing new: it would never end without paying for an answer."""

    def __init__(self) -> None:
        self._calls = 0

    def __call__(self, _: object) -> bool:
        self._calls += 1
        return self._calls > MOST_ROUNDS


MOST_ROUNDS = 200
"""Rounds of a search, each with a reflection."""


class _Silent:
    def log(self, message: str) -> None:
        """Drop gepa's own lines: their content is in the log."""
