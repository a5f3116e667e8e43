"""Why a policy learns nothing: the likeliest cause, and what would change it.

    the newest steps without a difference in reward, some answers with what was expected, errors ──► Diagnosis

One function decides, for `up`, `status`, `doctor`, jobs and the alert; its words are in CAUSES and WAYS_OUT.
It reads only its arguments: no clock, no I/O. The causes are tried in the order of CAUSES, the most certain first.

Not covered: a policy that learns nothing although some groups differ. Held-out scores show that.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from streams.adapters.learning import GroupFacts, LearningFigures, LearningHistory, learning_of
from streams.advantage_formulas import are_equal

SHOWN_ANSWERS = 3
SHOWN_CHARACTERS = 60
"""Maximum characters of a quoted answer, question or expectation."""
CUT_SHARE = 0.5
"""If at least this share of answers ends at the token limit, the limit is the likeliest cause."""
FEW_TOKENS = 64
"""A limit below this may be too low for an answer; a model that reaches a higher one does not end its answers."""
CONTAINED_SHARE = 0.5
"""If at least this share of answers contains the expected one, the scorer is the likeliest cause."""
RIGHT = 1.0
CONTEXT = "context"
"""Text in the error of an engine about a prompt that is too long."""

CAUSES = {
    "too_long": "the prompts or the answers are too long",
    "unanswered": "no task was answered",
    "unscored": "no answer has a score",
    "one_text": "every answer is the same text: the policy has collapsed",
    "no_end": "answers do not end before max_tokens",
    "too_few_tokens": "answers are cut before they can be right",
    "not_alone": "the right answer is in the text, but the scorer accepts it only alone",
    "all_zero": "no answer is right",
    "all_one": "every answer is right",
    "all_equal": "all answers have the same reward",
    "each_equal": "the answers to one question all have the same reward",
}
"""The causes in a few words, in the order in which they are tried."""
WAYS_OUT = {
    "too_long": "Shorten the prompts, lower --max-tokens, or take a model with a longer context; for groups that are "
    "too large for a record, a smaller --group-size",
    "unanswered": "Repair what the error names, then send the tasks again: `streamward tasks resubmit --unanswered`",
    "unscored": "Repair the scorer and try it: `streamward scoring try NAME --task FILE:LINE --text TEXT`. Then "
    "`streamward admin rescore --failed` writes what is missing",
    "one_text": "Train again from there with a lower trainer.learning_rate or with trainer.beta above 0, and see "
    "whether the scorer rewards that text",
    "no_end": "Take an instruct model, ask for a short answer (--system), or set sampling.stop in the tasks",
    "too_few_tokens": "Raise --max-tokens, or ask for the answer alone (--system)",
    "not_alone": "Ask for the answer alone (--system), or take a scorer that finds it: "
    '`numeric={"number": "last"}`, `math`, `regex` with mode search, or your own module:function',
    "all_zero": "Either the scorer expects another form (try it: `streamward scoring try`), or the questions are too "
    "hard: give easier ones, an example in --system, a larger --group-size, or a scorer that gives part of the reward",
    "all_one": "Either the questions are too easy (give harder ones), or the scorer accepts everything: try a wrong "
    "answer with `streamward scoring try`",
    "all_equal": "The scorer does not tell answers apart: try two of them with `streamward scoring try`",
    "each_equal": "Some questions are always answered right and the others never: give questions between, a higher "
    "sampling.temperature or a larger --group-size",
}
"""The way out for each cause."""


@dataclass(frozen=True, slots=True)
class SampleAnswer:
    """An answer and the expected ones."""

    question: str
    expected: tuple[str, ...]
    """Right answers; empty if the task names none."""
    text: str

    @property
    def contains_expected(self) -> bool:
        """Whether the text contains a right answer, as a word or words."""
        answers = filter(None, (answer.strip().casefold() for answer in self.expected))
        text = self.text.casefold()
        return any(re.search(rf"(?<!\w){re.escape(answer)}(?!\w)", text) for answer in answers)

    def __str__(self) -> str:
        expected = " or ".join(repr(_short(answer)) for answer in self.expected)
        return f"{_short(self.text)!r}{expected and f' (expected {expected})'}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Symptoms:
    """The input of a diagnosis."""

    groups: Sequence[GroupFacts]
    """Groups of the newest steps; none of them differed in reward."""
    answers: Sequence[SampleAnswer] = ()
    """A sample of their answers."""
    errors: Sequence[str] = ()
    """Why answers or scores failed, the newest last."""
    first_collapse: int | None = None
    """The first version since which every version gave the same text to all questions."""
    primary: int = 0
    """The version that answers now."""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """Why nothing is learnt, and the way out."""

    cause: str
    what: str
    do: str

    def __str__(self) -> str:
        return f"{self.what}. {self.do}"


def symptoms_of(
    history: LearningHistory, *, answers: Sequence[SampleAnswer] = (), errors: Sequence[str] = (), primary: int = 0
) -> Symptoms | None:
    """Return the symptoms in a policy's newest groups; None while some of them differ, or there are too few."""
    groups = history.flat_groups()
    if not groups:
        return None
    since = history.first_collapse()
    return Symptoms(groups=groups, answers=answers, errors=errors, first_collapse=since, primary=primary)


def diagnose(symptoms: Symptoms) -> Diagnosis:
    """Return the likeliest cause why none of these groups differed in reward, in words."""
    learning = learning_of(symptoms.groups)
    cause = likeliest_cause(symptoms.groups, symptoms.answers, symptoms.errors)
    what = f"nothing is learnt: none of the last {learning.groups} groups differed in reward, since {CAUSES[cause]}"
    details = "; ".join(_details(cause, symptoms, learning))
    return Diagnosis(cause, f"{what}{details and ': '}{details}", _way_out(cause, symptoms))


def likeliest_cause(
    groups: Sequence[GroupFacts], answers: Sequence[SampleAnswer] = (), errors: Sequence[str] = ()
) -> str:
    """Return the one of CAUSES for which none of these groups differed in reward."""
    learning = learning_of(groups)
    if not learning.answers:
        return _cause_without_scores(groups, errors)
    if len(groups) > 1 and learning.distinct == 1:
        return "one_text"
    rewards = {reward for facts in groups for reward in facts.rewards}
    if not are_equal(rewards):
        return "each_equal"
    reward = max(rewards)
    if reward >= RIGHT or are_equal((reward, RIGHT)):
        return "all_one"
    if learning.cut_share >= CUT_SHARE:
        return "too_few_tokens" if max(facts.max_tokens for facts in groups) < FEW_TOKENS else "no_end"
    contained = sum(answer.contains_expected for answer in answers)
    if answers and contained >= CONTAINED_SHARE * len(answers):
        return "not_alone"
    return "all_zero" if reward <= 0 or are_equal((reward, 0.0)) else "all_equal"


def _cause_without_scores(groups: Sequence[GroupFacts], errors: Sequence[str]) -> str:
    reasons = {reason for facts in groups for reason in facts.reasons}
    if "too_large" in reasons or any(CONTEXT in error for error in errors[-1:]):
        return "too_long"
    return "unscored" if reasons & {"score_failed", "unranked", "unscored", "abstained"} else "unanswered"


def _details(cause: str, symptoms: Symptoms, learning: LearningFigures) -> Iterable[str]:
    """Yield the observations, in parts of a sentence."""
    if cause in ("too_long", "unanswered", "unscored"):
        yield from map(_short_error, symptoms.errors[-1:])
    elif cause == "one_text":
        yield from (repr(_short(answer.text)) for answer in symptoms.answers[:1])
        if symptoms.first_collapse is not None:
            yield f"since version {symptoms.first_collapse}"
    elif cause in ("no_end", "too_few_tokens"):
        limit = max(facts.max_tokens for facts in symptoms.groups)
        yield f"{learning.cut_share:.0%} of the answers have all {limit} tokens (sampling.max_tokens)"
        yield from map(str, symptoms.answers[:1])
    elif cause == "not_alone":
        containing = [answer for answer in symptoms.answers if answer.contains_expected]
        yield from map(str, containing[:SHOWN_ANSWERS])
    else:
        if cause == "all_equal":
            yield f"all of them {symptoms.groups[-1].rewards[0]:.4g}"
        yield from map(str, symptoms.answers[:SHOWN_ANSWERS])


def _way_out(cause: str, symptoms: Symptoms) -> str:
    since = symptoms.first_collapse
    if cause != "one_text" or not since or symptoms.primary < since:
        return WAYS_OUT[cause]
    words = ["streamward", "adapters", "rollback", str(since - 1), "--expected", str(symptoms.primary)]
    command = shlex.join([*words, "--reason", f"collapsed since version {since}"])
    return f"Go back: `{command}`. {WAYS_OUT[cause]}"


def _short(text: str) -> str:
    plain = " ".join(text.split())
    return plain if len(plain) <= SHOWN_CHARACTERS else f"{plain[: SHOWN_CHARACTERS - 1]}…"


def _short_error(error: str) -> str:
    return error if len(error) <= 300 else f"{error[:299]}…"


def newest_improvement(scores: Mapping[int, float]) -> int | None:
    """Return the newest version with a better score than the one scored before it; None if none has.

    >>> newest_improvement({0: 0.1, 2: 0.4, 4: 0.3, 6: 0.3})
    2
    """
    versions = sorted(scores)
    return max((after for before, after in pairwise(versions) if scores[after] > scores[before]), default=None)
