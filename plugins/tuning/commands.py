"""`streamward tune`: make a version by supervised training or preferences.

groups of the log, a file or a data set ──► examples ──► the next version, with its figures
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from streams.cli.runtime import (
    AppContext,
    allow_option,
    importing,
    output_option,
    pass_call,
    source_option,
    until_stopped,
    user_name,
)

if TYPE_CHECKING:
    from plugins.tuning.tuned_version import SourceCheck, TunedVersion
    from schemas.events import TuningMethod
    from streams.kafka.history import History
    from streams.output import Output
    from streams.settings.model import Settings
    from streams.tools.archive.history import Source
    from trainer.examples.curation import Curation
    from trainer.examples.tuned_examples import DatasetExamples


@click.command()
@click.argument("method", required=False, type=click.Choice(["sft", "dpo"]))
@click.argument("file", required=False, type=click.Path(path_type=Path, dir_okay=False))
@click.option("--policy", default=None, metavar="NAME", help="Policy to train.  [default: policy.name]")
@click.option(
    "--start",
    default=None,
    metavar="[POLICY:]VERSION",
    help="Version to start from; 0 is the base model.  [default: the newest of the policy]",
)
@click.option(
    "--dataset",
    default=None,
    metavar="NAME[@DIGEST]",
    help="Tokens of a data set's train rows, instead of groups or a file; dpo: its pairs.",
)
@click.option("--groups-of", default=None, metavar="NAME", help="Take groups of this policy.  [default: the same]")
@click.option(
    "--purpose",
    type=click.Choice(["train", "serve", "eval"]),
    default="train",
    show_default=True,
    help="Purpose of the tasks.",
)
@click.option(
    "--min-reward", type=float, default=None, metavar="R", help="sft: only answers with at least this reward."
)
@click.option("--all", "every", is_flag=True, help="sft: use every answer that is good enough, not only the best.")
@click.option("--margin", type=float, default=0.0, metavar="R", help="dpo: only pairs whose rewards differ by more.")
@click.option("--since", default=None, metavar="TIME", help="Only groups from this time on: ISO 8601 (UTC), or an age.")
@click.option("--until", default=None, metavar="TIME", help="Only groups before this time.")
@click.option(
    "--epochs", type=click.IntRange(min=1), default=1, show_default=True, help="Number of passes through the examples."
)
@click.option("--batch", type=click.IntRange(min=1), default=8, show_default=True, help="Examples per step.")
@click.option(
    "--beta",
    type=float,
    default=0.1,
    show_default=True,
    help="KL strength (DPO's beta): how close to stay to the start model.",
)
@allow_option
@click.option("--jobs", "for_jobs", is_flag=True, help="Serve fine-tuning jobs until interrupted.")
@source_option
@output_option
@pass_call
def tune(
    call: AppContext,
    /,
    method: TuningMethod | None,
    file: Path | None,
    policy: str | None,
    start: str | None,
    dataset: str | None,
    groups_of: str | None,
    source: Source,
    output: Output,
    since: str | None,
    until: str | None,
    epochs: int,
    batch: int,
    beta: float,
    for_jobs: bool,
    allow_contaminated: bool,
    **rule: Any,
) -> None:
    """Train a version by supervised fine-tuning or DPO.

    It becomes the next version of its policy. Without FILE the examples are answers of the log: for sft the best of
    each group, for dpo the best against the worst, with the sampled tokens. FILE is JSON lines, or CSV or
    Parquet with these columns: {"messages": [...]} for sft, or lines of interactions; {"prompt": [...], "chosen":
    [...], "rejected": [...]}, or OpenAI's preference format, for dpo. `streamward export` and builds of data sets are
    such files.
    An example with a question that a suite holds out from the policy is refused (docs/data.md).

    Adapter, optimizer, clipping, learning rate and seed are those of the settings (trainer.*). The version is announced
    like any other, and `reproduce` can remake it. The next batch is trained onto it: a trainer on this machine waits
    meanwhile, and where one elsewhere makes the next version first, this one is made again on top of that.

    With --jobs alone it serves the jobs of `streamward jobs start --method`, in turn, until SIGTERM or Ctrl-C.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # as the trainer's process has it; read when torch is loaded
    if for_jobs:
        _serve_jobs(call)
        return
    if method is None:
        raise click.UsageError("expected sft or dpo, or --jobs alone")
    from streams import output as show
    from streams.tools.archive import history

    settings, name = call.settings_to_write, policy or call.settings.policy.name
    reader = history.of(settings, source)
    with importing():
        from plugins.tuning import tuned_version as tuning
        from plugins.tuning.tuner import TuningSteps
    order = tuning.TuningOrder(
        policy=name,
        steps=TuningSteps(method=method, epochs=epochs, batch=batch, beta=beta),
        curation=_curation(method, since, until, rule),
        groups_policy=groups_of or name,
        file=file,
        dataset=None if dataset is None else _examples(settings, dataset, method, reader),
        start=None if start is None else tuning.StartVersion.parse(start, name),
        check=_check(settings, allow_contaminated),
    )
    show.record(_row(tuning.tune(settings, order, reader)), output)


def _curation(method: TuningMethod, since: str | None, until: str | None, rule: dict[str, Any]) -> Curation:
    from streams.kafka.times import parse_time
    from trainer.examples.curation import Curation

    for key, option, text in (("since_ms", "--since", since), ("until_ms", "--until", until)):
        rule[key] = None if text is None else parse_time(text, option)
    return Curation(method=method, **rule)


def _check(settings: Settings, allow_contaminated: bool) -> SourceCheck:
    from streams.rows.training_gate import TrainingCheck

    return TrainingCheck(settings, allowed_by=user_name() if allow_contaminated else None).check_source


def _examples(settings: Settings, reference: str, method: TuningMethod, history: History) -> DatasetExamples:
    """Return the examples of a data set, out of the log. Raises UsageError for options that choose other ones."""
    from streams.tools.dataset_reader import dataset_reader

    context = click.get_current_context()
    for name in ("file", "groups_of", "purpose", "min_reward", "every", "margin", "since", "until"):
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            option = {"file": "FILE", "every": "--all"}.get(name, f"--{name.replace('_', '-')}")
            raise click.UsageError(f"{option} and --dataset both choose the examples; leave one of them out")
    return dataset_reader().examples(settings, reference, method, history)


def _serve_jobs(call: AppContext) -> None:
    """Serve fine-tuning jobs until a signal."""
    from streams.kafka import admin

    context = click.get_current_context()
    present = [name for name in context.params if context.get_parameter_source(name) is ParameterSource.COMMANDLINE]
    if present != ["for_jobs"]:
        raise click.UsageError("--jobs takes no other options: the order of a job has them")
    call.working = True
    with until_stopped() as stop:
        admin.check_topics(call.settings, patient=True)
        with importing():
            from plugins.tuning import job_tuner
        job_tuner.run(call.settings, stop=stop)


def _row(version: TunedVersion) -> dict[str, Any]:
    from streams.adapters.versions import manifest_digest

    event, tuning = version.event, version.event.tuning
    assert tuning is not None  # noqa: S101 - `tune` makes no other
    start = f"{tuning.start_policy or event.policy}:{tuning.start_version}"
    left_out = {"left_out": dict(sorted(version.left_out.items()))}
    origin: dict[str, Any] = {"groups_looked_at": version.looked_at, **left_out}
    if tuning.dataset is not None:
        origin = {"dataset": f"{tuning.dataset}@{tuning.dataset_digest}", **left_out}
    elif tuning.file is not None:
        origin = {"file_sha256": tuning.file_sha256, **(left_out if version.left_out else {})}
    return {
        "policy": event.policy,
        "version": event.version,
        "start": start,
        "method": tuning.method,
        "reason": event.reason,
        "examples": tuning.examples,
        "loss_tokens": tuning.loss_tokens,
        **origin,
        **{name: event.metrics[name] for name in ("steps", "loss_first", "loss", "accuracy") if name in event.metrics},
        "sha256": manifest_digest(event.files),
    }
