"""The commands that show what agents did: agents list, show, tail.

    trajectories, turns ──► agents_view.py: runs, folded ──► one line a run, or a call

They read the log and change nothing. What a run comes to is the fold of its turns, so it is the same whoever looks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from streams.cli.runtime import AppContext, output_option, pass_call

if TYPE_CHECKING:
    from streams.output import Output


@click.group()
def agents() -> None:
    """Look at agents and at what they did, call by call."""


@agents.command("list")
@click.argument("agent_id", metavar="[AGENT]", required=False)
@output_option
@pass_call
def agents_list(call: AppContext, agent_id: str | None, output: Output) -> None:
    """Print every agent, or every run of one AGENT.

    Of a run: how it ended, how many of its calls are delivered, which means that their tokens can be trained on, and
    what was left out.
    """
    from streams import output as show
    from streams.cli import agents_view
    from streams.errors import NotFoundError

    if agent_id is None:
        show.rows(agents_view.agents(call.settings), agents_view.AGENT_COLUMNS, output)
        return
    runs = agents_view.read_runs(call.settings, lambda one: one.agent_id == agent_id)
    if not runs:
        known = ", ".join(row["agent"] for row in agents_view.agents(call.settings))
        raise NotFoundError(f"no agent {agent_id!r} called a model; there are {known or 'none'}")
    show.rows([run.row() for run in runs.values()], agents_view.RUN_COLUMNS, output)


@agents.command("show")
@click.argument("trajectory_id", metavar="TRAJECTORY")
@output_option
@pass_call
def agents_show(call: AppContext, trajectory_id: str, output: Output) -> None:
    """Print one run, call by call.

    TRAJECTORY is its id or the beginning of it. Of a call: what it is to those before it and why, the chain in which
    its tokens are trained on or why they are not, what somebody thinks of its answer, and its tokens: of the whole
    prompt, new in it, and sampled.
    """
    from streams import output as show
    from streams.cli import agents_view
    from streams.errors import NotFoundError, RefusedError

    runs = agents_view.read_runs(call.settings, lambda one: one.trajectory_id.startswith(trajectory_id))
    if not runs:
        raise NotFoundError(f"no run begins with {trajectory_id!r}; `streamward agents list AGENT` shows their ids")
    if len(runs) > 1:
        some = ", ".join(sorted(runs)[:4])
        raise RefusedError(f"{len(runs)} runs begin with {trajectory_id!r}, e.g. {some}; give more of the id")
    (run,) = runs.values()
    row = run.row()
    feedback = agents_view.read_feedback(call.settings, row["task"] or row["trajectory"])
    rows = [agents_view.step_row(step, feedback) for step in run.folded().steps]
    if output == "table":
        row["feedback"] = ", ".join(agents_view.opinion(reward) for reward in feedback.get(row["trajectory"], ()))
        show.record({name: value for name, value in row.items() if value not in (None, "")}, "table")
        print()
    show.rows(rows, agents_view.STEP_COLUMNS, output)


@agents.command("tail")
@click.argument("agent_id", metavar="[AGENT]", required=False)
@click.option("-n", "count", type=click.IntRange(min=1), metavar="N", default=None, help="End after N lines.")
@click.option(
    "--from",
    "begin",
    metavar="start|end|-N|TIME",
    default=None,
    help="Begin at the first record, after the last one, with the last N of each topic, or at an ISO 8601 time (UTC). "
    "Default: end; with --until-end, start.",
)
@click.option("--until-end", is_flag=True, help="End where the log ends now, instead of waiting for more.")
@output_option
@pass_call
def agents_tail(
    call: AppContext, agent_id: str | None, count: int | None, begin: str | None, until_end: bool, output: Output
) -> None:
    """Print calls as they are recorded, of all agents or one AGENT.

    It ends at Ctrl-C. When a run ends, its line says how many of its calls are delivered and what was left out.
    """
    from itertools import islice

    from streams import output as show
    from streams.cli import agents_view
    from streams.kafka import times

    start = times.parse_begin(begin or ("start" if until_end else "end"))
    shapes = times.named(call.settings, ("turns", "trajectories"))
    table = show.Lines(agents_view.TAIL_COLUMNS) if output == "table" else None
    seen = times.tail(call.settings, shapes, start, until_end=until_end, each_poll=show.check_reader)
    live = agents_view.LiveRuns(agent_id)
    for row in islice(live.rows(one.event for one in seen), count):
        if table is not None:
            table.add(row)
        else:
            print(show.json_line(row), flush=True)
