"""The commands that look after a log and its processes: streamward admin …, each group in a module of its name."""

from __future__ import annotations

import click

from streams.cli.archive import archive
from streams.cli.broker import broker
from streams.cli.capacity import capacity
from streams.cli.dashboards import dashboards
from streams.cli.dlq import dlq
from streams.cli.offsets import offsets
from streams.cli.plugins import plugins
from streams.cli.runtime import InOrder
from streams.cli.schemas import schemas
from streams.cli.scoring import rescore
from streams.cli.topics import topics


@click.group(cls=InOrder)
def admin() -> None:
    """Look after Kafka, access, dead letters, archive and plugins."""


for command in (broker, topics, schemas, dlq, rescore, offsets, archive, capacity, dashboards, plugins):
    admin.add_command(command)
