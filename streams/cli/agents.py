"""The commands that show agents and their recorded runs: list, show, tail; plugins add more.

    trajectories, turns ──► agents_view.py: runs, folded ──► one line per run or call

The state of a run is the fold of its turns, so every reader computes the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from streams.cli.runtime import AppContext, output_option, pass_call

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from streams.cli.agents_view import AgentRun
    from streams.output import Output


@click.group()
def agents() -> None:
    """Show agents and their calls; run them, register their tools."""


@agents.command("list")
@click.argument("agent_id", metavar="[AGENT]", required=False)
@output_option
@pass_call
def agents_list(call: AppContext, agent_id: str | None, output: Output) -> None:
    """Print every agent, or every run of one AGENT.

    A run has its ending, the number of delivered calls, whose tokens can be trained on, and the calls left out.
    """
    from streams import output as show
    from streams.cli import agents_view
    from streams.errors import NotFoundError

    if agent_id is None:
        show.rows(agents_view.agents(call.settings), agents_view.AGENT_COLUMNS, output)
        return
    runs = agents_view.read_runs(call.settings, lambda event: event.agent_id == agent_id)
    if not runs:
        names = [row["agent"] for row in agents_view.agents(call.settings)]
        if agent_id in names:
            raise NotFoundError(f"agent {agent_id!r} has no run yet: it did not call a model")
        raise NotFoundError(f"there is no agent {agent_id!r}; there are {', '.join(names) or 'none'}")
    show.rows([run.row() for run in runs.values()], agents_view.RUN_COLUMNS, output)


@agents.command("show")
@click.argument("trajectory_id", metavar="TRAJECTORY")
@click.option("--follow", is_flag=True, help="Print lines as they come, until the run has ended.")
@output_option
@pass_call
def agents_show(call: AppContext, trajectory_id: str, follow: bool, output: Output) -> None:
    """Print one run, call by call.

    TRAJECTORY is an id or the beginning of one. A call has its relation to earlier calls, the chain that trains on its
    tokens or the reason that none does, feedback on its answer, and its tokens: whole prompt, new in the prompt, and
    sampled. In an environment, a call also has its tool, whether the tool ran, the environment's reward, and the credit
    in its group.
    """
    from streams import output as show
    from streams.cli import agents_view
    from streams.errors import NotFoundError, RefusedError
    from streams.stages.agents.registered_agents import known_agents

    runs = agents_view.read_runs(call.settings, lambda event: event.trajectory_id.startswith(trajectory_id))
    if not runs:
        raise NotFoundError(f"no run begins with {trajectory_id!r}; `streamward agents list AGENT` shows their ids")
    if len(runs) > 1:
        examples = ", ".join(sorted(runs)[:4])
        raise RefusedError(f"{len(runs)} runs begin with {trajectory_id!r}, e.g. {examples}; give more of the id")
    (run,) = runs.values()
    if follow:
        _follow(call, run, output)
        return
    feedback = agents_view.read_feedback(call.settings, run.task_id)
    rows = [agents_view.step_row(step, feedback) for step in run.fold().steps]
    columns = agents_view.STEP_COLUMNS
    outcomes = agents_view.action_outcomes(run)
    if outcomes:
        columns, credit = agents_view.EPISODE_COLUMNS, agents_view.read_credit(call.settings, run)
        rows = [row | outcomes.get(row["turn"], {}) | {"credit": credit.get(row["turn"])} for row in rows]
    if output == "table":
        agent = known_agents(call.settings).get(run.agent_id)
        show.record(agents_view.summary(run, feedback, agent), "table")
        print()
    show.rows(rows, columns, output)


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

    Ctrl-C ends it. The line of a run's end has the number of delivered calls, and the calls left out.
    """
    from itertools import islice

    from streams import output as show
    from streams.cli import agents_view
    from streams.kafka import times

    start = times.parse_begin(begin or ("start" if until_end else "end"))
    shapes = times.named(call.settings, ("turns", "trajectories"))
    records = times.tail(call.settings, shapes, start, until_end=until_end, each_poll=show.check_reader)
    live = agents_view.LiveRuns(lambda event: agent_id in (None, event.agent_id))
    _print_live(islice(live.rows(record.event for record in records), count), output)


def _follow(call: AppContext, run: AgentRun, output: Output) -> None:
    """Print the calls of a run as they come, until it has ended."""
    from streams import output as show
    from streams.cli import agents_view
    from streams.kafka import times

    def rows() -> Iterator[dict[str, Any]]:
        begin = times.Begin("time", run.recorded_ms)
        shapes = times.named(call.settings, ("turns", "trajectories"))
        records = times.tail(call.settings, shapes, begin, until_end=False, each_poll=show.check_reader)
        live = agents_view.LiveRuns(lambda event: event.trajectory_id == run.trajectory_id)
        for row in live.rows(record.event for record in records):
            yield row
            if row.get("ends"):
                return

    _print_live(rows(), output)


def _print_live(rows: Iterable[dict[str, Any]], output: Output) -> None:
    from streams import output as show
    from streams.cli import agents_view

    table = show.Lines(agents_view.TAIL_COLUMNS) if output == "table" else None
    for row in rows:
        if table is not None:
            table.add(row)
        else:
            print(show.json_line(row), flush=True)
