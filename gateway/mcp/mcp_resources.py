"""Resources of our MCP server: what an assistant reads to understand the log, and single things of the log.

streamward://schemas/Task ──► schemas/avro           streamward://docs/jobs ──► docs/jobs.md
streamward://groups/TASK, streamward://runs/RUN ──► the server's routes, with the caller's key

The pages of the documentation are in the wheel, so an assistant reads those of the version that answers it. A link from
one page to another is read as the page that it leads to; pictures are not served.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote, urldefrag

from gateway.mcp.toolbox import ToolBox
from schemas.versions import FOLDER, files
from streams.errors import CallError

SCHEME = "streamward://"
SCHEMAS, DOCS = f"{SCHEME}schemas/", f"{SCHEME}docs/"
PLAIN, JSON, MARKDOWN = "text/plain", "application/json", "text/markdown"
PAGES = Path(__file__).parent / "docs"
"""A link to docs/ in a checkout; in a wheel, its pages."""


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


def _page_files() -> dict[str, Path]:
    """Return the file of each page of the documentation."""
    return {file.stem: file for file in sorted(PAGES.glob("*.md"))} | {"events": FOLDER / "README.md"}


@cache
def resources() -> tuple[Resource, ...]:
    """Return all that can be read without a name of the caller's."""
    return (
        *(Resource(SCHEMAS + event, event, f"Avro schema of {event}", JSON) for event in sorted(_newest_schemas())),
        *(Resource(DOCS + name, name, _title(file), MARKDOWN) for name, file in _page_files().items()),
    )


def _title(page: Path) -> str:
    """Return the first heading of a page, which is its first line."""
    with page.open(encoding="utf-8") as lines:
        return next(lines).removeprefix("# ").strip()


TEMPLATES = (
    ResourceTemplate(f"{SCHEME}groups/{{task_id}}", "group", "A task and its answers side by side", "show_group"),
    ResourceTemplate(f"{SCHEME}runs/{{run_id}}", "run", "A run with its turns and scores", "show_run"),
)


def templates_of(toolset: str) -> tuple[ResourceTemplate, ...]:
    """Return those of a set of tools: a set offers as a resource only what it offers by a tool."""
    return TEMPLATES if toolset == "log" else ()


async def read(tools: ToolBox, uri: str, credentials: Mapping[str, str]) -> list[tuple[str, str]]:
    """Return media type and text of each part of a resource. Raises CallError if there is none, or it may not be read.

    What comes from the log is announced as data in a part before it.
    """
    for template in templates_of(tools.toolset):
        beginning, _, name = template.uri.partition("{")
        if uri.startswith(beginning) and len(uri) > len(beginning):
            arguments = {name.rstrip("}"): unquote(uri.removeprefix(beginning))}
            outcome = await tools.call(template.tool, arguments, credentials)
            if outcome.is_error:
                raise CallError("not_found", outcome.texts[-1])
            announced, beginning, *missing = outcome.texts
            return [(PLAIN, announced), (JSON, beginning), *((PLAIN, text) for text in missing)]
    if uri.startswith(SCHEMAS) and (text := _newest_schemas().get(uri.removeprefix(SCHEMAS))) is not None:
        return [(JSON, text)]
    if uri.startswith(DOCS) and (page := _page_files().get(_page_name(uri))) is not None:
        return [(MARKDOWN, page.read_text(encoding="utf-8"))]
    raise CallError("not_found", f"there is no resource {uri[:200]!r}; resources/list has those that there are")


def _page_name(uri: str) -> str:
    """Return the page that a URI names, also one that comes of a link: streamward://docs/jobs.md#cancel is jobs."""
    return urldefrag(uri).url.removeprefix(DOCS).removesuffix(".md")
