"""Rows before they are trained on: held-out questions are refused."""

from streams.plugins.plugin import Plugin

PLUGIN = Plugin(name="data", gates="plugins.data.contamination_gate:GATES")
