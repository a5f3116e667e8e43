"""The gates that a run has to pass before it is judged: bounds on its figures.

    FinishedRun, bounds of its scenario ──► each figure with its bound ──► GateResult: passed or not

The prefix of a name is the kind of its bound: `min_score` passes at or above it, `max_turns` at or below. A missing
figure passes no gate. `max_sampled_tokens` keeps answers from growing with every round of training on promoted runs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping

from schemas.events import GateResult
from streams.tools.runs.run_row import FinishedRun

FIGURES: Mapping[str, Callable[[FinishedRun], float | None]] = {
    "min_score": lambda row: row.reward,
    "min_feedback": lambda row: row.feedback,
    "min_success": lambda row: None if row.success is None else float(row.success),
    "min_completed": lambda row: float(row.ending == "completed"),
    "max_escalations": lambda row: row.escalations,
    "max_turns": lambda row: row.turns,
    "max_failed_turns": lambda row: row.failed_turns,
    "max_malformed": lambda row: row.malformed,
    "max_failed_tools": lambda row: row.failed_tools,
    "max_retries": lambda row: row.retries,
    "max_rewrites": lambda row: row.rewrites,
    "max_latency_ms": lambda row: row.latency_ms,
    "max_cost_usd": lambda row: row.cost_usd,
    "max_prompt_tokens": lambda row: row.prompt_tokens,
    "max_sampled_tokens": lambda row: row.sampled_tokens,
}
"""The figure of each gate of `streams.settings.model.GATES`."""


def gate_results(row: FinishedRun, bounds: Mapping[str, float]) -> tuple[GateResult, ...]:
    """Return what each of these gates measures of a run."""
    return tuple(_result(name, FIGURES[name](row), bound) for name, bound in bounds.items())


def _result(gate: str, value: float | None, bound: float) -> GateResult:
    if value is None or not math.isfinite(value):
        return GateResult(gate=gate, value=None, bound=bound, passed=False)
    passed = value >= bound if gate.startswith("min_") else value <= bound
    return GateResult(gate=gate, value=float(value), bound=bound, passed=passed)


def gates_in_words(gates: Iterable[GateResult]) -> str:
    """Return the gates that were not passed, each with its figure; all of them if they were."""
    results = list(gates)
    failed = [gate for gate in results if not gate.passed]
    if not failed:
        return f"{len(results)} gates passed" if results else "there are no gates"
    return "; ".join(_in_words(gate) for gate in failed)


def _in_words(gate: GateResult) -> str:
    value = "the run has no such figure" if gate.value is None else f"{gate.value:g}"
    return f"{gate.gate}: {value}, expected {gate.bound:g}"
