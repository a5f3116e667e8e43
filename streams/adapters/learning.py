"""What groups teach: how many differ in reward, and figures of their answers.

    AdvantagedGroup ──► GroupFacts ──► LearningFigures of the last step, or of a version
                                  └──► LearningHistory: the newest groups of a policy, and the tally of each version

A step is `batches.groups` groups for training, counted back from the newest, whether or not a batch was cut from them:
where groups of equal rewards are dropped, a policy that learns nothing fills no batch.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from schemas.events import AdvantagedGroup, GroupResponse

DIAGNOSED_STEPS = 2
"""Number of steps without a difference in reward after which a diagnosis is made."""
DIGEST_BYTES = 8
TEXTS_OF_VERSIONS = 4
"""Number of newest versions with single answers in memory; of older ones only the count is kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupFacts:
    """One training group's figures about learning."""

    task_id: str
    version: int
    differed: bool
    """Whether one answer was better than another: otherwise it teaches nothing."""
    rewards: tuple[float, ...] = ()
    """Rewards of the scored answers, as are `digests`, `cut` and `places`."""
    digests: tuple[bytes, ...] = ()
    """Digests, equal for equal answers."""
    cut: int = 0
    """Answers that ended at the limit of tokens."""
    max_tokens: int = 0
    places: tuple[tuple[int, int], ...] = ()
    """Partition and offset of each answer in `responses`."""
    reasons: tuple[str, ...] = ()
    """Why the group was dropped, or slots have no score."""


def facts_of(group: AdvantagedGroup) -> GroupFacts:
    """Return a group's figures about learning."""
    reasons = [slot.reason for slot in group.left_out]
    if group.dropped_reason not in (None, "unscored"):  # the slots say why nothing was scored
        reasons.insert(0, group.dropped_reason)
    return GroupFacts(
        task_id=group.task_id,
        version=group.adapter_version,
        differed=not group.flat,
        rewards=tuple(response.reward for response in group.responses),
        digests=tuple(map(_digest, group.responses)),
        cut=sum(response.finish_reason == "length" for response in group.responses),
        max_tokens=group.sampling.max_tokens,
        places=tuple((response.partition, response.offset) for response in group.responses),
        reasons=tuple(reasons),
    )


def _digest(response: GroupResponse) -> bytes:
    """Return a digest of an answer's tokens; of one whose tokens are not in its group, of its id."""
    chains = [response.completion_token_ids, *(branch.completion_token_ids for branch in response.branches)]
    answer = response.response_id.encode() if response.elsewhere else b"|".join(tokens.data for tokens in chains)
    return hashlib.blake2b(answer, digest_size=DIGEST_BYTES).digest()


@dataclass(slots=True)
class LearningFigures:
    """A tally of groups for training."""

    groups: int = 0
    differed: int = 0
    """Number of groups with different rewards."""
    answers: int = 0
    """Scored answers."""
    reward_sum: float = 0.0
    cut: int = 0
    _texts: set[bytes] = field(default_factory=set)
    _forgotten: int = 0

    def add(self, facts: GroupFacts) -> None:
        """Count a group."""
        self.groups += 1
        self.differed += facts.differed
        self.answers += len(facts.rewards)
        self.reward_sum += sum(facts.rewards)
        self.cut += facts.cut
        self._texts.update(facts.digests)

    @property
    def distinct(self) -> int:
        """Number of distinct answers."""
        return self._forgotten + len(self._texts)

    @property
    def mean_reward(self) -> float | None:
        """Mean reward; None without a scored answer."""
        return self.reward_sum / self.answers if self.answers else None

    @property
    def cut_share(self) -> float:
        """Share of the answers that ended at the limit of tokens."""
        return self.cut / self.answers if self.answers else 0.0

    def forget_texts(self) -> None:
        """Keep only the number of distinct answers."""
        self._forgotten, self._texts = self.distinct, set()

    def plain(self) -> dict[str, float | int | None]:
        """Return it for JSON."""
        mean = self.mean_reward
        return {
            "reward": None if mean is None else round(mean, 4),
            "n": self.answers,
            "groups": self.groups,
            "differed": self.differed,
            "cut": self.cut,
            "distinct": self.distinct,
        }

    def metrics(self) -> dict[str, float]:
        """Return the figures of a step that the trainer does not measure, for the event of its version."""
        return {
            "groups_differed": float(self.differed),
            "answers_cut": float(self.cut),
            "answers_distinct": float(self.distinct),
        }

    def __str__(self) -> str:
        differed = f"{self.differed} of {self.groups} groups differed in reward"
        if self.mean_reward is None:
            return f"{differed}, no answer has a score"
        return (
            f"{differed}, mean {self.mean_reward:.2f}, {self.cut_share:.0%} cut, "
            f"{self.distinct} of {self.answers} answers distinct"
        )


def learning_of(groups: Iterable[GroupFacts]) -> LearningFigures:
    """Return the tally of some groups."""
    learning = LearningFigures()
    for facts in groups:
        learning.add(facts)
    return learning


def learning_in(metrics: Mapping[str, float]) -> LearningFigures | None:
    """Return the tally in the metrics of a version; None for a version made without it."""
    if "groups_differed" not in metrics:
        return None
    answers = metrics.get("responses", 0.0)
    return LearningFigures(
        groups=int(metrics.get("groups", 0.0)),
        differed=int(metrics["groups_differed"]),
        answers=int(answers),
        reward_sum=metrics.get("reward", 0.0) * answers,
        cut=int(metrics["answers_cut"]),
        _forgotten=int(metrics["answers_distinct"]),
    )


@dataclass(slots=True)
class LearningHistory:
    """What a policy's groups taught, up to the last one read."""

    step: int
    """Groups in a step."""
    versions: dict[int, LearningFigures] = field(default_factory=dict)
    """Tallies by the version that answered."""
    groups: int = 0
    differed: int = 0
    """Those of them that differed in reward."""
    steps_without_difference: int = 0
    """Consecutive steps, up to the newest, that taught nothing."""
    _newest: deque[GroupFacts] = field(default_factory=deque)
    _flat_count: int = 0

    @property
    def last_step_differed(self) -> bool:
        """Whether a group of the newest step, which may not be full yet, differed in reward."""
        return self._flat_count < min(self.step, self.groups)

    def take(self, group: AdvantagedGroup) -> None:
        """Add a group; one that was just read, or that is not for training, changes nothing."""
        if group.purpose == "train" and all(group.task_id != facts.task_id for facts in self._newest):
            self.add(facts_of(group))

    def add(self, facts: GroupFacts) -> None:
        """Add a group's figures."""
        self._newest.append(facts)
        if len(self._newest) > DIAGNOSED_STEPS * self.step:
            self._newest.popleft()
        self.groups += 1
        self.differed += facts.differed
        self._flat_count = 0 if facts.differed else self._flat_count + 1
        self.steps_without_difference = self._flat_count // self.step
        if facts.version not in self.versions:
            self.versions[facts.version] = LearningFigures()
            for version in sorted(self.versions)[:-TEXTS_OF_VERSIONS]:
                self.versions[version].forget_texts()
        self.versions[facts.version].add(facts)

    def last_step(self) -> LearningFigures | None:
        """Return the tally of the newest step; None before its first group."""
        return learning_of(list(self._newest)[-self.step :]) if self._newest else None

    def flat_groups(self) -> list[GroupFacts]:
        """Return the groups of the newest steps, for a diagnosis, if none of them differed; else none."""
        return list(self._newest) if self.steps_without_difference >= DIAGNOSED_STEPS else []

    def first_collapse(self) -> int | None:
        """Return the first version since which every version gave a single text; None if the newest did not."""
        since = None
        for version in sorted(self.versions, reverse=True):
            learning = self.versions[version]
            if learning.answers and (learning.distinct > 1 or learning.groups < 2):
                break
            since = version if learning.answers else since
        return since
