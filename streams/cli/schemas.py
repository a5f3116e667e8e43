"""The commands of the Avro schemas: admin schemas list, check, register, serve."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from streams.cli.runtime import AppContext, output_option, pass_call, until_stopped

if TYPE_CHECKING:
    from streams.output import Output


@click.group()
def schemas() -> None:
    """Show, register and serve the Avro schemas."""


@schemas.command("list")
@output_option
def schemas_list(output: Output) -> None:
    """Print every schema version with its id."""
    import streams.kafka.topics  # noqa: F401 - it adds the schemas of plugins
    from schemas.versions import files
    from streams import output as show

    data = [
        {"id": schema.id, "event": schema.event, "version": schema.version, "sha256": schema.sha256}
        for schema in files().schemas.values()
    ]
    columns = [
        *show.columns(">id, event, >version"),
        show.Column("sha256", lambda row: row["sha256"][:16]),
    ]
    show.rows(data, columns, output)


@schemas.command("check")
@click.pass_context
def schemas_check(ctx: click.Context) -> None:
    """Check the schema files against their lock.

    Also checks every version of an event against every other: each must read what the other wrote. The exit code is 1
    if something is wrong.
    """
    import streams.kafka.topics  # noqa: F401 - as above
    from schemas.versions import SchemaError, check, files

    try:
        registry = files()
        problems = list(check(registry))
    except SchemaError as exc:
        problems = [str(exc)]
    for problem in problems:
        click.echo(problem)
    if problems:
        ctx.exit(1)
    click.echo(f"{len(registry.schemas)} schemas are as locked, and every version reads every other.", err=True)


@schemas.command("register")
@click.option("--dry-run", is_flag=True, help="Only check.")
@output_option
@pass_call
def schemas_register(call: AppContext, dry_run: bool, output: Output) -> None:
    """Register every schema version in the Schema Registry.

    Uses the registry at schemas.registry_url, with subjects <topic>-value and compatibility FULL_TRANSITIVE. All
    versions of all subjects are checked first: if one cannot read another, nothing is changed and the exit code is 4.
    Registered versions stay, so it may be run again.
    """
    from streams import output as show
    from streams.kafka.registry import register

    results, other_level = register.register(call.settings, dry_run=dry_run)
    columns = [
        *show.columns("subject, >version"),
        show.Column("id", lambda row: "" if row["id"] is None else row["id"], right=True),
        show.Column("result", "result"),
    ]
    show.rows([result._asdict() for result in results], columns, output)
    for subject, before in other_level.items():
        change = "would be set to" if dry_run else "is now"
        previous = f" (was {before})" if before else ""
        click.echo(f"compatibility of {subject} {change} {register.LEVEL}{previous}", err=True)


@schemas.command("serve")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", type=click.IntRange(0, 65535), default=8081, show_default=True, help="0: any free port.")
@output_option
@pass_call
def schemas_serve(call: AppContext, host: str, port: int, output: Output) -> None:
    """Serve the schemas as a Schema Registry, read only.

    Speaks Confluent's API until SIGTERM or Ctrl-C. Any Confluent-compatible consumer can then read the topics; the
    ids are those of schemas/lock.json.
    """
    from streams import output as show
    from streams.kafka.registry import server

    with until_stopped() as stop, server.serve(call.settings, host=host, port=port) as url:
        show.record({"url": url}, output)
        stop.wait()
