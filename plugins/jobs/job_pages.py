"""Jobs and their cost, from the fold of events that `streamward jobs` shows.

log, archive ──► events of jobs ──► AllJobs ──► JobList
                                └─► one job: how far it is, its evaluations with intervals, its steps, its order
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from plugins.jobs.fold.all_jobs import AllJobs, FoldedEvent
from plugins.jobs.fold.questions import suite_name
from plugins.jobs.fold.state import JobEvaluation, JobState
from plugins.jobs.log import job_view, spending
from schemas import json_text
from schemas.events import JobEvent
from streams.errors import NotFoundError
from streams.evaluation.intervals import wilson
from streams.kafka.topics import topics
from streams.output import moment
from streams.tools.archive import history
from streams.tools.views.curve import HELD_OUT, Curve, CurveChart, CurvePoint, Figure
from streams.tools.views.log_view import LogReader, LogView, Row
from streams.tools.views.view_section import ViewPage, ViewSection

COSTS_BY: tuple[spending.CostName, ...] = ("tenant", "month", "policy")
STEP_ROWS = 100
"""Steps of a job that are shown, the newest."""
LABELS = {
    "n_trajectories_per_query": "answers to each question",
    "checkpoint_interval": "iterations between evaluations",
    "keep_best": "best versions that are kept",
    "patience": "evaluations without a better version until it stops",
    "held_out": "held out of them",
    "trainer_s": "seconds of training",
    "prompt_tokens": "tokens of prompts",
    "completion_tokens": "sampled tokens",
}
"""Names of figures where theirs, with spaces, would not do."""
REWARD = Figure("reward", "Mean reward of an iteration", "Of the answers that its version was made of.", "made")
HELD_OUT_REWARD = Figure("held_out_reward", "Mean reward on what is held out")


@dataclass(frozen=True)
class JobList:
    """Jobs, the newest first, and costs by month; for a tenant its own."""

    jobs: list[Row]
    costs: list[Row]


class FigureText(NamedTuple):
    """A figure of a job in words."""

    name: str
    text: str


@dataclass(frozen=True)
class JobStep:
    """An event that changed a job."""

    when: str
    kind: str
    iteration: int | None
    version: int | None
    reward: float | None
    """Of an iteration: the mean of the answers that its version was made of."""
    cost_usd: float | None
    """Of the job until then."""
    actor: str
    reason: str


@dataclass(frozen=True)
class WholeJob:
    """One job: how far it is, how its versions did, and what was ordered and used."""

    job: Row
    ordered_by: str
    created: str
    updated: str
    suite: str
    """The name of its held-out questions."""
    charts: list[CurveChart]
    evaluations: list[Row]
    """The newest first. Each has `success` and the gains in success and reward, with the ends of their intervals."""
    steps: list[JobStep]
    """STEP_ROWS of them, the newest first."""
    order: list[FigureText]
    usage: list[FigureText]
    refused: list[str]
    """Why events changed nothing."""


def list_jobs(log: LogReader) -> JobList:
    """Return the jobs that a reader may see. Raises LogError if the log cannot be read."""
    jobs, tenant = AllJobs(_partitions(log)), log.rights.tenant
    events = [folded.event for folded in _fold(log, jobs) if folded.took_effect]
    ordered_by = {event.job_id: event.actor for event in reversed(events) if event.kind == "created"}
    newest = sorted(jobs.states.values(), key=lambda job: job.created_at, reverse=True)
    return JobList(
        [
            job_view.row(job) | {"created": moment(job.created_at), "ordered_by": ordered_by.get(job.job_id)}
            for job in newest
            if tenant in (None, job.tenant)
        ],
        [row for row in spending.costs(jobs.months, COSTS_BY) if tenant in (None, row["tenant"])],
    )


def find_job(log: LogReader, job_id: str) -> WholeJob:
    """Return one job. Raises NotFoundError, also for another tenant's."""
    jobs = AllJobs(_partitions(log))
    events = [folded.event for folded in _fold(log, jobs) if folded.event.job_id == job_id and folded.took_effect]
    job = jobs.states.get(job_id)
    if job is None or log.rights.tenant not in (None, job.tenant):
        raise NotFoundError(f"there is no job {job_id[:80]!r}; /jobs lists all of them")
    return WholeJob(
        job=job_view.row(job),
        ordered_by=events[0].actor,
        created=moment(job.created_at),
        updated=moment(job.updated_at),
        suite=suite_name(job),
        charts=_charts(job, events),
        evaluations=[_evaluation(job, result) for result in reversed(job.evaluations)],
        steps=[_step(event) for event in reversed(events[-STEP_ROWS:])],
        order=_order_facts(job),
        usage=_facts(job.usage.metrics(None)),
        refused=[*dict.fromkeys(job.refused.values())],
    )


# --- how it does ------------------------------------------------------------------------------------------------------


def _evaluation(job: JobState, result: JobEvaluation) -> Row:
    """Return the figures of an evaluation with their 95 % intervals: of success, and of what was gained."""
    metrics = result.metrics
    low, high = _success_interval(metrics)
    gains = {
        f"{name}{end}": metrics.get(f"{name}{end}")
        for name in ("success_gain", "gain")
        for end in ("", "_low", "_high")
    }
    return {
        "version": result.version,
        "iteration": result.iteration,
        "success": metrics.get("success"),
        "success_low": low,
        "success_high": high,
        "mean_reward": metrics.get("mean_reward"),
        "n": metrics.get("n"),
        "is_best": result.version in job.best,
        **gains,
    }


def _success_interval(metrics: Mapping[str, float]) -> tuple[float | None, float | None]:
    """Return the interval of the success; None if the log does not have the number of questions."""
    success, count = metrics.get("success"), metrics.get("n", 0.0)
    return wilson(success, int(count)) if success is not None and 0 < count < 2**31 else (None, None)


def _charts(job: JobState, events: Sequence[JobEvent]) -> list[CurveChart]:
    """Return the charts of a job that have a point."""
    scores, rewards = [], []
    for row in (_evaluation(job, result) for result in job.evaluations):
        if (success := row["success"]) is not None:
            low, high = (success if row[end] is None else row[end] for end in ("success_low", "success_high"))
            scores.append(CurvePoint(row["version"], success, low, high))
        if (reward := row["mean_reward"]) is not None:
            rewards.append(CurvePoint(row["version"], reward, reward, reward))
    steps = [
        CurvePoint(event.version or 0, reward, reward, reward, event.created_at)
        for event in events
        if event.kind == "iteration" and (reward := event.metrics.get("reward")) is not None
    ]
    points = {HELD_OUT: scores, HELD_OUT_REWARD: rewards, REWARD: steps}
    return [CurveChart(figure, [Curve("", line, job.policy)]) for figure, line in points.items() if line]


def _step(event: JobEvent) -> JobStep:
    return JobStep(
        moment(event.created_at),
        event.kind.replace("_", " "),
        event.iteration,
        event.version,
        event.metrics.get("reward") if event.kind == "iteration" else None,
        event.metrics.get("cost_usd"),
        event.actor,
        event.reason,
    )


# --- what was ordered and used ----------------------------------------------------------------------------------------


def _order_facts(job: JobState) -> list[FigureText]:
    """Return what was ordered, in words."""
    order = job_view.order(job)
    sources = [_source_text(source) for source in order.pop("reward_sources", ())]
    prices = order.pop("prices")
    facts = _facts(order | ({"scored_by": "; ".join(sources)} if sources else {}))
    if prices is not None:
        facts.append(
            FigureText(
                "prices, USD",
                f"{prices['prompt']:g} a million tokens of prompts, {prices['completion']:g} a million sampled tokens, "
                f"{prices['trainer_hour']:g} an hour of training",
            )
        )
    return facts


def _source_text(source: Mapping[str, Any]) -> str:
    """Return a source of reward in words.

    >>> _source_text({"name": "exact", "weight": 0.5, "settings": '{"case": false}'})
    'exact × 0.5 (case: false)'
    """
    weight = "" if source["weight"] == 1 else f" × {source['weight']:g}"
    text = _text(json_text.parse_or_text(source["settings"]))
    return f"{source['name']}{weight}{f' ({text})' if text else ''}"


def _facts(figures: Mapping[str, Any]) -> list[FigureText]:
    """Return figures by their names in words, without those that are empty."""
    return [
        FigureText(LABELS.get(name, name.replace("_", " ")), text)
        for name, value in figures.items()
        if (text := _text(value))
    ]


def _text(value: Any) -> str:
    """Return a value as people read it.

    >>> _text({"top": 0.5, "names": ["a", "b"]}), _text(12345), _text(None)
    ('top: 0.5, names: a, b', '12,345', '')
    """
    match value:
        case None:
            return ""
        case bool():
            return str(value).lower()
        case int():
            return f"{value:,}"
        case float():
            return f"{value:,.6g}"
        case Mapping():
            return ", ".join(f"{name}: {_text(item)}" for name, item in value.items())
        case list() | tuple():
            return ", ".join(map(_text, value))
        case _:
            return str(value)


# --- the fold ---------------------------------------------------------------------------------------------------------


def _partitions(log: LogReader) -> int:
    return topics(log.view.settings.topics)["jobs"].partitions


def _fold(log: LogReader, jobs: AllJobs) -> Iterator[FoldedEvent]:
    """Fold every event of jobs until now, and yield each that a job took."""
    source = history.of(log.view.settings, log.view.source)
    try:
        bounds = source.bounds(["jobs"])
    except NotFoundError:  # an archive without jobs, or topics that are older than they
        return
    ends = {tp: high for tp, (_, high) in bounds.items()}
    for record in source.read({tp: low for tp, (low, _) in bounds.items()}, ends):
        if (folded := jobs.take(record)) is not None:
            yield folded


def job_pages(_: LogView) -> tuple[ViewPage, ...]:
    """Return the pages of jobs."""
    return (ViewPage("", "jobs.html", list_jobs), ViewPage("/{job_id:path}", "job.html", find_job))


SECTIONS = (ViewSection("jobs", "Jobs", "plugins.jobs", job_pages, ids={"job_id": "jobs"}),)
