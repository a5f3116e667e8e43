"""The metric of the registry, and the alert about it."""

from streams.observability.catalog import Metric
from streams.observability.grafana.alerts import Alert, Limit
from streams.observability.grafana.promql import largest, or_zero, select

TOOLS_CHANGED = Metric(
    "streamward_tools_changed",
    "gauge",
    ("tool",),
    "1 if a registered tool is described otherwise than was accepted, 0 if not; mcp:SET is the server's own list.",
    ("serve",),
    "an entry",
)
METRICS = (TOOLS_CHANGED,)
ALERTS = (
    Alert(
        "ToolsChanged",
        "warning",
        "0m",
        Limit(or_zero(largest(select(TOOLS_CHANGED), "tool")), ">", 0),
        "The tools of `{{ $labels.tool }}` are described otherwise than was accepted.",
        do="read the difference with `streamward agents tools show NAME`; accept the description, or remove the entry",
    ),
)
