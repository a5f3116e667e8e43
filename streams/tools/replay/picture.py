"""One picture of a replay with other scorers: recorded answers, by the old and the new reward, and no token sampled.

    rewards of this log ───────┐
    groups of the experiment ──┴──► the answers that both have ──► two bars, on the terminal and as SVG

Not covered: groups that the experiment dropped, such as those of failed scores.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from schemas.events import AdvantagedGroup, GroupResponse, Response, Reward, Task
from streams.errors import NotFoundError
from streams.kafka.admin import read_topic
from streams.settings.model import Settings
from streams.tools.replay.experiments import Experiment, of

WIDTH = 40
"""Characters of the longest bar."""


class ReplayBars(NamedTuple):
    """What a replay made of the recorded answers."""

    experiment: str
    scorers: str
    """Those of the experiment; empty: the recorded ones."""
    answers: int
    tokens: int
    """Tokens of these answers, sampled before."""
    before: float
    """Their mean reward as recorded."""
    after: float
    """Their mean reward in the experiment."""
    sampled: int
    """Tokens of answers that only the experiment has."""
    versions: int
    """How many versions it trained."""

    def lines(self) -> Iterator[str]:
        """Yield the two bars and what they cost, as text."""
        longest = max(abs(self.before), abs(self.after)) or 1.0
        for name, value in (("recorded reward", self.before), (self.scorers or "the same", self.after)):
            yield f"{name[:24]:24} {value:8.3f}  {'█' * round(WIDTH * abs(value) / longest)}"
        versions = f"{self.versions} version{'s'[: self.versions != 1]} trained"
        yield f"{self.answers} answers of {self.tokens} tokens; {self.sampled} tokens sampled, {versions}"


def replay_bars(settings: Settings, experiment: Experiment) -> ReplayBars:
    """Return the figures of an experiment that has groups. Raises NotFoundError without one, LogError."""
    replayed = of(settings, experiment)
    after, before = dict(_members(replayed)), _recorded_rewards(settings)
    names = [name for name in after if name in before]
    if not names:
        raise NotFoundError(f"experiment {experiment.name} has no group of recorded answers; `replay run` makes some")
    tokens, own = dict(_tokens(settings)), dict(_tokens(replayed))
    return ReplayBars(
        experiment=experiment.name,
        scorers=", ".join(sorted({part for name in names for part in after[name].components if "." not in part})),
        answers=len(names),
        tokens=sum(tokens.get(name, 0) for name in names),
        before=sum(before[name] for name in names) / len(names),
        after=sum(after[name].reward for name in names) / len(names),
        sampled=sum(count for name, count in own.items() if name not in tokens),
        versions=experiment.counts.get("steps", 0),
    )


def draw(bars: ReplayBars, path: Path) -> None:
    """Draw the two bars into an SVG or PNG, by the name of the file."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 2.4), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    names = (bars.scorers or "the same", "recorded reward")
    axes.bar_label(axes.barh(names, (bars.after, bars.before), color=("#1f7a4d", "#9aa5b1")), fmt="%.3f", padding=3)
    axes.set(xlabel="mean reward", title=list(bars.lines())[-1])
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=120)


def _members(settings: Settings) -> Iterator[tuple[str, GroupResponse]]:
    for record in read_topic(settings, "groups"):
        group = record.decode(AdvantagedGroup)
        if isinstance(group, AdvantagedGroup) and group.dropped_reason is None:
            yield from ((member.response_id, member) for member in group.responses)


def _recorded_rewards(settings: Settings) -> dict[str, float]:
    """Return the reward of each response: the sum of its task's scorers, by their weights."""
    weights, rewards = dict[tuple[str, str], float](), dict[str, Reward]()
    for record in read_topic(settings, "tasks"):
        task = record.decode(Task)
        if not isinstance(task, Task):
            continue
        for source in task.reward_sources:
            weights.setdefault((task.task_id, source.name), source.weight)
    for record in read_topic(settings, "rewards"):
        reward = record.decode(Reward)
        if isinstance(reward, Reward) and reward.value is not None:
            rewards.setdefault(reward.reward_id, reward)
    sums = defaultdict[str, float](float)
    for reward in rewards.values():
        weight = weights.get((reward.task_id, reward.source))
        if weight is not None:
            sums[reward.response_id] += weight * (reward.value or 0.0)
    return dict(sums)


def _tokens(settings: Settings) -> Iterator[tuple[str, int]]:
    for record in read_topic(settings, "responses"):
        response = record.decode(Response)
        if isinstance(response, Response) and response.metadata.get("purpose", "train") == "train":
            yield response.response_id, response.completion_tokens
