"""The commands that show the log in a browser: page, page export."""

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
    """Serve a web page of the log.

    It shows groups answer by answer, versions, dead letters and SQL. It listens at page.host and page.port
    (http://127.0.0.1:8791/), on this machine only, without a login. It reads the log and changes nothing; the loop does
    not need it. SIGTERM or Ctrl-C ends it.
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
    """Write the page of a task or policy to a file.

    The file is self-contained: it opens from disk, and can be sent to others.
    """
    from gateway.page import export

    kind = export.write(call.settings, cast("Source", source), name, out)
    click.echo(f"{kind} {name} written to {out}", err=True)
