"""Whether held-out scores get better over versions: beyond chance since which, flat since which, in a sentence.

share of right answers and the lower end of its interval, by version ──► better_since, flat_since ──► trend_text
"""

from __future__ import annotations

from collections.abc import Mapping

FLAT_LOOKS = 2
"""After this many looks without a better score, held-out scores are flat."""
Scores = Mapping[int, tuple[float, float]]


def better_since(scores: Scores) -> int | None:
    """Return the first version from which on all are better than the first one, beyond chance; None if none is.

    >>> better_since({0: (0.0, 0.0), 4: (0.1, 0.0), 8: (0.45, 0.26), 12: (0.4, 0.22)})
    8
    """
    versions = sorted(scores)
    since = None
    for version in reversed(versions[1:]):
        if scores[version][1] <= scores[versions[0]][0]:
            break
        since = version
    return since


def flat_since(scores: Scores) -> int | None:
    """Return the version since which no later one is better beyond chance; None while scores rise.

    >>> flat_since({0: (0.0, 0.0), 4: (0.4, 0.22), 8: (0.45, 0.26), 12: (0.4, 0.22)})
    4
    >>> flat_since({0: (0.0, 0.0), 4: (0.4, 0.22), 8: (0.9, 0.7)}) is None
    True
    """
    versions = sorted(scores)
    for place, version in enumerate(versions[:-FLAT_LOOKS]):
        share, _ = scores[version]
        if all(scores[later][1] <= share for later in versions[place + 1 :]):
            return version
    return None


def trend_text(scores: Scores) -> str:
    """Return how held-out scores went; empty for less than two versions.

    >>> trend_text({0: (0.0, 0.0), 4: (0.5, 0.3), 8: (0.97, 0.85), 12: (0.97, 0.85), 16: (0.96, 0.84)})
    'held-out 0.00 → 0.96, beyond chance since v4, flat since v8'
    >>> trend_text({0: (0.3, 0.1), 2: (0.35, 0.15)})
    'held-out 0.30 → 0.35, not better beyond chance'
    """
    if len(scores) < 2:
        return ""
    versions = sorted(scores)
    better, flat = better_since(scores), flat_since(scores)
    parts = [f"held-out {scores[versions[0]][0]:.2f} → {scores[versions[-1]][0]:.2f}"]
    parts.append("not better beyond chance" if better is None else f"beyond chance since v{better}")
    return ", ".join([*parts, *([f"flat since v{flat}"] if flat is not None else [])])
