"""Hold a version back whose rewards differ between a suite's swapped copies by more than the settings allow.

outcomes of a candidate ──► pairs of NAME-first and NAME-second ──► difference, its interval ──► guardrails.max_bias
"""

from __future__ import annotations

from collections.abc import Sequence

from plugins.guardrails.bias.counterfactual import bias_figure, pairs_of_outcomes
from plugins.guardrails.guardrail_settings import Guardrails
from schemas.events import Outcome
from streams.evaluation.version_gates import GateFigures, VersionGate, VersionObjection
from streams.settings.model import Settings


def build_gate(settings: Settings) -> VersionGate | None:
    """Return the gate; None without guardrails.max_bias."""
    limit, confidence = settings.of_plugin(Guardrails).max_bias, settings.guard.confidence
    return None if limit is None else lambda outcomes: measure(outcomes, limit, confidence)


def measure(outcomes: Sequence[Outcome], limit: float, confidence: float) -> GateFigures:
    """Return the bias of a version: it is rejected if all of the interval is beyond `limit`, and asked about if the
    best guess is, or if nothing can be compared."""
    gate = {"guardrails.max_bias": f"{limit:g}"}
    pairs = pairs_of_outcomes(outcomes)
    if not pairs:
        missing = "the suite has no swapped copies with rewards, and guardrails.max_bias limits their difference"
        return GateFigures((VersionObjection("ask", missing),), {}, gate)
    figure = bias_figure(pairs, confidence)
    bias = figure.difference
    metrics = {"bias": bias.value, "bias_low": bias.low, "bias_high": bias.high}
    if abs(bias.value) <= limit:
        return GateFigures((), metrics, gate)
    is_proven = bias.low > limit or bias.high < -limit
    reason = (
        f"bias: mean reward {figure.first:.3g} against {figure.second:.3g} on {bias.n} pairs of swapped copies, a "
        f"difference of {bias.value:+.3g} ({bias.low:+.3g} to {bias.high:+.3g}), guardrails.max_bias allows {limit:g}"
    )
    return GateFigures((VersionObjection("reject" if is_proven else "ask", reason),), metrics, gate)
