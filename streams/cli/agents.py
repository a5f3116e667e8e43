"""The commands about agents: run, and what they did, list, show, tail.

    tasks ──► run ──► a process a slot, whose calls `streamward serve` answers and records
    trajectories, turns ──► agents_view.py: runs, folded ──► one line a run, or a call

What a run comes to is the fold of its turns, so it is the same whoever looks.
"""

from __future__ import annotations

from contextlib import closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from streams.cli.runtime import AppContext, output_option, pass_call, until_stopped
from streams.cli.task_file import TaskFileOptions, read_tasks, task_file_options
from streams.errors import SettingsError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from schemas.events import Task
    from streams.cli.agents_view import AgentRun
    from streams.output import Output
    from streams.stages.agents.runs.run import RunWork


PROGRAMS_AT_ONCE, EPISODES_AT_ONCE = 4, 64
"""Runs by default: a program is a process or more, an episode is a thread that waits for the server."""


@click.group()
def agents() -> None:
    """Run agents, and look at what they did, call by call."""


@agents.command("run")
@click.argument("agent_id", metavar="[AGENT]", required=False)
@click.option("--environments", is_flag=True, help="Play the episodes of tasks that name an environment.")
@click.option("--command", default=None, metavar="LINE", help="The program, as a shell's line: `python my_agent.py`.")
@click.option("--entry-point", default=None, metavar="MODULE:FUNCTION", help="The program: fn(prompt, task).")
@click.option(
    "--tasks",
    "file",
    type=click.Path(path_type=Path, allow_dash=True),
    metavar="FILE",
    help="Submit the tasks in this file first, as `tasks submit` does, for this agent; end when all are done.",
)
@click.option(
    "--parallel",
    type=click.IntRange(min=1),
    default=None,
    help="Most runs at once.  [default: 4; with --environments, 64]",
)
@click.option(
    "--time-limit", type=click.FloatRange(min=0, min_open=True), default=600.0, show_default=True, help="Seconds a run."
)
@click.option("--server", default=None, metavar="URL", help="Who answers its calls.  [default: serve.host, serve.port]")
@click.option(
    "--folder",
    type=click.Path(path_type=Path),
    default=Path(".streamward/runs"),
    show_default=True,
    help="Each run has a folder in it, with what the program printed.",
)
@click.option("--until-done", is_flag=True, help="End when all tasks that are in the log now are done.")
@task_file_options
@output_option
@pass_call
def agents_run(
    call: AppContext,
    agent_id: str | None,
    environments: bool,
    command: str | None,
    entry_point: str | None,
    file: Path | None,
    parallel: int | None,
    time_limit: float,
    server: str | None,
    folder: Path,
    until_done: bool,
    reading: TaskFileOptions,
    output: Output,
) -> None:
    """Answer the tasks that name AGENT by runs of that agent.

    Each task is run as often as its group has slots. A run has a folder, an environment and a time limit of its own,
    and finds the server in OPENAI_BASE_URL and ANTHROPIC_BASE_URL, and its task in STREAMWARD_PROMPT, in task.json and
    on stdin. It has completed if the program ends with exit code 0. One that fails changes nothing for others.

    With --environments there is no program: the policy is shown what the task's environment shows, and what it writes
    is carried out there, turn by turn, until the episode ends. AGENT is then `environment`, unless tasks name another.

    `streamward serve` has to run: it answers the calls, and records them. Where it asks for keys, serve.key is sent,
    which programs find as OPENAI_API_KEY and ANTHROPIC_API_KEY; it needs the role submitter. SIGTERM or Ctrl-C ends
    this command once the runs in progress have ended. Several may run the same agent: each task is run by one of them.
    """
    from streams import output as show
    from streams.environments.environment_pool import EnvironmentPool
    from streams.kafka import admin
    from streams.observability import metrics
    from streams.stages.agents.runs import episodes, run

    if sum((environments, command is not None, entry_point is not None)) != 1:
        raise SettingsError("name what is run: --command, --entry-point, or --environments for the built-in agent")
    address, key = server or call.settings.serve.url, call.settings.serve.key
    agent_id = agent_id or (episodes.AGENT if environments else None)
    if agent_id is None:
        raise SettingsError("name the agent: `streamward agents run AGENT ...`")
    pool = EnvironmentPool(call.settings.environments)
    player = episodes.EpisodeAgent(address, pool.open, time_limit_s=time_limit, key=key)
    if file is not None:
        _submit(call, read_tasks(call.settings, file, reading, agent=agent_id).tasks, agent_id)
    call.working = True
    plan = run.AgentPlan(
        agent_id=agent_id,
        work=player.work if environments else _program(command, entry_point, time_limit),
        server=address,
        key=key,
        parallel=parallel or (EPISODES_AT_ONCE if environments else PROGRAMS_AT_ONCE),
        folder=folder.absolute(),
        until_done=until_done or file is not None,
    )
    with until_stopped() as stop, closing(pool), closing(player), metrics.served(call.settings, "agents") as meter:
        admin.check_topics(call.settings, patient=True)
        endings = run.run(call.settings_to_write, plan, stop=stop, meter=meter)
    show.record({ending: endings[ending] for ending in run.ENDINGS if endings[ending]} or {"runs": 0}, output)


def _program(command: str | None, entry_point: str | None, time_limit_s: float) -> Callable[[Task], RunWork]:
    """Return how a program is run over tasks. Raises SettingsError if it cannot be."""
    from streams.stages.agents.runs.agent_process import AgentProcess, run_process
    from streams.stages.agents.runs.run import RunWork

    if command is not None:
        process = AgentProcess.from_text(command, time_limit_s=time_limit_s)
    else:
        process = AgentProcess.from_entry_point(entry_point or "", time_limit_s=time_limit_s)
    return lambda _: RunWork(partial(run_process, process))


def _submit(call: AppContext, tasks: list[Task], agent_id: str) -> None:
    """Submit tasks for this agent. Raises SettingsError if one names another."""
    from streams.stages.tasks.submit import submit

    for task in tasks:
        if task.agent != agent_id:
            raise SettingsError(f"a task names the agent {task.agent}, and {agent_id} is run; leave out such lines")
    submitted = submit(call.settings_to_write, tasks)
    click.echo(f"{len(submitted.sent)} sent, {len(submitted.known)} known", err=True)


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
@click.option("--follow", is_flag=True, help="Line by line as it happens, until the run has ended.")
@output_option
@pass_call
def agents_show(call: AppContext, trajectory_id: str, follow: bool, output: Output) -> None:
    """Print one run, call by call.

    TRAJECTORY is its id or the beginning of it. Of a call: what it is to those before it and why, the chain in which
    its tokens are trained on or why they are not, what somebody thinks of its answer, and its tokens: of the whole
    prompt, new in it, and sampled. Of a run in an environment: the tool of each call, whether it could be used, what
    the environment paid for it, and the credit that it got in its group.
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
    if follow:
        _follow(call, run, output)
        return
    feedback = agents_view.read_feedback(call.settings, run.task_id)
    rows = [agents_view.step_row(step, feedback) for step in run.folded().steps]
    columns = agents_view.STEP_COLUMNS
    if outcomes := agents_view.acted(run):
        columns, credit = agents_view.EPISODE_COLUMNS, agents_view.read_credit(call.settings, run)
        rows = [row | outcomes.get(row["turn"], {}) | {"credit": credit.get(row["turn"])} for row in rows]
    if output == "table":
        show.record(agents_view.summary(run, feedback), "table")
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

    It ends at Ctrl-C. When a run ends, its line says how many of its calls are delivered and what was left out.
    """
    from itertools import islice

    from streams import output as show
    from streams.cli import agents_view
    from streams.kafka import times

    start = times.parse_begin(begin or ("start" if until_end else "end"))
    shapes = times.named(call.settings, ("turns", "trajectories"))
    seen = times.tail(call.settings, shapes, start, until_end=until_end, each_poll=show.check_reader)
    live = agents_view.LiveRuns(lambda one: agent_id in (None, one.agent_id))
    _print_live(islice(live.rows(one.event for one in seen), count), output)


def _follow(call: AppContext, run: AgentRun, output: Output) -> None:
    """Print what a run has done and does, until it has ended."""
    from streams import output as show
    from streams.cli import agents_view
    from streams.kafka import times

    def rows() -> Iterator[dict[str, Any]]:
        begin = times.Begin("time", run.recorded_ms)
        shapes = times.named(call.settings, ("turns", "trajectories"))
        seen = times.tail(call.settings, shapes, begin, until_end=False, each_poll=show.check_reader)
        live = agents_view.LiveRuns(lambda one: one.trajectory_id == run.trajectory_id)
        for row in live.rows(one.event for one in seen):
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
