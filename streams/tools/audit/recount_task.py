"""Recount one task: its responses, their scores, and whether its group agrees.

    tasks, responses, rewards, controls, groups of one task ──► which count ──► which sampling won ──► findings, open

The rules are implemented a second time: the first record of an id counts, and an equal one is a repetition; records
after the deadline do not count, and a train task without a deadline gets one with its first response; a sampling has
one version; the first sampling to fill its last slot in the log wins. A record that is then in no group must have a
dead letter, once the stage has passed it.

A stage writes its effects before it commits. So a record below a commit without an effect is lost, and one above it is
in flight; this holds at any moment, also on a running system.

Not covered: lateness under an earlier value of `advantages.deadline_s`, for tasks without their own deadline; and which
of two tasks with one id a scorer found.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from schemas.events import Coordinates
from streams.kafka.group_names import STREAMS
from streams.tools.audit.facts import (
    AuditFinding,
    Category,
    GroupFact,
    RecountOutcome,
    ResponseFact,
    RewardFact,
    TaskFact,
)
from streams.tools.audit.recount_group import GroupCase, Slots, check_group
from streams.tools.audit.view import AuditedTask, AuditView

JOIN, SCORER = "advantages", "scoring"
"""Stages, as dead letters name them."""
UNREAD = {
    "unknown_task": "it was rejected before its task was read",
    "over_quota": "too many records about its task, or too large ones, came before it",
}
"""Reasons of the join for dead letters that do not depend on the task and its other records."""

Scores = dict[tuple[str, str], RewardFact]
"""By response_id and source."""


def recount_task(audited: AuditedTask, view: AuditView, horizon_ms: int) -> RecountOutcome:
    """Return what is wrong with one task, and what is still to come. Tasks before the horizon are only counted.

    A task that was delivered again after `evict` is new to the join, which had forgotten it: what was recorded since is
    recounted on its own, and its second group repeats the first.
    """
    audited, again = _split(audited)
    outcome = _TaskRecount(audited, view, horizon_ms).outcome()
    if again is None:
        return outcome
    words = f"it repeats {audited.tasks[0].at}, which was evicted before"
    outcome.findings.append(AuditFinding("repeated", again.tasks[0].at, words, accounted=True))
    if again.groups:
        second = recount_task(again, view, horizon_ms)
        outcome.findings += second.findings
        outcome.in_flight += second.in_flight
        outcome.counts += second.counts
        return outcome
    # without a group the log does not tell whether the join had read `evict` before this task
    events: list[ResponseFact | RewardFact] = [*again.responses, *again.rewards]
    for fact in events:
        if view.lettered(fact.at, JOIN):
            outcome.find("late", fact.at, "its task was evicted before", accounted=True)
        elif not view.reach.settled:
            outcome.in_flight["events"] += 1
    return outcome


def _split(audited: AuditedTask) -> tuple[AuditedTask, AuditedTask | None]:
    """Return what is of a task's first life, and of the next one, if it was delivered again after `evict`."""
    evicted_ms = min((control.ms for control in audited.controls if control.kind == "evict"), default=None)
    if evicted_ms is None or not audited.tasks or not any(task.ms > evicted_ms for task in audited.tasks[1:]):
        return audited, None
    lives = AuditedTask(audited.partition, audited.task_id), AuditedTask(audited.partition, audited.task_id)
    for task in audited.tasks:
        lives[task.ms > evicted_ms].tasks.append(task)
    for response in audited.responses:
        lives[response.ms > evicted_ms].responses.append(response)
    for reward in audited.rewards:
        lives[reward.ms > evicted_ms].rewards.append(reward)
    for control in audited.controls:
        lives[control.ms > evicted_ms].controls.append(control)
    for group in audited.groups:
        lives[group.created_at > evicted_ms].groups.append(group)
    return lives if lives[0].tasks else (audited, None)


class _TaskRecount:
    """One task's recount: which records count, and whether the log agrees."""

    def __init__(self, audited: AuditedTask, view: AuditView, horizon_ms: int) -> None:
        self._audited, self._view, self._reach, self._horizon_ms = audited, view, view.reach, horizon_ms
        self._out = RecountOutcome()
        self._samplings: dict[str, Slots] = {}
        self._scores: Scores = {}
        self._entered: set[tuple[object, ...]] = set()
        self._sampled_ms: int | None = None
        """When the first response that counts was recorded."""
        self._whole: list[str] = []
        """Samplings that have every slot, the first one first."""

    def outcome(self) -> RecountOutcome:
        audited, counts = self._audited, self._out.counts
        counts["responses"] = len({response.response_id for response in audited.responses})
        counts["rewards"] = len({(reward.response_id, reward.source) for reward in audited.rewards})
        tasks = [task for task in audited.tasks if not self._was_refused(task.at)]
        if not tasks:
            if self._view.reach.cut(self._view.names["tasks"], audited.partition):
                counts["outside"] += 1
            else:
                self._without_task()
            return self._out
        self._task = tasks[0]
        if self._task.ms < self._horizon_ms:
            counts["outside"] += 1
            return self._out
        self._group = audited.groups[0] if audited.groups else None
        self._copies(tasks[1:])
        for response in audited.responses:
            if not self._was_refused(response.at):
                self._enter_response(response)
        for reward in audited.rewards:
            if not self._was_refused(reward.at):
                self._enter_reward(reward)
        self._closed = self._group is not None and self._is_closed(self._group)
        if self._group is None:
            self._no_group()
        else:
            chosen = self._samplings.get(self._group.sampling_id or "", {})
            case = GroupCase(
                group=self._group,
                task=self._task,
                chosen=chosen,
                scores=self._scores,
                winner=self._whole[0] if self._whole else None,
                expires=any(control.kind == "expire" for control in audited.controls),
                closed=self._closed,
                due=self._due,
            )
            self._out.findings += check_group(case, self._view)
            self._left_behind(self._group, chosen)
        self._unscored()
        self._count()
        return self._out

    # --- which records count ------------------------------------------------------------------------------------------

    def _copies(self, copies: Sequence[TaskFact]) -> None:
        for copy in copies:
            if copy.content == self._task.content:
                self._repeated(copy.at, self._task.at)
            elif (copy.content,) not in self._entered:
                self._entered.add((copy.content,))
                self._refused("contradictory", copy.at, f"the task {self._task.at} has the same id and other content")
            else:
                self._repeated(copy.at, self._task.at)
        for group in self._audited.groups[1:]:
            first = self._audited.groups[0]
            if group.mark == first.mark:
                self._repeated(group.at, first.at)
            else:
                self._found("doubled", group.at, f"the group {first.at} has the same id and other content")

    def _was_refused(self, at: Coordinates) -> bool:
        """Return whether a record was rejected before all other checks, so that it cannot count."""
        why = UNREAD.get(self._view.reason(at, JOIN) or "")
        if why is not None:
            self._out.find("late", at, why, accounted=True)
        return why is not None

    def _enter_response(self, response: ResponseFact) -> None:
        slots = self._samplings.setdefault(response.sampling_id, {})
        known = slots.get(response.slot)
        said = (response.response_id, response.content)
        if known is not None and known.content == response.content:
            self._repeated(response.at, known.at)
        elif known is not None:
            self._refused("contradictory", response.at, f"{known.at} has the same response_id and other content")
        elif (why := self._refusal(response, slots)) is None:
            slots[response.slot] = response
            if self._sampled_ms is None:
                self._sampled_ms = max(self._task.ms, response.ms)
            if len(slots) == self._task.group_size:
                self._whole.append(response.sampling_id)
        elif said in self._entered:
            self._repeated(response.at, None)
        else:
            self._entered.add(said)
            self._refused(why[0], response.at, why[1])

    def _refusal(self, response: ResponseFact, slots: Slots) -> tuple[Category, str] | None:
        task = self._task
        if (response.group_size, response.policy) != (task.group_size, task.policy):
            return "contradictory", (
                f"it is of {response.policy!r} in a group of {response.group_size}, its task {task.at} of "
                f"{task.policy!r} in one of {task.group_size}"
            )
        if task.pinned not in (None, response.version):
            return "contradictory", f"version {response.version} answered, {task.at} asks for {task.pinned}"
        if self._is_late(response.ms):
            return "late", f"it was recorded after the deadline of {task.at}"
        for sibling in slots.values():
            if sibling.version != response.version:
                return "contradictory", f"it is of version {response.version}, and {sibling.at} of {sibling.version}"
            if sibling.shared and response.shared and sibling.shared != response.shared:
                return "contradictory", f"it has another model, prompt or sampling than {sibling.at}"
        return None

    def _enter_reward(self, reward: RewardFact) -> None:
        key = (reward.response_id, reward.source)
        known, said = self._scores.get(key), (*key, reward.content)
        if known is not None and known.content == reward.content:
            self._repeated(reward.at, known.at)
        elif said in self._entered:
            self._repeated(reward.at, None)
        elif known is not None:
            self._entered.add(said)
            self._refused("contradictory", reward.at, f"it says {reward.value}, and {known.at} said {known.value}")
        elif reward.source not in dict(self._task.sources):
            self._entered.add(said)
            self._refused("contradictory", reward.at, f"{self._task.at} does not ask {reward.source!r}")
        elif self._is_late(reward.ms):
            self._entered.add(said)
            self._refused("late", reward.at, f"it was recorded after the deadline of {self._task.at}")
        else:
            self._scores[key] = reward

    def _is_late(self, ms: int) -> bool:
        deadline = self._deadline_ms()
        return deadline is not None and ms > deadline

    def _deadline_ms(self) -> int | None:
        default_s = self._view.settings.advantages.deadline_s
        if self._task.deadline_at is not None or not default_s:
            return self._task.deadline_at
        since_ms = self._sampled_ms if self._task.purpose == "train" else self._task.ms
        return None if since_ms is None else since_ms + int(default_s * 1000)

    # --- what the log has of it ---------------------------------------------------------------------------------------

    def _is_closed(self, group: GroupFact) -> bool:
        """Return whether the join is done with the record at which the group left, and so with all effects of it."""
        if not group.complete:
            expires = [control.at for control in self._audited.controls if control.kind == "expire"]
            return bool(expires) and all(map(self._due, [self._task.at, *expires]))
        slots = self._samplings.get(group.sampling_id or "", {})
        answered = {response.response_id for response in slots.values()}
        scores = [reward.at for (response_id, _), reward in self._scores.items() if response_id in answered]
        return all(map(self._due, [self._task.at, *(response.at for response in slots.values()), *scores]))

    def _expired(self, since_ms: int = 0) -> bool:
        """Return whether the join has read that this task expired; an earlier record rejected strays."""
        return any(
            control.kind == "expire" and control.ms >= since_ms and self._passed(control.at)
            for control in self._audited.controls
        )

    def _no_group(self) -> None:
        task, deadline_ms = self._task, self._deadline_ms()
        if not self._due(task.at):
            self._out.in_flight["tasks"] += 1
        elif self._expired(task.ms if deadline_ms is None else deadline_ms) or any(
            control.kind == "evict" for control in self._audited.controls
        ):
            self._found("lost", task.at, "its group was closed by a control record, but is not in groups")
        elif self._whole and all(map(self._due, self._needed(self._whole[0]))):
            self._found("lost", task.at, "every slot is answered and scored, but its group is not in groups")
        elif self._reach.settled:
            what = "it has no group, and nothing is in flight"
            self._found("lost", task.at, what if self._audited.responses else f"{what}: {self._unbegun()}")
        elif (who := self._left_unanswered_by()) is not None:
            self._found("lost", task.at, f"{who} has passed it, but no sampling has every slot")
        else:
            self._out.in_flight["tasks"] += 1

    def _unbegun(self) -> str:
        """Say the task that no process began, and what to do."""
        task = self._task
        who = f"policy {task.policy}" if task.agent is None else f"policy {task.policy} and agent {task.agent}"
        return f"no process answered task {self._audited.task_id} of {who}; `streamward doctor` says what has to run"

    def _needed(self, sampling_id: str) -> Iterator[Coordinates]:
        """Yield the coordinates of all that the group is made of; for what is missing, one above every commit."""
        nowhere = Coordinates("", 0, 0)
        for response in self._samplings[sampling_id].values():
            yield response.at
            for source, _ in () if response.failed else self._task.sources:
                reward = self._scores.get((response.response_id, source))
                yield nowhere if reward is None else reward.at

    def _left_unanswered_by(self) -> str | None:
        """Return the process that should have answered it and did not; None for an expired task, which is skipped."""
        seen: dict[str, set[int]] = {}
        for response in self._audited.responses:
            seen.setdefault(response.sampling_id, set()).add(response.slot)
            if len(seen[response.sampling_id]) >= response.group_size:
                return None
        deadline = self._deadline_ms()
        may_be_over = self._task.purpose != "serve" and deadline is not None and deadline < self._reach.now_ms
        return None if may_be_over else self._view.has_passed(self._task)

    def _left_behind(self, group: GroupFact, chosen: Slots) -> None:
        """Account for what could have counted and is in no group: superseded, or later than the group."""
        category: Category = "late" if group.sampling_id is None else "superseded"
        why = f"{group.at} is made of {'nothing' if group.sampling_id is None else 'another sampling'}"
        for sampling_id, slots in self._samplings.items():
            if sampling_id != group.sampling_id:
                for response in slots.values():
                    self._refused(category, response.at, why, self._closed)
        in_group = {response.response_id for response in chosen.values()}
        others = {response.response_id for slots in self._samplings.values() for response in slots.values()}
        known = {response.response_id for response in self._audited.responses}
        for (response_id, _), reward in self._scores.items():
            if response_id in in_group:
                continue
            if response_id in others:
                self._refused(category, reward.at, why, self._closed)
            elif response_id in known:
                self._refused("contradictory", reward.at, "its response could not enter the group", self._closed)
            else:
                self._refused("phantom", reward.at, f"response {response_id} is not in the log", self._closed)
        counted = {member.response_id for member in group.members}
        for response in chosen.values():
            reason = self._view.reason(response.at, JOIN)
            if response.response_id in counted and reason not in (None, "unknown_task"):
                self._found("doubled", response.at, f"it is in {group.at}, but also in dead letters as {reason}")

    def _unscored(self) -> None:
        """Find the responses that the scorer has passed and that have no score."""
        said = {(reward.response_id, reward.source) for reward in self._audited.rewards}
        first = self._first_sampling()
        for sampling_id, slots in self._samplings.items():
            if first is not None and sampling_id != first:
                continue
            for response in slots.values():
                missing = [source for source, _ in self._task.sources if (response.response_id, source) not in said]
                if response.failed or not missing or self._view.lettered(response.at, SCORER):
                    continue
                if self._reach.passed(SCORER, response.at):
                    self._found("lost", response.at, f"the reward of {', '.join(missing)} is not in rewards")
                else:
                    self._out.in_flight["rewards"] += len(missing)

    def _first_sampling(self) -> str | None:
        """Return the sampling that the group is made of, or will be."""
        if self._group is not None:
            return self._group.sampling_id
        return self._whole[0] if self._whole else None

    def _without_task(self) -> None:
        """Account for what is about a task that is not in the log."""
        audited = self._audited
        waits = bool(self._view.settings.advantages.deadline_s) and not self._reach.settled
        events: list[ResponseFact | RewardFact] = [*audited.responses, *audited.rewards]
        for fact in events:
            said = (fact.response_id, fact.content, fact.source if isinstance(fact, RewardFact) else "")
            if said in self._entered or self._view.lettered(fact.at, JOIN):
                self._entered.add(said)
            elif self._passed(fact.at) and (not waits or self._expired()):
                self._entered.add(said)
                if audited.misplaced:
                    self._found("misplaced", fact.at, f"its task is in another partition, {audited.misplaced[0]}")
                else:
                    self._found("phantom", fact.at, "its task is not in the log")
            else:
                self._out.in_flight["events"] += 1
        for control in audited.controls:
            if not audited.responses and not audited.rewards:
                self._found("phantom", control.at, "nothing in the log is about its task")
        for group in audited.groups:
            self._found("phantom", group.at, "its task is not in the log")

    def _count(self) -> None:
        slots, counts = self._task.group_size, self._out.counts
        counts["tasks"] += 1
        counts["slots"] += slots
        group = self._group
        first = self._first_sampling()
        answers = self._samplings.get(first or "", {})
        counts["answered"] += sum(not response.failed for response in answers.values())
        counts["failed"] += sum(response.failed for response in answers.values())
        if group is not None:
            counts["unanswered"] += slots - len(answers)
            counts["groups"] += 1
            counts["groups kept" if group.dropped_reason is None else "dropped"] += 1
        else:
            counts["tasks open"] += 1
            counts["slots open"] += slots - len(answers)
        good = [response for response in answers.values() if not response.failed]
        scores = [self._scores.get((one.response_id, source)) for one in good for source, _ in self._task.sources]
        counts["to score"] += len(scores)
        counts["scored"] += sum(score is not None and score.value is not None for score in scores)
        counts["without score"] += scores.count(None)
        counts["failed scores"] += sum(score is not None and score.is_failure for score in scores)
        counts["abstained"] += sum(score is not None and score.abstained for score in scores)

    # --- findings -----------------------------------------------------------------------------------------------------

    def _passed(self, at: Coordinates) -> bool:
        return self._reach.passed(STREAMS, at)

    def _due(self, at: Coordinates) -> bool:
        """Return whether the join has this record and its task."""
        return bool(at.topic) and self._passed(at) and self._passed(self._task.at)

    def _found(self, category: Category, at: Coordinates, what: str) -> None:
        self._out.find(category, at, what)

    def _repeated(self, at: Coordinates, first: Coordinates | None) -> None:
        what = "it repeats a record that was refused before" if first is None else f"it repeats {first}"
        self._out.find("repeated", at, what, accounted=True)

    def _refused(self, category: Category, at: Coordinates, what: str, due: bool = True) -> None:
        """Account for a record that is in no group: it needs a dead letter once the join is done with it."""
        if self._view.lettered(at, JOIN):
            if category != "phantom":
                self._out.find(category, at, what, accounted=True)
        elif due and self._due(at):
            self._found(category, at, f"{what}; it has no dead letter")
        else:
            self._out.in_flight["events"] += 1
