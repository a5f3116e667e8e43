"""`streamward replay sweep`: find the best recipe for recorded groups.

sweep.toml ──► experiments of its recipes ──► half of them continue, round by round ──► the best, with its gain
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from streams.cli.replay import matching_tasks, players, progress
from streams.cli.runtime import INTERRUPTED, AppContext, output_option, pass_call, until_stopped

if TYPE_CHECKING:
    from plugins.improve.sweep.sweep_runner import Sweep, SweepReport
    from streams.output import Output


@click.command("sweep")
@click.argument("file", type=click.Path(path_type=Path), metavar="FILE.toml")
@click.option("--dry-run", is_flag=True, help="Print the recipes, and write nothing.")
@output_option
@click.pass_context
@pass_call
def replay_sweep(call: AppContext, ctx: click.Context, /, output: Output, file: Path, dry_run: bool) -> None:
    """Find the best recipe for recorded groups.

    Trains each combination of the grid in FILE.toml on recorded groups, each in an experiment, and asks its versions
    the suite's questions. The better half continues, until one is left; its gain over the settings as they are is
    measured on questions that chose nothing. The log is the only state: after Ctrl-C or a kill the same command does
    what is missing, and pays for nothing twice. Exit code 4 if the budget ends it before its report.
    """
    from plugins.improve.sweep import sweep_file, sweep_runner
    from streams import output as show
    from streams.tools.replay.replay_context import Stopped

    settings = call.settings if dry_run else call.settings_to_write
    work = sweep_runner.prepare(settings, sweep_file.read_sweep(file), file, partial(matching_tasks, source="log"))
    if dry_run:
        _print_recipes(work, None, output)
        return
    try:
        with until_stopped() as stop, progress() as report:
            end = sweep_runner.SweepRun(
                settings=settings, sweep=work, stop=stop, report=report, players=partial(players, settings)
            ).run()
    except Stopped:
        click.echo("Stopped. Run the same command again to resume.", err=True)
        ctx.exit(INTERRUPTED)
    row = {name: value for name, value in sweep_runner.plain(work, end).items() if value not in (None, {})}
    if output == "jsonl":
        show.record(row, output)
    else:
        _print_recipes(work, end, output)
        print()
        show.record(row, output)
    if end.verdict.over_budget is not None:
        click.echo(f"{end.verdict.over_budget}: the sweep ended before its report. Raise [budget] to resume.", err=True)
        ctx.exit(4)


def _print_recipes(work: Sweep, end: SweepReport | None, output: Output) -> None:
    """Print a row for each recipe."""
    from plugins.improve.sweep import sweep_runner
    from streams import output as show

    rows: list[dict[str, Any]] = sweep_runner.recipe_rows(work, end)
    columns = [
        show.Column("experiment", "experiment"),
        *(show.Column(title, title, right=True) for title in ("versions", "mean_reward", "n")),
        show.Column("settings", lambda row: " ".join(f"{key}={value}" for key, value in row["settings"].items())),
    ]
    if end is None:
        columns = [columns[0], columns[-1]]
    show.rows(rows, columns, output)
