"""The command that writes data sets for other trainers: export FOLDER."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from streams.cli.runtime import AppContext, output_option, pass_call, source_option

if TYPE_CHECKING:
    from streams.output import Output


@click.command()
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False))
@click.option("--policy", default=None, metavar="NAME", help="Whose responses. Default: policy.name.")
@click.option(
    "--format",
    type=click.Choice(["sft", "preference", "prompts", "openai", "openai-preference"]),
    default="sft",
    show_default=True,
    help="sft: the best response of each group; preference: best and worst; prompts: every response with its reward.",
)
@click.option(
    "--purpose",
    type=click.Choice(["train", "serve", "eval"]),
    default="train",
    show_default=True,
    help="The purpose of the tasks.",
)
@click.option("--min-reward", type=float, default=None, metavar="R", help="Only responses with at least this reward.")
@click.option("--all", "all_responses", is_flag=True, help="Every response that is good enough, not only the best.")
@click.option("--margin", type=float, default=0.0, metavar="R", help="Only pairs whose rewards differ by more.")
@click.option("--test", "test_share", type=float, default=0.1, show_default=True, help="Share of the tasks in test.")
@click.option("--seed", type=int, default=0, show_default=True, help="Another seed puts other tasks in test.")
@click.option(
    "--files", type=click.Choice(["jsonl", "parquet"]), default="jsonl", show_default=True, help="File format."
)
@click.option("--since", metavar="TIME", help="Only groups from this time on: ISO 8601 (UTC), or an age (2h, 7d).")
@click.option("--until", metavar="TIME", help="Only groups before this time.")
@source_option
@click.option("--skip-bad", is_flag=True, help="Exit code 0 although records could not be read or are gone.")
@output_option
@click.pass_context
@pass_call
def export(
    call: AppContext,
    ctx: click.Context,
    /,
    folder: Path,
    policy: str | None,
    since: str | None,
    until: str | None,
    source: Any,
    skip_bad: bool,
    output: Output,
    **chosen: Any,
) -> None:
    """Write responses and their rewards as a data set to FOLDER.

    Hugging Face's `load_dataset(FOLDER)` reads it; the openai formats are those of OpenAI's fine-tuning. The same
    records under the same options give the same bytes, and manifest.json names the records. No task is in both splits.
    Exit code 1 means that records could not be read and are left out.
    """
    from streams import output as show
    from streams.kafka.times import parse_time
    from streams.tools.query import examples, export as sets
    from streams.tools.query.prompt import left_out
    from streams.tools.query.session import Session
    from streams.tools.query.source import Scope

    options = examples.ExportOptions(policy=policy or call.settings.policy.name, **chosen)
    examples.check(options)
    sets.check_folder(folder)
    scope = Scope(
        None if since is None else parse_time(since, "--since"), None if until is None else parse_time(until, "--until")
    )
    with Session(call.settings, source=source, scope=scope) as session:
        labels, read = set(sets.LABELS), sets.sources(call.settings)
        session.check(labels)
        rows = (row for batch in session.run(sets.statement(options)).batches for row in batch.to_pylist())
        counts = sets.write(rows, options, folder, ranges=[row for row in session.ranges if row["topic"] in read])
        missing = left_out(session, labels)
    for text in missing:
        click.echo(text, err=True)
    show.record(
        {
            "folder": str(folder),
            "groups": counts.groups,
            "responses": counts.responses,
            "examples": counts.examples,
            "left_out": dict(sorted(counts.left_out.items())),
        },
        output,
    )
    ctx.exit(1 if missing and not skip_bad else 0)
