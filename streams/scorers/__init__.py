"""Scorers: who judges a response.

    exact  numeric  regex  format  length      the text itself                    (text)
    mix                                        a weighted sum of others           (registry)
    reasoning-gym                              a dataset's own verifier           (gym)
    judge                                      a language model behind an API     (judge)
    module:function                            yours, marked with `entry_point`   (worker, sandbox)

A scorer is a named function `(task, response, settings) -> Verdict` with a version. `Scorers` runs any of them where it
belongs and always gives an `Outcome`.

Not covered: when to score, and what to do with the outcome. That is the scoring agent's business.
"""

from streams.scorers.execution import ScoreOutcome, Scorers
from streams.scorers.registry import SCORERS, find, parts, source_problems
from streams.scorers.verdict import ScoreError, Verdict, entry_point

__all__ = [
    "SCORERS",
    "ScoreError",
    "ScoreOutcome",
    "Scorers",
    "Verdict",
    "entry_point",
    "find",
    "parts",
    "source_problems",
]
