"""Explain a task in sentences: what its group taught, why it taught nothing, or what it waits for.

TaskHistory ──► group_outcome.py: which of these ──► its rewards, batch, version and left-out slots in words
            ──► side_by_side.py: its answers, slot by slot
"""

from __future__ import annotations

from dataclasses import dataclass

from streams.tools.views.group_outcome import Verdict, left_out_text, outcome
from streams.tools.views.log_view import LogSnapshot, Row
from streams.tools.views.side_by_side import AnswerColumns, TokenTexts, align
from streams.tools.views.task import TaskHistory, find_task

HEADS: dict[Verdict, str] = {
    "taught": "It taught something",
    "nothing": "It taught nothing",
    "measured": "Not for training",
    "waits": "Not grouped yet",
}


@dataclass(frozen=True, slots=True)
class Explanation:
    """What became of a group, in words."""

    verdict: Verdict
    sentences: list[str]

    @property
    def head(self) -> str:
        """The verdict in words."""
        return HEADS[self.verdict]


@dataclass(frozen=True)
class ExplainedTask:
    """A task, its answers side by side, and what became of its group."""

    history: TaskHistory
    answers: AnswerColumns
    why: Explanation


def find_explained(log: LogSnapshot, task_id: str, texts: TokenTexts | None = None) -> ExplainedTask:
    """Return a task by its id, or the beginning of it. Raises NotFoundError if nothing in the log is about it."""
    history = find_task(log, task_id)
    return ExplainedTask(history, align(history, texts), explain(history))


def explain(task: TaskHistory) -> Explanation:
    """Return what the group of a task taught, or why it taught nothing, or what it waits for."""
    group = task.group
    if group is None:
        return Explanation("waits", _missing(task))
    result, left_out = outcome(group), _left_out(group)
    if result.explanation:
        return Explanation(result.verdict, [result.explanation, *left_out])
    why = _flat(task) if result.verdict == "nothing" else [_comparison(task, group)]
    return Explanation(result.verdict, [*why, _batch(group), *left_out])


def _comparison(task: TaskHistory, group: Row) -> str:
    """Return how many answers were better and worse than their siblings."""
    better = sum(member["advantage"] > 0 for member in task.members.values())
    worse = sum(member["advantage"] < 0 for member in task.members.values())
    return (
        f"{better} of {len(task.members)} answers were better than the mean of {group['reward_mean']:.3g} and are "
        f"made likelier; {worse} were worse and are made less likely."
    )


def _flat(task: TaskHistory) -> list[str]:
    """Return why all advantages are 0."""
    rewards = [member["reward"] for member in task.members.values()]
    if not rewards:
        return ["It has no answers that were scored."]
    if len(rewards) == 1:
        return ["Only one answer was scored, and there is nothing to compare it with."]
    if len(set(rewards)) == 1:
        equal = f"All {len(rewards)} rewards are {rewards[0]:.4g}: no answer was better than another"
        return [f"{equal}, so every advantage is 0.", _equal_rewards(task, rewards[0])]
    return [
        f"The rewards differ by less than counts (from {min(rewards):.6g} to {max(rewards):.6g}): every advantage is 0."
    ]


def _equal_rewards(task: TaskHistory, reward: float) -> str:
    """Return why all answers got the same reward, judging by the other rewards of the scenario."""
    if len({row["text"] for row in task.responses}) == 1:
        return "All answers are the same text: the policy is sure, or its temperature is low."
    lowest, highest = task.reward_range or (0.0, 0.0)
    if lowest == highest:
        return (
            "The answers differ, and the scorers do not tell them apart: no group of this scenario had another reward."
        )
    between = f"The rewards of this policy's scenario go from {lowest:.4g} to {highest:.4g}"
    if reward <= lowest:
        return f"{between}, so no answer did well: the task is too hard for this version, or its scorer never agrees."
    if reward >= highest:
        return f"{between}, so every answer did well: the task is too easy for this version."
    return f"{between}. The answers differ, and the scorers do not tell them apart."


def _batch(group: Row) -> str:
    if group["passed_over"] is not None:
        return "Its batch left it out."
    if group["sequence"] is None:
        return "It is in no batch yet."
    if group["trained"] is None:
        return f"It is in batch {group['sequence']}, which the trainer has not learned from yet."
    return f"It is in batch {group['sequence']}, from which version {group['trained']} was trained."


def _left_out(group: Row) -> list[str]:
    """Return a sentence for each reason why slots are not in the group; none if it was dropped for that alone."""
    slots_by_reason: dict[str, list[int]] = {}
    for entry in group["left_out"] or ():
        slots_by_reason.setdefault(entry["reason"], []).append(entry["slot"])
    if [*slots_by_reason] == [group["dropped_reason"]]:
        return []
    return [
        f"Slot{'s' * (len(slots) > 1)} {', '.join(map(str, slots))} left out: {left_out_text(reason)}."
        for reason, slots in slots_by_reason.items()
    ]


def _missing(task: TaskHistory) -> list[str]:
    """Return what is missing until the group can be made."""
    answered = len({row["slot"] for row in task.responses})
    if not answered:
        return ["There is no answer yet."]
    if answered < task.group_size:
        return [f"{answered} of {task.group_size} slots are answered."]
    scored = {(row["response_id"], row["source"]) for row in task.rewards}
    usable = [row["response_id"] for row in task.responses if not row["error"]]
    missing = {name: sum((response_id, name) not in scored for response_id in usable) for name in task.sources}
    sentences = [f"{count} scores of {name} are missing." for name, count in missing.items() if count]
    return sentences or ["Everything is there; its group has not been written yet."]
