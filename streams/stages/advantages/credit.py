"""Credit rules: how much better each turn of a response was than its siblings' turns.

    episodes of a group (rewards and observations, turn by turn) ──► CREDIT[name] ──► an advantage a turn, in order

The rewards of an episode add up to its response's reward, whatever its sources said about single turns, so taking more
turns earns nothing extra. A reward for the whole response belongs to the last turn.

The baseline of turn k uses only siblings, and a sibling that ended earlier counts as 0. So an episode's own actions
from turn k on cannot change its baseline. Normalising only over siblings that have a turn k is biased: the policy could
choose how many terms are subtracted, and "take another turn" would earn the mean of the later turns. `trajectory`, the
default, gives every turn the advantage of its response, and needs no spans.
"""

from __future__ import annotations

import logging
import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import NamedTuple

from schemas.conventions import SOURCE_SHA256
from streams import advantage_formulas, references
from streams.settings.model import Advantages

log = logging.getLogger(__name__)

Turns = list[list[float]]
"""A value for each turn of each episode."""


class Episode(NamedTuple):
    """One response of a group, turn by turn."""

    rewards: Sequence[float]
    """At least one; they add up to the response's reward."""
    observations: Sequence[str | None]
    """Digests of the observation before each turn."""


def returns(rewards: Sequence[float], gamma: float) -> list[float]:
    """Return G_k = r_k + gamma G_{k+1}: the return from each turn on.

    >>> returns([1.0, 0.0, 2.0], 0.5)
    [1.5, 1.0, 2.0]
    """
    values, after = [0.0] * len(rewards), 0.0
    for turn in reversed(range(len(rewards))):
        values[turn] = after = rewards[turn] + gamma * after
    return values


def return_to_go(episodes: Sequence[Episode], rule: Advantages) -> Turns:
    """Return A_ik = G_ik - mean over siblings j of G_jk, with G_jk = 0 where j has ended: rewards still to come.

    The return of Kevin (arXiv:2507.11948) with the leave-one-out baseline of RLOO (arXiv:2402.14740) at each turn.

    >>> rule = Advantages(credit="return_to_go")
    >>> return_to_go([Episode([1.0, 0.0], [None] * 2), Episode([0.0], [None])], rule)
    [[1.0, 0.0], [-1.0]]
    """
    return _against_siblings([returns(episode.rewards, rule.gamma) for episode in episodes])


def gigpo(episodes: Sequence[Episode], rule: Advantages) -> Turns:
    """Return A_ik = A_i + turn_weight (G_ik - mean of G where the same was shown): GiGPO, arXiv:2505.10978.

    A_i is the response's advantage under `formula`, which also compares the returns of the turns that began with the
    same observation, in any episode. A state that only one turn saw adds nothing.

    >>> rule = Advantages(credit="gigpo", formula="dr_grpo")
    >>> gigpo([Episode([0.0, 1.0], ["a", "b"]), Episode([0.0, 0.0], ["a", "c"])], rule)
    [[1.0, 0.5], [-1.0, -0.5]]
    """
    of_whole = _formula([math.fsum(episode.rewards) for episode in episodes], rule)
    credits = [[advantage] * len(episode.rewards) for advantage, episode in zip(of_whole, episodes, strict=True)]
    turns_at: defaultdict[str | None, list[tuple[int, int, float]]] = defaultdict(list)
    for number, episode in enumerate(episodes):
        after = returns(episode.rewards, rule.gamma)
        for turn, observation in enumerate(episode.observations):
            turns_at[observation].append((number, turn, after[turn]))
    for places in turns_at.values():
        if len(places) < 2:
            continue
        for (number, turn, _), value in zip(places, _formula([after for *_, after in places], rule), strict=True):
            credits[number][turn] += rule.turn_weight * value
    return credits


def turn_outcome(episodes: Sequence[Episode], rule: Advantages) -> Turns:
    """Return A_ik = A_i + turn_weight (r_ik - mean over siblings j of r_jk): MT-GRPO, arXiv:2505.11821.

    A_i is the outcome, the reward of the last turn, leave one out; r_ik is another turn's own reward, 0 for the last
    and where a sibling has ended. The last turn is compared, too: it might not have been the last.

    >>> rule = Advantages(credit="turn_outcome")
    >>> turn_outcome([Episode([1.0, 1.0], [None] * 2), Episode([0.0, 0.0], [None] * 2)], rule)
    [[2.0, 1.0], [-2.0, -1.0]]
    """
    outcomes = _against_siblings([[episode.rewards[-1]] for episode in episodes])
    single = _against_siblings([[*episode.rewards[:-1], 0.0] for episode in episodes])
    return [
        [outcome + rule.turn_weight * value for value in turns]
        for (outcome,), turns in zip(outcomes, single, strict=True)
    ]


CreditRule = Callable[[Sequence[Episode], Advantages], Turns]
CREDIT: dict[str, CreditRule] = {
    "return_to_go": return_to_go,
    "gigpo": gigpo,
    "turn_outcome": turn_outcome,
}
"""Rules by their names in `advantages.credit`, except `trajectory`."""
NEEDS_OBSERVATIONS = frozenset({"gigpo"})


class CreditError(Exception):
    """The turns of a group cannot be compared as the rule says; `reason` is why the group is dropped."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


def credit_turns(episodes: Sequence[Episode], rule: Advantages) -> Turns:
    """Return the advantage of each turn under `rule.credit`: a name, or `module:function` with the same signature.

    Raises CreditError, SettingsError if a function of the user's own cannot be imported.
    """
    if rule.credit in CREDIT:
        return CREDIT[rule.credit](episodes, rule)
    function = references.load("advantages.credit", rule.credit)
    try:
        turns = [[float(value) for value in values] for values in function(episodes, rule)]
    except Exception as exc:  # the function is the user's, and may raise anything
        log.warning("%s failed on %s: %s: %s", rule.credit, episodes, type(exc).__name__, exc)
        raise CreditError("credit_failed") from exc
    finite = all(math.isfinite(value) for values in turns for value in values)
    if not finite or [len(values) for values in turns] != [len(episode.rewards) for episode in episodes]:
        log.warning("%s returned %s, expected a finite number for each turn of %s", rule.credit, turns, episodes)
        raise CreditError("credit_failed")
    return turns


@cache
def source_digests(formula: str, credit: str) -> dict[str, str]:
    """Return the sha256 of the files of the user's own rules, as the metadata of a group records them.

    Raises SettingsError if one cannot be imported: call it before the first group.
    """
    chosen = (advantage_formulas.SETTING, formula), ("advantages.credit", credit)
    return {
        key: references.source_digest(setting, name)
        for key, (setting, name) in zip(SOURCE_SHA256, chosen, strict=True)
        if references.is_reference(name)
    }


def _against_siblings(values: Sequence[Sequence[float]]) -> Turns:
    """Return each value without the mean of the other episodes' at the same turn, 0 where they have none."""
    siblings = len(values) - 1
    turns = max(map(len, values))
    totals = [math.fsum(row[turn] for row in values if turn < len(row)) for turn in range(turns)]
    return [[value - (totals[turn] - value) / max(1, siblings) for turn, value in enumerate(row)] for row in values]


def _formula(values: Sequence[float], rule: Advantages) -> Iterator[float]:
    return iter(advantage_formulas.advantages(rule.formula, values, eps=rule.eps, ddof=rule.ddof))
