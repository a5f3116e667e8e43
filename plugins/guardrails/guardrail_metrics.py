"""The metric of guardrails, and the alerts about it."""

from streams.observability.catalog import Metric
from streams.observability.grafana.alerts import Alert, Limit
from streams.observability.grafana.promql import or_zero, select, total

VERDICTS = Metric(
    "streamward_guardrail_verdicts_total",
    "counter",
    ("kind", "verdict", "mode"),
    "Verdicts of guardrails on calls and answers.",
    ("serve",),
    "a verdict",
)
METRICS = (VERDICTS,)
ALERTS = (
    Alert(
        "GuardrailFails",
        "warning",
        "0m",
        Limit(or_zero(total(f"increase({select(VERDICTS, kind='failure')}[15m])")), ">", 0),
        "{{ $value | humanize }} texts could not be looked at in 15 minutes.",
        do="read the reasons with `streamward query \"FROM guardrail_findings WHERE kind = 'failure'\"`",
    ),
    Alert(
        "GuardrailWithholds",
        "warning",
        "0m",
        Limit(or_zero(total(f"increase({select(VERDICTS, verdict='block', mode='block')}[1h])")), ">", 100),
        "{{ $value | humanize }} calls and answers were refused or withheld in an hour.",
        do="read the list Guardrails; set the rule or the agent to monitor if they are harmless",
    ),
)
