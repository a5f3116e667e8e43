"""The table of topics in docs/architecture.md, from streams/topics: `python -m tests.topics_table` writes it."""

from __future__ import annotations

import re
from pathlib import Path

from streams.kafka.topics import SHAPES
from streams.plugins.installed import load_plugins
from tests.generated_page import write_or_check

PAGE = Path(__file__).parents[1] / "docs" / "architecture.md"
HEAD = "| topic | of | key | event | written by | read by |\n|---|---|---|---|---|---|\n"


def page() -> str:
    """Return the page with the table as it should be."""
    plugins = {shape.label: plugin.name for plugin, _, _ in load_plugins() for shape in plugin.load_all(plugin.topics)}
    rows = (
        f"| `{label}` | {plugins.get(label, 'core')} | {shape.key or 'that of the source'} | {shape.event.__name__} | "
        f"{shape.written_by} | {shape.read_by} |\n"
        for label, shape in SHAPES.items()
    )
    text = PAGE.read_text(encoding="utf-8")
    return re.sub(re.escape(HEAD) + r"(\|.*\n)*", lambda _: HEAD + "".join(rows), text)


if __name__ == "__main__":
    raise SystemExit(write_or_check(PAGE, page()))
