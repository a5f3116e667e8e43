"""Choose a generator's options where a policy succeeds about half of the time.

    groups of a scenario ──► success by cell, p ──► weight 1 - 2 |p - 1/2|, at least `floor` ──► draws of a run

The weight is the reward of a challenger in R-Zero (arXiv:2508.05004). Questions of middling success are also worth most
to GRPO: its gradient scales with the variance of the reward, p (1 - p). Here it only weighs a draw: a generator knows
its own answers, so there is no second model, and no majority label that degrades from round to round.

A cell without an answer counts as one of success 1/2. `floor` keeps the easiest and the hardest cells in the runs:
without it, mastered questions are never asked again, and forgetting goes unseen. At most `most_of_one` of a run comes
from one cell, so that a run is not many copies of one question. Draws are a function of the crossing and the success by
cell in its event; a question that is held out, by the hash of its text, is never drawn.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from plugins.improve.selfplay.catalogue import CurriculumPart
from schemas.events import AdvantagedGroup
from streams.evaluation.results import is_right

CELL, SCENARIO, CATALOGUE = "selfplay_cell", "selfplay_scenario", "selfplay"
"""Metadata of its tasks, which their groups have too."""


@dataclass(frozen=True, slots=True)
class DrawnCell:
    """One draw: options of the generator, and the seed of the task."""

    name: str
    options: Mapping[str, Any]
    seed: int


def cell_name(options: Mapping[str, Any]) -> str:
    """Return what a cell is called in metadata and figures.

    >>> cell_name({"terms": 2, "digits": 1})
    'digits=1,terms=2'
    """
    return ",".join(f"{option}={json.dumps(value)}" for option, value in sorted(options.items()))


def cells_of(part: CurriculumPart) -> dict[str, dict[str, Any]]:
    """Return the options of each cell by its name, in the order of names."""
    combinations = itertools.product(*part.cells.values())
    cells = (dict(zip(part.cells, values, strict=True)) for values in combinations)
    return dict(sorted((cell_name(options), options) for options in cells))


def weights(part: CurriculumPart, success: Mapping[str, float]) -> dict[str, float]:
    """Return the share of each cell in the draws: they add up to 1, and none has more than `most_of_one`."""
    raw = {name: max(part.floor, 1 - 2 * abs(success.get(name, 0.5) - 0.5)) for name in cells_of(part)}
    total = math.fsum(raw.values())
    shares = {name: weight / total for name, weight in raw.items()}
    capped: set[str] = set()
    while exceeding := {name for name, share in shares.items() if share > part.most_of_one * (1 + 1e-12)} - capped:
        capped |= exceeding
        left = 1 - part.most_of_one * len(capped)
        rest = math.fsum(raw[name] for name in raw.keys() - capped)
        shares = {name: part.most_of_one if name in capped else raw[name] * left / rest for name in raw}
    return shares


def draws(part: CurriculumPart, success: Mapping[str, float], key: str, count: int) -> Iterator[DrawnCell]:
    """Yield `count` draws for a run whose event has this id; always the same for the same success."""
    cells, shares = cells_of(part), weights(part, success)
    names = list(shares)
    bounds = list(itertools.accumulate(shares.values()))
    limit, drawn = max(1, math.ceil(part.most_of_one * count)), Counter[str]()
    for number in range(count):
        for attempt in itertools.count():
            digest = hashlib.sha256(f"{key}\x1f{number}\x1f{attempt}".encode()).digest()
            place = int.from_bytes(digest[:8], "big") / 2**64 * bounds[-1]
            name = names[next((index for index, bound in enumerate(bounds) if place < bound), len(names) - 1)]
            if drawn[name] < limit:
                break
        drawn[name] += 1
        yield DrawnCell(name, cells[name], int.from_bytes(digest[8:12], "big") >> 1)


class CellSuccess:
    """The success of a policy by cell: a fold of its groups, of each cell its newest answers."""

    def __init__(self, catalogue: str) -> None:
        self._catalogue = catalogue
        self._answers: defaultdict[tuple[str, str], deque[bool]] = defaultdict(lambda: deque(maxlen=100_000))
        self._groups: set[str] = set()

    def take(self, group: AdvantagedGroup) -> None:
        """Add a group; one that is there twice counts once."""
        metadata = group.metadata
        if metadata.get(CATALOGUE) != self._catalogue or CELL not in metadata or group.group_id in self._groups:
            return
        self._groups.add(group.group_id)
        answers = self._answers[metadata.get(SCENARIO, ""), metadata[CELL]]
        answers.extend(is_right(response) for response in group.responses)

    def by_cell(self, scenario: str, part: CurriculumPart) -> dict[str, float]:
        """Return the success of each cell of a scenario that has answers."""
        newest = {name: list(self._answers.get((scenario, name), ()))[-part.answers :] for name in cells_of(part)}
        return {name: sum(answers) / len(answers) for name, answers in newest.items() if answers}


def as_evidence(scenario: str, success: Mapping[str, float]) -> dict[str, float]:
    """Return success by cell as the event of a run has it."""
    return {f"{scenario}/{name}": share for name, share in success.items()}


def from_evidence(scenario: str, evidence: Mapping[str, float]) -> dict[str, float]:
    """Return what `as_evidence` has written."""
    prefix = f"{scenario}/"
    return {name.removeprefix(prefix): share for name, share in evidence.items() if name.startswith(prefix)}


def success_after(catalogue: str, groups: Iterable[AdvantagedGroup]) -> CellSuccess:
    """Return the success after these groups."""
    success = CellSuccess(catalogue)
    for group in groups:
        success.take(group)
    return success
