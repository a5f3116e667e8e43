"""Builds PromQL queries from the metrics in streams/observability/catalog.py.

    Metric ──► select, per_second, quantile, grown, … ──► text of PromQL ──► dashboards.py, alerts.py
    scoped: any of them ──► the same for the namespace and policy chosen on a dashboard

Every sum keeps `namespace`, which a cluster adds to what it scrapes, so that two releases under one Prometheus stay
apart; elsewhere the label is absent. A metric that has no series before something happens answers 0 until then.
tests/deploy/test_prometheus.py asks Prometheus whether the queries are right.
"""

from __future__ import annotations

import re

from streams.observability.catalog import Metric, every

STEP = "$__rate_interval"
"""Grafana's own: at least four scrapes."""
VARIABLES = ("namespace", "policy")
"""The choices on top of a dashboard."""
_LABELS = {metric.name: metric.labels for metric in every()}
_SELECTED = re.compile(r"\b(streamward_[a-z_]+)(?:\{([^{}]*)\})?")


def select(metric: Metric, part: str = "", **labels: str) -> str:
    """Return the selector of a metric, or of a part of a histogram (`_bucket`, `_sum`, `_count`).

    A label's value beginning with ~ is a pattern. Raises ValueError for a label that the metric does not have.
    """
    if lost := set(labels) - set(metric.labels):
        raise ValueError(f"{metric.name} has no label {', '.join(sorted(lost))}; it has {metric.labels}")
    wanted = [f'{name}=~"{value[1:]}"' if value[:1] == "~" else f'{name}="{value}"' for name, value in labels.items()]
    return f"{metric.name}{part}" + (f"{{{','.join(wanted)}}}" if wanted else "")


def total(inner: str, *labels: str) -> str:
    """Return the sum of `inner`, by namespace and these labels."""
    return f"sum by ({', '.join(('namespace', *labels))}) ({inner})"


def largest(inner: str, *labels: str) -> str:
    """Return the largest of `inner`, by namespace and these labels."""
    return f"max by ({', '.join(('namespace', *labels))}) ({inner})"


def or_zero(inner: str) -> str:
    """Return `inner`, or one 0 where it has no series at all."""
    return f"{inner} or on() vector(0)"


def per_second(metric: Metric, *labels: str, window: str = STEP, **chosen: str) -> str:
    """Return the rate of a counter, or of the count of a histogram; 0 for one without a series yet."""
    part = "_count" if metric.kind == "histogram" else ""
    inner = total(f"rate({select(metric, part, **chosen)}[{window}])", *labels)
    return or_zero(inner) if metric.needs or chosen else inner


def quantile(share: float, metric: Metric, *labels: str, window: str = STEP) -> str:
    """Return a quantile of a histogram."""
    buckets = total(f"rate({select(metric, '_bucket')}[{window}])", "le", *labels)
    return f"histogram_quantile({share:g}, {buckets})"


def average(metric: Metric, *labels: str, window: str = STEP) -> str:
    """Return the mean of a histogram; 0 for one without a series yet."""
    both = [total(f"rate({select(metric, part)}[{window}])", *labels) for part in ("_sum", "_count")]
    inner = f"{both[0]} / {both[1]}"
    return or_zero(inner) if metric.needs else inner


def grown(metric: Metric, *labels: str, window: str) -> str:
    """Return by how much a counter grew.

    `increase` alone misses the first count, which comes with the series: of a series that did not exist at the
    beginning of the window, all of it counts.
    """
    one = select(metric)
    return total(f"({one} unless {one} offset {window}) or increase({one}[{window}])", *labels)


def share(part: str, whole: str) -> str:
    """Return part / whole; 0 where the part has no series, or the whole is 0."""
    return f"(({part}) or 0 * ({whole})) / (({whole}) > 0) or 0 * ({whole})"


def scoped(query: str) -> str:
    """Return a query restricted to the namespace and policy chosen on a dashboard."""

    def chosen(found: re.Match[str]) -> str:
        family = next((name for name in _family(found[1]) if name in _LABELS), "")
        if not family:
            raise ValueError(f"{found[1]} is not a metric of streams/observability/catalog.py, in: {query}")
        own = [f'{name}=~"${name}"' for name in VARIABLES if name == "namespace" or name in _LABELS[family]]
        return f"{found[1]}{{{','.join(([found[2]] if found[2] else []) + own)}}}"

    return _SELECTED.sub(chosen, query)


def metrics_of(query: str) -> set[str]:
    """Return the metrics in a query, histograms by the name of their family."""
    return {
        next((name for name in _family(found[1]) if name in _LABELS), found[1]) for found in _SELECTED.finditer(query)
    }


def _family(name: str) -> tuple[str, str]:
    return name, re.sub(r"_(bucket|sum|count)$", "", name)
