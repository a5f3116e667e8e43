"""Guardrails: verdicts on the texts of calls and answers, each with its rule, reason and place.

calls, answers, POST /guardrails/… ──► rules, models ──► pass, flag or block ──► guardrail-verdicts
"""

from streams.plugins.plugin import Plugin, PluginCommand

PLUGIN = Plugin(
    name="guardrails",
    topics="plugins.guardrails.topics:TOPICS",
    settings="plugins.guardrails.guardrail_settings:Guardrails",
    commands={
        "guardrails": PluginCommand(
            "plugins.guardrails.commands:guardrails", "Look at texts by the rules of guardrails."
        ),
    },
    rooms="plugins.guardrails.bias_routes:ROOMS",
    version_gate="plugins.guardrails.bias_gate:build_gate",
    serves="plugins.guardrails.guardrail_part:GuardrailPart",
    actions={
        "guardrails.check": ("submitter", "trainer"),
        "guardrails.consent": ("promoter",),
    },
    views="plugins.guardrails.verdict_views:VIEWS",
    lists="plugins.guardrails.verdict_views:LISTS",
    gates="plugins.guardrails.guardrail_gate:GATES",
    guard="plugins.guardrails.guardrail_door:build_guard",
    task_guard="plugins.guardrails.guarded_tasks:build_task_guard",
    metrics="plugins.guardrails.guardrail_metrics:METRICS",
    alerts="plugins.guardrails.guardrail_metrics:ALERTS",
    recounts="plugins.guardrails.recount_verdicts:RECOUNTS",
)
