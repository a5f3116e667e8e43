"""The command that runs an agent on its tasks.

tasks ──► agents run ──► a process per slot, whose calls `streamward serve` answers and records
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, cast

import click

from streams.cli.runtime import AppContext, output_option, pass_call, until_stopped
from streams.cli.task_file import TaskFileOptions, check_tasks, read_tasks, task_file_options
from streams.errors import SettingsError

if TYPE_CHECKING:
    from collections.abc import Callable

    from plugins.agents.runs.agent_runner import AgentWork
    from schemas.events import AnswerRule, Task
    from streams.output import Output


PROGRAMS_AT_ONCE, WAITING_AT_ONCE = 4, 64
"""Default numbers of runs: a program is a process or more; an episode, or a run that the server answers, is a thread
that waits for the server."""


@click.command("run")
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
    help="Maximum of concurrent runs.  [default: 4 of a program, else 64]",
)
@click.option(
    "--time-limit",
    type=click.FloatRange(min=0, min_open=True),
    default=600.0,
    show_default=True,
    help="Seconds per run.",
)
@click.option(
    "--server", default=None, metavar="URL", help="Server that answers its calls.  [default: serve.host, serve.port]"
)
@click.option(
    "--folder",
    type=click.Path(path_type=Path),
    default=Path(".streamward/runs"),
    show_default=True,
    help="Folder with one folder per run, which has the program's output.",
)
@click.option(
    "--fleet", is_flag=True, help="Run it for every policy in the log (fleet.policies), not only policy.name."
)
@click.option(
    "--answer",
    "answer_rule",
    type=click.Choice(["printed", "first_agent", "last_call"]),
    default="printed",
    show_default=True,
    help="Which answer of a run counts if agents with different system prompts answer.",
)
@click.option("--until-done", is_flag=True, help="End when all tasks now in the log are done.")
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
    fleet: bool,
    answer_rule: str,
    until_done: bool,
    reading: TaskFileOptions,
    output: Output,
) -> None:
    """Run an agent on the tasks that name it.

    It runs the tasks of policy.name, or with --fleet those of every policy (docs/fleet.md), once per slot of a group.
    Without a program the server runs the agent as it is registered, with its tools (docs/agents.md). A program answers
    threads, too, unless --tasks or --until-done is given (docs/threads.md). Its runs have a folder each. It finds the
    server in OPENAI_BASE_URL and ANTHROPIC_BASE_URL, its task in STREAMWARD_PROMPT, task.json and on stdin. With
    --environments the policy's answers are executed in the task's environment until the episode ends.
    `streamward serve` must run: it records the calls. If it requires keys, serve.key is sent, which programs find in
    OPENAI_API_KEY and ANTHROPIC_API_KEY; it needs the role submitter. SIGTERM or Ctrl-C ends this command once its runs
    have ended. Several processes may run one agent: each task runs in one.
    """
    from plugins.agents.runs import agent_program, agent_runner
    from streams import output as show
    from streams.kafka import admin
    from streams.observability import metrics
    from streams.stages.tasks.episodes import episode_player

    agent_id = _agent_name(agent_id, environments=environments, command=command, entry_point=entry_point)
    if fleet:
        call.refuse_one_policy("agents run")
    url = server or call.settings.serve.url
    player = episode_player().playing(call.settings, url, time_limit) if environments else None
    with player or _program(command, entry_point, time_limit) as work:
        _submit(call, file, reading, agent_id)
        call.working = True
        plan = agent_runner.AgentPlan(
            agent_id=agent_id,
            work=work,
            program=agent_program.program_of(command, entry_point) if work is not None else None,
            server=url,
            key=call.settings.serve.key,
            parallel=parallel or (PROGRAMS_AT_ONCE if command or entry_point else WAITING_AT_ONCE),
            folder=folder.absolute(),
            time_limit_s=time_limit,
            answers_threads=not (environments or until_done or file is not None),
            fleet=fleet,
            answer_rule=None if answer_rule == "printed" else cast("AnswerRule", answer_rule),
            until_done=until_done or file is not None,
        )
        with until_stopped() as stop, metrics.serve_meter(call.settings, "agents") as meter:
            admin.check_topics(call.settings, patient=True)
            endings = agent_runner.run(call.settings_to_write, plan, stop=stop, meter=meter)
    show.record({ending: endings[ending] for ending in agent_runner.ENDINGS if endings[ending]} or {"runs": 0}, output)


def _agent_name(agent_id: str | None, *, environments: bool, command: str | None, entry_point: str | None) -> str:
    """Return the name of the agent that is to be run. Raises SettingsError if it is not clear what to run."""
    from streams.stages.tasks.episodes import ENVIRONMENT_AGENT

    if sum((environments, command is not None, entry_point is not None)) > 1:
        raise SettingsError("name one to run: --command, --entry-point, or --environments for the built-in agent")
    if agent_id is None and not environments:
        raise SettingsError("name the agent: `streamward agents run AGENT ...`")
    return agent_id or ENVIRONMENT_AGENT


def _program(
    command: str | None, entry_point: str | None, time_limit_s: float
) -> AbstractContextManager[Callable[[Task], AgentWork] | None]:
    """Return, as a block, what makes a run of a program from a task: None without a program. Raises SettingsError if it
    cannot be run."""
    if command is None and entry_point is None:
        return nullcontext()
    from plugins.agents.runs.agent_process import AgentProcess, run_process
    from plugins.agents.runs.agent_runner import AgentWork

    if command is not None:
        process = AgentProcess.from_text(command, time_limit_s=time_limit_s)
    else:
        process = AgentProcess.from_entry_point(entry_point or "", time_limit_s=time_limit_s)
    return nullcontext(lambda _: AgentWork(partial(run_process, process)))


def _submit(call: AppContext, file: Path | None, reading: TaskFileOptions, agent_id: str) -> None:
    """Submit the tasks of a file, if one is given, for this agent. Raises SettingsError if one names another agent."""
    if file is None:
        return
    from streams.stages.agents.registered_agents import agent_lookup
    from streams.stages.tasks.submit import submit

    tasks = read_tasks(call.settings, file, reading, agent=agent_id, agents=agent_lookup(call.settings)).tasks
    for task in tasks:
        if task.agent != agent_id:
            raise SettingsError(f"a task names the agent {task.agent}, not {agent_id}; leave out such lines")
    check_tasks(call.settings, tasks)
    submitted = submit(call.settings_to_write, tasks)
    click.echo(f"{len(submitted.sent)} sent, {len(submitted.known)} known", err=True)
