"""Training jobs: orders with a budget, the controller that sends their tasks, and what they cost."""

from streams.plugins.plugin import Plugin

PLUGIN = Plugin(name="jobs", serves="plugins.jobs.job_part:JobPart")
