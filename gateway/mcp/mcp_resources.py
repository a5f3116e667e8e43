"""Resources of our MCP server: what an assistant reads to understand the log, and single things of the log.

streamward://schemas/Task ──► schemas/avro           streamward://docs/metrics ──► a page of the documentation
streamward://groups/TASK, streamward://runs/RUN ──► the server's routes, with the caller's key
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple
from urllib.parse import unquote

from gateway.mcp.toolbox import ToolBox
from schemas.versions import FOLDER, files
from streams.errors import CallError
from streams.observability import catalog

SCHEME = "streamward://"
SCHEMAS, DOCS = f"{SCHEME}schemas/", f"{SCHEME}docs/"


class Resource(NamedTuple):
    """Something that can be read."""

    uri: str
    name: str
    about: str
    mime_type: str


class ResourceTemplate(NamedTuple):
    """Many things that can be read, by their name."""

    uri: str
    name: str
    about: str
    tool: str
    """The tool that reads one."""


def _newest_schemas() -> dict[str, str]:
    """Return the newest Avro schema of each event."""
    return {schema.event: schema.text for schema in files().schemas.values()}


def _pages() -> dict[str, str]:
    """Return the pages that come with the package."""
    return {"schemas": (FOLDER / "README.md").read_text(encoding="utf-8"), "metrics": catalog.markdown()}


RESOURCES = (
    *(
        Resource(SCHEMAS + event, event, f"Avro schema of {event}", "application/json")
        for event in sorted({schema.event for schema in files().schemas.values()})
    ),
    Resource(f"{DOCS}schemas", "schemas", "Every event and its fields", "text/markdown"),
    Resource(f"{DOCS}metrics", "metrics", "Every metric and what it means", "text/markdown"),
)
TEMPLATES = (
    ResourceTemplate(f"{SCHEME}groups/{{task_id}}", "group", "A task and its answers side by side", "show_group"),
    ResourceTemplate(f"{SCHEME}runs/{{run_id}}", "run", "A run with its turns and scores", "show_run"),
)


async def read(tools: ToolBox, uri: str, credentials: Mapping[str, str]) -> tuple[str, str]:
    """Return the media type and the text of a resource. Raises CallError if there is none, or it may not be read."""
    for template in TEMPLATES:
        beginning, _, name = template.uri.partition("{")
        if uri.startswith(beginning) and len(uri) > len(beginning):
            arguments = {name.rstrip("}"): unquote(uri.removeprefix(beginning))}
            outcome = await tools.call(template.tool, arguments, credentials)
            if outcome.is_error:
                raise CallError("not_found", outcome.texts[-1])
            return "application/json", "\n".join(outcome.texts)
    if uri.startswith(SCHEMAS) and (text := _newest_schemas().get(uri.removeprefix(SCHEMAS))) is not None:
        return "application/json", text
    if uri.startswith(DOCS) and (page := _pages().get(uri.removeprefix(DOCS))) is not None:
        return "text/markdown", page
    raise CallError("not_found", f"there is no resource {uri[:200]!r}; resources/list has those that there are")
