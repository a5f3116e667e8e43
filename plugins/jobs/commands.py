"""The commands of jobs: run, start, list, show, pause, resume, cancel, watch, export, costs.

FILE of queries, options ──► JobRequest ──► created ──► jobs         run ──► the controller
jobs ──► rows                                                        costs ──► usage and cost
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from plugins.jobs.orders.job_types import job_types
from streams.cli.route_commands import RouteCommand, RoutedCommand
from streams.cli.runtime import (
    AppContext,
    allow_option,
    json_object,
    json_option,
    output_option,
    pass_call,
    reason_option,
    until_stopped,
    user_name,
)

if TYPE_CHECKING:
    from plugins.jobs.fold.state import JobState
    from plugins.jobs.log.job_log import JobCommandKind
    from plugins.jobs.orders.request import JobOrder
    from streams.output import Output

OWN_METHOD = "grpo"
EXAMPLE_METHODS = {method: kind for kind in job_types() for method in kind.example_methods}
"""Types of jobs that learn from examples, by their methods."""
key_option = click.option(
    "--idempotency-key", "key", metavar="KEY", help="Repeating the command with the same key has no further effect."
)


@click.group()
def jobs() -> None:
    """Order training jobs within a budget."""


@jobs.command("run")
@pass_call
def jobs_run(call: AppContext, /) -> None:
    """Run the controller, which submits the next tasks of each job.

    The processes of the loop do the work, as for any other tasks (`streamward up` starts all of them). The controller
    has no state of its own: after a kill it continues from the log. Several share the jobs. SIGTERM or Ctrl-C ends it.
    """
    from plugins.jobs.controller import controller
    from streams.kafka import admin

    call.working = True
    with until_stopped() as stop:
        admin.check_topics(call.settings, patient=True)
        controller.run(call.settings, stop=stop)


@jobs.command("start")
@click.argument("agent_id", metavar="POLICY|AGENT")
@click.option(
    "--method",
    type=click.Choice([OWN_METHOD, *EXAMPLE_METHODS]),
    default=OWN_METHOD,
    show_default=True,
    help="grpo: train on questions. sft, dpo: make one version by supervised training or preferences.",
)
@click.option(
    "--queries",
    "file",
    type=click.Path(path_type=Path, allow_dash=True),
    metavar="FILE",
    help='grpo: JSON lines: {"query": …, "expected_outcome": …}, or a table with these columns; - is stdin.',
)
@click.option(
    "--environment",
    metavar="NAME|REFERENCE",
    help="grpo: train on episodes in this environment instead of --queries: a built-in one, a reference that the "
    "settings allow, or an entry of the registry.",
)
@click.option("--settings", metavar="JSON", help="Settings of the environment.")
@click.option("--episodes", type=int, help="Number of seeds to train on.  [default: 1000]")
@click.option("--held-out", type=int, help="Number of other seeds, which evaluations play.  [default: 35]")
@click.option("--max-turns", type=int, help="Maximum of actions in an episode.  [default: the environment's, else 8]")
@click.option("--iterations", type=int, help="grpo: maximum of adapter versions.")
@click.option(
    "--examples",
    type=click.Path(path_type=Path, allow_dash=True),
    metavar="FILE",
    help="sft, dpo: JSON lines or a table, as for tuning by command.  [default: answers of the log]",
)
@click.option("--budget", type=float, metavar="USD", help="Stop when this much is spent.")
@click.option("--config", "in_json", default="{}", metavar="JSON", help="Further fields of the order (docs/jobs.md).")
@click.option("--tenant", help="Tenant that pays.")
@allow_option
@key_option
@output_option
@pass_call
def jobs_start(
    call: AppContext,
    /,
    agent_id: str,
    method: str,
    file: Path | None,
    environment: str | None,
    settings: str | None,
    episodes: int | None,
    held_out: int | None,
    max_turns: int | None,
    iterations: int | None,
    examples: Path | None,
    budget: float | None,
    in_json: str,
    tenant: str | None,
    allow_contaminated: bool,
    key: str | None,
    output: Output,
) -> None:
    """Order a job that trains on questions, or on episodes.

    Some of the questions in FILE, or other seeds of the environment, are held out; every tenth version answers them,
    and so does the version from before the job. The job is refused if it would probably cost more than its budget, and
    an environment if it does not give the same episode for the same seed.

    With --method sft or dpo it makes one version from examples: those of a file, which is copied to the adapter store,
    answers of the log, which --config selects, or a data set ({"dataset": NAME} in --config). A worker of tuning
    serves such jobs.
    """
    config: dict[str, Any] = json_object(in_json, "--config")
    if budget is not None:
        config["max_budget_usd"] = budget
    if allow_contaminated:
        config["allow_contaminated"] = True
    of_environment = _environment_fields(
        environment, settings, {"episodes": episodes, "held_out": held_out, "max_turns": max_turns}
    )
    if method != OWN_METHOD:
        if file is not None or iterations is not None or of_environment is not None:
            raise click.UsageError(f"--queries, --environment and --iterations are for grpo; {method} takes --examples")
        body = {"policy": agent_id, "method": method, "config": config, "tenant": tenant}
        kind = EXAMPLE_METHODS[method]
        order = kind.load(kind.from_examples)(call.settings_to_write, body, examples)
        _show([_start(call, order, key)], output)
        return
    if (file is None and of_environment is None) or iterations is None or examples is not None:
        raise click.UsageError("grpo needs --queries or --environment, and --iterations, and takes no --examples")
    fields: dict[str, Any] = {"agent_id": agent_id, "config": {"n_iterations": iterations, **config}, "tenant": tenant}
    if file is not None:
        from streams.arrow.file_rows import read_objects

        fields["training_queries"] = read_objects(file, "--queries", "training_queries")
    if of_environment is not None:
        fields["environment"] = of_environment
    _show([_start(call, _order_by_rewards(call, fields), key)], output)


def _environment_fields(name: str | None, in_json: str | None, counts: dict[str, int | None]) -> dict[str, Any] | None:
    """Return the environment of an order; None without one. Raises click.UsageError for options that need it."""
    fields: dict[str, Any] = {option: value for option, value in counts.items() if value is not None}
    if in_json is not None:
        fields["settings"] = json_object(in_json, "--settings")
    if name is None and fields:
        option = next(iter(fields)).replace("_", "-")
        raise click.UsageError(f"--{option} is about an environment: name it with --environment, or leave it out")
    return None if name is None else {"name": name, **fields}


def _order_by_rewards(call: AppContext, body: dict[str, Any]) -> JobOrder:
    """Return a job that trains by rewards."""
    from plugins.jobs.controller import job_episodes
    from plugins.jobs.orders import request
    from streams.adapters.versions import known_policies
    from streams.scorers.scorer_check import doubtful_scorer
    from streams.stages.agents.registered_agents import known_agents
    from streams.stages.tasks.line_steps import LineSteps, log_now

    job_request, settings = request.read_request(body), call.settings_to_write
    steps = LineSteps(log_now(settings))
    order = request.order(
        job_request,
        settings,
        policies=known_policies(settings),
        agents=known_agents(settings),
        try_environment=lambda config: job_episodes.try_environment(config, settings, steps),
    )
    if problem := doubtful_scorer(settings.scoring, order.spec.reward_sources):
        click.echo(f"{problem} (unless the scoring agents run elsewhere)", err=True)
    return order


def _start(call: AppContext, order: JobOrder, key: str | None) -> JobState:
    """Order a job."""
    from plugins.jobs.log.job_log import JobLog

    with JobLog(call.settings_to_write) as log:
        return log.start(order, actor=user_name(), key=key)


@jobs.command("list")
@click.option("--policy", help="Only jobs of this policy.")
@output_option
@pass_call
def jobs_list(call: AppContext, /, policy: str | None, output: Output) -> None:
    """Print every job with its progress and cost, oldest first."""
    from plugins.jobs.log.job_log import JobLog

    with JobLog(call.settings, with_months=False) as log:
        _show([job for job in log.jobs.values() if policy in (None, job.policy)], output)


@jobs.command("show")
@click.argument("job_id", metavar="JOB")
@json_option
@pass_call
def jobs_show(call: AppContext, /, job_id: str, output: str) -> None:
    """Print one job.

    Its order, its progress with the reason, the gains of its versions, and its cost. JOB is an id, or the beginning of
    one.
    """
    from plugins.jobs.log import job_view
    from plugins.jobs.log.job_log import JobLog
    from streams import output as show

    with JobLog(call.settings, with_months=False) as log:
        job = log.get(job_id)
    if output == "json":
        print(show.json_line(job_view.whole(job)))
        return
    show.record(job_view.row(job) | job_view.order(job), "table")
    if job.evaluations:
        print()
        columns = [show.Column(name, name) for name in ("iteration", "version")]
        columns += [show.Column("success", lambda row: f"{row['success']:.3f}")]
        columns += [show.Column("gain", lambda row: show.with_interval(row, "success_gain"))]
        show.rows([job_view.evaluation(evaluation) for evaluation in job.evaluations], columns, "table")


def _command(call: AppContext, job_id: str, kind: JobCommandKind, reason: str, key: str | None, output: Output) -> None:
    from plugins.jobs.log.job_log import JobCommand, JobLog

    with JobLog(call.settings_to_write, with_months=False) as log:
        _show([log.command(job_id, JobCommand(kind=kind, actor=user_name(), reason=reason, key=key))], output)


def _show(states: list[Any], output: Output) -> None:
    from plugins.jobs.log import job_view
    from streams import output as show

    columns = [
        show.Column("job", lambda row: row["job_id"][:8]),
        *show.columns("policy, status"),
        show.Column("iteration", lambda row: f"{row['iteration']} of {row['total_iterations']}", right=True),
        show.Column("version", "version", right=True),
        show.Column("USD", lambda row: None if row["cost_usd"] is None else f"{row['cost_usd']:.4f}", right=True),
        show.Column("reason", "reason"),
    ]
    show.rows([job_view.row(job) for job in states], columns, output)


@jobs.command("pause")
@click.argument("job_id", metavar="JOB")
@reason_option
@key_option
@output_option
@pass_call
def jobs_pause(call: AppContext, /, job_id: str, reason: str, key: str | None, output: Output) -> None:
    """Submit no more tasks of a job until it is resumed.

    Tasks in flight are finished and trained on.
    """
    _command(call, job_id, "paused", reason, key, output)


@jobs.command("resume")
@click.argument("job_id", metavar="JOB")
@reason_option
@key_option
@output_option
@pass_call
def jobs_resume(call: AppContext, /, job_id: str, reason: str, key: str | None, output: Output) -> None:
    """Resume a paused job."""
    _command(call, job_id, "resumed", reason, key, output)


@jobs.command("cancel")
@click.argument("job_id", metavar="JOB")
@reason_option
@key_option
@output_option
@pass_call
def jobs_cancel(call: AppContext, /, job_id: str, reason: str, key: str | None, output: Output) -> None:
    """Cancel a job.

    Tasks in flight are finished; its versions stay.
    """
    _command(call, job_id, "cancelled", reason, key, output)


@jobs.command("keep-best")
@click.argument("job_id", metavar="JOB")
@reason_option
@output_option
@pass_call
def jobs_keep_best(call: AppContext, /, job_id: str, reason: str, output: Output) -> None:
    """Serve the best version of a job that has ended.

    If none of its versions was better than the one before the job, that one answers again. Versions stay in the store.
    """
    from plugins.jobs.log.job_log import JobLog

    with JobLog(call.settings, with_months=False) as log:
        _keep_best(call, log.get(job_id), reason, output)


def _keep_best(call: AppContext, job: JobState, reason: str, output: Output) -> None:
    from plugins.jobs.controller.job_reducer import version_to_keep
    from streams import output as show
    from streams.adapters import decisions
    from streams.cli.adapters import read
    from streams.errors import RefusedError

    if not job.has_ended or job.base_version is None:
        raise RefusedError(f"job {job.job_id} is {job.status}; its best version is known once it has ended")
    history, version = read(call, job.policy), version_to_keep(job)
    before = history.state.primary
    if before != version:
        proposed = decisions.ProposedDecision(
            kind="rolled_back" if version < before else "promoted",
            version=version,
            actor=user_name(),
            reason=f"job {job.job_id}: {reason}",
            expect=before,
        )
        history = replace(history, state=decisions.decide(call.settings_to_write, history, proposed).state)
    show.record({"policy": job.policy, "primary": history.state.primary, "before": before}, output)


@jobs.command("watch")
@click.argument("job_id", metavar="JOB")
@click.option("--keep-best", is_flag=True, help="At the end, do what `jobs keep-best` does.")
@output_option
@pass_call
def jobs_watch(call: AppContext, /, job_id: str, keep_best: bool, output: Output) -> None:
    """Print the events of a job as they come, until it has ended.

    Exit code 1 if the job has failed. Ctrl-C ends the command, not the job.
    """
    from plugins.jobs.log import job_view
    from plugins.jobs.log.job_log import JobLog
    from streams import output as show
    from streams.errors import StreamwardError

    call.working = True
    with until_stopped() as stop, JobLog(call.settings, with_months=False) as log:
        job_id = log.get(job_id).job_id
        count, ended = 0, False
        while not stop.is_set() and not ended:
            new, ended = log.wait(job_id, count)
            show.check_reader()
            for event in new:
                line = f"{show.moment(event.created_at)}  {event.kind:<15}  {event.reason}"
                print(show.json_line(job_view.event(event)) if output == "jsonl" else line, flush=True)
            count += len(new)
        job = log.get(job_id)
    if keep_best and job.has_ended:
        _keep_best(call, job, "it has ended", output)
    if job.status == "failed":
        action = f". {job.suggested_action}" if job.suggested_action else ""
        raise StreamwardError(f"job {job_id} has failed: {job.code}: {job.reason}{action}")


@jobs.command("export")
@click.argument("job_id", metavar="JOB")
@click.option("--success-only", is_flag=True, help="Only correct answers.")
@click.option("--min-reward", type=float, help="Only answers with at least this reward.")
@click.option("--limit", type=click.IntRange(min=0), help="At most this many.")
@click.option("--offset", type=click.IntRange(min=0), default=0, show_default=True, help="Skip this many first.")
@pass_call
def jobs_export(
    call: AppContext, /, job_id: str, success_only: bool, min_reward: float | None, limit: int | None, offset: int
) -> None:
    """Print the answers to the questions of a job.

    One JSON object per line, with its reward, in the order of the groups.
    """
    from plugins.jobs.fold.job_answers import JobAnswers, answers
    from plugins.jobs.log.job_log import JobLog
    from streams import output as show

    with JobLog(call.settings, with_months=False) as log:
        job = log.get(job_id)
    selection = JobAnswers(success_only=success_only, min_reward=min_reward, limit=limit, offset=offset)
    for answer in answers(call.settings, job, selection):
        sys.stdout.write(show.json_line(answer) + "\n")


jobs.add_command(
    RoutedCommand(
        "costs",
        "plugins.jobs.api.job_costs:JobCosts",
        RouteCommand(
            "list_costs",
            """Print the usage and cost of jobs and of training calls.

        The cost is the tokens and seconds in a job's events, or in the results of a session's calls, times the prices
        recorded at its creation. Without prices there is no cost. By tenant and month, it also marks closed months:
        jobs add nothing to them any more.
        """,
        ),
    )
)
