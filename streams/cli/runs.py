"""The commands about runs: runs list, show, export.

view runs ──► rows, the newest first; one; or a file that is brought up to date
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from streams.cli.route_commands import RouteCommand, add_routes
from streams.cli.runtime import AppContext, output_option, pass_call, source_option

if TYPE_CHECKING:
    from streams.output import Output
    from streams.tools.archive.history import Source


@click.group()
def runs() -> None:
    """Look at runs: chats, agents' runs and answers, a row each."""


add_routes(
    runs,
    "gateway.log.recorded_runs:RecordedRuns",
    {
        "list": RouteCommand(
            "list_runs",
            """List runs, the newest first.

            docs/improve.md says what the figures mean; `streamward query runs` has the same columns.
            """,
            columns="answer_id began_at agent_id scenario versions ending turns tool_calls failed_tools cost_usd "
            "reward verdict",
            has_source=True,
        ),
    },
)


@runs.command("show")
@click.argument("run_id", metavar="RUN")
@source_option
@output_option
@pass_call
def runs_show(call: AppContext, /, run_id: str, source: Source, output: Output) -> None:
    """Show the figures of one run.

    RUN is the id of a response or of a trajectory, or its beginning. `streamward agents show` has its calls one by one.
    """
    from dataclasses import asdict

    from streams import output as show
    from streams.tools.runs.run_tracker import RunTracker

    show.record(asdict(RunTracker(call.settings, source=source).track(run_id)), output)


@runs.command("export")
@click.option(
    "--to",
    "path",
    type=click.Path(path_type=Path, dir_okay=False),
    default=Path("runs.jsonl"),
    show_default=True,
    help="File to bring up to date; .db, .sqlite: a SQLite database, else JSON lines.",
)
@click.option("--where", default="true", metavar="SQL", help="Condition on the columns of view runs.  [default: all]")
@click.option("--skip-bad", is_flag=True, help="Exit with 0 even if records could not be read or are gone.")
@source_option
@output_option
@click.pass_context
@pass_call
def runs_export(
    call: AppContext, ctx: click.Context, /, path: Path, where: str, skip_bad: bool, source: Source, output: Output
) -> None:
    """Export the runs that have ended.

    A run is written again if its row has changed since: with feedback, a score or a verdict. Of several lines about a
    run the last one counts; in a database the row is replaced. A killed export can be repeated: nothing is doubled or
    lost. Exit code 1 means that unreadable records are left out.
    """
    from streams import output as show
    from streams.tools.runs.run_archive import RunArchiveService

    result = RunArchiveService(call.settings, source=source).archive(path, where)
    for text in result.left_out:
        click.echo(text, err=True)
    show.record({"file": result.file, "runs": result.runs, "written": result.written}, output)
    ctx.exit(1 if result.left_out and not skip_bad else 0)
