"""The commands that show the log in a browser: page, page export; and the page of a demo."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import TYPE_CHECKING, cast

import click

from streams.cli.runtime import AppContext, pass_call, source_option, until_stopped
from streams.plugins.plugin import Companion
from streams.processes.child import free_port

if TYPE_CHECKING:
    from streams.settings.model import Settings
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
        from plugins.page import server

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
    from plugins.page import export

    kind = export.write(call.settings, cast("Source", source), name, out)
    click.echo(f"{kind} {name} written to {out}", err=True)


def demo_companion(settings: Settings) -> Companion:
    """Return the page of a demo: at the port of the settings, or at a free one if another program listens there."""
    from plugins.page.settings import Page

    address = settings.of_plugin(Page)
    try:
        with socket.create_server((address.host, address.port)) as listening:
            port = int(listening.getsockname()[1])
    except OSError:
        port = free_port()
    return Companion(("--set", f"page.port={port}", "page"), f"look at it in a browser: http://127.0.0.1:{port}/")
