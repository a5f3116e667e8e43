"""The commands about runs: runs list, show, export.

view runs ──► rows, the newest first; one; or a file that is brought up to date
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from streams.cli.runtime import AppContext, VersionNumber, output_option, pass_call, source_option

if TYPE_CHECKING:
    from streams.output import Output
    from streams.tools.archive.history import Source


SHORT = 8
"""Characters of an id that the table shows."""


@click.group()
def runs() -> None:
    """Look at runs: chats, agents' runs and answers, a row each."""


@runs.command("list")
@click.option("--agent", default="", metavar="NAME", help="Only runs of this agent.")
@click.option("--policy", default="", metavar="NAME", help="Only runs of this policy.")
@click.option("--scenario", default="", metavar="NAME", help="Only runs of this scenario; chat: runs without a task.")
@click.option("--version", type=VersionNumber(min=0), default=None, metavar="N", help="Only runs that N answered.")
@click.option(
    "--verdict",
    type=click.Choice(["promote", "reject", "needs_human", "none"]),
    default=None,
    help="Only runs with this verdict.",
)
@click.option("--purpose", type=click.Choice(["train", "serve", "eval"]), default=None, help="Only runs of such tasks.")
@click.option("--failed-tools", is_flag=True, help="Only runs in which a tool failed.")
@click.option("--limit", type=click.IntRange(1, 10_000), default=50, show_default=True, help="Runs at most.")
@source_option
@output_option
@pass_call
def runs_list(call: AppContext, /, limit: int, source: Source, output: Output, **chosen: Any) -> None:
    """List runs, the newest first.

    docs/improve.md says what the figures mean; `streamward query runs` has the same columns.
    """
    from dataclasses import asdict

    from streams import output as show
    from streams.improve.runs.run_tracker import RunTracker
    from streams.tools.views.run_list import RunFilter

    chosen = {name: "" if value is None and name != "version" else value for name, value in chosen.items()}
    rows = RunTracker(call.settings, source=source).newest(RunFilter(**chosen), limit)
    columns = [
        show.Column("run", lambda row: row["answer_id"][:SHORT]),
        show.Column("began", lambda row: show.moment(row["began_ms"])[:16] + "Z"),
        show.Column("agent", lambda row: row["agent_id"] or ""),
        show.Column("scenario", "scenario"),
        show.Column("version", lambda row: ", ".join(map(str, row["versions"])), right=True),
        show.Column("state", lambda row: row["ending"] or "open"),
        show.Column("turns", "turns", right=True),
        show.Column("tools", _tools, right=True),
        show.Column("USD", lambda row: "" if row["cost_usd"] is None else f"{row['cost_usd']:.4f}", right=True),
        show.Column("reward", "reward", right=True),
        show.Column("verdict", lambda row: row["verdict"] or ""),
    ]
    show.rows([asdict(row) for row in rows], columns, output)


def _tools(row: dict[str, Any]) -> str:
    """Return e.g. `5, 1 failed`."""
    failed = f", {row['failed_tools']} failed" if row["failed_tools"] else ""
    return f"{row['tool_calls']}{failed}"


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
    from streams.improve.runs.run_tracker import RunTracker

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
    from streams.improve.runs.run_archive import RunArchiveService

    result = RunArchiveService(call.settings, source=source).archive(path, where)
    for text in result.left_out:
        click.echo(text, err=True)
    show.record({"file": result.file, "runs": result.runs, "written": result.written}, output)
    ctx.exit(1 if result.left_out and not skip_bad else 0)
