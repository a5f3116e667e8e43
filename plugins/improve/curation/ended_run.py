"""A run as it is judged: its figures, its transcript, and its rubric.

Finished, settings ──► FinishedRun ──► gates of its scenario ──► EndedRun
                 └──► transcript
"""

from __future__ import annotations

from dataclasses import dataclass

from plugins.improve.curation.gates import gate_results
from plugins.improve.curation.rubric import Rubric, rubric_of
from plugins.improve.curation.transcript import Transcript, transcript_of
from plugins.improve.settings import Improve
from schemas.events import GateResult
from streams.settings.model import Settings
from streams.tools.query.finished import Finished
from streams.tools.runs.run_row import FigureRules, FinishedRun, run_row


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedRun:
    """A run and what its verdict depends on."""

    finished: Finished
    row: FinishedRun
    transcript: Transcript
    rubric: Rubric
    gates: tuple[GateResult, ...]

    @property
    def passes(self) -> bool:
        """Whether it passes all gates."""
        return all(gate.passed for gate in self.gates)


def asks_judge(settings: Settings, scenario: str) -> bool:
    """Return whether runs of a scenario that pass the gates are judged by a model."""
    return settings.scoring.judge_url is not None and not settings.of_plugin(Improve).promotes_by_gates(scenario)


def ended_run(finished: Finished, settings: Settings) -> EndedRun:
    """Return a run with its figures, transcript and rubric."""
    row = run_row(finished, FigureRules.of(settings))
    rubric = rubric_of(settings.of_plugin(Improve), row.scenario, asks_judge=asks_judge(settings, row.scenario))
    return EndedRun(
        finished=finished,
        row=row,
        transcript=transcript_of(finished, row, settings.of_plugin(Improve).transcript_characters),
        rubric=rubric,
        gates=gate_results(row, rubric.bounds),
    )
