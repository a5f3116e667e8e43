"""The command line: starts everything, is imported by nothing.

    streamward ─┬─ demo                              the whole loop on this machine       demo.py
                ├─ up                                the same on tasks of one's own     up.py
                ├─ broker                            an embedded Kafka node
                ├─ topics  schemas  events           the log        topics.py, schemas.py, events.py
                ├─ offsets                           positions of the consumer groups     offsets.py
                ├─ tasks                             tasks into the log                   tasks.py
                ├─ ask  reward                       an answer, and what one thinks of it ask.py
                ├─ serve  chat                       the policy for agents, recorded      serve.py
                ├─ adapters                          versions, and decisions about them   adapters.py, release.py,
                │                                                                         adapter_import.py
                ├─ agents                            what agents did, call by call        agents.py
                ├─ environments                      what agents act in                   environments.py
                ├─ jobs  costs                       training that somebody orders        jobs.py
                ├─ access                            who may call the server              access.py
                ├─ capacity                          what a load needs                    capacity.py
                ├─ evaluate                          a version on held-out tasks          evaluate.py
                ├─ rollout                           the state of a rollout               rollout.py
                ├─ query                             SQL over the log                     query.py
                ├─ page                              the log in a browser                 page.py
                ├─ audit                             whether anything is lost or doubled  audit.py
                ├─ archive                           topics in files, beyond retention    archive.py
                ├─ dashboards                        Grafana                              dashboards.py
                ├─ export                            data sets for other trainers         export.py
                ├─ dlq                               dead letters                         dlq.py
                ├─ replay  experiments               the log again, other settings  replay.py, experiments.py
                ├─ rescore                           scores that failed                   scoring.py
                ├─ reproduce                         versions retrained, byte for byte    reproduce.py
                ├─ streams  scoring  policy  train   the processes of the loop; scoring.py
                ├─ status                            the state of the loop                status.py
                └─ config  doctor                    settings, and what is wrong with them

Commands are thin: each imports what it needs inside its body, so that `streamward --help` imports click and no more,
and calls a function elsewhere that does the work.
"""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from streams.cli import on_ray
from streams.cli.access import access
from streams.cli.adapter_import import adapters
from streams.cli.agents import agents
from streams.cli.archive import archive
from streams.cli.ask import ask, reward
from streams.cli.audit import audit
from streams.cli.capacity import capacity
from streams.cli.dashboards import dashboards
from streams.cli.demo import demo
from streams.cli.dlq import dlq
from streams.cli.environments import environments
from streams.cli.evaluate import evaluate
from streams.cli.events import events
from streams.cli.experiments import experiments
from streams.cli.export import export
from streams.cli.jobs import costs, jobs
from streams.cli.offsets import offsets
from streams.cli.page import page
from streams.cli.query import query
from streams.cli.replay import replay
from streams.cli.reproduce import reproduce
from streams.cli.rollout import rollout
from streams.cli.runtime import (
    AppContext,
    Guarded,
    begin,
    end_at_signals,
    importing,
    output_option,
    pass_call,
    until_stopped,
)
from streams.cli.schemas import schemas
from streams.cli.scoring import rescore, scoring_try
from streams.cli.serve import chat, serve
from streams.cli.status import status
from streams.cli.tasks import tasks
from streams.cli.topics import topics
from streams.cli.tune import tune
from streams.cli.up import up
from streams.errors import NotFoundError
from streams.processes.signals import WITH_PARENT, end_with_parent

if TYPE_CHECKING:
    from streams.kafka.node.process import RunningBroker
    from streams.output import Output

COMPLETION = """\b
Shell completion; add one of these lines:
  eval "$(_STREAMWARD_COMPLETE=bash_source streamward)"     in ~/.bashrc
  eval "$(_STREAMWARD_COMPLETE=zsh_source streamward)"      in ~/.zshrc
  _STREAMWARD_COMPLETE=fish_source streamward | source      in ~/.config/fish/config.fish

\b
Exit codes: 0 ok, 1 failed, 2 usage or settings, 3 not found, 4 refused, 5 unreachable,
75 stopped by a watchdog (start it again), 130 interrupted."""


@click.group(cls=Guarded, epilog=COMPLETION, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--config",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Read settings from this TOML file instead of ./streamward.toml.",
)
@click.option(
    "--set",
    "overrides",
    multiple=True,
    metavar="SECTION.KEY=VALUE",
    help="Set one value; overrides file and environment. May be repeated.",
)
@click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    default="info",
    show_default=True,
    help="The lowest level that is printed on stderr.",
)
@click.option(
    "--log-format",
    type=click.Choice(["text", "json"]),
    default=None,
    help="How lines on stderr look; short for --set logging.format=...",
)
@click.version_option(package_name="streamward", prog_name="streamward")
@click.pass_context
def cli(
    ctx: click.Context, config: Path | None, overrides: tuple[str, ...], log_level: str, log_format: str | None
) -> None:
    """GRPO from a Kafka log: tasks, responses, rewards and adapters are records, and the log is the only truth.

    Settings come from defaults, then streamward.toml, then STREAMWARD_SECTION__KEY in the environment, then --set;
    `streamward config show` shows the origin of each. Data goes to stdout and everything else to stderr. In a pipe it
    is JSON, or with STREAMWARD_OUTPUT=table in the environment a table.
    """
    from streams.observability import logging as program_log

    if log_format is not None:
        overrides = (*overrides, f"logging.format={log_format}")
    if os.environ.pop(WITH_PARENT, None) is not None:
        end_with_parent()
    program_log.set_up(log_level)
    ctx.obj = AppContext(config=config, overrides=_without_secrets(ctx, overrides), log_level=log_level)


def _without_secrets(ctx: click.Context, overrides: tuple[str, ...]) -> tuple[str, ...]:
    """Move secrets into the environment until the command ends: child processes find them there.

    A command line is for everybody to read.
    """
    if not overrides:
        return ()
    from streams.settings.load import secret_variable

    kept = []
    for override in overrides:
        key, _, value = override.partition("=")
        if (variable := secret_variable(override)) is None:
            kept.append(override)
            continue
        ctx.call_on_close(partial(_set_variable, variable, os.environ.get(variable)))
        _set_variable(variable, value)
        click.echo(
            f"warning: every user of this machine can read --set {key} in the list of processes; set {variable}, or "
            f"{variable}_FILE",
            err=True,
        )
    return tuple(kept)


def _set_variable(variable: str, value: str | None) -> None:
    if value is None:
        os.environ.pop(variable, None)
    else:
        os.environ[variable] = value


for command in (
    demo,
    up,
    ask,
    reward,
    serve,
    chat,
    evaluate,
    export,
    topics,
    schemas,
    tasks,
    events,
    adapters,
    agents,
    environments,
    jobs,
    costs,
    capacity,
    access,
    rollout,
    dlq,
    archive,
    audit,
    dashboards,
    offsets,
    rescore,
    tune,
    reproduce,
    query,
    page,
    replay,
    experiments,
    status,
):
    cli.add_command(command)


# --- the embedded broker ----------------------------------------------------------------------------------------------


@cli.group()
def broker() -> None:
    """Run a real Apache Kafka node on this machine.

    Its files are in broker.data_dir, one node per folder, and it listens on the loopback address only.
    """


@broker.command("start")
@click.option("--port", type=click.IntRange(0, 65535), default=None, help="The port for clients; 0: any free one.")
@output_option
@pass_call
def broker_start(call: AppContext, port: int | None, output: Output) -> None:
    """Start the node and return when it answers.

    It runs until `streamward broker stop`. Without --port the node takes the port it had before, else the default one,
    if that is free.
    """
    from streams.kafka.node import process as node
    from streams.kafka.topics import topics as shapes
    from streams.settings.load import BOOTSTRAP

    running = node.start(call.settings.broker, port=port)
    _show_node(running, output)
    settings, origins = AppContext(call.config, call.overrides).loaded  # with the address that is remembered now
    if running.bootstrap != settings.kafka.bootstrap:
        click.echo(
            f"Commands use {settings.kafka.bootstrap}, which {origins[BOOTSTRAP]} names: leave it out to use this node",
            err=True,
        )
    if not all(running.has_topic(shape.name) for shape in shapes(settings.topics).values()):
        click.echo("Next: streamward topics apply", err=True)


@broker.command("stop")
@pass_call
def broker_stop(call: AppContext) -> None:
    """Stop the node. Its data is kept."""
    from streams.kafka.node import process as node

    folder = call.settings.broker.data_dir
    stopped = node.stop(call.settings.broker)
    click.echo(f"The node in {folder} has stopped." if stopped else f"No node runs in {folder}.", err=True)


@broker.command("status")
@output_option
@pass_call
def broker_status(call: AppContext, output: Output) -> None:
    """Show where the node runs; exit code 3 if it does not."""
    from streams.kafka.node import process as node

    running = node.status(call.settings.broker)
    if running is None:
        raise NotFoundError(
            f"no node runs in {call.settings.broker.data_dir}; start it with `streamward broker start`, "
            "or name another folder with --set broker.data_dir=..."
        )
    _show_node(running, output)


def _show_node(running: RunningBroker, output: Output) -> None:
    from streams import output as show

    show.record(
        {
            "bootstrap": running.bootstrap,
            "pid": running.pid,
            "data_dir": str(running.data_dir),
            "log_file": str(running.log_file),
        },
        output,
    )


# --- the processes of the loop ----------------------------------------------------------------------------------------


@cli.command()
@click.option(
    "--driver",
    type=click.Choice(["faust", "loop"]),
    default=None,
    help="What runs the stages; short for --set worker.driver=...",
)
@click.pass_context
@pass_call
def streams(call: AppContext, ctx: click.Context, driver: str | None) -> None:
    """Run the stream worker: advantages, batches, rollouts.

    SIGTERM or Ctrl-C ends it, once in-flight work is finished. Several workers share the partitions; those of another
    driver wait until they have left. Exit code 75 means that a watchdog stopped it: start it again.
    """
    call.working = True
    end_at_signals()
    begin(call, "stream worker", "tasks, responses, rewards, groups and adapters")
    with importing():
        from streams.stages import batches
        from streams.stages.advantages import stage as advantages
        from streams.stages.rollouts import stage as rollouts
        from streams.stages.tasks import suites

    rollouts_register = partial(rollouts.register, suite=suites.of_guard(call.settings))
    if (driver or call.settings.worker.driver) == "loop":
        with importing():
            from streams.worker.batched import run as loop

        with until_stopped() as stop:
            loop.run(call.settings, [advantages.register_loop, batches.register, rollouts_register], stop=stop)
        return
    with importing():
        from streams.worker import run as worker  # takes the signals itself, and drains

    ctx.exit(worker.run(call.settings, [advantages.register, batches.register, rollouts_register]))


@cli.group(invoke_without_command=True)
@on_ray.options
@click.pass_context
@pass_call
def scoring(call: AppContext, ctx: click.Context, on: str | None, replicas: int | None) -> None:
    """Run a scoring agent: responses in, rewards out.

    SIGTERM or Ctrl-C ends it, once in-flight work is finished. Several agents share the partitions. `scoring try` tries
    out a scorer without the log.
    """
    if ctx.invoked_subcommand is not None:
        on_ray.refuse_options(f"scoring {ctx.invoked_subcommand}", on, replicas)
        return
    call.working = True
    if on_ray.is_wanted(on, replicas):
        ctx.exit(on_ray.agents(call, ["scoring"], replicas or 1))
    with until_stopped() as stop:
        begin(call, "scoring agent", "responses")
        from streams.stages.scoring import agent

        agent.run(call.settings, stop=stop)


scoring.add_command(scoring_try)


@cli.command()
@click.option(
    "--fleet", is_flag=True, help="Answer for every policy in the log (fleet.policies), not policy.name alone."
)
@on_ray.options
@click.pass_context
@pass_call
def policy(call: AppContext, ctx: click.Context, fleet: bool, on: str | None, replicas: int | None) -> None:
    """Run a policy agent: tasks in, responses out.

    It answers the tasks of policy.name with the engine in policy.engine. SIGTERM or Ctrl-C ends it, once in-flight work
    is finished. Several agents share the partitions.

    With --fleet it answers for all policies, by turns: one base model, and fleet.states adapters in memory
    (docs/fleet.md).
    """
    call.working = True
    if fleet:
        call.refuse_one_policy("policy")
    if on_ray.is_wanted(on, replicas):
        ctx.exit(on_ray.agents(call, ["policy", *(["--fleet"] if fleet else [])], replicas or 1))
    with until_stopped() as stop:
        whose = "every policy" if fleet else call.settings.policy.name
        begin(call, f"policy agent of {whose} ({call.settings.policy.engine})", "tasks")
        with importing():
            from streams.engines.build import import_libraries
            from streams.stages.policy import agent

            import_libraries(call.settings)

        agent.run(call.settings, stop=stop, fleet=fleet)


@cli.command()
@click.option("--steps", type=click.IntRange(min=1), default=None, help="End after this many batches.")
@click.option("--fleet", is_flag=True, help="Train every policy in the log (fleet.policies), not policy.name alone.")
@click.option(
    "--launcher",
    type=click.Choice(["ray"]),
    default=None,
    help="Run the trainer's processes on the nodes of the Ray cluster in RAY_ADDRESS (docs/scale.md).",
)
@click.pass_context
@pass_call
def train(call: AppContext, ctx: click.Context, steps: int | None, fleet: bool, launcher: str | None) -> None:
    """Run the trainer: batches in, adapter versions out.

    It trains policy.name, resuming from its newest checkpoint. SIGTERM or Ctrl-C ends it, once the current step is
    finished.

    With --fleet it trains all policies, by turns: one base model, and fleet.states adapters in memory. Several such
    processes share the policies (docs/fleet.md).

    With trainer.processes above 1, that many processes share every batch, each on a device of its own if
    model.device=cuda. If one of them dies, all end with exit code 75: start the command again.
    """
    call.working = True
    from trainer.ranks.launcher import place_from_env, run_ranks

    if fleet:
        call.refuse_one_policy("train")
    place = place_from_env(call.settings)
    own = ["train", *(["--fleet"] if fleet else []), *([] if steps is None else ["--steps", str(steps)])]
    if launcher == "ray":
        ctx.exit(on_ray.trainer(call, own, place))
    if place is None and (processes := call.settings.trainer.processes) > 1:
        ctx.exit(run_ranks(call.again(*own), processes))
    if place is not None and place.rank > 0:
        with importing():
            from trainer.versions import learner

        learner.help_out(call.settings, place)
        return
    with until_stopped() as stop:
        begin(call, f"trainer of {'every policy' if fleet else call.settings.policy.name}", "batches")
        with importing():
            from trainer.fleet import run

        run(call.settings, is_fleet=fleet, steps=steps, stop=stop, place=place)


# --- how it is set up -------------------------------------------------------------------------------------------------


@cli.group()
def config() -> None:
    """Show the settings."""


@config.command("show")
@click.argument("only", metavar="[SECTION|SECTION.KEY]", required=False)
@output_option
@pass_call
def config_show(call: AppContext, only: str | None, output: Output) -> None:
    """Print each setting and the origin of its value.

    Secrets are printed as stars.
    """
    from streams import output as show
    from streams.settings.load import described

    settings, origins = call.loaded
    found = [row for row in described(settings, origins) if only in (None, row["key"], row["key"].partition(".")[0])]
    if not found:
        raise NotFoundError(f"no setting or section is called {only!r}; `streamward config show` lists them all")
    columns = [
        show.Column("key", "key"),
        show.Column("value", "value"),
        show.Column("from", "from"),
        show.Column("about", "about", optional=True),
    ]
    if len(found) == 1:
        show.record(found[0], output)
    else:
        show.rows(found, columns, output)


@cli.command()
@output_option
@click.pass_context
@pass_call
def doctor(call: AppContext, ctx: click.Context, output: Output) -> None:
    """Check this set-up, and say what to do about each problem.

    Checks broker, topics, schemas, model and disk, and changes nothing. The exit code is that of the worst finding;
    warnings are 0.
    """
    from streams import output as show
    from streams.tools.doctor import examine

    findings = examine(lambda: call.loaded)
    columns = [
        show.Column("check", "check"),
        show.Column("state", "state"),
        show.Column("what", lambda row: f"{row['what']}. {row['do']}" if row["do"] else row["what"]),
    ]
    show.rows([finding.row() for finding in findings], columns, output)
    ctx.exit(max(finding.exit_code for finding in findings))
