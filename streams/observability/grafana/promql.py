"""Builds PromQL queries from the metrics in streams/observability/catalog.py.

    Metric ──► select, per_second, quantile, growth, … ──► text of PromQL ──► dashboards.py, alerts.py
    restrict: any of them ──► the same for the namespace and policy chosen on a dashboard

Every sum keeps `namespace`, which a cluster adds to scraped series, so that two releases under one Prometheus stay
apart; elsewhere the label is absent. A metric that has no series before something happens answers 0 until then.
tests/deploy/test_prometheus.py asks Prometheus whether the queries are right.
"""

from __future__ import annotations

import re
from functools import cache

from streams.observability.catalog import Metric, all_metrics

STEP = "$__rate_interval"
"""Grafana's variable: at least four scrapes."""
VARIABLES = ("namespace", "policy")
"""The choices on top of a dashboard."""
_SELECTED = re.compile(r"\b(streamward_[a-z_]+)(?:\{([^{}]*)\})?")


def select(metric: Metric, part: str = "", **labels: str) -> str:
    """Return the selector of a metric, or of a part of a histogram (`_bucket`, `_sum`, `_count`).

    A label's value beginning with ~ is a pattern. Raises ValueError for a label that the metric does not have.
    """
    unknown = set(labels) - set(metric.labels)
    if unknown:
        raise ValueError(f"{metric.name} has no label {', '.join(sorted(unknown))}; it has {metric.labels}")
    matchers = [f'{name}=~"{value[1:]}"' if value[:1] == "~" else f'{name}="{value}"' for name, value in labels.items()]
    return f"{metric.name}{part}" + (f"{{{','.join(matchers)}}}" if matchers else "")


def total(inner: str, *labels: str) -> str:
    """Return the sum of `inner`, by namespace and these labels."""
    return f"sum by ({', '.join(('namespace', *labels))}) ({inner})"


def largest(inner: str, *labels: str) -> str:
    """Return the largest of `inner`, by namespace and these labels."""
    return f"max by ({', '.join(('namespace', *labels))}) ({inner})"


def or_zero(inner: str) -> str:
    """Return `inner`, or one 0 if it has no series at all."""
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
    seconds, count = (total(f"rate({select(metric, part)}[{window}])", *labels) for part in ("_sum", "_count"))
    inner = f"{seconds} / {count}"
    return or_zero(inner) if metric.needs else inner


def growth(metric: Metric, *labels: str, window: str) -> str:
    """Return the growth of a counter.

    `increase` alone misses the first count, which comes with the series: a series that did not exist at the beginning
    of the window counts as a whole.
    """
    series = select(metric)
    return total(f"({series} unless {series} offset {window}) or increase({series}[{window}])", *labels)


def share(part: str, whole: str) -> str:
    """Return part / whole; 0 if the part has no series, or the whole is 0."""
    return f"(({part}) or 0 * ({whole})) / (({whole}) > 0) or 0 * ({whole})"


def restrict(query: str) -> str:
    """Return a query restricted to the namespace and policy chosen on a dashboard."""

    def add_matchers(selector: re.Match[str]) -> str:
        labels = _labels()
        family = next((name for name in _family(selector[1]) if name in labels), "")
        if not family:
            raise ValueError(f"{selector[1]} is not a metric of streams/observability/catalog.py, in: {query}")
        matchers = [f'{name}=~"${name}"' for name in VARIABLES if name == "namespace" or name in labels[family]]
        present = [selector[2]] if selector[2] else []
        return f"{selector[1]}{{{','.join(present + matchers)}}}"

    return _SELECTED.sub(add_matchers, query)


def metrics_of(query: str) -> set[str]:
    """Return the metrics in a query, histograms by the name of their family."""
    names = {selector[1] for selector in _SELECTED.finditer(query)}
    return {next((family for family in _family(name) if family in _labels()), name) for name in names}


@cache
def _labels() -> dict[str, tuple[str, ...]]:
    """Return the labels of every metric, by its name; cached, since plugins' modules import this one."""
    return {metric.name: metric.labels for metric in all_metrics()}


def _family(name: str) -> tuple[str, str]:
    return name, re.sub(r"_(bucket|sum|count)$", "", name)
