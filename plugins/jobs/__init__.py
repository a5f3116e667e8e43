"""Training jobs: orders with a budget, the controller that sends their tasks, and what they cost."""

from streams.plugins.plugin import Plugin, PluginCommand

PLUGIN = Plugin(
    name="jobs",
    topics="plugins.jobs.topics:TOPICS",
    settings="plugins.jobs.orders.job_settings:Jobs",
    serves="plugins.jobs.job_part:JobPart",
    commands={
        "jobs": PluginCommand(
            "plugins.jobs.commands:jobs", "Order training jobs within a budget.", section="Train and compare"
        )
    },
    recounts="plugins.jobs.recount:RECOUNTS",
    views="plugins.jobs.jobs_view:VIEWS",
    metrics="plugins.jobs.controller.gauges:METRICS",
    alerts="plugins.jobs.controller.gauges:ALERTS",
    actions={
        "jobs.read": ("viewer", "submitter", "trainer", "promoter"),
        "jobs.order": ("submitter", "trainer"),
        "jobs.command": ("trainer",),
    },
    extends={"jobs": "plugins.jobs.orders.rl_training:TYPES", "page": "plugins.jobs.job_pages:SECTIONS"},
    controllers={"jobs": ("jobs", "run")},
)
