"""`streamward reproduce`: retrain versions and compare every byte.

reproduce ──► each version on stderr as it comes ──► equal, or the first difference and its likely cause
                                                     exit code 0                                       1
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from streams.cli.runtime import AppContext, VersionNumber, importing, pass_call, source_option

if TYPE_CHECKING:
    from streams.tools.archive.history import Source
    from trainer.reproduce.recorded import ReproducedVersion, ReproductionPlan


def _output(_: click.Context, __: click.Parameter, value: str | None) -> str:
    from streams.output import output_or_default

    return output_or_default(value, machine="json")


@click.command()
@click.option(
    "--policy", metavar="NAME", default=None, help="Policy whose versions to retrain.  [default: policy.name]"
)
@click.option(
    "--version", type=VersionNumber(min=1), default=None, help="Last version to train.  [default: the newest]"
)
@click.option(
    "--from-version",
    type=click.IntRange(min=0),
    default=0,
    metavar="M",
    help="Start from the checkpoint of this version in trainer.checkpoints; 0 is the base model.  [default: 0]",
)
@click.option(
    "--into",
    "checkpoints",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="FOLDER",
    default=None,
    help="Keep the checkpoints here, for a trainer (trainer.checkpoints=FOLDER).  [default: keep none]",
)
@click.option(
    "--file",
    "files",
    multiple=True,
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="File that a version was made from, by its sha256. May be repeated.",
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
    checkpoints: Path | None,
    files: tuple[Path, ...],
    source: Source,
    output: str,
) -> None:
    """Retrain versions from the log and compare every byte.

    Starts from the base model or a checkpoint, with the recorded recipe and batches, in a fresh folder. It compares
    every version on the way, and names the first that differs with its likely cause. A key of model or trainer given
    with --set replaces the recorded one. Nothing is written to the log. A tuned version is tuned again, on the same
    answers of the log, on the data set, which is built again, or on the FILE with the recorded sha256. Weights that a
    training loop saved are computed again from its calls alone. An imported version cannot be remade; later versions
    are, from its files.

    Exit code 0 if all are equal, 1 if not, 3 for an unknown version, 4 if retention has deleted required records.
    """
    import os
    import time

    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # as the trainer's process has it; read when torch is loaded
    from streams import output as show
    from streams.tools.archive import history

    with importing():
        from trainer.reproduce import retrain

    began = time.monotonic()
    settings, origins = call.settings_and_origins
    changed = [key for key, origin in origins.items() if origin.startswith("--set") and _is_recipe(key)]
    reader = history.of(settings, source)
    name = policy or settings.policy.name
    planned = retrain.plan(settings, name, version, reader, start=from_version, files=files)
    if planned.adopted is not None and planned.adopted.trained_elsewhere is not None:
        click.echo(
            f"starts from version {planned.start}, which was trained elsewhere: earlier versions are not compared",
            err=True,
        )
    last: ReproducedVersion | None = None
    for last in retrain.run(planned, settings, reader, into=checkpoints, changed=changed):
        if output == "jsonl":
            print(show.json_line(row(planned, last, last.seconds, version=last.version)), flush=True)
        else:
            click.echo(f"version {last.version} of {planned.version}: {_summary(last)}", err=True)
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


def row(planned: ReproductionPlan, last: ReproducedVersion, seconds: float, *, version: int) -> dict[str, Any]:
    """Return the JSON object for `version`, given the last version that was remade.

    `reproduced` is null if an earlier version differed, so that this one was not remade.
    """
    from streams.adapters.versions import manifest_digest

    event = planned.events.get(version)
    sequences = [step.batch.sequence for step in planned.steps if step.batch and step.event.version <= version]
    plain: dict[str, Any] = {
        "version": version,
        "equal": last.equal,
        "recorded": None if event is None else manifest_digest(event.files),
        "reproduced": manifest_digest(last.reproduced) if last.version == version else None,
        "batches": [sequences[0], sequences[-1]] if sequences else None,
        "seconds": round(seconds, 3),
    }
    if not last.equal:
        plain["differences"] = [dataclasses.asdict(difference) for difference in last.differences]
    return plain


def _summary(version: ReproducedVersion) -> str:
    verdict = "equal" if version.equal else "DIFFERENT"
    if version.recorded is None:
        verdict = "not in the log, so not compared"
    return f"{verdict}, {version.made_from}, {version.seconds:.1f} s"


def _span(first: int, last: int, singular: str = "", plural: str = "") -> str:
    return f"{singular}{first}" if first == last else f"{plural}{first} to {last}"


def _table(planned: ReproductionPlan, last: ReproducedVersion, seconds: float) -> None:
    from streams import output as show
    from trainer.step.recipe import cause

    plain = row(planned, last, seconds, version=planned.version)
    plain.pop("differences", None)
    batches = plain.pop("batches")
    show.record({"policy": planned.policy, **plain, **({"batches": _span(*batches)} if batches else {})}, "table")
    print()
    if last.equal:
        print(f"equal: every file of {_span(planned.steps[0].event.version, planned.version, 'version ', 'versions ')}")
        if last.other_recipe:
            print(f"although not as recorded: {', '.join(key.name for key in last.other_recipe)}")
        return
    print(f"NOT equal from version {last.version} on, made from {last.made_from}")
    columns = [show.Column(name, name) for name in ("kind", "name", "recorded", "reproduced")]
    show.rows([dataclasses.asdict(difference) for difference in last.differences], columns, "table")
    print(f"\nlikely cause: {show.printable(cause(last.differences))}")
