"""The command that labels rows: improve data annotate. Those of the rows that wait are annotated from routes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from streams.cli.runtime import AppContext, actor_option, output_option, pass_call, user_name

if TYPE_CHECKING:
    from streams.output import Output


@click.command()
@click.argument("file", type=click.Path(path_type=Path), metavar="FILE")
@click.option("--by", "labeller", required=True, metavar="WHO", help="judge, people, or a scorer: NAME or NAME=JSON.")
@click.option("--bound", type=float, default=1.0, show_default=True, help="Least score of a scorer that promotes.")
@click.option("--promoted", is_flag=True, help="Leave out rows that are not promoted.")
@click.option("--to", "folder", required=True, type=click.Path(path_type=Path, file_okay=False), help="New folder.")
@actor_option
@output_option
@pass_call
def data_annotate(
    call: AppContext,
    /,
    file: Path,
    labeller: str,
    bound: float,
    promoted: bool,
    folder: Path,
    actor: str | None,
    output: Output,
) -> None:
    """Label the rows of a file: promote, reject or needs_human.

    A person's label counts before all others, and a scorer's by its bound. A judge's counts once people have labelled
    improve.min_runs of its rows and agree with it (`improve data queue`, `improve data label`). Labels are kept in the
    log: what has one is not asked again.
    """
    from plugins.data.cleaning import clean as cleaning
    from plugins.data.cleaning.data_rows import DataSource, digest_of, read_source
    from plugins.improve.annotation.annotate import AnnotationOrder, annotate
    from plugins.improve.annotation.annotation_log import AnnotationLog
    from streams import output as show
    from streams.files import code_version

    settings = call.settings_to_write
    order = AnnotationOrder(labeller=labeller, bound=bound, promoted_only=promoted, actor=actor or user_name())
    annotated = annotate(settings, read_source(file), order, AnnotationLog(settings))
    counts = annotated.cleaned.counts
    sources = [DataSource(file.name, digest_of(file), counts["read"])]
    contents = cleaning.files_of(annotated.cleaned, sources, (), code_version(), {"annotation": annotated.report})
    cleaning.write(contents, folder)
    judges = annotated.report.pop("judges")
    show.record({"folder": str(folder), **counts, **annotated.report}, output)
    if judges and output == "table":
        columns = [
            *show.columns("judge=model, >rows=runs"),
            show.Column("kappa", lambda row: f"{row['kappa']:.2f} ({row['kappa_low']:.2f} to {row['kappa_high']:.2f})"),
            show.Column("counts", lambda row: "yes" if row["promotes_alone"] else "no"),
            show.Column("reason", "reason"),
        ]
        print()
        show.rows(judges, columns, output)
