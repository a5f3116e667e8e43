"""The commands of queues, in which other trainers keep their samples: queues list, export, import.

queues ──► list                             batches ──► export ──► a queue
a queue ──► import ──► tasks, responses ──► scoring, groups, batches
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from streams.cli.runtime import AppContext, allow_option, export_check, output_option, pass_call, source_option

if TYPE_CHECKING:
    from plugins.verl.queue_state import QueueState
    from streams.output import Output
    from streams.tools.archive.history import Source


@click.group()
def queues() -> None:
    """List, fill and import queues of samples (TransferQueue)."""


partition_option = click.option(
    "--partition", default="train", show_default=True, metavar="NAME", help="Partition of the queue."
)
policy_option = click.option("--policy", default=None, metavar="NAME", help="Policy.  [default: policy.name]")


@queues.command("list")
@output_option
@pass_call
def queues_list(call: AppContext, /, output: Output) -> None:
    """List every queue as its newest restore or checkpoint has it."""
    from plugins.verl.queue_log import QueueLog
    from streams import output as show
    from streams.output import Column

    with QueueLog(call.settings) as log:
        rows = [_row(state) for state in log.states.values()]
    columns = [
        Column("queue", "queue"),
        Column("epoch", "epoch", right=True),
        Column("samples", "samples", right=True),
        Column("as of", "at"),
        Column("checkpoints", "checkpoints", right=True),
        Column("writer", "writer"),
    ]
    show.rows(rows, columns, output)


def _row(state: QueueState) -> dict[str, Any]:
    from streams.output import moment

    newest = state.newest
    return {
        "queue": state.queue,
        "epoch": state.epoch,
        "samples": None if newest is None else newest.samples,
        "at": None if newest is None else moment(newest.created_at),
        "checkpoints": len(state.saved),
        "writer": state.writer,
    }


@queues.command("export")
@click.argument("queue", metavar="QUEUE")
@click.option("--batch", required=True, metavar="N[-M]", help="Batches to put: 4, 4-9, or 4- to the newest.")
@policy_option
@partition_option
@source_option
@allow_option
@click.option("--skip-bad", is_flag=True, help="Exit with 0 even if groups are left out.")
@output_option
@click.pass_context
@pass_call
def queues_export(
    call: AppContext,
    ctx: click.Context,
    /,
    queue: str,
    batch: str,
    policy: str | None,
    partition: str,
    source: Source,
    allow_contaminated: bool,
    skip_bad: bool,
    output: Output,
) -> None:
    """Put training batches into a queue, as samples of verl.

    The next program that opens the queue with `restore: live` finds them. The queue is taken from a program that has it
    open, which is refused from then on. Samples that are in the queue already are not put again. As in `train`, a batch
    with a held-out question is refused.
    """
    from streams import output as show
    from streams.cli.runtime import importing
    from streams.tools.archive import history

    with importing():
        from plugins.verl import batches_to_queue as bridge
        from trainer.export.batch_rows import BatchSpan
    settings = call.settings_to_write
    past = history.of(settings, source)
    place, check = bridge.QueuePlace(queue, partition), export_check(settings, allow_contaminated)
    filled = bridge.fill(settings, policy or settings.policy.name, BatchSpan.parse(batch), place, past, check)
    for problem in filled.refused:
        click.echo(f"left out, as the trainer would: {problem}", err=True)
    span = [filled.batches[0], filled.batches[-1]]
    row = {"queue": queue, "epoch": filled.epoch, "batches": span, "groups": filled.groups, "samples": filled.samples}
    show.record(row | {"left_out": len(filled.refused)}, output)
    ctx.exit(1 if filled.refused and not skip_bad else 0)


@queues.command("import")
@click.argument("queue", metavar="QUEUE")
@policy_option
@partition_option
@click.option(
    "--adapter-version",
    type=click.IntRange(0),
    default=None,
    metavar="N",
    help="Version that sampled them.  [default: that of the sample, else the policy's newest]",
)
@click.option(
    "--temperature",
    type=click.FloatRange(0, 100),
    default=1.0,
    show_default=True,
    help="Sampling temperature of samples that do not say theirs.",
)
@click.option(
    "--group-size",
    type=click.IntRange(2),
    default=None,
    metavar="N",
    help="Sessions of a group (verl's rollout.n).  [default: as many as the largest has]",
)
@click.option("--skip-bad", is_flag=True, help="Exit with 0 even if groups are left out.")
@output_option
@click.pass_context
@pass_call
def queues_import(
    call: AppContext,
    ctx: click.Context,
    /,
    queue: str,
    policy: str | None,
    partition: str,
    adapter_version: int | None,
    temperature: float,
    group_size: int | None,
    skip_bad: bool,
    output: Output,
) -> None:
    """Make tasks and responses of a queue's complete groups.

    They are scored, grouped and trained on like all others. The queue stays as it is, also for a program that has it
    open. Groups that are in the log already are not written again. A group that cannot be used is left out and named.
    """
    from streams import output as show
    from streams.cli.runtime import importing

    with importing():
        from plugins.verl import queue_to_tasks as bridge
    settings = call.settings_to_write
    order = bridge.QueueOrder(
        queue=queue,
        partition=partition,
        policy=policy or settings.policy.name,
        adapter_version=adapter_version,
        temperature=temperature,
        group_size=group_size,
    )
    sampled = bridge.bring(settings, order)
    for uid, problem in sampled.left_out.items():
        click.echo(f"left out: {uid}: {problem}", err=True)
    row = {"queue": queue, "policy": order.policy, "tasks": len(sampled.tasks), "responses": len(sampled.responses)}
    show.record(row | {"written": sampled.written, "left_out": len(sampled.left_out)}, output)
    ctx.exit(1 if sampled.left_out and not skip_bad else 0)
