"""How often the canary's test is wrong, and how soon it is right, in simulation.

    python -m tests.benchmarks.sequential [--runs N] [--write]

    rewards of two arms, drawn ──► look after every group ──► how often the verdict is false, and how late a true one is

Beside it a t-test (Welch's, 5%) that looks as often, after the same minimum of groups. The runs of a case go side by
side in numpy, with the formula of sequential.py written down a second time; tests/unit/test_sequential.py
compares the two. `--write` puts the tables into docs/rollout.md and draws docs/canary.png.

Not covered: rewards that depend on each other from group to group.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from streams.evaluation.sequential import BURN_IN, NO_SPREAD, boundary

DOCS = Path(__file__).parents[2] / "docs"
PAGE, PLOT = DOCS / "rollout.md", DOCS / "canary.png"
RAMP = (0.05, 0.25, 0.5)
"""The shares of the default steps at which both arms answer."""
ALPHA, STEP_GROUPS, MAX_GROUPS, MAX_LOOKS, SEED = 0.05, 20, 2000, 10_000, 20261122

Floats = NDArray[np.float64]
Draw = Callable[[np.random.Generator, NDArray[np.intp], float], Floats]
"""Rewards for these arms (0 candidate, 1 primary), at this share of the run."""


class Case(NamedTuple):
    """What is drawn, and how the groups are split."""

    name: str
    draw: Draw
    shares: tuple[float, ...] = (0.5,)


class Verdicts(NamedTuple):
    """By run: 1 candidate above, -1 below, 0 none; and how many groups of each arm it took."""

    verdict: NDArray[np.int8]
    candidate: Floats
    groups: Floats


class Arms:
    """Count, mean and spread by run, arm and step."""

    def __init__(self, runs: int, steps: int) -> None:
        self.n, self.mean, self.spread = np.zeros((3, runs, 2, steps))

    def add(self, arm: NDArray[np.intp], step: NDArray[np.intp], value: Floats) -> None:
        """Add one group to each run."""
        at = (np.arange(len(arm)), arm, step)
        away = value - self.mean[at]
        self.n[at] += 1
        self.mean[at] += away / self.n[at]
        self.spread[at] += away * (value - self.mean[at])

    def keep(self, runs: NDArray[np.bool_]) -> None:
        """Forget the other runs."""
        self.n, self.mean, self.spread = self.n[runs], self.mean[runs], self.spread[runs]


def always_valid(arms: Arms, alpha: float) -> tuple[Floats, Floats]:
    """Return low and high by run: streams.evaluation.sequential.interval, a second time."""
    with np.errstate(divide="ignore", invalid="ignore"):
        both = (arms.n > 0).all(axis=1)
        n = np.where(both[:, None], arms.n, 0.0)
        (n_c, n_p), difference = n.transpose(1, 0, 2), arms.mean[:, 0] - arms.mean[:, 1]
        spread = np.where(both[:, None], arms.spread, 0.0)
        between = np.where(both, n_c * n_p / (n_c + n_p) * difference**2, 0.0)
        groups = n.sum((1, 2))
        common = (spread.sum((1, 2)) + between.sum(1)) / (groups - both.sum(1))
        size = (n * arms.mean**2).sum((1, 2)) / groups
        free = np.maximum(n.sum(2) - both.sum(1)[:, None], 1)
        variance = np.maximum(common[:, None], spread.sum(2) / free)
        weight = np.where(both, 1 / (variance[:, :1] / n_c + variance[:, 1:] / n_p), 0.0)
        total = weight.sum(1)
        estimate = np.where(both, weight * difference, 0.0).sum(1) / total
        time = common * total
        rho = _rho(alpha)
        margin = np.sqrt(common) / time * np.sqrt((time + rho) * np.log((time + rho) / (rho * alpha**2)))
        silent = (n.sum(2).min(1) < BURN_IN) | ~(common > NO_SPREAD**2 * size)
    return np.where(silent, -np.inf, estimate - margin), np.where(silent, np.inf, estimate + margin)


def _rho(alpha: float) -> float:
    """Return rho from the boundary at time 0, which is sqrt(rho ln(1 / alpha^2))."""
    return boundary(0.0, alpha) ** 2 / np.log(1 / alpha**2)


def peeking_t(arms: Arms, alpha: float) -> tuple[Floats, Floats]:
    """Return low and high of an interval made for one look; 1.96 is what Welch's t tends to."""
    assert alpha == ALPHA
    n = np.maximum(arms.n.sum(2), 2)
    mean = (arms.n * arms.mean).sum(2) / n
    spread = (arms.spread + arms.n * (arms.mean - mean[:, :, None]) ** 2).sum(2)
    error = np.sqrt((spread / (n - 1) / n).sum(1))
    difference = mean[:, 0] - mean[:, 1]
    with np.errstate(invalid="ignore"):
        silent = ~(error > 0)
    return np.where(silent, -np.inf, difference - 1.96 * error), np.where(silent, np.inf, difference + 1.96 * error)


def simulate(
    case: Case,
    rule: Callable[[Arms, float], tuple[Floats, Floats]],
    *,
    runs: int,
    max_groups: int = MAX_GROUPS,
    alpha: float = ALPHA,
    step_groups: int = STEP_GROUPS,
    seed: int = SEED,
) -> Verdicts:
    """Return what each run came to when it was looked at after every group.

    It ends at `max_groups` of the candidate, or at MAX_LOOKS groups in all.
    """
    rng = np.random.default_rng(seed)
    shares = np.array(case.shares)
    arms, step, alive = Arms(runs, len(shares)), np.zeros(runs, dtype=np.intp), np.arange(runs)
    result = Verdicts(np.zeros(runs, np.int8), np.full(runs, np.nan), np.full(runs, np.nan))
    expected = min(sum(step_groups / share for share in shares[:-1]) + max_groups / shares[-1], MAX_LOOKS)
    looks = 0
    while len(alive):
        looks += 1
        arm = (rng.random(len(alive)) >= shares[step]).astype(np.intp)
        arms.add(arm, step, case.draw(rng, arm, min(looks / expected, 1.0)))
        low, high = rule(arms, alpha)
        n = arms.n.sum(2)
        may_speak = n.min(1) >= step_groups
        verdict = np.where(may_speak & (low > 0), 1, np.where(may_speak & (high < 0), -1, 0)).astype(np.int8)
        full = arms.n[np.arange(len(alive)), :, step].min(1) >= step_groups
        step = np.minimum(step + full, len(shares) - 1)
        over = (verdict != 0) | (n[:, 0] >= max_groups) | (looks == MAX_LOOKS)
        if over.any():
            result.verdict[alive[over]] = verdict[over]
            result.candidate[alive[over]], result.groups[alive[over]] = n[over, 0], n[over].sum(1)
            arms.keep(~over)
            step, alive = step[~over], alive[~over]
    return result


# --- the cases --------------------------------------------------------------------------------------------------------


def normal(effect: float = 0.0, *, candidate_sd: float = 1.0, rise: float = 0.0) -> Draw:
    """Rewards around 0, `effect` more for the candidate; both rise by `rise` during the run."""

    def draw(rng: np.random.Generator, arm: NDArray[np.intp], at: float) -> Floats:
        sd = np.where(arm == 0, candidate_sd, 1.0)
        return rng.normal(np.where(arm == 0, effect, 0.0) + rise * at, sd)

    return draw


def hits(chance: float, *, of: int = 1, effect: float = 0.0) -> Draw:
    """The share of `of` responses that are right."""

    def draw(rng: np.random.Generator, arm: NDArray[np.intp], at: float) -> Floats:
        return rng.binomial(of, np.where(arm == 0, chance + effect, chance)) / of

    return draw


def skewed(sign: float) -> Draw:
    """Log-normal rewards, most of them small and a few very large; with sign -1 a few very bad."""

    def draw(rng: np.random.Generator, arm: NDArray[np.intp], at: float) -> Floats:
        return sign * rng.lognormal(0.0, 1.0, len(arm))

    return draw


def bounded(rng: np.random.Generator, arm: NDArray[np.intp], at: float) -> Floats:
    """Rewards in [0, 1], most of them near one end."""
    return rng.beta(0.3, 0.3, len(arm))


def constant(rng: np.random.Generator, arm: NDArray[np.intp], at: float) -> Floats:
    """The same reward every time, as far as floating point has it."""
    return np.where(rng.random(len(arm)) < 0.5, 0.1, 0.1 * 3 / 3)


def null_cases() -> Iterator[Case]:
    """Yield cases without any difference between the arms."""
    kinds: list[tuple[str, Draw]] = [
        ("normal", normal()),
        ("bounded, U-shaped", bounded),
        ("1 of 1 right, p = 0.5", hits(0.5)),
        ("1 of 1 right, p = 0.02", hits(0.02)),
        ("1 of 1 right, p = 0.98", hits(0.98)),
        ("share of 8 right, p = 0.3", hits(0.3, of=8)),
        ("log-normal, a few very good", skewed(1.0)),
        ("log-normal, a few very bad", skewed(-1.0)),
        ("candidate spreads 3 times as wide", normal(candidate_sd=3.0)),
        ("constant", constant),
    ]
    for name, draw in kinds:
        yield Case(name, draw, (0.5,))
        yield Case(name, draw, (0.05,))
        yield Case(name, draw, RAMP)
    yield Case("normal, both arms rise by 3 sd on the way", normal(rise=3.0), RAMP)
    yield Case("normal, both arms fall by 3 sd on the way", normal(rise=-3.0), RAMP)


EFFECTS = (0.1, 0.2, 0.3, 0.5, 1.0, -0.3)


# --- the document -----------------------------------------------------------------------------------------------------


def _split(shares: Sequence[float]) -> str:
    return " → ".join(f"{share:.0%}" for share in shares)


def false_table(runs: int) -> list[list[str]]:
    """Return the rows: case, split, and the shares of runs falsely promoted and rejected, ours and the t-test's."""
    rows = []
    for case in null_cases():
        ours = simulate(case, always_valid, runs=runs)
        naive = simulate(case, peeking_t, runs=max(runs // 4, 1))
        share = [float(np.mean(found.verdict == side)) for found in (ours, naive) for side in (1, -1)]
        rows.append([case.name, _split(case.shares), *(f"{one:.2%}" for one in share)])
        print(" | ".join(rows[-1]), file=sys.stderr, flush=True)
    return rows


def power_table(runs: int) -> list[list[str]]:
    """Return the rows: effect, share of runs promoted, rejected, undecided, and groups until the verdict."""
    rows = []
    cases = [(f"{effect:+g} sd", normal(effect)) for effect in EFFECTS]
    cases += [("0.5 → 0.6, 1 of 1 right", hits(0.5, effect=0.1)), ("0.3 → 0.4, of 8", hits(0.3, of=8, effect=0.1))]
    for name, draw in cases:
        found = simulate(Case(name, draw, RAMP), always_valid, runs=runs)
        spoken = found.verdict != 0
        rows.append(
            [
                name,
                *(f"{float(np.mean(found.verdict == side)):.1%}" for side in (1, -1, 0)),
                f"{float(np.mean(found.candidate[spoken])):.0f}" if spoken.any() else "",
                f"{float(np.mean(found.groups[spoken])):.0f}" if spoken.any() else "",
                _one_look(name),
            ]
        )
        print(" | ".join(rows[-1]), file=sys.stderr, flush=True)
    return rows


def _one_look(name: str) -> str:
    """Return the groups of each arm at which one look, 5% two-sided, finds the effect 80 times of 100."""
    size = {"0.5 → 0.6, 1 of 1 right": 0.1 / 0.495, "0.3 → 0.4, of 8": 0.1 / (0.4743 / 8**0.5)}.get(name)
    size = size or abs(float(name.removesuffix(" sd")))
    return f"{2 * ((1.96 + 0.8416) / size) ** 2:.0f}"


def plot(path: Path) -> None:
    """Draw false promotions by look, and one canary's interval."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.6), layout="constrained")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2)
    for rule, name, colour in ((peeking_t, "t-test that peeks", "#b4532a"), (always_valid, "ours", "#1f7a4d")):
        found = simulate(Case("", normal()), rule, runs=2000)
        at = np.sort(found.groups[found.verdict != 0])
        left.step(at, np.arange(1, len(at) + 1) / 2000, where="post", color=colour, label=name)
    left.axhline(ALPHA, color="#9aa5b1", linestyle=":", label="alpha")
    left.set(
        xlabel="groups so far, both arms", ylabel="runs with a false verdict", title="No difference, a look each group"
    )
    left.set(xlim=(0, 4000), ylim=(0, None))
    low, middle, high = one_run(normal(0.3), groups=600)
    ticks = np.arange(1, len(low) + 1)
    right.fill_between(ticks, low, high, color="#1f7a4d", alpha=0.2, linewidth=0)
    right.plot(ticks, middle, color="#1f7a4d", label="difference and its interval")
    right.axhline(0.0, color="#9aa5b1", linestyle=":")
    right.axhline(0.3, color="#1f7a4d", linestyle="--", linewidth=1, label="truth")
    right.set(xlabel="groups so far, both arms", ylabel="sd", title="One canary", ylim=(-1.2, 1.8))
    for axes in (left, right):
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False)
    figure.savefig(path, dpi=120)


def one_run(draw: Draw, *, groups: int) -> tuple[Floats, Floats, Floats]:
    """Return low, middle and high of one even split by look."""
    rng, arms, found = np.random.default_rng(SEED), Arms(1, 1), np.full((3, groups), np.nan)
    for look in range(groups):
        arm = (rng.random(1) >= 0.5).astype(np.intp)
        arms.add(arm, np.zeros(1, dtype=np.intp), draw(rng, arm, 0.0))
        low, high = always_valid(arms, ALPHA)
        if np.isfinite(low[0]):
            found[:, look] = low[0], (low[0] + high[0]) / 2, high[0]
    return found[0], found[1], found[2]


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table, figures to the right."""
    rule = ["---", *("---:" for _ in header[1:])]
    return "\n".join(f"| {' | '.join(row)} |" for row in (header, rule, *rows))


def put(page: str, marker: str, text: str) -> str:
    """Return the page with `text` between its two markers. Raises ValueError without them."""
    begin, end = f"<!-- {marker}:begin -->", f"<!-- {marker}:end -->"
    before, rest = page.split(begin)
    return f"{before}{begin}\n{text}\n{end}{rest.split(end)[1]}"


def main(arguments: list[str]) -> int:
    """Run the simulation."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.sequential", description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=2000, help="of each case; the t-test has a quarter")
    parser.add_argument("--write", action="store_true", help=f"into docs/{PAGE.name} and docs/{PLOT.name}")
    given = parser.parse_args(arguments)
    false = table(
        ["rewards", "share", "promoted", "rejected", "t-test promoted", "t-test rejected"], false_table(given.runs)
    )
    power = table(
        ["effect", "promoted", "rejected", "undecided", "candidate groups", "all groups", "one look, each arm"],
        power_table(given.runs),
    )
    print(f"{false}\n\n{power}")
    if given.write:
        page = put(put(PAGE.read_text(encoding="utf-8"), "false", false), "power", power)
        PAGE.write_text(page, encoding="utf-8")
        plot(PLOT)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
