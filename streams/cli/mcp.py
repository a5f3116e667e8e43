"""The command that gives an assistant the log by the Model Context Protocol: mcp."""

from __future__ import annotations

import os

import click

from streams.cli.runtime import AppContext, pass_call, plugin_choice
from streams.errors import SettingsError
from streams.plugins.toolsets import toolset_names


@click.command()
@click.option("--url", default=None, metavar="URL", help="Server to ask.  [default: serve.url]")
@click.option(
    "--tools",
    type=plugin_choice(toolset_names),
    default="log",
    show_default=True,
    help="Set of tools to offer.",
)
@click.option(
    "--key-env",
    default="STREAMWARD_KEY",
    show_default=True,
    metavar="NAME",
    help="Variable with the API key; unset: the server asks for none.",
)
@pass_call
def mcp(call: AppContext, /, url: str | None, tools: str, key_env: str) -> None:
    """Serve the log to an assistant over MCP.

    It speaks on standard input and output, and is a client of `streamward serve`, which offers the same over HTTP at
    /mcp. The tools do what the routes of that server do, and no more than the key may. Other sets of tools are
    `policy` (ask a version), `scoring` (score texts, record rewards) and `control` (jobs and versions).
    """
    from streams.egress.http_client import bearer

    call.working = True
    try:
        from gateway.mcp import mcp_stdio
    except ImportError as exc:
        raise SettingsError(f"mcp needs the official SDK: {exc}; run `pip install 'streamward[mcp]'`") from exc
    credentials = bearer(os.environ.get(key_env), key_env)
    mcp_stdio.run(call.settings.serve.url if url is None else url, credentials, tools)
