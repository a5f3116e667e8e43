"""The promotion rule: decides whether the results on a suite of held-out tasks justify a version.

    outcomes of candidate and primary on one suite + settings [guard] ──► promote | reject | ask, and why

Each gate has three answers, and the verdict is the strictest of them. It promotes only on proof of a gain, and rejects
only on proof of harm; a person is asked about everything in between. Proof means that the whole interval, at
`guard.confidence`, is on one side of the limit; with a two-sided interval of 95 % that happens by chance in 2.5 of 100
cases.

    gate                       promotes if            rejects if             else asks
    gain in mean reward        all of it above        all of it below        the rest; too few tasks differ
    each scenario              its loss is allowed    all of it is too much  the best guess is too much
    thresholds of the suite    the figure is reached  all of it is below     the best guess is below
    tokens, cost               at most so much        all of it is above     the best guess is above
    recoveries                 its loss is allowed    all of it is too much  the best guess is too much
    latency, failed slots      at most so much        never                  above
    those of plugins           no objection           it rejects             it asks

Cost is that of the tokens read and written, at the prices of jobs, and is judged if `guard.max_cost_ratio` is set.
Recoveries are successful tool calls after failed ones: a task counts if calls failed under both versions, with each
version's share of recovered calls; they are judged if `guard.max_recovery_loss` is set.

So the gate of the scenarios is lenient: a loss a little above the limit, on few tasks, goes unnoticed. A strict one
would stop every version whose suite has few tasks per scenario. Several scenarios share the error between them
(Bonferroni), or one in twenty would be rejected by chance. Latency and failures never reject, since they also depend on
when each version was evaluated: a busy machine, an agent that was down. Responses that were sampled together share
their latency, so no interval of it would be honest; medians are compared, and differences below LATENCY_NOISE_MS are
ignored.

Of a hundred versions that are no better, two or three pass by chance, though each is evaluated only once.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from schemas.events import AdapterEvent, Outcome, OutsideModel, Verdict, derive_id
from streams.adapters.versions import Version
from streams.evaluation import intervals, paired
from streams.evaluation.version_gates import VersionGate
from streams.settings.model import Guard, Prices

ACTOR = "rollouts"
STRICTEST: tuple[Verdict, ...] = ("reject", "ask", "promote")
ROUNDING = 1e-9
LATENCY_NOISE_MS = 50.0
"""Latency that a first round, a garbage collection or another process may add to any version."""
Thresholds = Mapping[str, Mapping[str, float]]
"""Minimum `success` and `mean_reward`, by scenario."""


class TokenPrices(NamedTuple):
    """Prices of tokens, USD per million: from the settings, or recorded with an outside model."""

    prompt: float
    completion: float

    @classmethod
    def of(cls, prices: Prices) -> TokenPrices | None:
        """Return the prices in the settings; None if unset."""
        if prices.prompt_usd is None or prices.completion_usd is None:
            return None
        return cls(prices.prompt_usd, prices.completion_usd)

    def cost_usd(self, outcome: Outcome) -> float | None:
        """Return the cost of a response to a task; None if its tokens are not recorded."""
        if outcome.prompt_tokens is None or outcome.sampled_tokens is None:
            return None
        return self.of_tokens(outcome.prompt_tokens, outcome.sampled_tokens)

    def of_tokens(self, prompt_tokens: float, sampled_tokens: float) -> float:
        """Return the cost of this many tokens, USD."""
        return (prompt_tokens * self.prompt + sampled_tokens * self.completion) / 1e6


def version_prices(outside: OutsideModel | None, prices: TokenPrices | None) -> TokenPrices | None:
    """Return the prices of a version's tokens: those recorded with an outside model, else `prices`."""
    if outside is None:
        return prices
    if outside.prompt_usd is None or outside.completion_usd is None:
        return None
    return TokenPrices(outside.prompt_usd, outside.completion_usd)


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardResult:
    """The verdict on a version, with its reasons."""

    verdict: Verdict
    reasons: tuple[str, ...]
    """Sentences with figures; the decisive one comes first."""
    metrics: Mapping[str, float]
    """Figures of the comparison: `gain`, `gain_low`, …, `failed_share`, and `scenario.NAME.gain`, …; empty without
    one."""
    gate: Mapping[str, str]
    """The rule in force, setting by setting."""


class _GuardFinding(NamedTuple):
    verdict: Verdict
    says: str


def judge(
    candidate: Version,
    incumbent: Version,
    rule: Guard,
    suite: str,
    thresholds: Thresholds | None = None,
    prices: TokenPrices | None = None,
) -> GuardResult:
    """Return the verdict on `candidate` against the version in force, by the results of both on `suite`.

    `suite` is its identity (`sums@1f3c9a2b`); results on others do not count. Without a result of either version, or
    with fewer than `rule.min_tasks` tasks scored for both, the verdict is to ask.
    """
    thresholds = thresholds or {}
    gate = effective(rule, thresholds, prices)
    if missing := [text for one in (candidate, incumbent) if (text := _missing(one, suite)) is not None]:
        return GuardResult(verdict="ask", reasons=tuple(missing), metrics={}, gate=gate)
    pairs = paired.pairs(candidate.outcomes[suite], incumbent.outcomes[suite])
    share, metrics = _failed_share(candidate, suite), {}
    findings = list(_failed(share, rule))
    metrics["failed_share"] = share
    if not pairs:
        findings.append(_GuardFinding("ask", f"no task of suite {suite} was scored for both versions"))
        return _judgement(findings, metrics, gate)
    whole = paired.compare(pairs, rule.confidence)
    metrics |= whole.metrics()
    gain = _gain(whole, pairs, rule)
    if whole.n < rule.min_tasks:
        few = f"{whole.n} tasks were scored for both versions, the rule asks for {rule.min_tasks}"
        return _judgement([_GuardFinding("ask", few), *findings, gain._replace(verdict="ask")], metrics, gate)
    findings += _scenarios(candidate.outcomes[suite], pairs, rule, metrics)
    findings += _below_thresholds(candidate.outcomes[suite], thresholds, rule)
    findings += _tokens(pairs, rule)
    of_both = [version_prices(one.outside, prices) for one in (candidate, incumbent)]
    findings += _cost(pairs, rule, of_both, metrics)
    findings += _recoveries(pairs, rule, metrics)
    findings += _latency(pairs, rule)
    return _judgement([*findings, gain], metrics, gate)


def with_objections(judgement: GuardResult, outcomes: Sequence[Outcome], gates: Iterable[VersionGate]) -> GuardResult:
    """Return a verdict with what the gates of plugins object to the candidate's outcomes, which may be stricter."""
    for figures in (look(outcomes) for look in gates):
        for verdict, reason in figures.objections:
            is_stricter = STRICTEST.index(verdict) < STRICTEST.index(judgement.verdict)
            reasons = (reason, *judgement.reasons) if is_stricter else (*judgement.reasons, reason)
            judgement = replace(judgement, verdict=verdict if is_stricter else judgement.verdict, reasons=reasons)
        metrics, gate = {**judgement.metrics, **figures.metrics}, {**judgement.gate, **figures.gate}
        judgement = replace(judgement, metrics=metrics, gate=gate)
    return judgement


def event(
    judgement: GuardResult, *, policy: str, version: int, against: int, suite: str, created_at: int
) -> AdapterEvent:
    """Return the `judged` event; the same judgement under the same rule is the same event."""
    rule = json.dumps(dict(judgement.gate), sort_keys=True)
    return AdapterEvent(
        event_id=derive_id(policy, version, "judged", suite, against, rule),
        policy=policy,
        created_at=created_at,
        version=version,
        kind="judged",
        actor=ACTOR,
        reason="; ".join(judgement.reasons),
        expected_version=against,
        suite=suite,
        verdict=judgement.verdict,
        gate=dict(judgement.gate),
        metrics=dict(judgement.metrics),
    )


def effective(rule: Guard, thresholds: Thresholds, prices: TokenPrices | None = None) -> dict[str, str]:
    """Return the rule as an event records it: the settings of [guard] that judge, the thresholds of the suite, and the
    prices if cost is judged."""
    values = {name: getattr(rule, name) for name in Guard.model_fields if name != "suite"}
    gate = {f"guard.{name}": str(value) for name, value in values.items() if value is not None}
    if rule.max_cost_ratio is not None and prices is not None:
        gate |= {"prices.prompt_usd": f"{prices.prompt:g}", "prices.completion_usd": f"{prices.completion:g}"}
    least = {
        f"scenario.{scenario}.{name}": f"{value:g}"
        for scenario, one in sorted(thresholds.items())
        for name, value in sorted(one.items())
    }
    return gate | least


def _judgement(findings: Sequence[_GuardFinding], metrics: Mapping[str, float], gate: Mapping[str, str]) -> GuardResult:
    ordered = sorted(findings, key=lambda finding: STRICTEST.index(finding.verdict))
    return GuardResult(
        verdict=ordered[0].verdict, reasons=tuple(finding.says for finding in ordered), metrics=metrics, gate=gate
    )


# --- the gates --------------------------------------------------------------------------------------------------------


def _missing(version: Version, suite: str) -> str | None:
    """Return why nothing can be compared, and what to do about it."""
    if version.outcomes.get(suite):
        return None
    if suite in version.evaluated:
        return (
            f"version {version.version} was asked suite {suite} without telling its tasks apart; give the suite "
            "another seed, and ask both versions with `streamward evaluate`"
        )
    family = suite.partition("@")[0] + "@"
    other = sorted(name for name in version.evaluated if name.startswith(family))
    but = f" (it was asked {', '.join(other)}, which are other questions)" if other else ""
    return (
        f"version {version.version} has no result of suite {suite}{but}; ask it with "
        f"`streamward evaluate --version {version.version} --suite FILE`"
    )


def _failed_share(version: Version, suite: str) -> float:
    metrics = version.evaluated.get(suite, {})
    scored, failed = metrics.get("n", 0.0), metrics.get("failed", 0.0)
    return failed / (scored + failed) if scored + failed else 0.0


def _failed(share: float, rule: Guard) -> Iterator[_GuardFinding]:
    if share > rule.max_failed:
        yield _GuardFinding("ask", f"{share:.1%} of the slots have no score, the rule allows {rule.max_failed:.1%}")


def _gain(whole: paired.Comparison, pairs: Sequence[paired.Pair], rule: Guard) -> _GuardFinding:
    gain, least = whole.gain, rule.min_improvement
    text = (
        f"mean reward {whole.reward:.3g} against {whole.reward_against:.3g} on {whole.n} tasks: gain "
        f"{_span(gain)}, the rule asks for more than {least:g}"
    )
    needed = intervals.fewest_unequal(rule.confidence)
    unequal = sum(abs(one - other - least) > ROUNDING for one, other in zip(*paired.rewards(pairs), strict=True))
    if unequal < needed:
        return _GuardFinding(
            "ask", f"{text}; {unequal} tasks came out differently, and {needed} could first prove anything"
        )
    if gain.low > least + ROUNDING:
        return _GuardFinding("promote", text)
    return _GuardFinding("reject" if gain.high < least - ROUNDING else "ask", text)


def _scenarios(
    outcomes: Sequence[Outcome], pairs: Sequence[paired.Pair], rule: Guard, metrics: dict[str, float]
) -> Iterator[_GuardFinding]:
    """Yield the objections of the scenarios, and add the figures of each to `metrics`."""
    names = sorted({outcome.scenario for outcome in outcomes})
    by_scenario = paired.by_scenario(pairs)
    confidence = 1 - (1 - rule.confidence) / len(names)
    for name in names:
        if name not in by_scenario:
            yield _GuardFinding("ask", f"scenario {name} has no task that was scored for both versions")
            continue
        one = paired.compare(by_scenario[name], confidence)
        metrics |= {
            f"scenario.{name}.{key}": value
            for key, value in one.metrics().items()
            if key in ("n", "gain", "gain_low", "gain_high")
        }
        if one.gain.value >= -rule.max_scenario_loss - ROUNDING:
            continue
        proven = one.gain.high < -rule.max_scenario_loss - ROUNDING
        yield _GuardFinding(
            "reject" if proven else "ask",
            f"scenario {name}: mean reward {one.reward:.3g} against {one.reward_against:.3g} on {one.n} tasks, a "
            f"change of {_span(one.gain)}, the rule allows a loss of {rule.max_scenario_loss:g}",
        )


def _below_thresholds(outcomes: Sequence[Outcome], thresholds: Thresholds, rule: Guard) -> Iterator[_GuardFinding]:
    for scenario, least in sorted(thresholds.items()):
        scored = [outcome for outcome in outcomes if outcome.scenario == scenario and outcome.reward is not None]
        if not scored:
            yield _GuardFinding("ask", f"scenario {scenario} has a threshold and no task with a score")
            continue
        for name, value in sorted(least.items()):
            values = [(outcome.success if name == "success" else outcome.reward) or 0.0 for outcome in scored]
            mean = intervals.mean(values, rule.confidence)
            high = intervals.wilson(mean.value, mean.n, rule.confidence).high if name == "success" else mean.high
            if mean.value < value - ROUNDING:
                text = f"scenario {scenario}: {name} {mean.value:.3g} on {mean.n} tasks, the suite asks for {value:g}"
                yield _GuardFinding("reject" if high < value - ROUNDING else "ask", text)


def _tokens(pairs: Sequence[paired.Pair], rule: Guard) -> Iterator[_GuardFinding]:
    """Yield the objection to the length of the responses, if any.

    first - allowed · second has, per pair, a mean above 0 exactly if the ratio of the means is too large, and needs no
    interval of a ratio (Fieller, JRSS B 16 (1954), pp. 175-185).
    """
    tokens = paired.costs(pairs, "tokens")
    if tokens is None:
        return
    excess = intervals.mean([one - rule.max_tokens_ratio * other for one, other in tokens], rule.confidence)
    if excess.value > ROUNDING:
        first, second = (math.fsum(side) / len(tokens) for side in zip(*tokens, strict=True))
        text = f"{first:.3g} tokens against {second:.3g} per response"
        yield _GuardFinding(
            "reject" if excess.low > 0 else "ask", f"{text}, the rule allows {rule.max_tokens_ratio:g} times as many"
        )


def _cost(
    pairs: Sequence[paired.Pair], rule: Guard, prices: Sequence[TokenPrices | None], metrics: dict[str, float]
) -> Iterator[_GuardFinding]:
    """Yield the objection to the cost of responses, if any, and add the ratio to `metrics`; as `_tokens`."""
    if rule.max_cost_ratio is None:
        return
    own, other_prices = prices
    if own is None or other_prices is None:
        yield _GuardFinding("ask", "the rule limits the cost, and nothing says what tokens cost; set prices.prompt_usd")
        return
    both_costs = [(own.cost_usd(first), other_prices.cost_usd(second)) for first, second in pairs]
    costs = [(one, other) for one, other in both_costs if one is not None and other is not None]
    if len(costs) < len(both_costs):
        yield _GuardFinding(
            "ask", f"the tokens of {len(both_costs) - len(costs)} tasks are not recorded, nor their cost"
        )
        return
    first, second = (math.fsum(side) / len(costs) for side in zip(*costs, strict=True))
    if second:
        metrics["cost_ratio"] = first / second
    excess = intervals.mean([one - rule.max_cost_ratio * other for one, other in costs], rule.confidence)
    if excess.value > ROUNDING * second:
        text = f"{first:.3g} USD against {second:.3g} per response"
        yield _GuardFinding(
            "reject" if excess.low > 0 else "ask", f"{text}, the rule allows {rule.max_cost_ratio:g} times as much"
        )


def _recoveries(pairs: Sequence[paired.Pair], rule: Guard, metrics: dict[str, float]) -> Iterator[_GuardFinding]:
    """Yield the objection to too few recoveries from failed tool calls, if any, and add the figures."""
    both = [pair for pair in pairs if pair.first.failed_tools and pair.second.failed_tools]
    if rule.max_recovery_loss is None or not both:
        return
    shares = [[outcome.recoveries / outcome.failed_tools for outcome in side] for side in zip(*both, strict=True)]
    gain = intervals.difference(shares[0], shares[1], rule.confidence)
    first, second = (math.fsum(side) / len(both) for side in shares)
    metrics |= {"recovery": first, "recovery_against": second, "recovery_gain": gain.value}
    metrics |= {"recovery_gain_low": gain.low, "recovery_gain_high": gain.high} if len(both) > 1 else {}
    if gain.value < -rule.max_recovery_loss - ROUNDING:
        yield _GuardFinding(
            "reject" if gain.high < -rule.max_recovery_loss - ROUNDING else "ask",
            f"recovered from {first:.1%} of the failed tool calls against {second:.1%} on {len(both)} tasks, a change "
            f"of {_span(gain)}, the rule allows a loss of {rule.max_recovery_loss:g}",
        )


def _latency(pairs: Sequence[paired.Pair], rule: Guard) -> Iterator[_GuardFinding]:
    medians = paired.medians(pairs, "latency_ms")
    if medians is None:
        return
    first, second = medians
    if first > rule.max_latency_ratio * second and first - second > LATENCY_NOISE_MS:
        text = f"median of {first:.3g} ms against {second:.3g} per response"
        yield _GuardFinding("ask", f"{text}, the rule allows {rule.max_latency_ratio:g} times as long")


def _span(gain: intervals.MeanDifference) -> str:
    return f"{_number(gain.value)} ({_number(gain.low)} to {_number(gain.high)})"


def _number(value: float) -> str:
    """Format a figure for a sentence, without -0."""
    return f"{value:.2g}" if abs(value) >= ROUNDING else "0"
