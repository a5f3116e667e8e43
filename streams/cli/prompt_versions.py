"""The commands of prompts: prompts create, list, show, activate, withdraw, compare, optimize, run.

text, types ──► created ──► prompts ──► list, show             activate ──► an alias means a version
what tasks with each version earned ──► compare        questions ──► optimize: a job ──► run
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from streams.cli.runtime import AppContext, VersionNumber, output_option, pass_call, source_option, user_name

if TYPE_CHECKING:
    from schemas.events import Message
    from streams.output import Output
    from streams.prompts.prompt_state import PromptState, PromptVersion
    from streams.tools.archive.history import Source

reason_option = click.option("--reason", default="asked for", show_default=True, help="Why; it is recorded.")


@click.group()
def prompts() -> None:
    """Keep prompts as versions, and compare what they earn."""


@prompts.command("create")
@click.argument("name")
@click.argument("file", required=False, metavar="[FILE|-]", type=click.Path(path_type=Path, allow_dash=True))
@click.option("--template", default=None, metavar="TEXT", help="The system message, in place of a file.")
@click.option(
    "--type", "types", multiple=True, metavar="NAME=TYPE", help="Type of a variable: integer, number, boolean, json."
)
@click.option("--alias", default=None, metavar="ALIAS", help="Let this alias mean the version, e.g. production.")
@reason_option
@output_option
@pass_call
def prompts_create(
    call: AppContext,
    /,
    name: str,
    file: Path | None,
    template: str | None,
    types: tuple[str, ...],
    alias: str | None,
    reason: str,
    output: Output,
) -> None:
    """Create a version of a prompt.

    FILE is a text, which becomes the system message, or JSON: {"messages": [{"role": ..., "content": ...}],
    "variables": {"city": "string"}}. {{name}} is where a value goes. Versions are numbered from 1 and never change; a
    text that a version has already is that version, and nothing is written.
    """
    from dataclasses import replace

    from streams import output as show
    from streams.improve.prompts.activation import activate
    from streams.prompts.prompt_body import read_body
    from streams.prompts.prompt_log import Activation, PromptLog

    fields = _fields(file, template)
    body = read_body(fields)
    prompt = body.text(name, actor=user_name(), reason=reason)
    if types:
        prompt = replace(prompt, variables=_with_types(prompt.variables, types))
    settings = call.settings_to_write
    with PromptLog(settings) as log:
        version, is_new = log.create(prompt)
        if alias is not None:
            order = Activation(prompt=name, alias=alias, version=version.number, actor=user_name(), reason=reason)
            activate(settings, log, order)
        show.record(version_row(version, log.state(name)) | {"new": is_new}, output)


@prompts.command("list")
@output_option
@pass_call
def prompts_list(call: AppContext, output: Output) -> None:
    """Print every version of every prompt, and the aliases that mean it."""
    from streams import output as show
    from streams.prompts import prompt_log

    rows = [
        version_row(version, state) for state in prompt_log.read(call.settings).values() for version in state.versions
    ]
    columns = [
        show.Column("prompt", "prompt"),
        show.Column("version", "version", right=True),
        show.Column("aliases", lambda row: ", ".join(row["aliases"])),
        show.Column("variables", lambda row: ", ".join(row["variables"])),
        show.Column("created", lambda row: row["created_at"][:16] + "Z"),
        show.Column("by", "actor"),
        show.Column("reason", "reason"),
    ]
    show.rows(rows, columns, output)


@prompts.command("show")
@click.argument("reference", metavar="NAME[@VERSION|@ALIAS]")
@click.option("--values", default=None, metavar="JSON", help="Print the messages with these values of the variables.")
@output_option
@pass_call
def prompts_show(call: AppContext, reference: str, values: str | None, output: Output) -> None:
    """Print a version, with its text. NAME alone is its newest version."""
    from streams import output as show
    from streams.cli.runtime import json_object
    from streams.prompts import prompt_log, prompt_use
    from streams.prompts.prompt_use import PromptReference

    states = prompt_log.read(call.settings)
    parsed = PromptReference.parse(reference)
    if "@" not in reference and parsed.name in states:
        parsed = PromptReference(parsed.name, version=len(states[parsed.name].versions))
    shown = states[parsed.name].version(parsed.version) if parsed.version and parsed.name in states else None
    version = shown or prompt_use.resolve(states, parsed, "")  # one that was withdrawn may be looked at
    row = version_row(version, states[version.name])
    messages = version.messages
    if values is not None:
        messages = prompt_use.use(version, parsed, json_object(values, "--values")).render()
    show.record(row | {"digest": version.digest, "job_id": version.job_id, "messages": _lines(messages)}, output)


@prompts.command("activate")
@click.argument("reference", metavar="NAME@VERSION")
@click.argument("alias")
@click.option(
    "--expect", type=click.IntRange(min=0), default=None, help="Only if the alias means this version now; 0: none yet."
)
@reason_option
@output_option
@pass_call
def prompts_activate(
    call: AppContext, reference: str, alias: str, expect: int | None, reason: str, output: Output
) -> None:
    """Let an alias mean a version.

    Tasks that were written before keep the version that they were rendered with. While a policy is in training with the
    version that the alias means, it cannot mean another one. Exit code 4 if it means another version than --expect.
    """
    from streams import output as show
    from streams.improve.prompts.activation import activate
    from streams.prompts.prompt_log import Activation, PromptLog

    name, version = _version_of(reference)
    order = Activation(prompt=name, alias=alias, version=version, actor=user_name(), reason=reason, expect=expect)
    settings = call.settings_to_write
    with PromptLog(settings) as log:
        target = activate(settings, log, order)
    show.record({"prompt": name, "alias": alias, "version": target.version}, output)


@prompts.command("withdraw")
@click.argument("reference", metavar="NAME@VERSION")
@reason_option
@output_option
@pass_call
def prompts_withdraw(call: AppContext, reference: str, reason: str, output: Output) -> None:
    """Withdraw a version, so that nothing new names it.

    No alias, task, call or job can name it from then on. Tasks that were written with it keep its text, and `prompts
    show` prints it. Exit code 4 while an alias means it.
    """
    from streams import output as show
    from streams.prompts.prompt_log import PromptLog

    name, version = _version_of(reference)
    with PromptLog(call.settings_to_write) as log:
        log.withdraw(name, version, actor=user_name(), reason=reason)
    show.record({"prompt": name, "version": version, "withdrawn": reason}, output)


@prompts.command("compare")
@click.argument("name")
@click.argument("versions", nargs=-1, type=VersionNumber(min=1))
@click.option("--policy", default=None, metavar="NAME", help="Only answers of this policy.  [default: of all]")
@click.option("--scenario", default=None, metavar="NAME", help="Only tasks of this scenario.")
@source_option
@output_option
@pass_call
def prompts_compare(
    call: AppContext,
    /,
    name: str,
    versions: tuple[int, ...],
    policy: str | None,
    scenario: str | None,
    source: Source,
    output: Output,
) -> None:
    """Print what the tasks with each version of a prompt earned.

    With two VERSIONS: the first against the second on the questions that both have answered, with the interval of the
    difference. That interval is of one look; `streamward prompts optimize` may look as often as it likes.
    """
    from contextlib import closing
    from dataclasses import asdict

    from streams import output as show
    from streams.errors import SettingsError
    from streams.improve.prompts import earnings
    from streams.tools.views.log_view import LogView

    if len(versions) not in (0, 2):
        raise SettingsError(f"{len(versions)} versions are named; name two, or none to see them all")
    with closing(LogView(call.settings, source)) as view, view.snapshot() as log:
        rows = log.rows(earnings.rows_sql(name, policy=policy, scenario=scenario))
    if versions:
        comparison = earnings.compare(rows, *versions)
        show.record({"prompt": name, "version": versions[0], "against": versions[1], **comparison.metrics()}, output)
        return
    columns = [
        show.Column("version", "version", right=True),
        *(show.Column(title, title, right=True) for title in ("tasks", "questions")),
        *(show.Column(title, field, right=True) for title, field in (("reward", "mean_reward"),)),
        show.Column("95 %", lambda row: f"{row['low']:.3f} to {row['high']:.3f}"),
        show.Column("tokens", lambda row: f"{row['tokens']:.1f}", right=True),
    ]
    show.rows([asdict(one) for one in earnings.earnings(rows)], columns, output)


@prompts.command("optimize")
@click.argument("name")
@click.option(
    "--method",
    type=click.Choice(["pairs", "live", "reflection"]),
    default="pairs",
    show_default=True,
    help="pairs: given versions on the same questions. live: on shares of the alias's users. "
    "reflection: new ones by a model that reads answers.",
)
@click.option(
    "--queries",
    "file",
    type=click.Path(path_type=Path, allow_dash=True),
    metavar="FILE",
    help='JSON lines: {"query": …, "expected_outcome": …}; - is stdin.',
)
@click.option("--policy", default=None, metavar="NAME", help="Policy that answers.  [default: policy.name]")
@click.option("--answers", type=click.IntRange(min=2), default=400, show_default=True, help="Most answers of it.")
@click.option("--alias", default=None, metavar="ALIAS", help="Let this alias mean a version that is better.")
@click.option("--budget", type=float, metavar="USD", help="Stop when this much is spent.")
@click.option(
    "--config", "in_json", default="{}", metavar="JSON", help="Further fields of the order (docs/prompts.md)."
)
@click.option("--order-only", is_flag=True, help="Only order the job; `streamward prompts run` runs it.")
@click.option("--tenant", help="Tenant that pays.")
@output_option
@pass_call
def prompts_optimize(
    call: AppContext,
    /,
    name: str,
    method: str,
    file: Path | None,
    policy: str | None,
    answers: int,
    alias: str | None,
    budget: float | None,
    in_json: str,
    order_only: bool,
    tenant: str | None,
    output: Output,
) -> None:
    """Search for a better version of a prompt.

    The versions that there are, the one in use first, answer the same questions; the worse half leaves, and the last
    one is called better once the evidence, which may be looked at after each answer, is large enough. With --method
    live the users of --alias are shared among the versions, by thread, and what their tasks earn decides. With --method
    reflection a model reads what answers earned and proposes texts. The figures are those of questions that the search
    did not use. The processes of the loop answer and score, as for other tasks.
    """
    from streams import output as show
    from streams.cli.jobs import read_objects
    from streams.cli.runtime import json_object, until_stopped
    from streams.improve.prompts import prompt_worker, search_request
    from streams.jobs.job_log import JobLog
    from streams.prompts import prompt_log

    settings = call.settings_to_write
    config: dict[str, Any] = {"max_answers": answers, **json_object(in_json, "--config")}
    config |= {} if alias is None else {"alias": alias}
    config |= {} if budget is None else {"max_budget_usd": budget}
    body = {
        "policy": policy or settings.policy.name,
        "prompt": name,
        "method": method,
        "questions": [] if file is None else read_objects(file, "--queries", "questions"),
        "config": config,
        "tenant": tenant,
    }
    ordered = search_request.order(search_request.read_request(body), settings, prompt_log.read(settings))
    with JobLog(settings) as jobs:
        job = jobs.start(ordered, actor=user_name(), key=None)
    if not order_only:
        with until_stopped() as stop:
            prompt_worker.run(settings, stop=stop, until_done=job.job_id)
    with JobLog(settings, with_months=False) as jobs:
        job = jobs.get(job.job_id)
    show.record({"job": job.job_id, "status": job.status, "reason": job.reason, "figures": dict(job.metrics)}, output)


@prompts.command("run")
@pass_call
def prompts_run(call: AppContext, /) -> None:
    """Run the jobs that search for better prompts.

    SIGTERM or Ctrl-C ends it. After a kill the next process continues from the log, and pays for no answer twice.
    Several share the jobs.
    """
    from streams.cli.runtime import until_stopped
    from streams.improve.prompts import prompt_worker
    from streams.kafka import admin

    call.working = True
    with until_stopped() as stop:
        admin.check_topics(call.settings, patient=True)
        prompt_worker.run(call.settings_to_write, stop=stop)


def _version_of(reference: str) -> tuple[str, int]:
    """Return the name and the number in NAME@VERSION. Raises SettingsError for an alias."""
    from streams.errors import SettingsError
    from streams.prompts.prompt_use import PromptReference

    parsed = PromptReference.parse(reference)
    if parsed.version is None:
        raise SettingsError(f"{reference}: expected NAME@VERSION, e.g. {parsed.name}@1")
    return parsed.name, parsed.version


def version_row(version: PromptVersion, state: PromptState) -> dict[str, Any]:
    """Return what a list has of a version."""
    from streams.output import moment

    aliases = [
        alias if target.version is not None else f"{alias} ({arm.share:.0%})"
        for alias, target in state.aliases.items()
        for arm in target.arms
        if arm.version == version.number
    ]
    return {
        "prompt": version.name,
        "version": version.number,
        "aliases": [*aliases, *(["withdrawn"] if version.number in state.withdrawn else [])],
        "variables": {variable.name: variable.type for variable in version.variables},
        "created_at": moment(version.created_at),
        "actor": version.actor,
        "reason": version.reason,
    }


def _fields(file: Path | None, text: str | None) -> dict[str, Any]:
    """Return the fields of a body. Raises SettingsError, NotFoundError, EventError."""
    from schemas import json_text
    from streams.errors import EventError, NotFoundError, SettingsError

    if (file is None) == (text is None):
        raise SettingsError("give either FILE or --template")
    if file is None:
        return {"template": text}
    try:
        content = click.get_text_stream("stdin").read() if str(file) == "-" else file.read_text(encoding="utf-8")
    except OSError as exc:
        raise NotFoundError(f"{file}: {exc.strerror}") from exc
    except UnicodeDecodeError as exc:
        raise EventError(f"{file}: not UTF-8: {exc}; save it as UTF-8") from exc
    if file.suffix != ".json":
        return {"template": content.rstrip("\n")}
    try:
        fields = json_text.parse(content)
    except ValueError as exc:
        raise EventError(f"{file}: not JSON: {exc}") from exc
    if not isinstance(fields, dict):
        raise EventError(f"{file}: expected an object with messages, or template")
    return fields


def _with_types(variables: tuple[Any, ...], types: tuple[str, ...]) -> tuple[Any, ...]:
    """Return the variables with the types that --type gives. Raises SettingsError."""
    from dataclasses import replace
    from typing import get_args

    from schemas.prompt_text import VariableType
    from streams.errors import SettingsError

    by_name = {variable.name: variable for variable in variables}
    for text in types:
        name, _, kind = text.partition("=")
        if kind not in get_args(VariableType):
            raise SettingsError(f"--type {text}: expected NAME=TYPE, of {', '.join(get_args(VariableType))}")
        if name not in by_name:
            raise SettingsError(
                f"--type {text}: the prompt has no {{{{{name}}}}}; it has {', '.join(by_name) or 'none'}"
            )
        by_name[name] = replace(by_name[name], type=kind)
    return tuple(by_name.values())


def _lines(messages: tuple[Message, ...]) -> list[str]:
    return [f"{message.role}: {message.content}" for message in messages]
