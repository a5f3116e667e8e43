"""docs/metrics.md: every metric of the catalog, and the metrics and alerts of each plugin.

catalog.py, PLUGIN.metrics, PLUGIN.alerts ──► python -m streams.observability.grafana.metrics_page ──► docs/metrics.md
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from streams.observability.catalog import LOOP, READERS, SERVED, Metric, by_plugin, of_core
from streams.observability.grafana import alerts

PAGE = Path(__file__).parents[3] / "docs" / "metrics.md"

INTRODUCTION = """\
# Metrics

Written by `python -m streams.observability.grafana.metrics_page` from `streams/observability/catalog.py`; do not edit.

Each process serves its metrics at `/metrics` if it has a port (0, the default, serves nothing):

    streamward --set metrics.port=9464 policy

`/healthz` is 200 while the process makes progress, and 503 with its current activity once that takes longer than
`metrics.stuck_s`; a round may take `policy.round_timeout_s`, and loading a model an hour. An unreachable broker does
not cause 503. A stream worker is healthy while its event loop runs: its own watchdog ends it if it commits nothing.
`/readyz` is 200 while every condition holds: `kafka` (reachable, and partitions assigned); for a policy agent and
`serve` also `engine` (loaded, and its last request did not fail); for `agents run` also `server` (it answered the last
request); and with `schemas.registry_url` for every process `schema_registry` (its ids are known;
[schemas.md](schemas.md)). The 503 names missing conditions. `streamward audit --follow` has its own address
(`--listen`) and no `/readyz`; `streamward admin archive sync --follow` is monitored like the loop, as are processes of
plugins, such as `jobs run`, `improve datasets follow` (a build may take an hour) and `tune --jobs`, which may take an
hour until the first step of a job.

Dashboards, alerts and runbooks: [operations.md](operations.md).

A histogram has three families: its name with `_bucket`, `_sum` and `_count`. A metric has at most 200 series; more
are counted under `other` in each label.
"""


def markdown() -> str:
    """Return docs/metrics.md."""
    return INTRODUCTION + "".join(_sections())


def _sections() -> Iterator[str]:
    titles = {
        SERVED: "Every process",
        LOOP: "Every process of the loop",
        READERS: "Every process of the loop, and the runs of agents",
        ("streams",): "Streams",
        ("policy",): "Policy",
        ("scoring",): "Scoring",
    }
    titles |= {("train",): "Trainer", ("audit",): "The audit", ("serve",): "The server of agents"}
    titles |= {("archive",): "The archive"}
    rest = [metric for metric in of_core() if metric.processes not in titles]
    for processes, title in titles.items():
        yield f"\n## {title}\n\n{_table([metric for metric in of_core() if metric.processes == processes])}"
        if processes == LOOP:
            yield f"\n## Some processes\n\n{_table(rest, by_process=True)}"
    of_plugins = alerts.by_plugin()
    for name, metrics in by_plugin().items():
        yield f"\n## Plugin {name}\n\n{_table(metrics, by_process=True)}"
        if name in of_plugins:
            yield f"\n{_alerts(of_plugins[name])}"


def _table(metrics: list[Metric], *, by_process: bool = False) -> str:
    rows = ["| metric | kind | labels | meaning |", "|---|---|---|---|"]
    for metric in metrics:
        labels = ", ".join(f"`{label}`" for label in metric.labels) or "–"
        notes = [f"On {', '.join(metric.processes)}."] if by_process and metric.processes else []
        notes += [f"No series before {metric.needs}."] if metric.needs else []
        about = " ".join([metric.about, *notes]).replace("|", "\\|")
        rows.append(f"| `{metric.name}` | {metric.kind} | {labels} | {about} |")
    return "\n".join(rows) + "\n"


def _alerts(declared: list[alerts.Alert]) -> str:
    rows = ["| alert | severity | after | if | do |", "|---|---|---|---|---|"]
    for alert in declared:
        query, do = alert.query.replace("|", "\\|"), alert.do.replace("|", "\\|")
        rows.append(f"| `{alerts.PREFIX}{alert.name}` | {alert.severity} | {alert.wait} | `{query}` | {do} |")
    return "\n".join(rows) + "\n"


if __name__ == "__main__":
    PAGE.write_text(markdown(), encoding="utf-8")
