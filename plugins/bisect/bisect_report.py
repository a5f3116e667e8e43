"""The result of a bisection: a sentence, tables, a picture, or one JSON object."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from plugins.bisect import taught_groups
from plugins.bisect.bisection import Bisection
from plugins.bisect.version_search import rows
from streams.evaluation.sequential import ConfidenceSequence

TABLE_GROUPS = 10
"""Groups in the table."""


def sentence(bisection: Bisection) -> str:
    """Return the result in words."""
    request, turning = bisection.request, bisection.search.turning
    subject = f"policy {request.policy} shows {request.behaviour.text}"
    if turning is None:
        difference = bisection.search.difference(request.bad)
        seen = f"version {request.bad} shows it in {_share(bisection, request.bad)}, version {request.good} in "
        seen += _share(bisection, request.good)
        if bisection.too_few:
            span = "" if difference is None else f" (difference {_span(difference)})"
            return f"nothing found: {seen}; too few answers to tell them apart{span}; raise --max-tokens"
        return f"nothing found: {seen}; the difference is below {request.least_rise:g}"
    since = f"version {turning.last}" if turning.first == turning.last else f"version {turning.first} to {turning.last}"
    text = (
        f"since {since} {subject} more often: {_share(bisection, turning.last)}, against "
        f"{_share(bisection, request.good)} at version {request.good}"
    )
    if bisection.left_out:
        batches = sorted({group.place.batch for group in bisection.left_out})
        text += f"; {len(bisection.left_out)} groups of batch {', '.join(map(str, batches))} taught it most"
    return text + _outcome(bisection)


def _outcome(bisection: Bisection) -> str:
    trial = bisection.counterfactual
    if trial is None:
        return "" if bisection.why_none is None else f"; no counterfactual: {bisection.why_none}"
    share = f"{trial.showing / max(1, trial.answers):.0%} of {trial.answers} answers"
    ends = {
        "gone": "it is gone",
        "less": "it is less, and not gone",
        "remains": "it remains",
        "open": "too few answers to tell",
    }
    return f"; trained again without them it shows it in {share}: {ends[trial.outcome]}"


def _share(bisection: Bisection, version: int) -> str:
    showing, answers = bisection.search.shares.counts(version)
    return f"{showing / answers:.0%} of {answers} answers" if answers else "no answer"


def _span(difference: ConfidenceSequence) -> str:
    return f"{difference.low:.2f} to {difference.high:.2f}"


def plain(bisection: Bisection) -> dict[str, Any]:
    """Return the whole result as JSON has it."""
    request, turning, trial = bisection.request, bisection.search.turning, bisection.counterfactual
    left_out = {group.place for group in bisection.left_out}
    return {
        "policy": request.policy,
        "good": request.good,
        "bad": request.bad,
        "when": request.behaviour.text,
        "sentence": sentence(bisection),
        "first_version": turning and turning.first,
        "last_version": turning and turning.last,
        "versions": rows(bisection.search),
        "batches": [asdict(batch) for batch in taught_groups.by_batch(bisection.groups)],
        "groups": [
            group.place._asdict()
            | {"showing": group.showing, "responses": group.responses, "taught": group.taught}
            | {"left_out": group.place in left_out}
            for group in bisection.groups
        ],
        "counterfactual": None
        if trial is None
        else {
            "from_version": trial.start,
            "answers": trial.answers,
            "share": trial.showing / max(1, trial.answers),
            "to_turning": trial.to_turning and trial.to_turning._asdict(),
            "to_good": trial.to_good and trial.to_good._asdict(),
            "outcome": trial.outcome,
        },
        "no_counterfactual": bisection.why_none,
        "sampled_tokens": bisection.tokens,
    }


def print_tables(bisection: Bisection) -> None:
    """Print the sentence, the versions, the batches before the turning point, and the groups that taught most."""
    from streams import output as show

    print(show.printable(sentence(bisection)))
    print()
    columns = show.columns(">version, >answers, >share, difference, finding")
    versions = [row | {"difference": _difference(row)} for row in rows(bisection.search)]
    show.rows([_with_short_numbers(row) for row in versions], columns, "table")
    if not bisection.groups:
        return
    print()
    batches = [asdict(batch) for batch in taught_groups.by_batch(bisection.groups)]
    show.rows(
        [_with_short_numbers(row) for row in batches],
        show.columns(">version, >batch, >groups, >showing, >responses, >taught"),
        "table",
    )
    print()
    groups = [
        {**group.place._asdict(), "showing": f"{group.showing} of {group.responses}", "taught": group.taught}
        for group in (bisection.left_out or bisection.groups)[:TABLE_GROUPS]
    ]
    show.rows(
        [_with_short_numbers(row) for row in groups],
        show.columns("group=group_id, task=task_id, >version, >batch, >showing, >taught"),
        "table",
    )


def _difference(row: dict[str, Any]) -> str | None:
    return None if row["low"] is None else f"{row['low']:+.2f} to {row['high']:+.2f}"


def _with_short_numbers(row: dict[str, Any]) -> dict[str, Any]:
    return {name: f"{value:.2f}" if isinstance(value, float) else value for name, value in row.items()}


def plot(bisection: Bisection, path: Path) -> None:
    """Draw the share over versions, the turning point and the counterfactual; the suffix says PNG or SVG."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    figure = Figure(figsize=(7, 4), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    shares = {row["version"]: row["share"] for row in rows(bisection.search) if row["share"] is not None}
    axes.plot([*shares], [*shares.values()], color="#b3261e", marker="o", linewidth=2, label="as trained")
    turning, trial = bisection.search.turning, bisection.counterfactual
    if turning is not None:
        axes.axvspan(turning.first - 0.5, turning.last + 0.5, color="#9aa5b1", alpha=0.3, label="turning point")
        before = turning.first - 1
        if trial is not None and before in shares:
            axes.plot(
                [before, turning.last],
                [shares[before], trial.showing / max(1, trial.answers)],
                color="#1f7a4d",
                marker="s",
                linestyle="--",
                label=f"without {len(bisection.left_out)} groups",
            )
    axes.set(xlabel="adapter version", ylabel="share of answers", ylim=(-0.03, 1.03))
    axes.set_title(bisection.request.behaviour.text[:60], fontsize="medium")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, loc="upper left")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
