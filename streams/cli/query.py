"""The command that queries the log with SQL.

    query SQL | TOPIC | -  ──► one answer, or with --follow new rows          query ──► a shell

It only reads; `streamward replay` makes new data from old.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from streams.cli.runtime import AppContext, pass_call, source_option, until_stopped

if TYPE_CHECKING:
    from streams.tools.query.options import QueryRequest
    from streams.tools.query.session import Session
    from streams.tools.query.statement import Statement

FOLLOW_S = 0.5
"""Between two checks for new records."""
FORMATS = ("table", "json", "jsonl", "csv", "parquet", "markdown")


@click.command()
@click.argument("sql", metavar="[SQL|TOPIC|-]", required=False)
@click.option(
    "--since", metavar="TIME", help="Only records from this time on: ISO 8601 (UTC), or an age (90s, 2h, 7d)."
)
@click.option("--until", metavar="TIME", help="Only records before this time.")
@click.option("--from", "first", type=click.IntRange(min=0), metavar="OFFSET", help="Only records from this offset on.")
@click.option("--to", "end", type=click.IntRange(min=0), metavar="OFFSET", help="Only records before this offset.")
@click.option("--partition", type=click.IntRange(min=0), help="Only this partition.")
@click.option("--key", metavar="KEY", help="Only records with this key.")
@click.option("--where", metavar="SQL", help="Only rows of TOPIC for which this holds.")
@click.option("--limit", type=click.IntRange(min=0), metavar="N", help="At most this many rows.")
@click.option("--follow", is_flag=True, help="Continue to print new rows, until Ctrl-C or --limit.")
@click.option(
    "--output",
    type=click.Choice(FORMATS),
    help="Output format. Default: a table on a terminal, jsonl in a pipe. Parquet needs --out.",
)
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE", help="Write to a file.")
@source_option
@click.option("--skip-bad", is_flag=True, help="Exit code 0 although records could not be read or are gone.")
@click.option("--allow-files", is_flag=True, help="Let the statement read and write files, not only the log.")
@click.pass_context
@pass_call
def query(call: AppContext, ctx: click.Context, /, **chosen: Any) -> None:
    """Query the log and its archive with SQL.

    SQL is one read-only statement in DuckDB's dialect. Its tables are the topics, with _ for -: tasks, responses,
    rewards, group_control, groups, batches, adapters, dead_letters, experiments, jobs; and the joins group_responses,
    lineage and rollout. A TOPIC means all its rows, - reads SQL from stdin, and without SQL a shell starts. The range
    is fixed at the start, and nothing is committed. Unreadable records are counted on stderr; the exit code is then 1.
    """
    import sys

    from streams.tools.query import options

    request = options.check_request(call.settings, options.QueryOptions(**chosen), sys.stdin.read)
    if request.statement is None:
        _shell(call, request)
        return
    with request.open(call.settings) as session:
        run = _follow if request.options.follow else _answer
        if not run(session, request, request.statement) and not request.options.skip_bad:
            ctx.exit(1)


def _answer(session: Session, request: QueryRequest, statement: Statement) -> bool:
    """Print the answer; return whether it is complete."""
    import sys

    from streams.tools.query import formats, options

    session.check(session.labels(statement))
    result = session.run(statement.sql, limit=request.options.limit)
    if request.options.out is not None:
        with options.new_file(request.options.out) as file:
            count = formats.write_file(result, request.output, file)
    else:
        count = formats.write(result, request.output, sys.stdout)
        sys.stdout.flush()
    if not count and sys.stderr.isatty():
        click.echo("no rows", err=True)
    return _print_gaps(session, statement)


def _follow(session: Session, request: QueryRequest, statement: Statement) -> bool:
    """Print the present rows and then new ones; return whether they are complete."""
    import sys

    from streams import output
    from streams.tools.query import formats

    count, complete, limit = 0, True, request.options.limit
    (name,) = statement.tables
    lines = formats.Following(request.output, sys.stdout)
    with until_stopped() as stop:
        new = True
        while True:
            if new:
                remaining = None if limit is None else limit - count
                count += lines.add(session.run(statement.sql, limit=remaining))
                complete = _print_gaps(session, statement) and complete
            output.check_reader()
            if stop.is_set() or (limit is not None and count >= limit) or stop.wait(FOLLOW_S):
                return complete
            new = session.only_new(name)


def _print_gaps(session: Session, statement: Statement) -> bool:
    """Print to stderr which records are missing; return whether none are."""
    gaps = session.omissions(session.labels(statement))
    for text in gaps:
        click.echo(text, err=True)
    return not gaps


def _shell(call: AppContext, request: QueryRequest) -> None:
    import sys

    from streams.tools.query import prompt

    session = request.open(call.settings)
    shell = prompt.Shell(session, output=request.output, out=sys.stdout, err=sys.stderr)
    try:
        if sys.stdin.isatty() and sys.stdout.isatty():
            prompt.interact(shell)
        else:
            prompt.feed_all(shell, sys.stdin)
    finally:
        shell.session.close()
