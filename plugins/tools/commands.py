"""The commands of the registry of tools: agents tools add, list, show, accept, remove, call.

endpoint ──► its description ──► added ──► tools ──► list, show          changed by its server ──► accept, or remove
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from streams.cli.route_commands import RouteCommand, add_routes
from streams.cli.runtime import AppContext, output_option, pass_call, reason_option, user_name

if TYPE_CHECKING:
    from plugins.tools.registry.tool_state import ToolState
    from streams.output import Output


@click.group()
def tools() -> None:
    """Register tools and environments by name."""


add_routes(
    tools,
    "plugins.tools.rooms.registered_tools:RegisteredTools",
    {
        "add": RouteCommand(
            "add_tool",
            """Add a function, a URL, an MCP server, an environment, or an agent.

            ENDPOINT is module:function, http(s)://host/path, mcp:SERVER, environment:NAME, agent:NAME, or a2a:URL, an
            agent of another server. Modules and servers need to be listed in environments.modules and
            environments.servers. The description that it has now is trusted; a later one is refused until `streamward
            agents tools accept`.
            """,
            arguments="tool_id endpoint",
            columns="tool_id kind endpoint trusted description",
        ),
    },
)


@tools.command("list")
@output_option
@pass_call
def tools_list(call: AppContext, output: Output) -> None:
    """Print every tool by its id."""
    from plugins.tools.registry import tool_log
    from schemas.events import Tool
    from streams import output as show

    rows = [
        {
            "tool_id": name,
            "kind": entry.kind,
            "endpoint": entry.endpoint,
            "state": _state(entry),
            "about": tool.description,
        }
        for entry in tool_log.TOOLS.read(call.settings).values()
        for name, tool in (entry.names.items() or [(entry.tool_id, Tool(name="", description="our own server"))])
    ]
    columns = [show.Column("tool", "tool_id"), *(show.Column(title, title) for title in ("kind", "endpoint", "state"))]
    show.rows(rows, [*columns, show.Column("about", lambda row: row["about"].partition("\n")[0][:60])], output)


@tools.command("show")
@click.argument("name")
@output_option
@pass_call
def tools_show(call: AppContext, name: str, output: Output) -> None:
    """Print an entry, and how its newest description differs."""
    from plugins.tools.registry import tool_log
    from plugins.tools.registry.tool_state import changes_of
    from schemas.faults import nearest
    from streams import output as show
    from streams.errors import NotFoundError

    entries = tool_log.TOOLS.read(call.settings)
    if name not in entries:
        raise NotFoundError(f"there is no entry {name[:140]!r}; {nearest(name, entries)}")
    entry = entries[name]
    row = entry_row(entry) | {"accepted": _lines(entry, "accepted")}
    if not entry.is_trusted:
        row |= {"newest": _lines(entry, "seen"), "changes": changes_of(entry)}
    show.record(row, output)


@tools.command("accept")
@click.argument("name")
@click.option("--digest", default=None, metavar="SHA256", help="Only this description.  [default: the newest one]")
@reason_option
@output_option
@pass_call
def tools_accept(call: AppContext, name: str, digest: str | None, reason: str, output: Output) -> None:
    """Trust the newest description of an entry.

    Look at it first with `streamward agents tools show`. Exit code 4 if it is described otherwise by now.
    """
    from plugins.tools.registry.tool_log import RegistryDecision, ToolLog
    from streams import output as show

    with ToolLog(call.settings_to_write) as log:
        seen = log.get(name).seen
        accepted = digest or ("" if seen is None else seen.digest)
        show.record(entry_row(log.accept(name, accepted, RegistryDecision(user_name(), reason))), output)


@tools.command("remove")
@click.argument("name")
@reason_option
@pass_call
def tools_remove(call: AppContext, name: str, reason: str) -> None:
    """Remove an entry. Tasks that were written before keep what they say."""
    from plugins.tools.registry.tool_log import RegistryDecision, ToolLog

    with ToolLog(call.settings_to_write) as log:
        log.remove(name, RegistryDecision(user_name(), reason))


@tools.command("call")
@click.argument("tool")
@click.argument("arguments", default="{}", metavar="[JSON]")
@pass_call
def tools_call(call: AppContext, tool: str, arguments: str) -> None:
    """Call a tool, and print its answer. Exit code 1 if the tool says that it could not use the call."""
    from plugins.tools.registry.tool_caller import ToolCaller
    from plugins.tools.registry.tool_log import ToolLog
    from streams.cli.runtime import json_object

    loaded = call.settings_to_write
    with ToolLog(loaded) as log, ToolCaller(loaded) as caller:
        answer = caller.call(log.find(tool), json_object(arguments, "ARGUMENTS"), log)
    click.echo(answer.text)
    if answer.is_error:
        raise SystemExit(1)


def entry_row(entry: ToolState) -> dict[str, Any]:
    """Return what a list has of an entry."""
    added = entry.added
    return {
        "tool_id": entry.tool_id,
        "kind": entry.kind,
        "endpoint": entry.endpoint,
        "auth_required": added is not None and added.auth_required,
        "idempotent": added is not None and added.idempotent,
        "needs_consent": added is not None and added.needs_consent,
        "handoff": added is not None and added.handoff,
        "untrusted": added is not None and added.untrusted,
        "acts": added is not None and added.acts,
        "tools": list(entry.names),
        "digest": "" if entry.accepted is None else entry.accepted.digest,
        "accepted_by": entry.accepted_by,
        "state": _state(entry),
    }


def _state(entry: ToolState) -> str:
    return "trusted" if entry.is_trusted else "changed"


def _lines(entry: ToolState, attribute: str) -> list[str]:
    offer = getattr(entry, attribute)
    return [f"{tool.name}: {tool.description} {tool.parameters}" for tool in offer.tools]
