"""The commands of documents: documents add, list, show, remove, weigh.

FILES ──► their texts ──► documents ──► list, show, remove          `streamward search` finds their chunks
"""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

import click

from streams.cli.route_commands import RouteCommand, add_routes, show_answer
from streams.cli.runtime import AppContext, output_option, pass_call, reason_option, user_name

if TYPE_CHECKING:
    from streams.output import Output

LEAST_QUESTIONS = 20
"""By which a weight is chosen."""
AT_ONCE = 500
"""Files that are read before their documents are written."""


@click.group()
def documents() -> None:
    """Keep the documents that are searched."""


@documents.command("add")
@click.argument("index")
@click.argument("files", nargs=-1, required=True, type=click.Path(exists=True, path_type=Path))
@click.option("--media-type", default=None, help="Of all files.  [default: by the name of each]")
@click.option("--metadata", multiple=True, metavar="NAME=VALUE", help="Of all documents; searches are filtered by it.")
@reason_option
@output_option
@pass_call
def documents_add(
    call: AppContext,
    index: str,
    files: tuple[Path, ...],
    media_type: str | None,
    metadata: tuple[str, ...],
    reason: str,
    output: Output,
) -> None:
    """Add files to an index, or replace the documents of their names.

    FILES are text, Markdown, HTML, PDF or JSON lines, or folders of them. A document is called INDEX/FILE, below a
    folder by its path there; of JSON lines INDEX/FILE/NAME. A file that did not change is not written again.
    """
    from plugins.knowledge.log.document_log import DocumentAuthor, DocumentDraft, DocumentLog
    from plugins.knowledge.log.document_text import media_type_of, read_documents
    from plugins.knowledge.rooms.document_routes import outcomes

    facts = dict(_fact(text) for text in metadata)
    paths = [(path, folder) for folder in files for path in (_below(folder) if folder.is_dir() else [folder])]
    drafts = (
        document
        for path, folder in paths
        for document in read_documents(
            path.read_bytes(),
            DocumentDraft(
                f"{index}/{path.name if path == folder else path.relative_to(folder).as_posix()}",
                "",
                media_type or media_type_of(path.name),
                str(path),
                facts,
            ),
        )
    )
    with DocumentLog(call.settings_to_write) as log:
        while batch := [*islice(drafts, AT_ONCE)]:
            show_answer(outcomes(batch, log.put(batch, DocumentAuthor(user_name(), reason))), output)


add_routes(
    documents,
    "plugins.knowledge.rooms.document_routes:DocumentRoutes",
    {
        "list": RouteCommand(
            "list_documents",
            "List documents by their names.",
            columns="document_id media_type characters actor changed_at",
        ),
        "show": RouteCommand("show_document", "Show a document with its text.", arguments="document_id"),
        "remove": RouteCommand(
            "remove_document",
            "Remove a document; no search finds it from then on.",
            arguments="document_id",
        ),
    },
)


@documents.command("weigh")
@click.argument("index")
@click.argument("questions", type=click.File(encoding="utf-8"))
@click.option("--wait-s", default=600.0, show_default=True, help="How long to wait for an index that is being made.")
@output_option
@pass_call
def documents_weigh(call: AppContext, index: str, questions: TextIO, wait_s: float, output: Output) -> None:
    """Choose the share of vectors in searches of an index.

    QUESTIONS are JSON lines with a query and the document_id that it is to find. One half of them chooses, and the
    other shows what it is worth. Set knowledge.weight to the chosen one.
    """
    from plugins.knowledge.index.knowledge_index import KnowledgeIndex
    from plugins.knowledge.index.weighing import MeantDocument, weigh
    from schemas import json_text
    from streams import output as show
    from streams.errors import SettingsError

    meant = []
    for number, line in enumerate(questions, start=1):
        try:
            fields = json_text.parse(line)
            meant.append(MeantDocument(str(fields["query"]), str(fields["document_id"])))
        except (ValueError, TypeError, LookupError) as exc:
            problem = f"expected {{'query': …, 'document_id': …}}, got {line.strip()[:80]!r}"
            raise SettingsError(f"{questions.name}:{number}: {problem}") from exc
    if len(meant) < LEAST_QUESTIONS:
        problem = f"has {len(meant)} questions; expected at least {LEAST_QUESTIONS}, since each half is a measurement"
        raise SettingsError(f"{questions.name}: {problem}")
    with KnowledgeIndex(call.settings) as log:
        rows = [recall._asdict() for recall in weigh(log, index, meant, wait_s)]
    show.rows(rows, [show.Column(name.replace("_", " "), name) for name in rows[0]], output)


def _below(folder: Path) -> list[Path]:
    """Return the files of a folder that have a known kind, in order."""
    from plugins.knowledge.log.document_text import MEDIA_TYPES

    return sorted(path for path in folder.rglob("*") if path.suffix.lower() in MEDIA_TYPES and path.is_file())


def _fact(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise click.BadParameter(f"{text!r}; expected NAME=VALUE", param_hint="--metadata")
    return name, value
