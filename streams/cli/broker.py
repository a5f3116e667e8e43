"""The commands of the embedded Kafka node: admin broker start, stop, status."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from streams.cli.runtime import AppContext, output_option, pass_call
from streams.errors import NotFoundError

if TYPE_CHECKING:
    from streams.kafka.node.process import BrokerProcess
    from streams.output import Output


@click.group()
def broker() -> None:
    """Run an embedded Kafka node.

    It is a real Apache Kafka node that listens on the loopback address only. Its files are in broker.data_dir, one node
    per folder.
    """


@broker.command("start")
@click.option("--port", type=click.IntRange(0, 65535), default=None, help="Port for clients; 0: any free port.")
@output_option
@pass_call
def broker_start(call: AppContext, port: int | None, output: Output) -> None:
    """Start the node and return once it answers.

    It runs until `streamward admin broker stop`. Without --port the node reuses its previous port, else
    the default port if that is free.
    """
    from streams.kafka.node import process as node
    from streams.kafka.topics import topics as shapes
    from streams.settings.load import BOOTSTRAP

    running = node.start(call.settings.broker, port=port)
    _show_node(running, output)
    fresh = AppContext(call.config, call.overrides)  # with the address that the start has recorded
    settings, origins = fresh.settings_and_origins
    if running.bootstrap != settings.kafka.bootstrap:
        click.echo(
            f"Commands use {settings.kafka.bootstrap} from {origins[BOOTSTRAP]}: leave it out to use this node",
            err=True,
        )
    if not all(running.has_topic(shape.name) for shape in shapes(settings.topics).values()):
        click.echo("Next: streamward admin topics apply", err=True)


@broker.command("stop")
@pass_call
def broker_stop(call: AppContext) -> None:
    """Stop the node. Its data is kept."""
    from streams.kafka.node import process as node

    folder = call.settings.broker.data_dir
    stopped = node.stop(call.settings.broker)
    click.echo(f"The node in {folder} has stopped." if stopped else f"No node runs in {folder}.", err=True)


@broker.command("status")
@output_option
@pass_call
def broker_status(call: AppContext, output: Output) -> None:
    """Show where the node runs; exit code 3 if it does not."""
    from streams.kafka.node import process as node

    running = node.status(call.settings.broker)
    if running is None:
        raise NotFoundError(
            f"no node runs in {call.settings.broker.data_dir}; start it with `streamward admin broker start`, "
            "or name another folder with --set broker.data_dir=..."
        )
    _show_node(running, output)


def _show_node(running: BrokerProcess, output: Output) -> None:
    from streams import output as show

    show.record(
        {
            "bootstrap": running.bootstrap,
            "pid": running.pid,
            "data_dir": str(running.data_dir),
            "log_file": str(running.log_file),
        },
        output,
    )
