"""A bisection from its request to its result.

    log ──► version search ──► too few answers? ask versions ──► groups ranked ──► trained again without the worst
                                   within a budget of tokens                        asked the same questions ──► gone?

The log is only read. Samples and trained weights stay in this process and a folder of its own.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from plugins.bisect import taught_groups, version_sampler
from plugins.bisect.behaviour import Behaviour, PolicyAnswers
from plugins.bisect.taught_groups import TaughtGroup
from plugins.bisect.version_sampler import ANSWERS, COUNTERFACTUAL, VersionSampler
from plugins.bisect.version_search import ALPHA, Turning, VersionSearch, finding_of
from schemas.events import Purpose
from streams.adapters import versions as adapters
from streams.errors import NotFoundError, RefusedError, SettingsError, StreamwardError
from streams.evaluation import sequential
from streams.evaluation.sequential import ArmPair, ConfidenceSequence
from streams.files import Scratch
from streams.settings.model import Settings
from streams.tools.archive import history as archived
from streams.tools.archive.history import Source
from streams.tools.replay.replay_context import Report, Stopped

FOR_SEARCH = 0.6
"""Share of the budget that the search may use, where a counterfactual follows."""
QUESTIONS = 256
"""Questions a version that usually suffice: for the estimate."""
Outcome = Literal["gone", "less", "remains", "open"]


@dataclass(frozen=True, kw_only=True)
class BisectRequest:
    """The request of a bisection."""

    policy: str
    good: int
    bad: int
    behaviour: Behaviour
    purpose: Purpose = "train"
    least_rise: float = 0.1
    leave_out: int = 10
    """Groups that the counterfactual is trained without."""
    source: Source = "auto"


@dataclass(frozen=True, slots=True, kw_only=True)
class Counterfactual:
    """The turning version, trained again without some groups."""

    start: int
    """The version whose checkpoint it was trained from; 0: the base model."""
    showing: int
    answers: int
    to_turning: ConfidenceSequence | None
    """Its share of the behaviour, less that of the recorded version."""
    to_good: ConfidenceSequence | None
    outcome: Outcome


@dataclass(kw_only=True)
class Bisection:
    """A bisection while it is worked on. Close it at the end."""

    settings: Settings
    request: BisectRequest
    stop: threading.Event
    say: Callable[[str], None]
    report: Report = lambda step, done, total: None
    groups: list[TaughtGroup] = field(default_factory=list)
    """Groups of every batch from good to the turning point, the one that taught most first."""
    left_out: list[TaughtGroup] = field(default_factory=list)
    counterfactual: Counterfactual | None = None
    why_none: str | None = None
    """Why there is no counterfactual."""
    tokens: int = 0
    """That were sampled."""

    def __post_init__(self) -> None:
        """Read the answers of the log, and search with them.

        Raises NotFoundError for an unknown version, SettingsError if the versions are in no order, and what
        `PolicyAnswers` raises.
        """
        request = self.request
        self._versions = adapters.read_state(self.settings, request.policy).versions
        if request.good >= request.bad:
            raise SettingsError(
                f"--good {request.good} --bad {request.bad}: the good version comes before the bad one; swap them, or "
                "look for the opposite behaviour with --when 'NOT (...)'"
            )
        if missing := [number for number in (request.good, request.bad) if number not in self._versions]:
            raise NotFoundError(
                f"policy {request.policy} has no version {missing[0]}; the newest is {max(self._versions)} "
                "(`streamward adapters list`)"
            )
        self._history = archived.of(self.settings, request.source)
        answers = PolicyAnswers(self.settings, request.policy, request.behaviour, request.source, self._history)
        self._answers, recorded = answers, answers.read_recorded(request.bad, request.purpose)
        self._shows = {answer.response_id: answer.mark.shows for answer in recorded}
        self._tokens_each = sum(answer.tokens for answer in recorded) / max(1, len(recorded))
        self.questions = version_sampler.questions_of(self._answers.tasks.values())
        self.search = VersionSearch(request.good, request.bad, request.least_rise)
        self.search.shares.add("recorded", (answer.mark for answer in recorded))
        self._search(None)

    def close(self) -> None:
        """Release what reads the log."""
        self._answers.close()

    @property
    def too_few(self) -> list[int]:
        """Versions whose answers do not suffice."""
        return version_sampler.too_few(self.search)

    def estimate(self, *, trains: bool) -> int:
        """Return the tokens that the search and the counterfactual may need."""
        versions = len(self.too_few) + bool(self.too_few)
        if trains and (self.search.turning is not None or self.too_few):
            versions += 3
        return int(versions * min(len(self.questions), QUESTIONS) * ANSWERS * self._tokens_each)

    def sample(self, max_tokens: int) -> None:
        """Ask the versions whose answers do not suffice. Raises Stopped, and what the engine raises."""
        if not self.too_few:
            return
        retrained: dict[int, Path] = {}
        with version_sampler.sampler(
            self.settings, self._versions, retrained, self._answers.tasks.values(), max_tokens
        ) as sampled:
            self._search(sampled)
            self.tokens += max_tokens - sampled.left

    def _search(self, sampled: VersionSampler | None) -> None:
        version_sampler.search_on(self.search, sampled, self._answers.mark_sampled, stop=self.stop, report=self.report)

    def rank(self) -> None:
        """Rank the groups of the batches from good to the turning point, where there is one."""
        turning = self.search.turning
        if turning is not None:
            responses = self._answers.taught(self.request.good + 1, turning.last)
            self.groups = taught_groups.rank_groups(responses, self._shows)
            self.left_out = taught_groups.most_taught(self.groups, turning, self.request.leave_out)

    def try_without(self, max_tokens: int) -> None:
        """Train the turning version again without the worst groups, and ask it; else say why not. Raises Stopped."""
        turning = self.search.turning
        if turning is None:
            return
        try:
            if self.settings.policy.engine == "scripted":
                raise RefusedError("policy.engine=scripted has no weights to train")
            if not self.left_out:
                raise RefusedError("no group on the way taught it by its advantages, so there is none to leave out")
            if max_tokens <= 0 or not self.questions:
                lacks = "tokens are left (--max-tokens)" if self.questions else "recorded question can be asked again"
                raise RefusedError(f"no {lacks}, so it could not be compared")
            with Scratch("bisect") as scratch:
                self._try_without(turning, max_tokens, scratch)
        except StreamwardError as exc:
            self.why_none = str(exc)

    def _try_without(self, turning: Turning, max_tokens: int, scratch: Path) -> None:
        from plugins.bisect import retrain_without  # torch comes with it

        places = {(group.place.partition, group.place.offset) for group in self.left_out}
        planned = retrain_without.plan_without(self.settings, self.request.policy, turning, places, self._history)
        self.say(f"training versions {planned.start + 1} to {turning.last} without {len(places)} groups")
        folder = retrain_without.train_without(
            planned, self.settings, self._history, turning, root=scratch / "retrained", say=self.say
        )
        number = COUNTERFACTUAL + turning.last
        compared = number, turning.last, self.request.good
        tasks = self._answers.tasks.values()
        with version_sampler.sampler(self.settings, self._versions, {number: folder}, tasks, max_tokens) as sampled:
            self.counterfactual = self._compare(number, turning.last, planned.start, sampled)
            while self.counterfactual.outcome == "open":
                if self.stop.is_set():
                    raise Stopped
                if not sampled.extend(self.search, compared, self._answers.mark_sampled):
                    break
                self.report("asking the counterfactual", sampled.questions_asked[number], None)
                self.counterfactual = self._compare(number, turning.last, planned.start, sampled)
            self.tokens += max_tokens - sampled.left

    def _compare(self, number: int, turning: int, start: int, sampled: VersionSampler) -> Counterfactual:
        """Compare the counterfactual with the turning version and the good one, by the same questions."""
        shares = self.search.shares
        arm = shares.arm("sampled", number)
        to_turning, to_good = (
            sequential.interval([ArmPair(arm, shares.arm("sampled", version))], ALPHA / 2)
            for version in (turning, self.request.good)
        )
        showing, answers = shares.counts(number)
        return Counterfactual(
            start=start,
            showing=showing,
            answers=answers,
            to_turning=to_turning,
            to_good=to_good,
            outcome=outcome_of(to_turning, to_good, self.request.least_rise),
        )


def outcome_of(to_turning: ConfidenceSequence | None, to_good: ConfidenceSequence | None, least_rise: float) -> Outcome:
    """Return what became of a behaviour, by its share less that of the turning version and of the good one.

    gone: less than at the turning version, and not more than at the good one by `least_rise`; less: less, and more than
    at the good one; remains: more than at the good one, and not less than at the turning version by `least_rise`.
    """
    finding = finding_of(to_good, least_rise)
    if to_turning is not None and to_turning.high < 0:
        return {"not": "gone", "more": "less", "open": "open"}[finding]  # type: ignore[return-value]
    if to_turning is not None and to_turning.low > -least_rise and finding == "more":
        return "remains"
    return "open"
