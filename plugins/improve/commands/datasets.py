"""The commands of data sets: improve datasets build, follow, list, show, rebuild, submit.

verdicts ──► build ──► a folder, and DatasetEvent ──► list, show ──► rebuild: the same bytes, or exit code 4
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from streams.cli.runtime import (
    AppContext,
    allow_option,
    begin,
    output_option,
    pass_call,
    several,
    source_option,
    until_stopped,
    user_name,
)

if TYPE_CHECKING:
    from plugins.improve.datasets.dataset_build import DatasetOrder
    from schemas.events import DatasetEvent
    from streams.output import Output
    from streams.tools.archive.history import Source

SHOWN = 12
"""Digits of a digest in a list."""


@click.group()
def datasets() -> None:
    """Build data sets of promoted runs, and rebuild them."""


rule_options = several(
    click.option("--policy", default=None, metavar="NAME", help="Runs of this policy.  [default: policy.name]"),
    click.option("--tenant", default=None, help="Runs of this tenant.  [default: those of no tenant]"),
    click.option("--scenario", default=None, metavar="NAME", help="Only runs of this scenario."),
    click.option("--since", default=None, metavar="TIME", help="Verdicts from this time on: ISO 8601, or age."),
    click.option("--until", default=None, metavar="TIME", help="Verdicts before this time."),
    click.option("--eval", "eval_share", type=float, default=0.1, show_default=True, help="Share of eval."),
    click.option(
        "--near-duplicate",
        type=float,
        default=0.8,
        show_default=True,
        metavar="SHARE",
        help="Questions that are alike by this share are on one side.",
    ),
    click.option("--max-scenario-share", type=float, default=1.0, show_default=True, help="Most rows of a scenario."),
    click.option(
        "--max-machine-share",
        type=float,
        default=1.0,
        show_default=True,
        help="Most rows that no person promoted.",
    ),
    click.option("--seed", type=int, default=0, show_default=True, help="Seed of split and shares."),
    click.option(
        "--to",
        "root",
        type=click.Path(path_type=Path, file_okay=False),
        default=None,
        metavar="DIR",
        help="Write into a folder here that is named by the newest verdict.  [default: improve.datasets]",
    ),
    allow_option,
    click.option("--reason", default="ordered", show_default=True, help="Why; it is recorded."),
)
"""Adds the options that decide which runs a data set has."""


@datasets.command("build")
@click.argument("name")
@click.option(
    "--from", "verdicts", type=click.Choice(["curation"]), default="curation", show_default=True, help="Verdicts."
)
@rule_options
@source_option
@output_option
@pass_call
def datasets_build(
    call: AppContext, /, name: str, verdicts: str, source: Source, output: Output, **options: Any
) -> None:
    """Build a data set of promoted runs.

    Conversations with tools in OpenAI's fine-tuning format, a label for each, the sampled tokens, and pairs with
    rejected runs of the same question. Runs of one task, thread or resubmission, and questions that are almost the same
    are all in train or all in eval. The same verdicts under the same rule are the same build, which is recorded once.
    """
    from plugins.improve.datasets.dataset_build import build
    from streams import output as show
    from streams.tools.archive import history

    del verdicts  # there is one kind
    settings = call.settings_to_write
    event, is_new = build(settings, _order(call, name, **options), history.of(settings, source))
    show.record(row(event) | {"recorded": is_new}, output)


@datasets.command("follow")
@click.argument("name")
@click.option(
    "--new",
    "minimum",
    type=click.IntRange(min=1),
    default=50,
    show_default=True,
    help="Newly promoted runs to wait for.",
)
@rule_options
@pass_call
def datasets_follow(call: AppContext, /, name: str, minimum: int, **options: Any) -> None:
    """Build a data set whenever enough runs were promoted.

    SIGTERM or Ctrl-C ends it. Of several processes one builds each data set.
    """
    from plugins.improve.datasets import curation_service

    call.working = True
    settings = call.settings_to_write
    with until_stopped() as stop:
        begin(call, "datasets", "curation")
        curation_service.follow(settings, _order(call, name, **options), minimum, stop=stop)


@datasets.command("list")
@output_option
@pass_call
def datasets_list(call: AppContext, output: Output) -> None:
    """Print every build of every data set."""
    from plugins.improve.datasets import dataset_log
    from streams import output as show

    built = [event for _, event in dataset_log.read(call.settings).placed if event.kind == "built"]
    columns = [
        show.Column("data set", "dataset"),
        show.Column("digest", lambda row: row["digest"][:SHOWN]),
        *show.columns("policy, newest_verdict"),
        *(show.Column(title, title, right=True) for title in ("train", "eval", "pairs")),
        show.Column("folder", "folder", optional=True),
    ]
    show.rows([row(event) for event in built], columns, output)


@datasets.command("show")
@click.argument("reference", metavar="NAME[@DIGEST]")
@output_option
@pass_call
def datasets_show(call: AppContext, reference: str, output: Output) -> None:
    """Print a build, its rule, shares and files."""
    from plugins.improve.datasets import dataset_log
    from plugins.improve.datasets.dataset_view import drift_of
    from streams import output as show

    log = dataset_log.read(call.settings)
    event = log.find(reference)
    sent = [other for other in log.of(event.dataset) if other.outside is not None and other.digest == event.digest]
    show.record(
        row(event)
        | {
            "actor": event.actor,
            "reason": event.reason,
            "rule": dict(event.selection),
            "scenarios": dict(event.scenarios),
            "labellers": dict(event.labellers),
            "versions": list(event.versions),
            "left_out": _reasons(event),
            "inputs": dict(event.inputs),
            "drift_from": event.drift_from,
            "drift": dict(event.drift),
            "moved": [column.column for column in drift_of(event) if column.has_moved],
            "ranges": [f"{part.topic}[{part.partition}]@{part.first}-{part.next}" for part in event.ranges],
            "files": {file.path: file.sha256 for file in event.files},
            "code_version": event.code_version,
            "sent": [outside_row(other) for other in sent],
        },
        output,
    )


@datasets.command("rebuild")
@click.argument("reference", metavar="NAME[@DIGEST]")
@click.option(
    "--to",
    "folder",
    type=click.Path(path_type=Path, file_okay=False),
    required=True,
    metavar="DIR",
    help="Write the files here; a new folder, or an empty one.",
)
@source_option
@output_option
@click.pass_context
@pass_call
def datasets_rebuild(
    call: AppContext, ctx: click.Context, /, reference: str, folder: Path, source: Source, output: Output
) -> None:
    """Build a data set again from its event, and compare every byte.

    Exit code 4 if its digest is another one, or records that it was made of are gone.
    """
    from plugins.improve.datasets import dataset_files, dataset_log, dataset_rebuild as rebuild
    from streams import output as show
    from streams.tools.archive import history

    settings = call.settings
    event = dataset_log.read(settings).find(reference)
    rebuilt = rebuild.rebuild(settings, event, history.of(settings, source))
    dataset_files.write(rebuilt.contents, folder)
    problem = rebuild.difference(event, rebuilt.event)
    summary = {
        "dataset": event.dataset,
        "equal": problem is None,
        "recorded": event.digest,
        "rebuilt": rebuilt.event.digest,
        "manifest_equal": rebuilt.event.manifest_sha256 == event.manifest_sha256,
        "folder": str(folder),
    }
    show.record(summary, output)
    if problem is not None:
        click.echo(problem, err=True)
        ctx.exit(4)


@datasets.command("submit")
@click.argument("reference", metavar="NAME[@DIGEST]")
@click.option("--to", "url", required=True, metavar="URL", help="OpenAI-compatible API, up to /v1.")
@click.option("--model", required=True, help="Model to tune, by the provider's name.")
@click.option("--method", type=click.Choice(["sft", "dpo"]), default="sft", show_default=True, help="dpo: on pairs.")
@click.option("--epochs", type=click.IntRange(min=1), default=None, help="Passes.  [default: the provider decides]")
@click.option(
    "--attempt", type=click.IntRange(min=1), default=1, show_default=True, help="2: order a failed job again."
)
@click.option("--usd-per-million", type=float, default=None, metavar="USD", help="Price of a million trained tokens.")
@click.option("--tenant", default=None, help="Confirm that runs of this tenant may be sent there.")
@click.option(
    "--key-env", default="OPENAI_API_KEY", show_default=True, metavar="NAME", help="Variable with the API key."
)
@click.option(
    "--poll", "poll_s", type=float, default=5.0, show_default=True, metavar="S", help="Seconds between looks."
)
@source_option
@output_option
@click.pass_context
@pass_call
def datasets_submit(
    call: AppContext,
    ctx: click.Context,
    /,
    reference: str,
    tenant: str | None,
    key_env: str,
    poll_s: float,
    source: Source,
    output: Output,
    **options: Any,
) -> None:
    """Tune an outside model on a data set.

    The train rows are sent to a provider of fine-tuning with OpenAI's API, and the job is followed to its end; cost and
    resulting model are recorded. The same command again continues, and orders nothing twice. Eval rows are not sent.
    Exit code 1 if the job failed or was cancelled.
    """
    import os

    from plugins.improve.datasets import dataset_log, dataset_rebuild, outside_tuning
    from plugins.improve.datasets.provider_api import ProviderApi
    from streams import output as show
    from streams.tools.archive import history

    settings = call.settings_to_write
    event = dataset_log.read(settings).find(reference)
    outside_tuning.check_tenant(event, tenant)
    order = outside_tuning.OutsideOrder(event=event, actor=user_name(), **options)
    with until_stopped() as stop, ProviderApi(order.url, os.environ.get(key_env)) as api:
        newest = outside_tuning.submit(
            settings,
            order,
            lambda: dataset_rebuild.contents(settings, event, history.of(settings, source)),
            api,
            stop=stop,
            poll_s=poll_s,
        )
    show.record(outside_row(newest), output)
    ctx.exit(1 if newest.kind in ("failed", "cancelled") else 0)


def row(event: DatasetEvent) -> dict[str, Any]:
    """Return what a list has of a build."""
    from streams.output import moment

    return {
        "dataset": event.dataset,
        "digest": event.digest,
        "policy": event.policy,
        "tenant": event.tenant,
        "newest_verdict": moment(event.created_at),
        **{name: event.counts.get(name, 0) for name in ("train", "eval", "pairs", "clusters")},
        "folder": event.folder,
    }


def outside_row(event: DatasetEvent) -> dict[str, Any]:
    """Return what a list has of an event about a set that was sent elsewhere."""
    outside = event.outside
    assert outside is not None  # noqa: S101 - all kinds but built have one
    about = {
        name: getattr(outside, name) for name in ("endpoint", "job", "model", "result", "trained_tokens", "cost_usd")
    }
    return {"kind": event.kind, **about, "reason": event.reason}


def _reasons(event: DatasetEvent) -> dict[str, int]:
    prefix = "left out: "
    return {name.removeprefix(prefix): count for name, count in event.counts.items() if name.startswith(prefix)}


def _order(
    call: AppContext,
    name: str,
    *,
    policy: str | None,
    since: str | None,
    until: str | None,
    root: Path | None,
    reason: str,
    allow_contaminated: bool,
    **rule: Any,
) -> DatasetOrder:
    from plugins.improve.datasets.dataset_build import DatasetOrder
    from plugins.improve.datasets.dataset_rule import DatasetRule
    from streams.kafka.times import parse_time

    since_ms = None if since is None else parse_time(since, "--since")
    until_ms = None if until is None else parse_time(until, "--until")
    chosen = DatasetRule(policy=policy or call.settings.policy.name, since_ms=since_ms, until_ms=until_ms, **rule)
    return DatasetOrder(
        name=name, rule=chosen, actor=user_name(), reason=reason, root=root, allow_contaminated=allow_contaminated
    )
