"""The commands of rows before they are trained on: improve data check, ingest, clean, synthesize, vary.

files ──► check: what is wrong ──► ingest, clean: rows.jsonl, the fate of every row, a manifest
a generator, or questions and a model ──► synthesize: the same files
files and a model ──► vary: the same rows, and variants of them
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from streams.cli.runtime import AppContext, json_object, output_option, pass_call, several
from streams.cli.task_file import map_option
from streams.errors import SettingsError

if TYPE_CHECKING:
    from plugins.data.cleaning.clean import CleanedRows, OrderedStep
    from plugins.data.cleaning.data_rows import DataSource, UnreadableRow
    from plugins.data.cleaning.steps import DataRow
    from plugins.data.synthetic_rows import VerifiedModel
    from streams.output import Output


@click.group()
def data() -> None:
    """Check, clean and make the rows that a policy is trained on."""


_source_options = several(
    click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="FILE..."),
    click.option(
        "--suite",
        "suites",
        type=click.Path(path_type=Path, dir_okay=False),
        multiple=True,
        metavar="FILE",
        help="Suite whose questions must not be in the rows, in addition to guard.suite. May be repeated.",
    ),
    click.option("--split", default=None, help="Split of a data set's folder."),
    map_option,
)


_write_options = several(
    click.option(
        "--step",
        "steps",
        multiple=True,
        metavar="NAME[=JSON]",
        help="Take this step, with these options. May be repeated; the order counts.",
    ),
    click.option("--to", "folder", required=True, type=click.Path(path_type=Path, file_okay=False), help="New folder."),
)


_model_options = several(
    click.option("--model-url", default=None, metavar="URL", help="Server of the model.  [default: scoring.judge_url]"),
    click.option("--model", default=None, metavar="NAME", help="Model or policy.  [default: scoring.judge_model]"),
    click.option("--key-env", default="OPENAI_API_KEY", show_default=True, help="Variable with the model's key."),
    click.option("--scorer", default="exact", show_default=True, help="Has to give an answer 1, or it is not kept."),
)


@data.command("check")
@click.option("--against", default=None, metavar="NAME[@DIGEST]", help="Data set of the log to compare questions with.")
@_source_options
@output_option
@click.pass_context
@pass_call
def data_check(
    call: AppContext,
    ctx: click.Context,
    /,
    files: Sequence[Path],
    suites: Sequence[Path],
    split: str | None,
    names: Sequence[str],
    against: str | None,
    output: Output,
) -> None:
    """Print what is wrong with rows, and what is worth knowing.

    FILE is JSON lines, CSV, Parquet, or the folder of a data set. Rows of a chat, preferences, verl, instructions and
    questions are recognised by their columns; faults of a chat have the names of OpenAI's cookbook. Exit code 4 if
    something is wrong: training on these rows would fail, or be worthless.
    """
    from plugins.data.cleaning.check import check
    from plugins.data.contamination.known_suites import expectations_of, index_of_files
    from streams import output as show

    reference = None
    if against is not None:
        from streams.tools.dataset_reader import dataset_reader

        reference = dataset_reader().find(call.settings, against).inputs
    expectations = expectations_of(call.settings, suites)
    checked = check(_rows(files, split, names), index_of_files(call.settings, suites), expectations, reference)
    if output == "jsonl":
        print(show.json_line(checked.plain()))
    else:
        show.record({"rows": checked.read, "shape": checked.shape}, output)
        findings = [finding.plain() for finding in checked.findings.values()]
        columns = [
            *show.columns("finding, >rows"),
            show.Column("wrong", lambda row: "yes" if row["wrong"] else "no"),
            show.Column("first", "first"),
        ]
        if findings:
            print()
            show.rows(findings, columns, output)
        if checked.contamination is not None:
            print()
            show.record(checked.contamination.figures(), output)
        if checked.drift is not None:
            print()
            columns = [
                show.Column("column", "column"),
                *(show.Column(title, title, right=True) for title in ("distance", "bound")),
                show.Column("moved", lambda row: "yes" if row["moved"] else "no"),
            ]
            show.rows([column.plain() for column in checked.drift], columns, output)
    if checked.is_wrong:
        ctx.exit(4)


@data.command("ingest")
@_write_options
@_source_options
@output_option
@pass_call
def data_ingest(call: AppContext, /, steps: Sequence[str], **options: Any) -> None:
    """Write the rows of files as JSON lines.

    The fate of each row and a manifest are written with them. A row that cannot be read is left out, and the manifest
    counts it. Without --step every other row is kept as it is. The same files under the same steps give the same bytes.
    """
    _write(call, steps, **options)


@data.command("clean")
@_write_options
@_source_options
@output_option
@pass_call
def data_clean(call: AppContext, /, steps: Sequence[str], **options: Any) -> None:
    """Write the rows that are good enough.

    The fate of each row and a manifest are written with them. Steps without --step: normalise, schema, drop_empty,
    length, personal_data, duplicates, contradictions, near_duplicates, and contamination if a suite is known. The step
    language has to be named with its scripts.
    """
    from plugins.data.cleaning.steps import CONTAMINATION, DEFAULT

    is_known = bool(options["suites"]) or call.settings.guard.suite is not None
    _write(call, steps or [*DEFAULT, *([CONTAMINATION] if is_known else [])], **options)


@data.command("synthesize")
@click.argument("questions", required=False, type=click.Path(path_type=Path), metavar="[FILE]")
@click.option("--generator", default=None, help="Make questions with it, as `tasks generate`.")
@click.option("--count", type=click.IntRange(min=1), default=100, show_default=True, help="Rows of a generator.")
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of a generator.")
@click.option("--options", "in_json", default="{}", metavar="JSON", help="Options of the generator.")
@_model_options
@click.option("--to", "folder", required=True, type=click.Path(path_type=Path, file_okay=False), help="New folder.")
@output_option
@pass_call
def data_synthesize(
    call: AppContext,
    /,
    questions: Path | None,
    generator: str | None,
    count: int,
    seed: int,
    in_json: str,
    model_url: str | None,
    model: str | None,
    key_env: str,
    scorer: str,
    folder: Path,
    output: Output,
) -> None:
    """Make rows to tune on, by a generator or a model.

    Each row says where it comes from. Of what a model answers, the policy at `streamward serve` included, only that is
    kept which the scorer gives 1, against the answer in FILE. A generator's held-out questions are never drawn.
    """
    from plugins.data import synthetic_rows
    from plugins.data.cleaning.clean import clean
    from plugins.data.cleaning.data_rows import DataSource, digest_of

    if (questions is None) == (generator is None):
        raise click.UsageError("give either FILE or --generator")
    if generator is not None:
        from streams.stages.tasks.generators import TaskSpec

        options = json_object(in_json, "--options")
        spec = TaskSpec(family=generator, count=count, seed=seed, purpose="train", policy="-", options=options)
        cleaned = clean(synthetic_rows.rows_of(spec), ())
        sources = [DataSource(f"{generator}, seed {seed}", "", count)]
    elif questions is not None:
        with _opened_model(call, model_url, model, key_env, scorer) as verified:
            cleaned = synthetic_rows.answer_questions(_rows([questions], None, ()), verified)
        sources = [DataSource(questions.name, digest_of(questions), len(cleaned.fates))]
    _finish(cleaned, sources, (), folder, output)


@data.command("vary")
@click.option("--count", type=click.IntRange(min=1), default=1, show_default=True, help="Variants of each row.")
@_model_options
@_source_options
@click.option("--to", "folder", required=True, type=click.Path(path_type=Path, file_okay=False), help="New folder.")
@output_option
@pass_call
def data_vary(
    call: AppContext,
    /,
    count: int,
    model_url: str | None,
    model: str | None,
    key_env: str,
    scorer: str,
    files: Sequence[Path],
    suites: Sequence[Path],
    split: str | None,
    names: Sequence[str],
    folder: Path,
    output: Output,
) -> None:
    """Write rows and variants of them, in other words.

    A variant is kept if its numbers are those of the row, and if the model's answer to it gets 1 from the scorer,
    against the answer in the row. Gates and splits see a variant and its row as one question. Rows with a held-out
    question are left out.
    """
    from plugins.data.cleaning.data_rows import DataSource, digest_of
    from plugins.data.contamination.known_suites import index_of_files
    from plugins.data.variants import vary

    by_file = {path: [*_rows([path], split, names)] for path in files}
    rows = [row for of_file in by_file.values() for row in of_file]
    with _opened_model(call, model_url, model, key_env, scorer) as verified:
        cleaned = vary(rows, verified, count=count, held_out=index_of_files(call.settings, suites))
    sources = [DataSource(path.name, digest_of(path), len(of_file)) for path, of_file in by_file.items()]
    _finish(cleaned, sources, (), folder, output)


@contextmanager
def _opened_model(
    call: AppContext, url: str | None, model: str | None, key_env: str, scorer: str
) -> Iterator[VerifiedModel]:
    """Yield a model, with the scorer that verifies it. Raises SettingsError if none is named."""
    from plugins.data.synthetic_rows import AnswerModel, VerifiedModel
    from streams.egress.http_client import new_client
    from streams.scorers import named_sources

    scoring = call.settings.scoring
    url, model = url or scoring.judge_url, model or scoring.judge_model
    if url is None or model is None:
        raise SettingsError("no model is named: give --model-url and --model, or set scoring.judge_url and judge_model")
    (source,) = named_sources([scorer])
    with new_client() as client:
        server = AnswerModel(client, url.rstrip("/"), model, os.environ.get(key_env))
        yield VerifiedModel(server.ask, {"model": model, "url": server.url}, source, scoring)


def _write(
    call: AppContext,
    ordered: Sequence[str],
    *,
    files: Sequence[Path],
    suites: Sequence[Path],
    split: str | None,
    names: Sequence[str],
    folder: Path,
    output: Output,
) -> None:
    from plugins.data.cleaning import clean as cleaning
    from plugins.data.cleaning.data_rows import DataSource, digest_of
    from plugins.data.contamination.known_suites import index_of_files

    steps = cleaning.read_steps(ordered)
    counts: list[DataSource] = []

    def count_rows() -> Iterator[DataRow | UnreadableRow]:
        for path in files:
            number = 0
            for row in _rows([path], split, names):
                number += 1
                yield row
            counts.append(DataSource(path.name, digest_of(path), number))

    _finish(cleaning.clean(count_rows(), steps, index_of_files(call.settings, suites)), counts, steps, folder, output)


def _finish(
    cleaned: CleanedRows, sources: Sequence[DataSource], steps: Sequence[OrderedStep], folder: Path, output: Output
) -> None:
    """Write the files of a set, and print its counts."""
    from plugins.data.cleaning import clean as cleaning
    from streams import output as show
    from streams.files import code_version

    cleaning.write(cleaning.files_of(cleaned, sources, steps, code_version()), folder)
    manifest = cleaning.manifest_of(cleaned, sources, steps, "")
    show.record(
        {
            "folder": str(folder),
            **manifest["counts"],
            "changed_by": manifest["changed_by"],
            "dropped_by": manifest["dropped_by"],
            "shapes": manifest["shapes"],
        },
        output,
    )


def _rows(files: Sequence[Path], split: str | None, names: Sequence[str]) -> Iterator[DataRow | UnreadableRow]:
    from plugins.data.cleaning.data_rows import read_source
    from streams.stages.tasks.mapped_row import columns_by_field

    columns = columns_by_field(names)
    for path in files:
        yield from read_source(path, split, columns)
