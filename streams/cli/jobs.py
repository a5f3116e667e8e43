"""The commands of jobs: run the controller; start, list, show, pause, resume, cancel, watch, export; costs.

FILE of queries, options ──► JobRequest ──► created ──► jobs         run ──► the controller, which does the rest
jobs ──► rows                                                         costs ──► what was spent, by whom and when
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from streams.cli.runtime import AppContext, json_object, json_option, output_option, pass_call, until_stopped, user_name

if TYPE_CHECKING:
    from streams.jobs.job_log import JobCommandKind
    from streams.jobs.state import JobState
    from streams.output import Output

key_option = click.option(
    "--idempotency-key", "key", metavar="KEY", help="The same command with the same key again has its effect once."
)


@click.group()
def jobs() -> None:
    """Order training on questions, within a budget."""


@jobs.command("run")
@pass_call
def jobs_run(call: AppContext, /) -> None:
    """Run the controller: it asks for what each job needs next.

    The processes of the loop do the work, as for any other tasks (`streamward up` starts them all). The controller
    keeps nothing: killed at any time, it continues where the log says. Several share the jobs. SIGTERM or Ctrl-C ends
    it.
    """
    from streams.jobs import controller
    from streams.kafka import admin

    call.working = True
    with until_stopped() as stop:
        admin.check_topics(call.settings, patient=True)
        controller.run(call.settings, stop=stop)


@jobs.command("start")
@click.argument("agent_id", metavar="POLICY|AGENT")
@click.option(
    "--method",
    type=click.Choice(["grpo", "sft", "dpo"]),
    default="grpo",
    show_default=True,
    help="grpo: on questions. sft, dpo: one version by supervised training or preferences.",
)
@click.option(
    "--queries",
    "file",
    type=click.Path(path_type=Path, allow_dash=True),
    metavar="FILE",
    help='grpo: JSON lines: {"query": …, "expected_outcome": …}; - is stdin.',
)
@click.option("--iterations", type=int, help="grpo: adapter versions at most.")
@click.option(
    "--examples",
    type=click.Path(path_type=Path, allow_dash=True),
    metavar="FILE",
    help="sft, dpo: JSON lines, as `streamward tune` takes them.  [default: answers of the log]",
)
@click.option("--budget", type=float, metavar="USD", help="Stop when so much is spent.")
@click.option("--config", "in_json", default="{}", metavar="JSON", help="More of the order (docs/jobs.md).")
@click.option("--tenant", help="Who pays.")
@key_option
@output_option
@pass_call
def jobs_start(
    call: AppContext,
    /,
    agent_id: str,
    method: Literal["grpo", "sft", "dpo"],
    file: Path | None,
    iterations: int | None,
    examples: Path | None,
    budget: float | None,
    in_json: str,
    tenant: str | None,
    key: str | None,
    output: Output,
) -> None:
    """Order a job that trains a policy on the questions in FILE.

    A part of them is held out, and every tenth version asked them, beside the version before the job. The job is
    refused if it would probably cost more than its budget.

    With --method sft or dpo it makes one version from examples: those of a file, which is kept in the adapter store, or
    answers of the log, which --config chooses among. `streamward tune --jobs` carries it out.
    """
    from streams.jobs import job_log, request

    config: dict[str, Any] = json_object(in_json, "--config")
    if budget is not None:
        config["max_budget_usd"] = budget
    if method != "grpo":
        if file is not None or iterations is not None:
            raise click.UsageError(f"--queries and --iterations are of grpo; {method} has --examples")
        asked_for = {"policy": agent_id, "method": method, "config": config, "tenant": tenant}
        _show([_order_tuning(call, asked_for, examples, key)], output)
        return
    if file is None or iterations is None or examples is not None:
        raise click.UsageError("grpo needs --queries and --iterations, and has no --examples")
    config = {"n_iterations": iterations, **config}
    asked = request.read_request(
        {"agent_id": agent_id, "training_queries": _queries(file), "config": config, "tenant": tenant}
    )
    settings = call.settings_to_write
    names = {"policies": job_log.known_policies(settings), "agents": job_log.known_agents(settings)}
    order = request.order(asked, settings, **names)  # type: ignore[arg-type]
    with job_log.JobLog(settings) as log:
        _show([log.start(order, actor=user_name(), key=key)], output)


def _order_tuning(call: AppContext, given: dict[str, Any], file: Path | None, key: str | None) -> JobState:
    """Order a job that tunes; its file goes into the adapter store first."""
    from streams.adapters.versions import read_state
    from streams.jobs import job_log, training_files
    from streams.jobs.tuning import tuning_request
    from streams.kafka import times

    settings, asked = call.settings_to_write, tuning_request.read_request(given)
    now_ms, kept = times.now_ms(), None
    if file is not None:
        raw, name = _content(file)
        tuning_request.check_lines(asked.method, training_files.lines_of(raw))
        kept = training_files.put(
            settings.adapters.store, raw, filename=name, purpose=training_files.PURPOSE, now_ms=now_ms
        )
    order = tuning_request.order(asked, settings, read_state(settings, asked.policy), kept, now_ms)
    with job_log.JobLog(settings) as log:
        return log.start(order, actor=user_name(), key=key)


def _content(file: Path) -> tuple[bytes, str]:
    """Return the bytes of a file, or of stdin, and its name. Raises JobRequestError if it cannot be read."""
    from streams.errors import JobRequestError

    if str(file) == "-":
        return click.get_binary_stream("stdin").read(), "stdin.jsonl"
    try:
        return file.read_bytes(), file.name
    except OSError as exc:
        raise JobRequestError(f"--examples {file}: {exc.strerror}; name a file of JSON lines", "file") from exc


def _queries(file: Path) -> list[Any]:
    """Return the lines of a file. Raises JobRequestError that names the first that is no JSON."""
    from schemas import json_text
    from streams.errors import JobRequestError

    name = "stdin" if str(file) == "-" else str(file)
    try:
        text = click.get_text_stream("stdin").read() if name == "stdin" else file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as exc:
        raise JobRequestError(f"--queries {name}: {exc}", "training_queries") from exc
    found = []
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip():
            continue
        try:
            found.append(json_text.parse(line))
        except ValueError as exc:
            raise JobRequestError(f"{name}:{number}: not JSON: {exc}", "training_queries") from exc
    return found


@jobs.command("list")
@click.option("--policy", help="Only jobs of this policy.")
@output_option
@pass_call
def jobs_list(call: AppContext, /, policy: str | None, output: Output) -> None:
    """Print every job, the oldest first: how far it is, its cost."""
    from streams.jobs.job_log import JobLog

    with JobLog(call.settings) as log:
        _show([job for job in log.jobs.values() if policy in (None, job.policy)], output)


@jobs.command("show")
@click.argument("job_id", metavar="JOB")
@json_option
@pass_call
def jobs_show(call: AppContext, /, job_id: str, output: str) -> None:
    """Print one job.

    Its order, how far it is and why, what its versions gained, and what it has cost. JOB is its id, or the beginning of
    it.
    """
    from streams import output as show
    from streams.jobs import view
    from streams.jobs.job_log import JobLog

    with JobLog(call.settings) as log:
        job = log.get(job_id)
    if output == "json":
        print(show.json_line(view.whole(job)))
        return
    show.record(view.row(job) | view.order(job), "table")
    if job.evaluations:
        print()
        columns = [show.Column(name, name) for name in ("iteration", "version")]
        columns += [show.Column("success", lambda row: f"{row['success']:.3f}")]
        columns += [show.Column("gain", lambda row: show.with_interval(row, "success_gain"))]
        show.rows([view.evaluation(one) for one in job.evaluations], columns, "table")


def _command(call: AppContext, job_id: str, kind: JobCommandKind, reason: str, key: str | None, output: Output) -> None:
    from streams.jobs.job_log import JobCommand, JobLog

    with JobLog(call.settings_to_write) as log:
        _show([log.command(job_id, JobCommand(kind=kind, actor=user_name(), reason=reason, key=key))], output)


def _show(found: list[Any], output: Output) -> None:
    from streams import output as show
    from streams.jobs import view

    columns = [
        show.Column("job", lambda row: row["job_id"][:8]),
        show.Column("policy", "policy"),
        show.Column("status", "status"),
        show.Column("iteration", lambda row: f"{row['iteration']} of {row['total_iterations']}", right=True),
        show.Column("version", "version", right=True),
        show.Column("USD", lambda row: None if row["cost_usd"] is None else f"{row['cost_usd']:.4f}", right=True),
        show.Column("reason", "reason"),
    ]
    show.rows([view.row(job) for job in found], columns, output)


reason_option = click.option("--reason", default="asked for", show_default=True, help="Why; it is recorded.")


@jobs.command("pause")
@click.argument("job_id", metavar="JOB")
@reason_option
@key_option
@output_option
@pass_call
def jobs_pause(call: AppContext, /, job_id: str, reason: str, key: str | None, output: Output) -> None:
    """Ask for no more tasks until the job is resumed. What is in flight is finished, and trained on."""
    _command(call, job_id, "paused", reason, key, output)


@jobs.command("resume")
@click.argument("job_id", metavar="JOB")
@reason_option
@key_option
@output_option
@pass_call
def jobs_resume(call: AppContext, /, job_id: str, reason: str, key: str | None, output: Output) -> None:
    """Continue a job that is paused, where it was."""
    _command(call, job_id, "resumed", reason, key, output)


@jobs.command("cancel")
@click.argument("job_id", metavar="JOB")
@reason_option
@key_option
@output_option
@pass_call
def jobs_cancel(call: AppContext, /, job_id: str, reason: str, key: str | None, output: Output) -> None:
    """End a job. What is in flight is finished; the versions that it made stay."""
    _command(call, job_id, "cancelled", reason, key, output)


@jobs.command("watch")
@click.argument("job_id", metavar="JOB")
@output_option
@pass_call
def jobs_watch(call: AppContext, /, job_id: str, output: Output) -> None:
    """Print the events of a job as they come, until it has ended.

    The exit code is 1 if it has failed. Ctrl-C ends the command, and not the job.
    """
    from streams import output as show
    from streams.errors import StreamwardError
    from streams.jobs import view
    from streams.jobs.job_log import JobLog

    call.working = True
    with until_stopped() as stop, JobLog(call.settings) as log:
        job_id = log.get(job_id).job_id
        seen, ended = 0, False
        while not stop.is_set() and not ended:
            new, ended = log.wait(job_id, seen)
            show.check_reader()
            for event in new:
                line = f"{show.moment(event.created_at)}  {event.kind:<15}  {event.reason}"
                print(show.json_line(view.event(event)) if output == "jsonl" else line, flush=True)
            seen += len(new)
        job = log.get(job_id)
    if job.status == "failed":
        action = f". {job.suggested_action}" if job.suggested_action else ""
        raise StreamwardError(f"job {job_id} has failed: {job.code}: {job.reason}{action}")


@jobs.command("export")
@click.argument("job_id", metavar="JOB")
@click.option("--success-only", is_flag=True, help="Only answers that are right.")
@click.option("--min-reward", type=float, help="Only answers with at least this reward.")
@click.option("--limit", type=click.IntRange(min=0), help="So many at most.")
@click.option("--offset", type=click.IntRange(min=0), default=0, show_default=True, help="Leave out so many first.")
@pass_call
def jobs_export(
    call: AppContext, /, job_id: str, success_only: bool, min_reward: float | None, limit: int | None, offset: int
) -> None:
    """Print the answers to the questions of a job.

    A JSON object a line, with its reward, in the order in which they were grouped.
    """
    from streams import output as show
    from streams.jobs.answers import JobAnswers, answers
    from streams.jobs.job_log import JobLog

    with JobLog(call.settings) as log:
        job = log.get(job_id)
    wanted = JobAnswers(success_only=success_only, min_reward=min_reward, limit=limit, offset=offset)
    for answer in answers(call.settings, job, wanted):
        sys.stdout.write(show.json_line(answer) + "\n")


@click.command()
@click.option(
    "--by",
    default="policy,month",
    show_default=True,
    metavar="NAMES",
    help="Of policy, tenant, job and month, with commas between.",
)
@output_option
@pass_call
def costs(call: AppContext, /, by: str, output: Output) -> None:
    """Print what jobs have used and cost, by whom and when.

    Tokens and seconds are those of the jobs' events, times the prices that were recorded when each was created. What
    was used by jobs without prices has no cost. By tenant and month it says which of their months are closed: those
    do not change any more.
    """
    from streams import output as show
    from streams.jobs import spending
    from streams.jobs.job_log import JobLog

    names = spending.names(by)
    with JobLog(call.settings) as log:
        found = log.costs(names)
    columns = [show.Column(name, name) for name in names]
    if {"tenant", "month"} <= set(names):
        columns += [show.Column("month is", lambda row: "closed" if row["closed"] else "open")]
    columns += [
        show.Column(name.replace("_", " "), name, right=True) for name in ("prompt_tokens", "completion_tokens")
    ]
    columns += [show.Column("trainer s", lambda row: f"{row['trainer_s']:.1f}", right=True)]
    columns += [show.Column("USD", lambda row: f"{row['cost_usd']:.4f}", right=True)]
    show.rows(found, columns, output)
