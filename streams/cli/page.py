"""The command that shows what happened in a browser: page."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, cast

import click

from streams.cli.runtime import AppContext, pass_call, source_option, until_stopped

if TYPE_CHECKING:
    from streams.tools.archive.history import Source


@click.group(invoke_without_command=True)
@source_option
@click.pass_context
@pass_call
def page(call: AppContext, ctx: click.Context, /, source: str) -> None:
    """Serve a page to look at the log with.

    Groups answer by answer, versions, dead letters, SQL. It listens at page.host and page.port
    (http://127.0.0.1:8791/), on this machine only, and asks for no login. It reads the log and changes nothing, and the
    loop needs it for nothing. SIGTERM or Ctrl-C ends it.
    """
    if ctx.invoked_subcommand is not None:
        return
    call.working = True
    with until_stopped() as stop:
        from gateway.page import server

        server.run(call.settings, source=cast("Source", source), stop=stop)


@page.command("export")
@click.argument("name", metavar="TASK|POLICY")
@click.option(
    "--out", type=click.Path(path_type=Path, dir_okay=False), required=True, metavar="FILE", help="HTML file."
)
@source_option
@pass_call
def page_export(call: AppContext, /, name: str, out: Path, source: str) -> None:
    """Write the page of a task or policy to a file that opens from disk.

    It has everything inside and loads nothing, so it can be sent to somebody.
    """
    from gateway.page import export

    what = export.write(call.settings, cast("Source", source), name, out)
    click.echo(f"{what} {name} written to {out}", err=True)
