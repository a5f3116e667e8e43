"""Six Grafana dashboards of the loop, and one of plugins, from overall health down to single numbers.

    DASHBOARDS ── model.py ──┬─► python -m streams.observability.grafana.dashboards ──► helm/dashboards/*.json
                             └─► streamward admin dashboards apply

Docker compose and the chart use the same files. Every metric of catalog.py is on a panel or in an alert, and a panel's
description comes from that table. The broker's own metrics are left to its operator.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from streams.observability import catalog
from streams.observability.catalog import Metric, all_metrics
from streams.observability.grafana import alerts
from streams.observability.grafana.alerts import (
    FAILED_SCORES,
    FLAT,
    LAG_SECONDS,
    LOST_CALLS,
    PREFIX,
    REASONS,
    UNUSABLE_ACTIONS,
)
from streams.observability.grafana.model import Dashboard, Panel, PanelRow, Query, text
from streams.observability.grafana.promql import (
    STEP,
    average,
    growth,
    largest,
    metrics_of,
    or_zero,
    per_second,
    quantile,
    select,
    total,
)

FOLDER = Path(__file__).parents[3] / "helm" / "dashboards"
RARELY = "10m"
"""The window for figures of batches and groups, which may be minutes apart."""
_ABOUT = {metric.name: metric.about for metric in all_metrics()}


def _panel(
    title: str, unit: str, *queries: tuple[str, str], kind: Literal["lines", "areas", "number"] = "lines"
) -> Panel:
    """Return a panel, described by the metrics of its queries; each query is (expression, legend)."""
    names = {name: None for expression, _ in queries for name in sorted(metrics_of(expression))}
    about = "\n".join(f"`{name}`: {_ABOUT[name]}" for name in names)
    return Panel(title, unit, tuple(Query(*query) for query in queries), kind, about)


def _speed(title: str, unit: str, metric: Metric, *labels: str) -> Panel:
    return _panel(title, unit, (per_second(metric, *labels), _legend(*labels)), kind="areas")


def _spread(title: str, metric: Metric, *labels: str, window: str = STEP) -> Panel:
    """Median and 95th percentile."""
    return _panel(
        title,
        "s",
        (quantile(0.5, metric, *labels, window=window), f"half: {_legend(*labels)}"),
        (quantile(0.95, metric, *labels, window=window), f"95 of 100: {_legend(*labels)}"),
    )


def _growth_panel(title: str, metric: Metric, *labels: str, window: str) -> Panel:
    legend = ": ".join(map(_legend, labels)) or "number"
    return _panel(title, "short", (or_zero(growth(metric, *labels, window=window)), legend))


def _gauge(title: str, unit: str, *metrics: Metric) -> Panel:
    """The gauges of policies, next to each other."""
    queries = ((largest(select(metric), "policy"), f"{_legend('policy')} {_short(metric)}") for metric in metrics)
    return _panel(title, unit, *queries)


def _of_plugin(metric: Metric) -> Panel:
    """Return the panel of a metric that a plugin declares; 0 where there is no series."""
    title, legend = _short(metric).capitalize(), _legend(*metric.labels) or "value"
    if metric.kind == "counter":
        return _growth_panel(f"{title}, in an hour", metric, *metric.labels, window="1h")
    unit = {"ratio": "percentunit", "seconds": "s"}.get(metric.name.rpartition("_")[2], "short")
    if metric.kind == "histogram":
        return _panel(title, unit, (or_zero(quantile(0.95, metric, *metric.labels)), f"95 of 100: {legend}"))
    return _panel(title, unit, (or_zero(largest(select(metric), *metric.labels)), legend))


def _legend(*labels: str) -> str:
    return " ".join(f"{{{{{label}}}}}" for label in labels)


def _short(metric: Metric) -> str:
    return metric.name.removeprefix("streamward_").removeprefix("trainer_").removeprefix("rollout_").replace("_", " ")


READY = _panel(
    "Ready",
    "short",
    (f"min by (namespace, process) ({alerts.by_process(select(catalog.READY))})", "{{process}}"),
    kind="number",
)
PROGRESS = _panel(
    "Since the last progress",
    "s",
    (f"max by (namespace, process) ({alerts.by_process(select(catalog.PROGRESS))})", "{{process}}"),
)
LAG = _panel(
    "Not done yet, records", "short", (total(select(catalog.LAG_RECORDS), "stage", "topic"), "{{stage}}: {{topic}}")
)
LAG_AGE = _panel("Behind, by time", "s", (LAG_SECONDS, "{{stage}}: {{topic}}"))
DEAD = _growth_panel("Dead letters in 10 minutes", catalog.DEAD_LETTERS, "stage", "reason", window="10m")
REWARD = _panel(
    "Reward",
    "short",
    (largest(select(catalog.REWARD_MEAN), "policy"), "{{policy}} mean"),
    (largest(select(catalog.REWARD_STD), "policy"), "{{policy}} spread"),
)
POLICY_LAG = _panel(
    "Versions behind",
    "short",
    (average(catalog.POLICY_LAG, "policy", window=RARELY), "{{policy}} mean"),
    (quantile(0.95, catalog.POLICY_LAG, "policy", window=RARELY), "{{policy}} 95 of 100"),
)
VERSIONS = _panel(
    "Versions",
    "none",
    (largest(select(catalog.VERSION), "policy"), "{{policy}} trained"),
    (largest(select(catalog.PRIMARY), "policy"), "{{policy}} in force"),
    (
        f"{largest(select(catalog.CANDIDATE), 'policy')} or 0 * {largest(select(catalog.PRIMARY), 'policy')}",
        "{{policy}} on trial",
    ),
)
SERVED = _panel(
    "Served and trained",
    "none",
    (total(select(catalog.ADAPTER), "policy", "role", "version"), "{{policy}} {{role}}: {{version}}"),
)
TRIAL = _panel("Share of the candidate", "percentunit", (largest(select(catalog.SHARE), "policy"), "{{policy}}"))
DECISIONS = _growth_panel("Decisions in an hour", catalog.DECISIONS, "policy", "kind", window="1h")
TOKENS = _panel(
    "Tokens a second",
    "short",
    (per_second(catalog.TOKENS, "policy"), "{{policy}} sampled"),
    (per_second(catalog.PROMPT_TOKENS, "policy"), "{{policy}} of prompts"),
    (per_second(catalog.TRAINED_TOKENS, "policy"), "{{policy}} trained on"),
)
WAITS = _panel(
    "Held back and in work",
    "short",
    (total(select(catalog.WAITING), "policy"), "tasks held back: {{policy}}"),
    (total(select(catalog.OPEN)), "responses in work: scoring"),
    (or_zero(largest(select(catalog.IN_FLIGHT))), "on their way, by the audit"),
)
DROPS = _growth_panel("Skipped in 10 minutes", catalog.DROPS, "stage", "reason", window="10m")
ENDS = _panel(
    "Truncated and failed",
    "percentunit",
    (REASONS["length"], "{{policy}} truncated"),
    (REASONS["error"], "{{policy}} failed"),
)
ROUNDS = _spread("Time of a round", catalog.SAMPLING, "policy")
REFUSED = _panel(
    "Refused versions in the log",
    "short",
    (or_zero(largest(select(catalog.REFUSED_ADAPTERS), "reason")), "{{reason}}"),
)
FIRING = _panel(
    "Alerts",
    "short",
    (or_zero(f'count by (alertname, alertstate) (ALERTS{{alertname=~"{PREFIX}.*"}})'), "{{alertname}} {{alertstate}}"),
    kind="number",
)
LEDGER = _panel("Ledger imbalance", "short", (largest(select(catalog.IMBALANCE)), "records"), kind="number")
AGENTS = (
    _panel("Answers in the engine", "short", (total(select(catalog.SERVE_ROWS), "state"), "{{state}}")),
    _panel(
        "Tokens a second, of agents",
        "short",
        (per_second(catalog.SERVE_TOKENS), "sampled"),
        (per_second(catalog.SERVE_PROMPT_TOKENS, "source"), "of prompts: {{source}}"),
    ),
    _panel("Tokens with keys and values kept", "short", (total(select(catalog.SERVE_CACHED_TOKENS)), "tokens")),
    _panel(
        "Memory",
        "bytes",
        (total(select(catalog.SERVE_CACHED_BYTES)), "keys and values kept"),
        (total(select(catalog.SERVE_REMEMBERED)), "turns remembered"),
    ),
    _panel("Trajectories remembered", "short", (total(select(catalog.SERVE_TRAJECTORIES)), "trajectories")),
    _growth_panel("Evicted in an hour", catalog.SERVE_EVICTED, window="1h"),
    _speed("Turns a second", "short", catalog.SERVE_TURNS, "fate"),
    _speed("Actions in environments a second", "short", catalog.SERVE_ACTIONS, "use"),
    _panel(
        "Share that came to nothing",
        "percentunit",
        (LOST_CALLS, "calls not delivered whole"),
        (UNUSABLE_ACTIONS, "actions that could not be used"),
    ),
)
FLEET = (
    _gauge("Waiting work, by policy", "short", catalog.FLEET_WAITING),
    _gauge("Age of the oldest waiting work", "s", catalog.FLEET_WAITING_SECONDS),
    _panel(
        "Policies",
        "short",
        (total(select(catalog.FLEET_HELD)), "in memory"),
        (total(select(catalog.FLEET_ASIDE)), "set aside"),
    ),
    _speed("Switches of policy per second", "ops", catalog.FLEET_SWAPS, "source"),
    _spread("Time of a switch", catalog.FLEET_SWAP_SECONDS, "source"),
    _panel(
        "Left memory, and set aside, in 10 minutes",
        "short",
        (or_zero(growth(catalog.FLEET_EVICTIONS, window="10m")), "left memory"),
        (or_zero(growth(catalog.FLEET_SET_ASIDE, "policy", "reason", window="10m")), "{{policy}}: {{reason}}"),
    ),
)


def _of_step(title: str, unit: str, *names: str) -> Panel:
    return _gauge(title, unit, *(catalog.OF_STEP[name] for name in names))


OVERVIEW = Dashboard(
    "overview",
    "Overview",
    "Health, and the waits between processes.",
    (
        PanelRow(
            "Health",
            (
                FIRING,
                READY,
                LEDGER,
                _panel(
                    "Dead letters in a day",
                    "short",
                    (or_zero(growth(catalog.DEAD_LETTERS, window="1d")), "records"),
                    kind="number",
                ),
                _panel(
                    "Primary version",
                    "none",
                    (largest(select(catalog.PRIMARY), "policy"), "{{policy}}"),
                    kind="number",
                ),
                _panel(
                    "Trained version", "none", (largest(select(catalog.VERSION), "policy"), "{{policy}}"), kind="number"
                ),
                PROGRESS,
                DEAD,
                REWARD,
            ),
        ),
        PanelRow("Waits", (LAG, LAG_AGE, WAITS)),
        PanelRow(
            "Throughput",
            (_speed("Records a second, by stage", "ops", catalog.EVENTS_OUT, "stage"), TOKENS, VERSIONS),
        ),
    ),
)
TRAINING = Dashboard(
    "training",
    "Training",
    "What each step was, where its time went, and for which job.",
    (
        PanelRow(
            "Does it learn?",
            (
                REWARD,
                _panel(
                    "Groups that teach nothing",
                    "percentunit",
                    (FLAT, "{{policy}} of all groups"),
                    (largest(select(catalog.FLAT_SHARE), "policy"), "{{policy}} of the last step"),
                ),
                _speed("Why groups teach nothing", "ops", catalog.FLAT_GROUPS, "policy", "cause"),
                VERSIONS,
            ),
        ),
        PanelRow(
            "Is the step sound?",
            (
                _of_step("KL", "short", "kl", "kl_reference"),
                _of_step("Entropy, nats a token", "short", "entropy"),
                _of_step("Clipped", "percentunit", "clipped"),
                _of_step("Trainer and sampler differ, nats a token", "short", "mismatch", "mismatch_max"),
                _of_step("Tokens that count", "percentunit", "effective"),
                _of_step("Loss and gradient", "short", "loss", "grad_norm"),
                POLICY_LAG,
                _growth_panel("Steps without effect in an hour", catalog.SKIPPED, "policy", window="1h"),
                SERVED,
            ),
        ),
        PanelRow(
            "Where does the time go?",
            (
                _panel(
                    "Share of the time, by phase",
                    "percentunit",
                    (
                        total(f"rate({select(catalog.PHASE, '_sum')}[{RARELY}])", "policy", "phase"),
                        "{{policy}} {{phase}}",
                    ),
                    kind="areas",
                ),
                _panel(
                    "Time of a phase",
                    "s",
                    (average(catalog.PHASE, "policy", "phase", window=RARELY), "{{policy}} {{phase}}"),
                ),
                TOKENS,
            ),
        ),
    ),
)
POLICY = Dashboard(
    "policy",
    "Policy serving",
    "How tasks are answered, and by which version.",
    (
        PanelRow(
            "Answers",
            (
                TOKENS,
                _speed("Responses a second, by how they ended", "ops", catalog.RESPONSES, "policy", "finish_reason"),
                ENDS,
                ROUNDS,
                _gauge("Tasks held back", "short", catalog.WAITING),
                DROPS,
            ),
        ),
        PanelRow("Versions", (VERSIONS, SERVED, TRIAL)),
        PanelRow("Fleets: many policies in one process", FLEET),
        PanelRow("Calls of agents", AGENTS),
    ),
)
SCORING = Dashboard(
    "scoring",
    "Scoring",
    "How responses are judged.",
    (
        PanelRow(
            "Scores",
            (
                _speed("Scores a second", "ops", catalog.SCORE_SECONDS, "source"),
                _spread("Time of a score", catalog.SCORE_SECONDS, "source"),
                _panel("Failed scores", "percentunit", (FAILED_SCORES, "{{source}} of all")),
                _panel("Failed scores a second", "ops", (per_second(catalog.SCORE_FAILURES, "source"), "{{source}}")),
                _panel("Responses in work", "short", (total(select(catalog.OPEN)), "responses")),
                LAG_AGE,
            ),
        ),
    ),
)
STREAMS = Dashboard(
    "streams",
    "Streams and Kafka",
    "Every stage at its topics, the groups, and what was not used.",
    (
        PanelRow(
            "Reading and writing",
            (
                _speed("Records read a second", "ops", catalog.EVENTS_IN, "stage", "topic"),
                _speed("Records written a second", "ops", catalog.EVENTS_OUT, "stage", "topic"),
                _spread("Time of work", catalog.PROCESSING, "stage"),
                _panel(
                    "Age of records when read",
                    "s",
                    (quantile(0.95, catalog.EVENT_AGE, "stage", "topic"), "95 of 100: {{stage}}: {{topic}}"),
                ),
                LAG,
                LAG_AGE,
                WAITS,
                _growth_panel("Assignments in 15 minutes", catalog.REBALANCES, "stage", window="15m"),
                PROGRESS,
            ),
        ),
        PanelRow(
            "Groups",
            (
                _speed("Groups per second, by outcome", "ops", catalog.GROUPS, "policy", "outcome"),
                _spread("From a task to its group", catalog.GROUP_SECONDS, "policy", window=RARELY),
                POLICY_LAG,
                _panel(
                    "Mean size of a turn's advantage",
                    "short",
                    (average(catalog.TURN_CREDIT, "policy", "turn", window=RARELY), "{{policy}}, turn {{turn}}"),
                ),
            ),
        ),
        PanelRow(
            "Unused records",
            (DEAD, DROPS, REFUSED),
        ),
        PanelRow(
            "The archive",
            (
                _panel(
                    "Not archived, records", "short", (total(select(catalog.ARCHIVE_LAG_RECORDS), "topic"), "{{topic}}")
                ),
                _panel(
                    "Archive lag",
                    "s",
                    (largest(select(catalog.ARCHIVE_LAG_SECONDS), "topic"), "{{topic}}"),
                ),
            ),
        ),
        PanelRow(
            "The audit, and the processes",
            (
                _panel("Ledger imbalance", "short", (largest(select(catalog.IMBALANCE)), "records")),
                _panel(
                    "Findings",
                    "short",
                    (
                        largest(select(catalog.FINDINGS), "category", "accounted"),
                        "{{category}}, accounted for: {{accounted}}",
                    ),
                ),
                _panel("Since the last recount", "s", (f"time() - {largest(select(catalog.RECOUNTED))}", "recount")),
                _panel(
                    "Processes",
                    "short",
                    (total(select(catalog.PROCESS), "process", "version"), "{{process}} {{version}}"),
                ),
                _panel(
                    "Values and spans lost, a second",
                    "ops",
                    (per_second(catalog.SCRAPE_ERRORS), "values"),
                    (per_second(catalog.SPANS_DROPPED, "reason"), "spans: {{reason}}"),
                ),
            ),
        ),
    ),
)
ROLLOUT = Dashboard(
    "rollout",
    "Rollout",
    "The serving version, the candidate, and the decisions.",
    (
        PanelRow("Versions", (VERSIONS, TRIAL, SERVED)),
        PanelRow(
            "Decisions",
            (DECISIONS, REFUSED, POLICY_LAG),
        ),
        PanelRow("Effects", (REWARD, ENDS, ROUNDS)),
    ),
)
PLUGINS = Dashboard(
    "plugins",
    "Plugins",
    "What each plugin counts.",
    tuple(PanelRow(name, tuple(map(_of_plugin, metrics))) for name, metrics in catalog.by_plugin().items()),
)
DASHBOARDS = (OVERVIEW, TRAINING, POLICY, SCORING, STREAMS, ROLLOUT, PLUGINS)


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for dashboard in DASHBOARDS:
        (FOLDER / f"{dashboard.name}.json").write_text(text(dashboard), encoding="utf-8")
