"""The commands of prompts: improve prompts create, list, show, activate, withdraw, compare, optimize, run.

text, types ──► created ──► prompts ──► list, show             activate ──► an alias means a version
what tasks with each version earned ──► compare        questions ──► optimize: a job ──► run
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from streams.cli.route_commands import RouteCommand, add_routes, show_answer
from streams.cli.runtime import AppContext, output_option, pass_call, user_name

if TYPE_CHECKING:
    from streams.output import Output


@click.group()
def prompts() -> None:
    """Keep prompts as versions, and compare what they earn."""


add_routes(
    prompts,
    "plugins.prompts.prompt_templates:PromptTemplates",
    {
        "create": RouteCommand(
            "create_template",
            """Create a version of a prompt.

            {{name}} is where a value goes. Versions are numbered from 1 and never change; a text that a version has
            already is that version, and nothing is written.
            """,
            arguments="name",
        ),
        "list": RouteCommand(
            "list_templates",
            "Print versions of prompts, and the aliases that mean them.",
            columns="name version aliases variables created_at actor reason withdrawn",
        ),
        "activate": RouteCommand(
            "activate_template",
            """Let an alias mean a version.

            Tasks that were written before keep the version that they were rendered with. While a policy is in training
            with the version that the alias means, it cannot mean another one. Exit code 4 if it means another version
            than --expected.
            """,
            arguments="alias version",
        ),
        "withdraw": RouteCommand(
            "withdraw_template",
            """Withdraw a version, so that nothing new names it.

            No alias, task, call or job can name it from then on. Tasks that were written with it keep its text, and
            `improve prompts show` prints it. Exit code 4 while an alias means it.
            """,
            arguments="version",
        ),
        "compare": RouteCommand(
            "evaluate_prompt",
            """Print what the tasks with each version of a prompt earned.

            With VERSION and AGAINST: the first against the second on the questions that both have answered, with the
            interval of the difference. That interval is of one look; `streamward improve prompts optimize` may look as
            often as it likes.
            """,
            arguments="name version against",
            has_source=True,
        ),
    },
)


@prompts.command("show")
@click.argument("reference", metavar="NAME[@VERSION|@ALIAS]")
@click.option("--values", default=None, metavar="JSON", help="Print the messages with these values of the variables.")
@output_option
@pass_call
def prompts_show(call: AppContext, reference: str, values: str | None, output: Output) -> None:
    """Print a version, with its text. NAME alone is its newest version."""
    from plugins.prompts.prompt_templates import template_answer
    from plugins.prompts.versions import prompt_log, prompt_use
    from plugins.prompts.versions.prompt_use import PromptReference
    from streams.cli.runtime import json_object

    states = prompt_log.PROMPTS.read(call.settings)
    parsed = PromptReference.parse(reference)
    if "@" not in reference and parsed.name in states:
        parsed = PromptReference(parsed.name, version=len(states[parsed.name].versions))
    shown = states[parsed.name].version(parsed.version) if parsed.version and parsed.name in states else None
    version = shown or prompt_use.resolve(states, parsed, "")  # one that was withdrawn may be looked at
    messages = version.messages
    if values is not None:
        messages = prompt_use.use(version, parsed, json_object(values, "--values")).render()
    show_answer(template_answer(version, states[version.name], messages), output)


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
@click.option("--order-only", is_flag=True, help="Only order the job; `streamward improve prompts run` runs it.")
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
    from plugins.jobs.log.job_log import JobLog
    from plugins.prompts.search import prompt_worker, search_request
    from plugins.prompts.versions import prompt_log
    from streams import output as show
    from streams.arrow.file_rows import read_objects
    from streams.cli.runtime import json_object, until_stopped

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
    ordered = search_request.order(search_request.read_request(body), settings, prompt_log.PROMPTS.read(settings))
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
    from plugins.prompts.search import prompt_worker
    from streams.cli.runtime import until_stopped
    from streams.kafka import admin

    call.working = True
    with until_stopped() as stop:
        admin.check_topics(call.settings, patient=True)
        prompt_worker.run(call.settings_to_write, stop=stop)
