"""`streamward bisect`: since which version a policy behaves in some way, what taught it, and whether that is needed."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from streams.cli.replay import progress
from streams.cli.runtime import (
    INTERRUPTED,
    AppContext,
    VersionNumber,
    importing,
    json_option,
    pass_call,
    source_option,
    until_stopped,
)

if TYPE_CHECKING:
    from plugins.bisect.bisection import Bisection
    from streams.tools.archive.history import Source

PLOT = Path(".streamward/bisect.png")


@click.command()
@click.option("--policy", default=None, metavar="NAME", help="Policy to look at.  [default: policy.name]")
@click.option("--good", type=VersionNumber(min=0), required=True, help="A version that does not behave so.")
@click.option("--bad", type=VersionNumber(min=1), required=True, help="A later version that does.")
@click.option(
    "--when",
    required=True,
    metavar="EXPR",
    help="The behaviour: an SQL condition on responses, scorer:NAME (or scorer:NAME=JSON), or text:WORDS.",
)
@click.option(
    "--at-least", type=float, default=0.5, show_default=True, help="Score from which on scorer:NAME shows it."
)
@click.option(
    "--purpose",
    type=click.Choice(["train", "eval", "serve"]),
    default="train",
    show_default=True,
    help="Purpose of the tasks whose answers count.",
)
@click.option(
    "--least-rise",
    type=click.FloatRange(min=0, max=1, min_open=True),
    default=0.1,
    show_default=True,
    help="Smallest rise in share that matters.",
)
@click.option(
    "--without",
    "leave_out",
    type=click.IntRange(min=1),
    default=10,
    show_default=True,
    help="Groups that the counterfactual is trained without.",
)
@click.option(
    "--max-tokens",
    type=click.IntRange(min=0),
    default=None,
    help="Maximum tokens to sample; 0: use the log alone.  [default: asked for, on a terminal]",
)
@click.option("--no-train", is_flag=True, help="Leave the counterfactual out.")
@click.option("--yes", is_flag=True, help="Sample and train without asking.")
@click.option(
    "--plot",
    type=click.Path(path_type=Path, dir_okay=False),
    default=PLOT,
    show_default=True,
    metavar="FILE",
    help="Picture, .png or .svg.",
)
@source_option
@json_option
@click.pass_context
@pass_call
def bisect(call: AppContext, ctx: click.Context, /, output: str, source: Source, **chosen: Any) -> None:
    """Find the version since which a policy behaves in some way.

    Compares the recorded answers of the versions between --good and --bad, and asks versions again whose answers do not
    suffice, within --max-tokens. Then it ranks the batches and groups before that version by what they taught, trains
    the version again without the worst groups, and asks it the same questions. The log is only read.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # as for `reproduce`; read when torch is loaded
    from plugins.bisect.behaviour import Behaviour
    from plugins.bisect.bisection import Bisection, BisectRequest
    from streams.tools.replay.replay_context import Stopped

    settings, plot = call.settings, _plot_file(chosen["plot"])
    request = BisectRequest(
        policy=chosen["policy"] or settings.policy.name,
        good=chosen["good"],
        bad=chosen["bad"],
        behaviour=Behaviour.parse(chosen["when"], chosen["at_least"]),
        purpose=chosen["purpose"],
        least_rise=chosen["least_rise"],
        leave_out=chosen["leave_out"],
        source=source,
    )
    settings = settings.model_copy(update={"policy": settings.policy.model_copy(update={"name": request.policy})})
    try:
        with until_stopped() as stop, progress() as report:
            work = Bisection(settings=settings, request=request, stop=stop, say=_say, report=report)
    except Stopped:
        ctx.exit(INTERRUPTED)
    try:
        trains = not chosen["no_train"]
        budget = _budget(work, chosen["max_tokens"], trains=trains, sure=chosen["yes"])
        with until_stopped() as stop, progress() as work.report, importing():
            work.stop = stop
            _work(work, budget, trains=trains)
    except Stopped:
        click.echo("Stopped. The samples are not kept.", err=True)
        ctx.exit(INTERRUPTED)
    finally:
        work.close()
    _print(work, plot, output)


def _plot_file(path: Path) -> Path:
    from streams.errors import SettingsError

    if path.suffix not in (".png", ".svg"):
        raise SettingsError(f"--plot {path}: expected a name that ends with .png or .svg")
    return path


def _budget(work: Bisection, max_tokens: int | None, *, trains: bool, sure: bool) -> int:
    """Return how many tokens may be sampled, asked for on a terminal."""
    estimate = work.estimate(trains=trains)
    if not estimate or max_tokens == 0:
        return 0
    for text in _needs(work, trains=trains):
        _say(text)
    _say(f"that takes about {estimate:,} tokens")
    if max_tokens is None:
        if not sys.stdin.isatty():
            _say("nothing is sampled: give --max-tokens")
            return 0
        max_tokens = click.prompt("Maximum tokens to sample", type=click.IntRange(min=0), default=estimate, err=True)
    elif not sure and sys.stdin.isatty() and not click.confirm(f"Sample at most {max_tokens:,}?", err=True):
        return 0
    return max_tokens


def _needs(work: Bisection, *, trains: bool) -> list[str]:
    """Return what would be sampled, a sentence each."""
    needs = []
    if work.too_few:
        numbers = ", ".join(map(str, work.too_few))
        needs.append(f"version {numbers}: too few answers in the log; would be asked {len(work.questions)} questions")
    if trains:
        needs.append("the counterfactual would be asked the same questions as the turning version and the good one")
    return needs


def _work(work: Bisection, budget: int, *, trains: bool) -> None:
    from plugins.bisect.bisection import FOR_SEARCH

    work.sample(int(budget * FOR_SEARCH) if trains else budget)
    work.rank()
    if trains:
        work.try_without(budget - work.tokens)


def _say(text: str) -> None:
    click.echo(text, err=True)


def _print(work: Bisection, plot: Path, output: str) -> None:
    from plugins.bisect import bisect_report
    from streams import output as show

    bisect_report.plot(work, plot)
    if output == "json":
        print(show.json_line(bisect_report.plain(work) | {"plot": str(plot)}))
        return
    bisect_report.print_tables(work)
    print(f"\nPlot: {plot}")
