"""Alerts: those of the core, each with a link to its runbook, and those of plugins, each with what to do.

    ALERTS, PLUGIN.alerts ──┬─► python -m streams.observability.grafana.alerts ──► helm/alerts/streamward.yaml
                            │       └──► Prometheus of docker compose, PrometheusRule of the chart
                            ├─► streamward admin dashboards alerts: of what is installed, for any Prometheus
                            └─► the heading of docs/operations.md with the alert's name; a plugin's: docs/metrics.md

An alert is a query that always has an answer, a limit, and sometimes a second condition without which the first means
nothing. `critical`: records are wrong, or the loop has stopped. `warning`: it works, but not as it should.

Not covered: a low reward (a good one depends on the task), one lost replica of several (the cluster restarts it), and
free space of disks and buckets.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

from streams.errors import SettingsError
from streams.observability import catalog
from streams.observability.grafana.promql import growth, largest, metrics_of, or_zero, select, share, total
from streams.plugins.installed import plugin_entries

FILE = Path(__file__).parents[3] / "helm" / "alerts" / "streamward.yaml"
PAGE = "docs/operations.md"
PREFIX = "Streamward"
Severity = Literal["warning", "critical"]


class Limit(NamedTuple):
    """A query and the limit its answer must not pass."""

    query: str
    sign: Literal["<", ">"]
    than: float

    @property
    def condition(self) -> str:
        """A query that has a result only if the limit is passed."""
        return f"({self.query}) {self.sign} {self.than:g}"


class Alert(NamedTuple):
    """One rule. `name` is without its prefix."""

    name: str
    severity: Severity
    wait: str
    """Time that the condition must hold before it fires."""
    limit: Limit
    summary: str
    only_if: Limit | None = None
    on: tuple[str, ...] = ()
    """The labels by which `only_if` belongs to the limit."""
    do: str = ""
    """What to do, in one line, for an alert of a plugin; docs/operations.md says it for those of the core."""

    @property
    def query(self) -> str:
        """The expression that Prometheus evaluates."""
        if self.only_if is None:
            return self.limit.condition
        return f"{self.limit.condition} and on ({', '.join(self.on)}) {self.only_if.condition}"

    @property
    def anchor(self) -> str:
        """The heading in docs/operations.md as a link anchor: ProcessDown is process-down."""
        return re.sub(r"(?<!^)(?=[A-Z])", "-", self.name).lower()


def _down() -> str:
    """1 for a process that answers; 0 for one that did within the hour, and for one that never did."""
    process = select(catalog.PROCESS)
    never = " or on (process) ".join(f'label_replace(vector(0), "process", "{name}", "", "")' for name in catalog.LOOP)
    return (
        f"clamp_max({total(process, 'process')}, 1) or 0 * {total(f'last_over_time({process}[1h])', 'process')} "
        f"or on (process) {never}"
    )


def by_process(gauge: str) -> str:
    """Return a gauge that every process has, with the label `process`."""
    return f"{gauge} * on (namespace, job, instance) group_left (process) {select(catalog.PROCESS)}"


def _rate(metric: catalog.Metric, *labels: str, window: str, **chosen: str) -> str:
    part = "_count" if metric.kind == "histogram" else ""
    return total(f"rate({select(metric, part, **chosen)}[{window}])", *labels)


def _refusals_in_an_hour() -> str:
    """Return the growth of refusals in an hour: the audit counts them in the log, so its count starts above 0."""
    now, before = (largest(select(catalog.REFUSED_ADAPTERS) + offset, "reason") for offset in ("", " offset 1h"))
    return or_zero(f"{now} - ({before} or 0 * {now})")


LAG_SECONDS = largest(select(catalog.LAG_SECONDS), "stage", "topic")
LAG_SLOPE = total(f"deriv({select(catalog.LAG_RECORDS)}[15m])", "stage", "topic")
WORK = total(select(catalog.LAG_RECORDS, topic="~tasks|responses|groups|batches"))
STEPS = largest(f"changes({select(catalog.VERSION)}[30m])", "policy")
FLAT = share(
    _rate(catalog.GROUPS, "policy", window="30m", outcome="flat"), _rate(catalog.GROUPS, "policy", window="30m")
)
FLAT_BY_CAUSE = (
    f"(0 * topk by (namespace, policy) (1, {_rate(catalog.FLAT_GROUPS, 'policy', 'cause', window='30m')} > 0) + 1) "
    f"* on (namespace, policy) group_left () ({FLAT}) or on (namespace, policy) ({FLAT})"
)
"""FLAT, with the most frequent cause as a label."""
FAILED_SCORES = share(
    _rate(catalog.SCORE_FAILURES, "source", window="15m"), _rate(catalog.SCORE_SECONDS, "source", window="15m")
)
REASONS = {
    reason: share(
        _rate(catalog.RESPONSES, "policy", window="15m", finish_reason=reason),
        _rate(catalog.RESPONSES, "policy", window="15m"),
    )
    for reason in ("error", "length")
}
UNUSABLE_ACTIONS = share(
    _rate(catalog.SERVE_ACTIONS, window="30m", use="unusable"), _rate(catalog.SERVE_ACTIONS, window="30m")
)
LOST_CALLS = share(
    _rate(catalog.SERVE_TURNS, window="15m", fate="~not_delivered|failed"), _rate(catalog.SERVE_TURNS, window="15m")
)


def _of_step(name: str) -> str:
    return largest(select(catalog.OF_STEP[name]), "policy")


ALERTS = (
    # --- processes ---
    Alert(
        "ProcessDown", "critical", "5m", Limit(_down(), "<", 1),
        "No `{{ $labels.process }}` answers on /metrics.",
    ),
    Alert(
        "ProcessNotReady", "warning", "10m", Limit(by_process(select(catalog.READY)), "<", 1),
        "`{{ $labels.process }}` at {{ $labels.instance }} is not ready: {{ $labels.condition }}.",
    ),
    Alert(
        "ProcessStuck", "critical", "5m", Limit(by_process(select(catalog.PROGRESS)), ">", 900),
        "`{{ $labels.process }}` at {{ $labels.instance }} has made no progress for {{ $value | humanizeDuration }}.",
    ),
    # --- records ---
    Alert(
        "LagGrows", "warning", "15m", Limit(LAG_SECONDS, ">", 600),
        "`{{ $labels.stage }}` lags by {{ $value | humanizeDuration }} in `{{ $labels.topic }}`, and the lag grows.",
        Limit(LAG_SLOPE, ">", 0), ("namespace", "stage", "topic"),
    ),
    Alert(
        "RebalanceStorm", "warning", "5m",
        Limit(largest(f"increase({select(catalog.REBALANCES)}[15m])", "stage"), ">", 5),
        "The partitions of `{{ $labels.stage }}` were assigned {{ $value | humanize }} times in 15 minutes.",
    ),
    Alert(
        "DeadLetters", "warning", "0m",
        Limit(or_zero(growth(catalog.DEAD_LETTERS, "stage", "reason", window="10m")), ">", 0),
        "`{{ $labels.stage }}` could not use {{ $value | humanize }} records: {{ $labels.reason }}.",
    ),
    Alert(
        "LedgerImbalance", "critical", "5m", Limit(largest(select(catalog.IMBALANCE)), ">", 0),
        "The audit finds {{ $value | humanize }} records lost, doubled or made up.",
    ),
    Alert(
        "LedgerNotRecounted", "warning", "5m", Limit(f"time() - {largest(select(catalog.RECOUNTED))}", ">", 900),
        "The audit has not recounted the log for {{ $value | humanizeDuration }}.",
    ),
    Alert(
        "ArchiveBehind", "warning", "15m", Limit(largest(select(catalog.ARCHIVE_LAG_SECONDS), "topic"), ">", 3600),
        "The archive lags by {{ $value | humanizeDuration }} in `{{ $labels.topic }}`.",
    ),
    # --- training ---
    Alert(
        "NoStep", "critical", "30m", Limit(STEPS, "<", 1),
        "No step of `{{ $labels.policy }}` in 30 minutes, although records wait.",
        Limit(WORK, ">", 0), ("namespace",),
    ),
    Alert(
        "StepsWithoutEffect", "warning", "0m",
        Limit(or_zero(growth(catalog.SKIPPED, "policy", window="1h")), ">", 2),
        "{{ $value | humanize }} steps of `{{ $labels.policy }}` in an hour changed nothing.",
    ),
    Alert(
        "ZeroVarianceHigh", "warning", "30m", Limit(FLAT_BY_CAUSE, ">", 0.8),
        "{{ $value | humanizePercentage }} of the groups of `{{ $labels.policy }}` teach nothing"
        "{{ with $labels.cause }}: {{ . }}{{ end }}.",
    ),
    Alert(
        "LogprobMismatchHigh", "warning", "15m", Limit(_of_step("mismatch"), ">", 0.1),
        "Trainer and sampler of `{{ $labels.policy }}` differ by {{ $value | humanize }} nats per token.",
    ),
    Alert(
        "KlHigh", "warning", "15m", Limit(_of_step("kl"), ">", 0.1),
        "The trainer of `{{ $labels.policy }}` is {{ $value | humanize }} nats per token from the sampler.",
    ),
    Alert(
        "EffectiveSampleLow", "warning", "30m", Limit(_of_step("effective"), "<", 0.3),
        "Only {{ $value | humanizePercentage }} of the tokens of `{{ $labels.policy }}` count in a step.",
    ),
    Alert(
        "FleetBehind", "warning", "15m",
        Limit(or_zero(largest(select(catalog.FLEET_WAITING_SECONDS), "policy")), ">", 3600),
        "Work for `{{ $labels.policy }}` has waited for the fleet for {{ $value | humanizeDuration }}.",
    ),
    # --- answers and scores ---
    Alert(
        "EngineFailing", "critical", "10m", Limit(REASONS["error"], ">", 0.1),
        "{{ $value | humanizePercentage }} of the responses of `{{ $labels.policy }}` failed.",
    ),
    Alert(
        "TruncationHigh", "warning", "30m", Limit(REASONS["length"], ">", 0.5),
        "{{ $value | humanizePercentage }} of the responses of `{{ $labels.policy }}` were cut at max_tokens.",
    ),
    Alert(
        "ScorerFailing", "critical", "10m", Limit(FAILED_SCORES, ">", 0.1),
        "{{ $value | humanizePercentage }} of the scores of `{{ $labels.source }}` failed.",
    ),
    Alert(
        "ActionsUnusable", "warning", "30m", Limit(UNUSABLE_ACTIONS, ">", 0.5),
        "{{ $value | humanizePercentage }} of the actions in environments could not be used.",
    ),
    Alert(
        "CallsNotDelivered", "warning", "15m", Limit(LOST_CALLS, ">", 0.2),
        "{{ $value | humanizePercentage }} of the calls of agents ended without their whole answer.",
    ),
    # --- versions ---
    Alert(
        "RolloutStuck", "warning", "6h", Limit(largest(select(catalog.SHARE), "policy"), ">", 0),
        "A candidate of `{{ $labels.policy }}` has been on trial for 6 hours, now on "
        "{{ $value | humanizePercentage }} of the tasks.",
    ),
    Alert(
        "AdapterRefused", "warning", "0m", Limit(_refusals_in_an_hour(), ">", 0),
        "{{ $value | humanize }} versions were not served: {{ $labels.reason }}.",
    ),
)  # fmt: skip
"""In the order of docs/operations.md."""


def by_plugin() -> dict[str, list[Alert]]:
    """Return the alerts that plugins declare, by the plugin.

    Raises SettingsError if two have one name, or one is incomplete, or about an unknown metric or none of its plugin.
    """
    alerts: dict[str, list[Alert]] = {}
    declared = plugin_entries(
        lambda plugin: {alert.name: alert for alert in plugin.load_all(plugin.alerts)},
        "alert",
        {alert.name for alert in ALERTS},
    )
    metrics = {name: {metric.name for metric in of_plugin} for name, of_plugin in catalog.by_plugin().items()}
    for plugin, alert in declared.values():
        if (problem := _problem(alert, metrics.get(plugin.name, set()))) is not None:
            raise SettingsError(f"plugin {plugin.name}: alert {alert.name} {problem}")
        alerts.setdefault(plugin.name, []).append(alert)
    return alerts


def _problem(alert: Alert, own: set[str]) -> str | None:
    """Return why a plugin cannot have an alert; None if it can. `own`: the metrics of the plugin."""
    used = metrics_of(alert.query)
    if unknown := used - {metric.name for metric in catalog.all_metrics()}:
        return f"reads no metric {', '.join(sorted(unknown))}"
    if not used & own:
        return f"reads no metric of its plugin, which has {', '.join(sorted(own)) or 'none'}"
    if not re.fullmatch(r"[A-Z][A-Za-z]+", alert.name) or alert.severity not in get_args(Severity):
        return f"needs a name such as LagGrows and a severity of {', '.join(get_args(Severity))}"
    if not re.fullmatch(r"\d+[smhd]", alert.wait) or not alert.do or "\n" in alert.do:
        return "needs a time such as 15m, and in one line what to do"
    return None


def rules() -> dict[str, Any]:
    """Return the file of rules, in the form of Prometheus and a PrometheusRule's spec."""
    groups = {"streamward": ALERTS} | {f"streamward-{name}": alerts for name, alerts in by_plugin().items()}
    return {"groups": [{"name": name, "rules": [*map(_rule, alerts)]} for name, alerts in groups.items()]}


def _rule(alert: Alert) -> dict[str, Any]:
    further = {"description": alert.do} if alert.do else {"runbook_url": f"{PAGE}#{alert.anchor}"}
    return {
        "alert": PREFIX + alert.name,
        "expr": alert.query,
        "for": alert.wait,
        "labels": {"severity": alert.severity},
        "annotations": {"summary": alert.summary, **further},
    }


def text() -> str:
    """Return helm/alerts/streamward.yaml."""
    import yaml

    head = "# Written by `python -m streams.observability.grafana.alerts` from the table there; do not edit.\n"
    body: str = yaml.safe_dump(rules(), sort_keys=False, allow_unicode=True, width=4000)
    return head + body


if __name__ == "__main__":
    FILE.parent.mkdir(exist_ok=True)
    FILE.write_text(text(), encoding="utf-8")
