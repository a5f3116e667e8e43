"""`streamward evaluate`: evaluate a version on a suite of tasks.

    evaluate ──► tasks pinned to it, to the primary and to the base ──► (the loop) ──► scores, side by side

It decides nothing: the guard does, or a user with `streamward adapters promote`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from streams.cli.runtime import INTERRUPTED, AppContext, VersionNumber, output_option, pass_call, until_stopped

if TYPE_CHECKING:
    from collections.abc import Mapping

    from streams.adapters.versions import AdapterState
    from streams.evaluation.suite import Suite
    from streams.output import Output
    from streams.settings.model import Settings


@dataclass(frozen=True, kw_only=True)
class EvaluateOptions:
    """The options that choose policy, versions and suite."""

    policy: str | None
    version: int | None
    against: tuple[int, ...]
    file: Path | None
    no_compare: bool


@click.command()
@click.option("--policy", default=None, metavar="NAME", help="Policy.  [default: policy.name]")
@click.option("--version", type=VersionNumber(min=0), default=None, help="Version to evaluate.  [default: the newest]")
@click.option(
    "--against", type=click.IntRange(min=0), multiple=True, help="Compare with this version. May be repeated."
)
@click.option(
    "--suite",
    "file",
    type=click.Path(dir_okay=False, path_type=Path),
    default=None,
    metavar="FILE",
    help="Suite, as in docs/examples/suite.yaml.  [default: guard.suite]",
)
@click.option("--no-compare", is_flag=True, help="Do not compare with the primary and the base model.")
@click.option("--wait/--no-wait", default=True, help="Wait until all tasks are answered and scored.  [default: wait]")
@output_option
@click.pass_context
@pass_call
def evaluate(
    call: AppContext,
    ctx: click.Context,
    /,
    wait: bool,
    output: Output,
    **chosen: Any,
) -> None:
    """Evaluate a version on a suite of held-out tasks.

    The tasks are pinned to the version, and the running agents answer them. The primary and the base model get the same
    tasks for comparison. Every figure has its interval, at guard.confidence. Running it again submits nothing new and
    shows the present results.
    """
    from streams.adapters import versions as adapters
    from streams.errors import SettingsError
    from streams.evaluation import version_scores
    from streams.stages.tasks import suites

    settings, options = call.settings_to_write, EvaluateOptions(**chosen)
    source = options.file or settings.guard.suite
    if source is None:
        raise SettingsError(
            "no suite: name its file with --suite, or set guard.suite (docs/examples/suite.yaml is one)"
        )
    suite, name = suites.of_file(settings, source), options.policy or settings.policy.name
    state = adapters.read_state(settings, name)
    versions = version_scores.choose(state, options.version, options.against, compare=not options.no_compare)
    missing = version_scores.open_versions(state, suite.name, versions)
    if missing:
        sent, present = suites.ask(settings, suite, name, missing)
        numbers = ", ".join(map(str, missing))
        subject = f"suite {suite.name} of {len(suite.questions)} tasks, version {numbers} of {name}"
        _say(f"{subject}: {len(sent)} tasks submitted, {len(present)} already in the log.")
    if missing and wait:
        with until_stopped() as stop:
            awaited = version_scores.AwaitedResults(name, suite.name, versions)
            state = version_scores.wait(settings, awaited, stop=stop, report=_say)
    _show(settings, state, suite, versions, output)
    if missing and wait and version_scores.open_versions(state, suite.name, versions):
        click.echo("Stopped. Run the same command again to resume.", err=True)
        ctx.exit(INTERRUPTED)


def _say(text: str) -> None:
    click.echo(text, err=True)


def _show(settings: Settings, state: AdapterState, suite: Suite, versions: tuple[int, ...], output: Output) -> None:
    """Print the scores of each version, and the gains of the first over the others."""
    from streams import output as show
    from streams.evaluation import version_scores
    from streams.evaluation.version_gates import build_gates
    from streams.stages.rollouts import guard

    confidence = settings.guard.confidence
    first = state.versions[versions[0]]
    rows: list[dict[str, Any]] = []
    for number in versions:
        version = state.versions[number]
        head = {"version": number, "status": version.status}
        rows += [head | score for score in version_scores.scores(version, suite.name, confidence)]
    gains: list[dict[str, Any]] = []
    for number in dict.fromkeys((*versions[1:], state.primary, 0)):
        if number != first.version:
            gains += version_scores.gains(first, state.versions[number], suite.name, confidence)
    ruling = None
    if first.version != state.primary and any(gain["against"] == state.primary for gain in gains):
        primary = state.versions[state.primary]
        prices = guard.TokenPrices.of(settings.prices)
        ruling = guard.judge(first, primary, settings.guard, suite.name, suite.thresholds, prices)
        ruling = guard.with_objections(ruling, first.outcomes.get(suite.name, ()), build_gates(settings))
    if output == "jsonl":
        judgement = None
        if ruling is not None:
            judgement = {"verdict": ruling.verdict, "against": state.primary, "reasons": list(ruling.reasons)}
        waiting = version_scores.open_versions(state, suite.name, versions)
        whole = {"policy": state.policy, "version": first.version, "suite": suite.name, "waiting": waiting}
        print(show.json_line({**whole, "scores": rows, "gains": gains, "guard": judgement}))
        return
    _tables(rows, gains)
    if ruling is not None:
        print(f"\nby the rule in [guard], against version {state.primary}: {ruling.verdict}")
        for reason in ruling.reasons:
            print(f"  {show.printable(reason)}")


def _tables(rows: list[dict[str, Any]], gains: list[dict[str, Any]]) -> None:
    """Print scores, cost and comparisons in separate tables: one would be too wide for a terminal."""
    from streams import output as show

    for first, second in (("success", "mean_reward"), ("tokens", "latency_ms")):
        figures = [show.Column(_TITLES[key], partial(show.with_interval, key=key)) for key in (first, second)]
        show.rows(
            rows,
            [
                *show.columns(">version, status, scenario"),
                *figures,
                *show.columns(">n, >failed"),
            ],
            "table",
        )
        print()
    if gains:
        show.rows(
            gains,
            [
                *show.columns(">against, scenario"),
                show.Column("gain in reward", lambda row: show.with_interval(row, "gain")),
                show.Column("gain in success", lambda row: show.with_interval(row, "success_gain")),
                show.Column("tokens", lambda row: _ratio(row, "tokens_ratio"), right=True),
                show.Column("latency", lambda row: _ratio(row, "latency_ratio"), right=True),
                show.Column("tasks", lambda row: int(row["n"]), right=True),
            ],
            "table",
        )


_TITLES = {"success": "success", "mean_reward": "mean reward", "tokens": "tokens", "latency_ms": "latency, ms"}


def _ratio(row: Mapping[str, Any], key: str) -> str:
    return "" if row.get(key) is None else f"x {row[key]:.3g}"
