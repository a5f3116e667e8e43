"""Overlays of policies and experiments: one chart for each figure, with one line for each of them.

    the policy of the page, and those chosen with it ──► the charts of each ──► CurveOverlay
    experiments ──► the settings of its log          ──► a view of that log ──► the charts of its policy

An experiment is read from its own log, and only for visitors who see the logs of all tenants. If there are several,
each has one line for its train reward, whatever its scenarios.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from plugins.page.views.curves import COLOURS, ChartSection, read_sections
from schemas.events import ExperimentEvent
from schemas.faults import nearest
from schemas.serde import Poison
from streams.errors import NotFoundError, SettingsError
from streams.tools.archive import history
from streams.tools.replay import experiments
from streams.tools.replay.experiments import Experiment
from streams.tools.views.curve import Curve, CurveChart, Over
from streams.tools.views.log_view import LogSnapshot, LogView

MOST_OVERLAYS = COLOURS - 1
"""In addition to the policy of the page: each has a colour."""
MOST_CHOICES = 200
EXPERIMENT = "experiment "
"""Prefix of an experiment's name where policies are named, too."""
POLICY_NAMES_SQL = "SELECT policy FROM adapters UNION SELECT policy FROM groups ORDER BY policy"


@dataclass(frozen=True)
class CurveOverlay:
    """The curves of a policy, with those of others."""

    sections: list[ChartSection]
    """Without those that have no point."""
    over: Over
    chosen: list[str]
    """Names of others that are laid over the policy; those of experiments begin with EXPERIMENT."""
    choices: list[str]
    """Names of further ones that could be."""
    left_out: list[str]
    """Why an experiment has no curves."""
    is_late: bool = False
    """Whether they are not read yet: a page asks for them once it is there."""


def read_overlay(
    log: LogSnapshot, policy: str, chosen: Sequence[str], over: Over, *, is_late: bool = False
) -> CurveOverlay:
    """Return the curves of a policy and of `chosen`; if it `is_late`, only what can be chosen.

    Raises NotFoundError for one that is not there, SettingsError for more than MOST_OVERLAYS.
    """
    names = [name for name in dict.fromkeys(chosen) if name != policy]
    if len(names) > MOST_OVERLAYS:
        raise SettingsError(f"with: {len(names)} are laid over {policy}, and {MOST_OVERLAYS} can be; leave some out")
    choices = list_choices(log, policy)
    if unknown := [name for name in names if name not in choices]:
        raise NotFoundError(f"the log knows no policy {unknown[0][:80]!r}; {nearest(unknown[0], choices)}")
    others = [name for name in choices if name not in names][:MOST_CHOICES]
    if is_late:
        return CurveOverlay([], over, names, others, [], is_late)
    logs, left_out = [(policy, read_sections(log, policy, compares=bool(names)))], []
    for name in names:
        try:
            logs.append((name, _sections_of(log, name)))
        except (NotFoundError, SettingsError) as exc:  # stopped before its topics existed; any producer writes settings
            left_out.append(f"{name}: {exc}")
    sections = [_merge([(name, sections[number]) for name, sections in logs]) for number in range(len(logs[0][1]))]
    return CurveOverlay([section for section in sections if section.charts], over, names, others, left_out)


def list_choices(log: LogSnapshot, policy: str) -> list[str]:
    """Return what can be laid over a policy: the other policies, and experiments, those of this policy first."""
    names = [row["policy"] for row in log.recall("policies", lambda: log.rows(POLICY_NAMES_SQL), from_log=True)]
    recorded = sorted(read_experiments(log), key=lambda experiment: experiment.policy != policy)
    return [name for name in names if name != policy] + [f"{EXPERIMENT}{experiment.name}" for experiment in recorded]


def read_experiments(log: LogSnapshot) -> list[Experiment]:
    """Return the experiments of this log, the oldest first; none for a visitor who sees one tenant's rows."""
    return (
        []
        if log.rights.tenant is not None
        else log.recall("experiments", lambda: [*_experiments(log.view)], from_log=True)
    )


def _experiments(view: LogView) -> Iterator[Experiment]:
    source, recorded = history.of(view.settings, view.source), dict[str, Experiment]()
    try:
        bounds = source.bounds(["experiments"])
    except NotFoundError:  # an archive without experiments
        return
    starts, ends = ({tp: bound[side] for tp, bound in bounds.items()} for side in (0, 1))
    for record in source.read(starts, ends):
        event = record.decode(ExperimentEvent)
        if not isinstance(event, Poison):
            recorded[event.experiment] = experiments.fold(recorded.get(event.experiment), event)
    yield from sorted(recorded.values(), key=lambda experiment: experiment.created_at)


def _sections_of(log: LogSnapshot, name: str) -> list[ChartSection]:
    """Return the charts of another policy, or of an experiment. Raises NotFoundError, SettingsError."""
    if not name.startswith(EXPERIMENT):
        return read_sections(log, name, compares=True)
    recorded = {experiment.name: experiment for experiment in read_experiments(log)}
    experiment = recorded[name.removeprefix(EXPERIMENT)]
    other = log.view.other(experiments.of(log.view.settings, experiment))
    with other.snapshot() as snapshot:
        sections = read_sections(snapshot, experiment.name, compares=True)
    return [replace(section, charts=[_without_groups(chart) for chart in section.charts]) for section in sections]


def _without_groups(chart: CurveChart) -> CurveChart:
    return replace(chart, curves=[replace(curve, policy=None) for curve in chart.curves])


def _merge(sections: Sequence[tuple[str, ChartSection]]) -> ChartSection:
    """Return one section of several, without charts that have no point."""
    title, is_alone = sections[0][1].title, len(sections) == 1
    charts = []
    for number, chart in enumerate(sections[0][1].charts):
        curves = [
            curve if is_alone else replace(curve, name=_line_name(name, curve), colour=colour, is_dashed=place > 0)
            for colour, (name, section) in enumerate(sections)
            for place, curve in enumerate(section.charts[number].curves)
        ]
        charts.append(replace(chart, curves=curves))
    return ChartSection(title, [chart for chart in charts if chart.curves])


def _line_name(name: str, curve: Curve) -> str:
    return f"{name}, {curve.name}" if curve.name else name
