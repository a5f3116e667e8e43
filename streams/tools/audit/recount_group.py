"""Recount one group: does it agree with its task, its responses and its rewards?

    group, task, the sampling it names, rewards ──► slot by slot, then mean, spread and advantages ──► findings

A group is complete, or was closed by an `expire` record; in the second case the log does not tell which records were
read before that, but later ones have a dead letter. The numbers are recomputed here with plain sums, and may differ by
TOLERANCE of the largest reward.

`partial` and `min_group` are not checked: a group that was dropped under other settings is not an error.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from schemas.conventions import ABSTAINED, PINNED, POLICY_LAG, SOURCE_SHA256, UNRANKED
from schemas.events import Coordinates, derive_id
from streams.advantage_formulas import FORMULAS, Formula
from streams.kafka.topics import SHAPES
from streams.tools.audit.facts import (
    AuditFinding,
    GroupFact,
    MemberFact,
    ResponseFact,
    RewardFact,
    TaskFact,
)
from streams.tools.audit.view import AuditView

TOLERANCE = 1e-9
EQUAL = 1e-6
"""Rewards this close, relative to the largest (absolute below 1), count as equal, and then all advantages are 0."""

Slots = dict[int, ResponseFact]
"""The responses of one sampling that may enter, by slot."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupCase:
    """A group, and everything it is compared with."""

    group: GroupFact
    task: TaskFact
    chosen: Slots
    """Of the sampling that the group names."""
    scores: Mapping[tuple[str, str], RewardFact]
    """By response_id and source."""
    winner: str | None
    """The sampling that was complete first."""
    expires: bool
    """Whether a control record closes the group."""
    closed: bool
    """Whether the join is done with the record at which the group left."""
    due: Callable[[Coordinates], bool]
    """Whether the join is done with the record at these coordinates."""


def check_group(case: GroupCase, view: AuditView) -> Iterator[AuditFinding]:
    """Yield what is wrong with a group."""
    yield from _about(case, view)
    check = _Check(case, view)
    yield from check.slots()
    yield from check.numbers()


def _about(case: GroupCase, view: AuditView) -> Iterator[AuditFinding]:
    group, task = case.group, case.task
    expected = (task.policy, task.purpose, task.scenario, task.tenant, task.group_size, task.traceparent)
    if group.about != expected:
        yield _wrong(group, f"it has {group.about} of its task {task.at}, which has {expected}")
    shortened = group.dropped_reason == "too_large" and not group.metadata
    undeclared = group.metadata.keys() - task.metadata.keys() - SHAPES["groups"].metadata.keys()
    if not shortened and (names := _foreign_metadata(case, view) - undeclared):
        yield _wrong(group, f"its metadata are not those of its task {task.at}: {', '.join(sorted(names))}")
    if undeclared:
        yield _wrong(group, f"nothing that is installed adds such metadata to a group: {', '.join(sorted(undeclared))}")
    if group.group_id != derive_id(group.task_id, "group", group.formula_version):
        yield _wrong(group, "its group_id is not that of its task")
    if group.complete and group.sampling_id != case.winner:
        yield _wrong(group, f"it is made of sampling {group.sampling_id}, but {case.winner} was complete first")
    if not group.complete and not case.expires and not view.reach.cut(view.names["group-control"], task.at.partition):
        yield _wrong(group, "it is not complete, and no control record closed it")


def _foreign_metadata(case: GroupCase, view: AuditView) -> set[str]:
    """Return the keys of a group's metadata that do not follow from its task, formula and credit rule.

    A function of the user's own is recorded with the checksum of its source, which nothing in the log confirms.
    """
    group, task = case.group, case.task
    pinned = {} if task.pinned is None else {PINNED: str(task.pinned)}
    unconfirmed = {key for key, name in zip(SOURCE_SHA256, (group.formula, group.credit), strict=True) if ":" in name}
    if view.settings.trainer.off_policy:
        unconfirmed.add(POLICY_LAG)  # the versions here are not those that sampled
    unconfirmed |= SHAPES["groups"].metadata.keys() - {PINNED, POLICY_LAG, *SOURCE_SHA256}
    differing = {**task.metadata, **pinned}.items() ^ group.metadata.items()
    return {name for name, _ in differing} - unconfirmed


class _Check:
    """One group against the sampling it names."""

    def __init__(self, case: GroupCase, view: AuditView) -> None:
        self._group, self._task, self._chosen, self._scores = case.group, case.task, case.chosen, case.scores
        self._closed, self._due, self._view = case.closed, case.due, view
        self._rewards: list[float] = []
        """Of every slot that was scored, in slot order; also of a dropped group."""
        self._stamps = [case.task.ms]
        self._is_whole = True
        self._is_sure = True
        """Whether the log tells everything that was read before the group left."""
        self._is_broken = False

    def slots(self) -> Iterator[AuditFinding]:
        """Yield what is wrong with each slot."""
        group = self._group
        members = {member.slot: member for member in group.members}
        left_out = {slot: (response_id, reason) for slot, response_id, reason in group.left_out}
        if group.dropped_reason == "too_large" and not members and not left_out:
            self._is_broken = True  # not even the names of its slots fitted
            return
        named = sorted([*(one.slot for one in group.members), *(slot for slot, _, _ in group.left_out)])
        if named != list(range(self._task.group_size)):
            yield _wrong(group, f"it names the slots {named}, expected each of {self._task.group_size} once")
            self._is_broken = True
            return
        if group.dropped_reason is not None and members:
            yield _wrong(group, f"it was dropped as {group.dropped_reason}, but has responses")
        if [member.slot for member in group.members] != sorted(members):
            yield AuditFinding("out_of_order", group.at, "its responses are not in slot order")
        for slot in range(self._task.group_size):
            response = self._chosen.get(slot)
            if response is not None and slot in left_out and left_out[slot][1] != "unanswered":
                self._stamps.append(response.ms)
            if slot in members:
                yield from self._member(members[slot], response)
            else:
                yield from self._left_out(slot, *left_out[slot], response)
        if group.complete and not self._is_whole:
            yield _wrong(group, "it is marked complete, but a slot has no response or no score")
        if not group.complete and self._is_whole:
            yield _wrong(group, "it is not marked complete, but every slot has its response and scores")
        yield from self._heads()

    def _member(self, member: MemberFact, response: ResponseFact | None) -> Iterator[AuditFinding]:
        group, view = self._group, self._view
        at = Coordinates(view.names["responses"], member.partition, member.offset)
        self._rewards.append(member.reward)
        if not view.exists(at):
            self._is_sure = False
            if view.never("responses", member.partition, member.offset):
                yield AuditFinding(
                    "phantom", group.at, f"slot {member.slot} names {at}, which is after the end of the topic"
                )
            elif not view.gone("responses", member.partition, member.offset):
                yield AuditFinding(
                    "lost", at, f"slot {member.slot} of {group.at} names this offset, which holds no record"
                )
            return
        if response is None or (response.at, response.response_id) != (at, member.response_id):
            is_at = "no such response" if response is None else f"the response that counts at {response.at}"
            yield _wrong(group, f"slot {member.slot} is {member.response_id} at {at}; the log has {is_at}")
            return
        self._stamps.append(response.ms)
        same = response.tokens == member.tokens if member.elsewhere is None else response.counted == member.elsewhere
        if response.failed or not same or response.finish_reason != member.finish_reason:
            what = "prompt, tokens, logprobs, mask, finish reason or program"
            yield _wrong(group, f"slot {member.slot} has another {what} than {at}")
        yield from self._score(member, response)

    def _score(self, member: MemberFact, response: ResponseFact) -> Iterator[AuditFinding]:
        """Compare what the group records of one response's rewards with the rewards."""
        recorded, expected = dict(member.components), dict[str, float]()
        total: list[float] = []
        whole = True
        for source, weight in self._task.sources:
            reward = self._scores.get((response.response_id, source))
            if reward is not None and reward.abstained:
                self._stamps.append(reward.ms)
                continue
            if reward is None or reward.value is None:
                whole = False
                yield AuditFinding(
                    "lost", response.at, f"{self._group.at} counts a reward of {source!r} for it that is not in the log"
                )
                continue
            self._stamps.append(reward.ms)
            own = {source: reward.value} | {f"{source}.{part}": value for part, value in reward.components}
            if any(recorded.get(name) != value for name, value in own.items()):
                yield AuditFinding("contradictory", reward.at, f"it has {own}, but {self._group.at} has {recorded}")
            expected |= own
            total.append(weight * reward.value)
        if not whole:
            return
        if recorded.keys() != expected.keys():
            yield _wrong(self._group, f"slot {member.slot} has parts {sorted(recorded)}, expected {sorted(expected)}")
        scale = max(map(abs, total), default=0.0)
        if recorded == expected and not _near(member.reward, sum(total), scale):
            yield _wrong(self._group, f"slot {member.slot} has reward {member.reward}, expected {sum(total)}")

    def _left_out(
        self, slot: int, response_id: str | None, reason: str, response: ResponseFact | None
    ) -> Iterator[AuditFinding]:
        group = self._group
        if reason == "unanswered":
            self._is_whole = False
            if response is not None:
                self._is_sure = False
                yield from self._came_later(response, slot)
            return
        if response is None or response.response_id != response_id:
            yield _wrong(group, f"slot {slot} is left out as {reason}, but the log has no response {response_id}")
            return
        if reason == "response_failed" or response.failed:
            if not response.failed or reason != "response_failed":
                yield _wrong(group, f"slot {slot} is left out as {reason}, but {response.at} did not end so")
            return
        rewards = [self._scores.get((response.response_id, source)) for source, _ in self._task.sources]
        found = [reward for reward in rewards if reward is not None]
        self._stamps += [reward.ms for reward in found]
        if reason == UNRANKED and all(why != "unanswered" for _, _, why in group.left_out):
            yield _wrong(group, f"slot {slot} is left out as {reason}, but no slot is unanswered")
        if reason in ("unscored", UNRANKED):
            self._is_whole = self._is_sure = False
            if len(found) == len(rewards) and not any(self._view.lettered(one.at, "advantages") for one in found):
                yield from self._came_later(max(found, key=lambda reward: reward.at.offset, default=response), slot)
        elif len(found) < len(rewards):
            self._is_whole = self._is_sure = False
            yield AuditFinding(
                "lost", response.at, f"{group.at} leaves it out as {reason}, but one of its rewards is not in the log"
            )
        else:
            yield from self._not_a_member(slot, reason, response, found)

    def _not_a_member(
        self, slot: int, reason: str, response: ResponseFact, rewards: Sequence[RewardFact]
    ) -> Iterator[AuditFinding]:
        """Check why a slot that has every score is left out: one failed, all abstained, or the group was dropped."""
        values, expected = [reward.value for reward in rewards], self._group.dropped_reason
        if any(reward.is_failure for reward in rewards):
            expected = "score_failed"
        elif rewards and all(reward.abstained for reward in rewards):
            expected = ABSTAINED
        if reason != expected:
            yield _wrong(
                self._group, f"slot {slot} is left out as {reason}, but its rewards at {response.at} are {values}"
            )
        elif expected not in ("score_failed", ABSTAINED):
            weights = [weight for _, weight in self._task.sources]
            self._rewards.append(sum(weight * (value or 0.0) for weight, value in zip(weights, values, strict=True)))

    def _came_later(self, fact: ResponseFact | RewardFact, slot: int) -> Iterator[AuditFinding]:
        """Account for what is in the log but not in the group: it was read after the group had left."""
        what = f"{self._group.at} left without it in slot {slot}"
        if self._view.lettered(fact.at, "advantages"):
            yield AuditFinding("late", fact.at, what, accounted=True)
        elif self._closed and self._due(fact.at):
            yield AuditFinding("late", fact.at, f"{what}; it has no dead letter")

    def _heads(self) -> Iterator[AuditFinding]:
        group, answers = self._group, self._chosen.values()
        if group.sampling_id is None:
            if group.version != -1 or group.dropped_reason != "unanswered":
                yield _wrong(group, "it is made of no sampling, expected version -1 and dropped_reason unanswered")
            return
        if not answers:
            topic = self._view.names["responses"]
            if not self._view.reach.cut(topic, self._task.at.partition):
                yield AuditFinding("phantom", group.at, f"sampling {group.sampling_id} has no response in the log")
            return
        if {response.version for response in answers} != {group.version}:
            yield _wrong(group, f"it has version {group.version}, but its responses do not")
        first = self._chosen.get(group.members[0].slot) if group.members else None
        if first is not None and first.head != group.head:
            yield _wrong(group, f"its sampling, model, tokenizer or batches are not those of {first.at}")

    def numbers(self) -> Iterator[AuditFinding]:
        """Yield what is wrong with time, mean, spread and advantages."""
        group, rewards = self._group, self._rewards
        if self._is_broken:
            return
        if self._is_sure and (group.complete or self._closed) and group.created_at != max(self._stamps):
            yield _wrong(
                group, f"created_at is {group.created_at}, but the newest it is made of is {max(self._stamps)}"
            )
        if group.dropped_reason is None and not rewards and self._task.sources:
            yield _wrong(group, "it has no responses, and no dropped_reason")
        formula = FORMULAS.get(group.formula)
        mean, std, expected = expected_numbers(formula, rewards, group.eps, group.ddof)
        scale = max(map(abs, rewards), default=0.0)
        if not _near(group.mean, mean, scale) or not _near(group.std, std, scale):
            yield _wrong(group, f"mean and std are {group.mean} and {group.std}, expected {mean} and {std}")
        if formula is None:  # one of the user's own has no second implementation
            if ":" not in group.formula:
                yield _wrong(group, f"its formula is {group.formula}, and there are {', '.join(FORMULAS)}")
            return
        # rounding errors of a reward grow as advantages do
        grown = formula.recount(scale, len(rewards), std, group.eps) if len(rewards) > 1 and std + group.eps else scale
        for member, value in zip(group.members, expected, strict=False):
            if not _near(member.advantage, value, grown):
                yield _wrong(group, f"slot {member.slot} has advantage {member.advantage}, expected {value}")


def expected_numbers(
    formula: Formula | None, rewards: Sequence[float], eps: float, ddof: int
) -> tuple[float, float, list[float]]:
    """Return mean, standard deviation and advantages of these rewards, none for None. All-equal rewards give zeros."""
    n = len(rewards)
    if not n:
        return 0.0, 0.0, []
    mean = sum(rewards) / n
    distances = [reward - mean for reward in rewards]
    std = math.hypot(*distances) / math.sqrt(n - ddof) if n > ddof else 0.0
    if max(rewards) - min(rewards) <= EQUAL * max(1.0, *map(abs, rewards)):
        return mean, std, [0.0] * n
    return mean, std, [] if formula is None else [formula.recount(distance, n, std, eps) for distance in distances]


def _near(got: float, expected: float, scale: float) -> bool:
    return abs(got - expected) <= TOLERANCE * max(1e-3, abs(expected), scale)


def _wrong(group: GroupFact, what: str) -> AuditFinding:
    return AuditFinding("contradictory", group.at, what)
