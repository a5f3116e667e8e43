"""Scorers: functions that give a response its reward.

    exact  numeric  regex  format  length      only the text                      (text)
    math                                       formulas, by math-verify           (mathematics)
    mix                                        a weighted sum of others           (registry)
    reasoning-gym                              a dataset's own verifier           (gym)
    judge                                      a language model behind an API     (judge)
    ranking_judge                              the same, for a whole group        (ranking_judge)
    module:function                            yours, marked with `entry_point`   (worker, sandbox)

A scorer is a named function `(task, response, settings) -> Verdict` with a version. `Scorers` runs each in its place
(inline, in a worker process, over HTTP) and always returns a `ScoreOutcome`.
"""

from streams.scorers.execution import ScoreOutcome, Scorers
from streams.scorers.registry import SCORERS, find, named_sources, parts, source_problems
from streams.scorers.verdict import ScoreError, Verdict, entry_point

__all__ = [
    "SCORERS",
    "ScoreError",
    "ScoreOutcome",
    "Scorers",
    "Verdict",
    "entry_point",
    "find",
    "named_sources",
    "parts",
    "source_problems",
]
