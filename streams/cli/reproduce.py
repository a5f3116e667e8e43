"""The command that trains versions again and compares every byte.

reproduce ──► each version on stderr as it comes ──► equal, or the first difference and its likely cause
                                                     exit code 0                                       1
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from streams.cli.runtime import AppContext, importing, pass_call, source_option

if TYPE_CHECKING:
    from streams.tools.archive.history import Source
    from trainer.reproduce.recorded import ReproducedVersion, ReproductionPlan


def _output(_: click.Context, __: click.Parameter, value: str | None) -> str:
    from streams.output import output_or_default

    return output_or_default(value, machine="json")


@click.command()
@click.option("--policy", metavar="NAME", default=None, help="Whose versions. Default: policy.name.")
@click.option(
    "--version", type=click.IntRange(min=1), default=None, help="The last version to train. Default: the newest."
)
@click.option(
    "--from-version",
    type=click.IntRange(min=0),
    default=0,
    metavar="M",
    help="Start from the checkpoint of this version in trainer.checkpoints. Default: 0, the base model.",
)
@click.option(
    "--into",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="FOLDER",
    default=None,
    help="Keep the checkpoints here, for a trainer (trainer.checkpoints=FOLDER). Default: keep nothing.",
)
@click.option(
    "--file",
    "files",
    multiple=True,
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="A file of examples that a version was tuned on. May be given again.",
)
@source_option
@click.option(
    "--output",
    type=click.Choice(["table", "json", "jsonl"]),
    callback=_output,
    help="Output format. Default: a table on a terminal, one JSON object in a pipe; jsonl has a line per version.",
)
@click.pass_context
@pass_call
def reproduce(
    call: AppContext,
    ctx: click.Context,
    policy: str | None,
    version: int | None,
    from_version: int,
    into: Path | None,
    files: tuple[Path, ...],
    source: Source,
    output: str,
) -> None:
    """Train versions again from the log, and compare every byte.

    Starts from the base model, or a checkpoint, with the recorded recipe and batches, in a fresh folder. Every version
    on the way is compared, and the first that differs is named with its likely cause. A key of model or trainer given
    with --set replaces the recorded one. Nothing is written to the log. A version that was tuned is tuned again, on the
    same answers of the log, or on the FILE that has the recorded sha256. One that was trained elsewhere and imported
    cannot be made again; those behind it are, from its files.

    The exit code is 0 if all are equal, 1 if not, 3 for an unknown version, 4 if retention has deleted what it needs.
    """
    import os
    import time

    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # as the trainer's process has it; read when torch is loaded
    from streams import output as show
    from streams.tools.archive import history

    with importing():
        from trainer.reproduce import retrain

    began = time.monotonic()
    settings, origins = call.loaded
    changed = [key for key, origin in origins.items() if origin.startswith("--set") and _is_recipe(key)]
    reader = history.of(settings, source)
    planned = retrain.plan(settings, policy or settings.policy.name, version, reader, start=from_version, files=files)
    if planned.brought is not None:
        click.echo(
            f"starts from version {planned.start}, which was trained elsewhere: none before it is compared", err=True
        )
    last: ReproducedVersion | None = None
    for made in retrain.run(planned, settings, reader, into=into, changed=changed):
        last = made
        if output == "jsonl":
            print(show.json_line(row(planned, made, made.seconds, version=made.version)), flush=True)
        else:
            click.echo(f"version {made.version} of {planned.version}: {_said(made)}", err=True)
    assert last is not None  # noqa: S101 - a plan has at least one version
    seconds = time.monotonic() - began
    if output == "json":
        print(show.json_line(row(planned, last, seconds, version=planned.version)))
    elif output == "table":
        _table(planned, last, seconds)
    ctx.exit(0 if last.equal else 1)


def _is_recipe(key: str) -> bool:
    from streams.settings.model import NOT_RECIPE  # late: --help needs no settings

    return key.split(".")[0] in ("model", "trainer") and key not in NOT_RECIPE


def row(planned: ReproductionPlan, made: ReproducedVersion, seconds: float, *, version: int) -> dict[str, Any]:
    """Return the JSON object for `version`, when `made` is the last that was made.

    `reproduced` is null if an earlier version differed, so that this one was not made.
    """
    import dataclasses

    from streams.adapters.versions import manifest_digest

    event = planned.events.get(version)
    plain: dict[str, Any] = {
        "version": version,
        "equal": made.equal,
        "recorded": None if event is None else manifest_digest(event.files),
        "reproduced": manifest_digest(made.reproduced) if made.version == version else None,
        "batches": None if planned.tuned else [planned.start, version - 1],
        "seconds": round(seconds, 3),
    }
    if not made.equal:
        plain["differences"] = [dataclasses.asdict(one) for one in made.differences]
    return plain


def _said(made: ReproducedVersion) -> str:
    verdict = "not in the log, so not compared" if made.recorded is None else "equal" if made.equal else "DIFFERENT"
    refused = f" and {made.refused} refused" if made.refused else ""
    what = f"{made.batch}, {made.groups} groups{refused}" if made.examples is None else f"{made.examples} examples"
    return f"{verdict}, {what}, {made.seconds:.1f} s"


def _span(first: int, last: int, one: str = "", more: str = "") -> str:
    return f"{one}{first}" if first == last else f"{more}{first} to {last}"


def _table(planned: ReproductionPlan, made: ReproducedVersion, seconds: float) -> None:
    from streams import output as show
    from trainer.step.recipe import cause

    plain = row(planned, made, seconds, version=planned.version)
    plain.pop("differences", None)
    batches = plain.pop("batches")
    show.record({"policy": planned.policy, **plain, **({"batches": _span(*batches)} if batches else {})}, "table")
    print()
    if made.equal:
        first = planned.tuned[0].version if planned.tuned else planned.start + 1
        print(f"equal: every file of {_span(first, planned.version, 'version ', 'versions ')}")
        if made.other_recipe:
            print(f"although not as recorded: {', '.join(one.name for one in made.other_recipe)}")
        return
    by = f"made by the batch at {made.batch}" if made.batch is not None else f"tuned on {made.examples} examples"
    print(f"NOT equal from version {made.version} on, {by}")
    columns = [show.Column(name, name) for name in ("kind", "name", "recorded", "reproduced")]
    show.rows([{name: getattr(one, name) for name in one.__slots__} for one in made.differences], columns, "table")
    print(f"\nlikely cause: {show.printable(cause(made.differences))}")
