"""The command that writes data sets for other trainers: export FOLDER.

groups, responses, tasks ──────────► SQL ──────────────► sft, preference, prompts, openai formats
groups, trajectories with turns ───► FinishedReader ───► conversations, interactions
batches with groups ───────────────► TrainingBatch ────► formats of plugins: batches for other trainers
"""

from __future__ import annotations

from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from streams.cli.engine_options import on_option
from streams.cli.runtime import (
    ALLOW_CONTAMINATED,
    AppContext,
    allow_option,
    archive_for,
    export_check,
    output_option,
    pass_call,
    plugin_choice,
    source_option,
    until_stopped,
)
from streams.plugins.installed import plugin_entries
from streams.plugins.plugin import Plugin, PluginExport

if TYPE_CHECKING:
    from collections.abc import Iterator

    from streams.output import Output
    from streams.rows.training_gate import ReasonFinder
    from streams.tools.archive.history import Source
    from streams.tools.query.examples import ExportOptions
    from streams.tools.query.export import Counts
    from streams.tools.query.session import Session

FORMATS = ("sft", "preference", "prompts", "openai", "openai-preference", "conversations", "interactions")
FORMAT_HELP = (
    "sft: the best response of each group whose rewards differ; preference: best and worst; prompts: every response "
    "with its reward; conversations: whole responses and agents' runs, with tools; interactions: one line per question "
    "and answer"
)


def plugin_formats(of: str) -> dict[str, tuple[Plugin, PluginExport]]:
    """Return the formats of plugins for batches or for runs. Raises SettingsError if there is another of the name."""
    formats = plugin_entries(lambda plugin: plugin.exports, "format of export", FORMATS)
    return {name: entry for name, entry in formats.items() if entry[1].of == of}


def batch_formats(option: str | None = None) -> dict[str, tuple[Plugin, PluginExport]]:
    """Return the formats of plugins for batches, or those with an option. Raises as `plugin_formats`."""
    formats = plugin_formats("batches")
    return {name: entry for name, entry in formats.items() if option is None or option in entry[1].options}


class FormatOption(click.Option):
    """The option --format, whose help has words for each format of a plugin."""

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        """Return how it is written, and its help."""
        formats = plugin_formats("runs") | plugin_formats("batches")
        of_plugins = [f"; {name}: {entry.help}" for name, (_, entry) in formats.items()]
        self.help = f"{FORMAT_HELP}{''.join(of_plugins)}."
        return super().get_help_record(ctx)


@click.command()
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False))
@click.option(
    "--policy", default=None, metavar="NAME", help="Policy whose responses to export.  [default: policy.name]"
)
@click.option(
    "--format",
    cls=FormatOption,
    type=plugin_choice(lambda: (*FORMATS, *plugin_formats("runs"), *batch_formats())),
    default="sft",
    show_default=True,
    help=f"{FORMAT_HELP}.",
)
@click.option("--batch", default=None, metavar="N[-M]", help="Training batches to export: 4, 4-9, or 4- to the newest.")
@click.option(
    "--ranks", type=click.IntRange(1, 1024), default=1, show_default=True, help="Data-parallel ranks of a batch."
)
@click.option(
    "--purpose",
    type=click.Choice(["train", "serve", "eval"]),
    default=None,
    help="Purpose of the tasks.  [default: train; conversations, interactions: any]",
)
@click.option("--min-reward", type=float, default=None, metavar="R", help="Only responses with at least this reward.")
@click.option(
    "--all", "all_responses", is_flag=True, help="Export every response that is good enough, not only the best."
)
@click.option("--margin", type=float, default=0.0, metavar="R", help="Only pairs whose rewards differ by more.")
@click.option(
    "--test", "test_share", type=float, default=0.1, show_default=True, help="Share of the questions in the test split."
)
@click.option(
    "--with-held-out", is_flag=True, help="Write held-out examples, too, to a split of their own.  [implied: eval]"
)
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of the test split.")
@click.option(
    "--files", type=click.Choice(["jsonl", "parquet"]), default="jsonl", show_default=True, help="File format."
)
@click.option("--since", metavar="TIME", help="Only groups since this time: ISO 8601 (UTC), or an age (2h, 7d).")
@click.option("--until", metavar="TIME", help="Only groups before this time.")
@click.option("--follow", is_flag=True, help="interactions: append new ones, until Ctrl-C.")
@source_option
@allow_option
@click.option("--skip-bad", is_flag=True, help="Exit with 0 even if records could not be read or are gone.")
@on_option
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
    follow: bool,
    source: Any,
    allow_contaminated: bool,
    skip_bad: bool,
    on: str | None,
    output: Output,
    batch: str | None,
    ranks: int,
    **chosen: Any,
) -> None:
    """Export responses and their rewards as a data set.

    Hugging Face's `load_dataset(FOLDER)` reads it; the openai formats are those of OpenAI's fine-tuning. The same
    records under the same options give the same bytes, and manifest.json names the records. No question, and none that
    is almost the same, is in both splits. Held-out examples (purpose eval, questions of guard.suite and of suites that
    the policy was asked) are left out and counted, or in a split of their own. Exit code 1 means that unreadable
    records are left out.

    Interactions are a log, and no data set: held-out ones have metadata.purpose eval. They are appended to
    FOLDER/agent_interactions.jsonl, each exactly once, even if the command is killed and
    repeated. A response is written when its group is in the log, and an agent's run when it has ended.

    Training batches are those that the trainer here would take its steps from, as another trainer reads them. Their
    formats are those of plugins (`streamward admin plugins`). As in `train`, a batch with a held-out question is
    refused.

    With --on, executors of a cluster read the archive, for the formats of groups; the files are the same.
    """
    from streams import output as show
    from streams.kafka.times import parse_time

    name = chosen["format"]
    if name in batch_formats():
        summary, gaps = _export_batches(call, ctx)
    else:
        _check_no_batches(name, allow_contaminated, batch, ranks)
        since_ms = None if since is None else parse_time(since, "--since")
        until_ms = None if until is None else parse_time(until, "--until")
        options = _options(call, policy, chosen, follow=follow, on=on)
        times, source = (since_ms, until_ms), archive_for(on, source)
        with _naming_policy(call, options.policy, source):
            if options.is_of_runs:
                summary, gaps = _export_runs(call, folder, options, source=source, times=times, follow=follow)
            else:
                summary, gaps = _export_groups(call, folder, options, source=source, times=times, on=on)
    for text in gaps:
        click.echo(text, err=True)
    show.record(summary, output)
    ctx.exit(1 if gaps and not skip_bad else 0)


def _check_no_batches(name: str, allow_contaminated: bool, batch: str | None, ranks: int) -> None:
    """Raise SettingsError for an option of batches, which other formats do not have."""
    from streams.errors import SettingsError

    if allow_contaminated:
        raise SettingsError(f"{ALLOW_CONTAMINATED} is for {_names()}; --with-held-out writes examples")
    if batch is not None or ranks != 1:
        raise SettingsError(f"--batch and --ranks are for {_names()}, not {name}")


def _names(option: str | None = None) -> str:
    """Return the formats of batches, or those with an option, in words."""
    formats = " and ".join(batch_formats(option))
    return f"--format {formats}" if formats else "formats of plugins (none is installed)"


@contextmanager
def _naming_policy(call: AppContext, policy: str, source: Source) -> Iterator[None]:
    """Where something is not found in the block since the policy is not known, let the error name those that are."""
    from streams.errors import NotFoundError, check_policy
    from streams.tools.status import known_policies

    try:
        yield
    except NotFoundError:
        if source != "archive":
            check_policy(policy, known_policies(call.settings))
        raise


def _options(
    call: AppContext, policy: str | None, chosen: dict[str, Any], *, follow: bool, on: str | None
) -> ExportOptions:
    """Return the options of a data set. Raises SettingsError if they contradict each other."""
    from streams.errors import SettingsError
    from streams.tools.query import examples

    name = chosen["format"]
    purpose = chosen["purpose"] or ("train" if name in examples.FORMATS else None)
    with_held_out = chosen["with_held_out"] or (purpose == "eval" and name != "interactions")
    changed = {"purpose": purpose, "with_held_out": with_held_out}
    options = examples.ExportOptions(policy=policy or call.settings.policy.name, **(chosen | changed))
    examples.check(options)
    if follow and name != "interactions":
        raise SettingsError(f"--follow appends lines, and --format {name} is a data set; use interactions")
    if on is not None and options.is_of_runs:
        raise SettingsError(
            f"--on {on} exports groups, and --format {name} follows agents' runs through the log, on this machine; "
            "leave --on out, or use one of the other formats"
        )
    return options


Times = tuple[int | None, int | None]
"""Since when and until when, ms since the epoch."""


def _reason_finder(call: AppContext, options: ExportOptions, source: Source) -> ReasonFinder | None:
    """Return a function that says why an example must not be trained on. Raises as `AllHeldOut`."""
    from streams.rows.training_gate import AllHeldOut
    from streams.tools.archive import history

    return AllHeldOut.of_log(call.settings, history.of(call.settings, source)).finder(options.policy)


def _export_groups(
    call: AppContext,
    folder: Path,
    options: ExportOptions,
    *,
    source: Source,
    times: Times,
    on: str | None,
) -> tuple[dict[str, Any], list[str]]:
    """Write a data set of groups. Return a summary, and a sentence for each kind of missing record."""
    from streams.tools.query import export as sets
    from streams.tools.query.session import Session
    from streams.tools.query.source import Scope

    sets.check_folder(folder)
    with Session(call.settings, source=source, scope=Scope(*times)) as session:
        labels, read = set(sets.LABELS), sets.sources(call.settings)
        session.check(labels)
        held_out = _reason_finder(call, options, source)
        if on is not None:
            counts = _on_engine(call, folder, options, session, on, held_out)
            return _summary(folder, counts), session.omissions(labels)
        rows = (row for batch in session.run(sets.statement(options)).batches for row in batch.to_pylist())
        ranges = [row for row in session.ranges if row["topic"] in read]
        counts = sets.write(rows, options, folder, ranges=ranges, held_out=held_out)
        return _summary(folder, counts), session.omissions(labels)


def _on_engine(
    call: AppContext, folder: Path, options: ExportOptions, session: Session, on: str, held_out: ReasonFinder | None
) -> Counts:
    """Write a data set of groups that an engine computes; the session has the ranges."""
    from streams.tools.query import export as sets
    from streams.tools.spread import connect

    counts, read = sets.Counts(), sets.sources(call.settings)
    ranges = [row for row in session.ranges if row["topic"] in read]
    with connect(on) as engine:
        lines = engine.export_lines(call.settings, options, session.scope, counts)
        sets.write_lines(lines, options, folder, counts, ranges=lambda: ranges, held_out=held_out)
    return counts


def _export_runs(
    call: AppContext, folder: Path, options: ExportOptions, *, source: Source, times: Times, follow: bool
) -> tuple[dict[str, Any], list[str]]:
    """Write conversations or interactions; returns as `_export_groups`."""
    from streams.errors import SettingsError
    from streams.kafka.history import LogHistory
    from streams.kafka.retry import BrokerOutage
    from streams.tools.archive import history
    from streams.tools.query import conversation_examples, export as sets, interactions
    from streams.tools.query.finished import FinishedReader, FinishedSelection

    if follow and source == "archive":
        raise SettingsError(
            "--follow reads new records, and --source archive only archived ones; leave one of them out"
        )
    selection = FinishedSelection(policy=options.policy, purpose=options.purpose, since_ms=times[0], until_ms=times[1])
    reader = FinishedReader(call.settings, history.of(call.settings, source), selection)
    if options.format != "interactions":
        sets.check_folder(folder)
        counts = sets.Counts()
        of_plugin = plugin_formats("runs").get(options.format)
        make = None if of_plugin is None else of_plugin[0].load(of_plugin[1].encode)
        conversations = conversation_examples.examples(reader.round(), options, counts, make)
        held_out = _reason_finder(call, options, source)
        sets.write_examples(conversations, options, folder, counts, ranges=reader.ranges, held_out=held_out)
        summary = _summary(folder, counts)
    else:
        with until_stopped() if follow else nullcontext(Event()) as stop:
            call.working = follow
            live = LogHistory(call.settings, BrokerOutage(call.settings.kafka, stop)) if follow else None
            added = interactions.write(reader, folder / interactions.FILE, live, stop=stop)
        summary = {"file": str(folder / interactions.FILE), "lines": added}
    gaps = [f"{reader.unusable} records could not be read and are left out"] if reader.unusable else []
    return summary, gaps


def _export_batches(call: AppContext, ctx: click.Context) -> tuple[dict[str, Any], list[str]]:
    """Write training batches; returns as `_export_groups`."""
    from streams.cli.runtime import importing
    from streams.errors import SettingsError
    from streams.tools.archive import history

    chosen = ctx.params
    name, batch = chosen["format"], chosen["batch"]
    present = {option for option in chosen if ctx.get_parameter_source(option) is ParameterSource.COMMANDLINE}
    for option in sorted(present - {*OF_BATCHES, *PluginExport.OPTIONS}):
        raise SettingsError(
            f"--{OPTION_OF.get(option, option.replace('_', '-'))} has no effect with --format {name}, which writes "
            "whole batches; leave it out"
        )
    if batch is None:
        raise SettingsError(
            f"--format {name} writes training batches: name them with --batch, as --batch 0 or --batch 4-9"
        )
    plugin, form = batch_formats()[name]
    for option in sorted(present & {*form.OPTIONS} - {*form.options}):
        why = f": {form.refused[option]}" if option in form.refused else f", not {name}"
        raise SettingsError(f"--{option} is for {_names(option)}{why}; leave it out")
    with importing():
        from trainer.export import export_batches as bridge
        from trainer.export.batch_rows import BatchSpan

        encode = partial(plugin.load(form.encode), **{option: chosen[option] for option in form.options})
    policy = chosen["policy"] or call.settings.policy.name
    order = bridge.BatchOrder(policy=policy, format=name, encode=encode, span=BatchSpan.parse(batch))
    check = export_check(call.settings, chosen["allow_contaminated"])
    result = bridge.export(call.settings, order, chosen["folder"], history.of(call.settings, chosen["source"]), check)
    sequences = [row["batch"] for row in result.batches]
    summary: dict[str, Any] = {"folder": result.folder, "batches": [sequences[0], sequences[-1]]}
    for label in ("groups", "responses", "rows", "loss_tokens"):
        summary[label] = sum(row[label] for row in result.batches)
    summary["left_out"] = len(result.refused)
    return summary, [f"left out, as the trainer would: {text}" for text in result.refused]


OF_BATCHES = ("folder", "policy", "format", "batch", "source", "skip_bad", "output", "allow_contaminated")
"""Parameters that every format of batches takes."""
OPTION_OF = {"all_responses": "all", "test_share": "test"}
"""Options whose parameters have another name."""


def _summary(folder: Path, counts: Counts) -> dict[str, Any]:
    return {
        "folder": str(folder),
        "groups": counts.groups,
        "responses": counts.responses,
        "examples": counts.examples,
        "left_out": dict(sorted(counts.left_out.items())),
        "held_out": dict(sorted(counts.held_out.items())),
    }
