"""Agents, their runs and calls as rows; imported late, since it needs the schemas.

    agents, trajectories, turns ──► AgentRun: its events and turns ──► fold ──► rows of runs, of calls, of a live tail
    rewards ──► feedback on a run and on its answers ──────────────────────────┘

Records that are no events are skipped: `events tail` and `audit` name them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from schemas.conventions import FEEDBACK
from schemas.events import AdvantagedGroup, Event, Reward, TrajectoryEvent, Turn
from schemas.serde import Poison
from streams.kafka.admin import read_topic
from streams.kafka.record import partition_of
from streams.output import Column, moment
from streams.settings.model import Settings
from streams.stages.agents.registered_agents import KnownAgent, agent_registry
from streams.stages.agents.trajectories.call_chains import Chains
from streams.stages.agents.trajectories.fold import Trajectory, TrajectoryStep, fold
from streams.stages.agents.trajectories.response import response_of

Row = dict[str, Any]
SHORT = 8
"""Characters of an id that tables show."""
HUNG_UP = "its client hung up before the answer was complete"


@dataclass(slots=True)
class AgentRun:
    """The records of one trajectory."""

    started: TrajectoryEvent | None = None
    ended: TrajectoryEvent | None = None
    turns: list[Turn] = field(default_factory=list)
    recorded_ms: int = 0
    """The timestamp of its first record."""

    def take(self, event: TrajectoryEvent | Turn) -> None:
        """Add the next event of the log; the first of each kind counts."""
        if isinstance(event, Turn):
            self.turns.append(event)
        elif event.kind == "started":
            self.started = self.started or event
        else:
            self.ended = self.ended or event

    def fold(self) -> Trajectory:
        """Return the trajectory that its turns make."""
        return fold(self.turns, self.ended)

    @property
    def trajectory_id(self) -> str:
        """Its id."""
        return self._event.trajectory_id

    @property
    def task_id(self) -> str:
        """The id of its task; the trajectory's own where no task was submitted."""
        return self._event.task_id

    @property
    def agent_id(self) -> str:
        """The agent that it is a run of."""
        return self._event.agent_id

    @property
    def _event(self) -> TrajectoryEvent | Turn:
        return self.ended or self.started or self.turns[0]

    @property
    def began_ms(self) -> int:
        """When it began, ms since the epoch."""
        times = [event.created_at for event in (self.started, self.ended) if event is not None]
        return min(times + [turn.started_at for turn in self.turns])

    @property
    def is_whole(self) -> bool:
        """Whether it has ended and has every turn that its end counts."""
        return self.ended is not None and len({turn.number for turn in self.turns}) >= (self.ended.turns or 0)

    def row(self) -> Row:
        """Return one line about it."""
        event, trajectory = self._event, self.fold()
        return {
            "trajectory": event.trajectory_id,
            "agent": event.agent_id,
            "policy": event.policy,
            "task": None if event.task_id == event.trajectory_id else event.task_id,
            "slot": event.slot,
            "state": self.ended.ending if self.ended is not None else "open",
            "began": moment(self.began_ms),
            "versions": sorted({turn.adapter_version for turn in self.turns}),
            "calls": str(trajectory),
            "doubt": trajectory.doubt,
            "chains": len(trajectory.chains),
            "sampled_tokens": sum(len(turn.completion_token_ids) for turn in self.turns),
            "left_out": [
                {"turn": step.turn.number, "what": step.left_out, "reason": _reason(step)}
                for step in trajectory.steps
                if step.left_out is not None
            ],
            "reason": "" if self.ended is None else self.ended.reason,
        }


def read_runs(
    settings: Settings, accept: Callable[[TrajectoryEvent | Turn], bool] = lambda _: True
) -> dict[str, AgentRun]:
    """Return the runs whose records `accept` takes, by trajectory, the oldest first. Raises as `admin.read_topic`."""
    runs: dict[str, AgentRun] = {}
    for label in ("trajectories", "turns"):
        kind: type[TrajectoryEvent] | type[Turn] = TrajectoryEvent if label == "trajectories" else Turn
        for record in read_topic(settings, label):
            event: TrajectoryEvent | Turn | Poison = record.decode(kind)
            if not isinstance(event, Poison) and accept(event):
                run = runs.setdefault(event.trajectory_id, AgentRun(recorded_ms=record.timestamp_ms))
                run.recorded_ms = min(run.recorded_ms, record.timestamp_ms)
                run.take(event)
    return dict(sorted(runs.items(), key=lambda pair: pair[1].began_ms))


def read_feedback(settings: Settings, task_id: str) -> dict[str, list[Reward]]:
    """Return the feedback on a run and its answers, by the id of each. Raises as `admin.read_topic`."""
    rewards: dict[str, dict[str, Reward]] = {}
    partition = partition_of(task_id, settings.topics.partitions)
    for record in read_topic(settings, "rewards", partition=partition):
        reward = record.decode(Reward) if record.key == task_id.encode() else None
        if isinstance(reward, Reward) and reward.source.startswith(FEEDBACK):
            rewards.setdefault(reward.response_id, {}).setdefault(reward.reward_id, reward)
    return {name: list(opinions.values()) for name, opinions in rewards.items()}


def opinion(reward: Reward) -> str:
    """Return e.g. `1 (too long) from ada`."""
    reason = f" ({reward.rationale})" if reward.rationale else ""
    return f"{reward.value:g}{reason} from {reward.source.removeprefix(FEEDBACK)}"


def agents(settings: Settings) -> list[Row]:
    """Return one row for each agent that is registered or has run, by its id."""
    registered = agent_registry().read(settings)
    began, ended, calls, last = Counter[str](), Counter[str](), Counter[str](), dict[str, int]()
    for record in read_topic(settings, "trajectories"):
        step = record.decode(TrajectoryEvent)
        if not isinstance(step, Poison):
            (began if step.kind == "started" else ended)[step.agent_id] += 1
            last[step.agent_id] = max(last.get(step.agent_id, 0), step.created_at)
    for record in read_topic(settings, "turns"):
        turn = record.decode(Turn)
        if not isinstance(turn, Poison):
            calls[turn.agent_id] += 1
            last[turn.agent_id] = max(last.get(turn.agent_id, 0), turn.created_at)
    return [
        {
            "agent": name,
            "type": registered[name].type if name in registered else None,
            "model": registered[name].model_id if name in registered else None,
            "state": registered[name].kind if name in registered else None,
            "rewards": [source.name for source in registered[name].reward_sources] if name in registered else [],
            "runs": began[name],
            "open": max(0, began[name] - ended[name]),
            "calls": calls[name],
            "last": moment(last[name]) if name in last else None,
        }
        for name in sorted(registered.keys() | last.keys())
    ]


def action_outcomes(run: AgentRun) -> dict[int, Row]:
    """Return the tool, validity and reward of each turn in an environment, by the turn's number; empty without one."""
    if run.ended is None or run.ended.observed is None or not run.is_whole:
        return {}
    turns = response_of(run.fold(), run.ended).turns
    return {turn.number: {"tool": turn.tool, "ok": turn.ok, "paid": turn.reward} for turn in turns}


def read_credit(settings: Settings, run: AgentRun) -> dict[int, float]:
    """Return the advantage of each turn of a run whose group has left the join, by its number.

    A turn without a span of its own has that of its response. Raises as `admin.read_topic`.
    """
    name = run.trajectory_id.encode()
    for record in read_topic(settings, "groups"):
        group = record.decode(AdvantagedGroup) if name in (record.payload or b"") else None
        if run.ended is None or not isinstance(group, AdvantagedGroup):
            continue
        for member in group.responses:
            if member.response_id == run.trajectory_id:
                spans = {(span.chain, span.start): span.advantage for span in member.spans}
                turns = response_of(run.fold(), run.ended).turns
                return {turn.number: spans.get((turn.chain, turn.start), member.advantage) for turn in turns}
    return {}


def step_row(step: TrajectoryStep, feedback: dict[str, list[Reward]]) -> Row:
    """Return one line about a call of a whole run, with the feedback on its answer."""
    fate = step.left_out or ("conversation" if step.chain == 0 else f"branch {(step.chain or 0) - 1}")
    fate += ", no loss" if step.is_constrained else ""
    opinions = [opinion(reward) for reward in feedback.get(step.turn.turn_id, ())]
    return _turn_row(step.turn, step.continuity, _reason(step)) | {"fate": fate, "feedback": opinions}


def _reason(step: TrajectoryStep) -> str:
    """Return the reason that its tokens are not trained on, else the reason of its relation to earlier calls."""
    return HUNG_UP if step.left_out == "undelivered" else step.reason


def summary(run: AgentRun, feedback: dict[str, list[Reward]], agent: KnownAgent | None = None) -> Row:
    """Return the head of the table of a run's calls; `agent` is the one that is registered, if it is."""
    row = run.row()
    row["left_out"] = "\n".join(f"turn {call['turn']}: {call['what']}, {call['reason']}" for call in row["left_out"])
    row["feedback"] = ", ".join(opinion(reward) for reward in feedback.get(row["trajectory"], ()))
    row["rewards"] = "" if agent is None else ", ".join(source.name for source in agent.reward_sources)
    return {name: value for name, value in row.items() if value not in (None, "")}


def _turn_row(turn: Turn, continuity: str, reason: str) -> Row:
    reply = turn.reply.content or ", ".join(f"{call.name}({call.arguments})" for call in turn.reply.tool_calls)
    return {
        "trajectory": turn.trajectory_id,
        "agent": turn.agent_id,
        "turn": turn.number,
        "turn_id": turn.turn_id,
        "time": moment(turn.created_at),
        "what": continuity,
        "reason": reason,
        "version": turn.adapter_version,
        "protocol": turn.protocol,
        "prompt_tokens": turn.prompt_tokens,
        "new_tokens": len(turn.prompt_token_ids),
        "sampled_tokens": len(turn.completion_token_ids),
        "finish": turn.finish_reason,
        "latency_ms": turn.created_at - turn.started_at,
        "asked": turn.messages[-1].content if turn.messages else "",
        "answer": turn.error or reply,
        "malformed": turn.malformed,
        "constraint": turn.constraint,
        "delivered": turn.delivered,
        "ignored": list(turn.ignored),
    }


class LiveRuns:
    """Rows of a tail: calls as they come, and a summary at the end of a run."""

    def __init__(self, accept: Callable[[Turn | TrajectoryEvent], bool] = lambda _: True) -> None:
        """`accept`: which records to show."""
        self._accept = accept
        self._runs: dict[str, tuple[AgentRun, Chains]] = {}
        """The open runs."""

    def rows(self, events: Iterable[Event | Poison]) -> Iterator[Row]:
        """Yield a row for each accepted event. The end of a run waits for the turns that it counts."""
        for event in events:
            if isinstance(event, Turn | TrajectoryEvent) and self._accept(event):
                yield from self._rows(event)
        yield from (_end_row(run, run.ended) for run, _ in self._runs.values() if run.ended is not None)

    def _rows(self, event: Turn | TrajectoryEvent) -> Iterator[Row]:
        run, chains = self._runs.setdefault(event.trajectory_id, (AgentRun(), Chains()))
        run.take(event)
        if isinstance(event, Turn):
            if len(run.turns) == event.number + 1:
                node = chains.add(event)
                yield _turn_row(event, node.continuity, node.broken or node.reason)
            else:  # the run began before this tail did
                yield _turn_row(event, event.continuity, event.reason)
        elif event.kind == "started":
            yield _event_row(event)
        if run.ended is not None and (run.is_whole or run.started is None):
            del self._runs[event.trajectory_id]
            yield _end_row(run, run.ended)


def _event_row(event: TrajectoryEvent) -> Row:
    return {
        "trajectory": event.trajectory_id,
        "agent": event.agent_id,
        "time": moment(event.created_at),
        "what": event.ending or event.kind,
        "reason": event.reason,
        "ends": event.kind == "ended",
    }


def _end_row(run: AgentRun, ended: TrajectoryEvent) -> Row:
    return _event_row(ended) | {"answer": str(run.fold()) if run.is_whole else f"{ended.turns} calls"}


def _short(name: str) -> Callable[[Row], str]:
    return lambda row: (row[name] or "")[:SHORT]


AGENT_COLUMNS = (
    *(Column(title, title) for title in ("agent", "type", "model", "state")),
    *(Column(title, title, right=True) for title in ("runs", "open", "calls")),
    Column("last", "last"),
    Column("rewards", "rewards", optional=True),
)
RUN_COLUMNS = (
    Column("trajectory", "trajectory"),
    Column("task", _short("task")),
    Column("began", "began"),
    Column("state", "state"),
    Column("versions", "versions", right=True),
    Column("calls", "calls"),
    Column("reason", lambda row: row["doubt"] or row["reason"], optional=True),
)
STEP_COLUMNS = (
    Column("turn", "turn", right=True),
    Column("what", "what"),
    Column("fate", "fate"),
    Column("version", "version", right=True),
    *(Column(title, f"{title}_tokens", right=True) for title in ("prompt", "new", "sampled")),
    Column("finish", "finish"),
    Column("why", "reason"),
    Column("feedback", "feedback"),
    Column("answer", "answer", optional=True),
)
EPISODE_COLUMNS = tuple(Column(name, name) for name in ("turn", "fate", "tool", "ok", "paid", "credit", "answer"))
"""Of a run in an environment: the outcome of each call, and its credit."""
TAIL_COLUMNS = (
    Column("time", "time", 24),
    Column("agent", "agent", 10),
    Column("trajectory", _short("trajectory"), 10),
    Column("turn", lambda row: row.get("turn"), 4, right=True),
    Column("what", "what", 10),
    Column("sampled", lambda row: row.get("sampled_tokens"), 7, right=True),
    Column("answer", lambda row: row.get("answer") or row["reason"]),
)
