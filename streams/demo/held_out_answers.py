"""What the newest version answers wrongly, most often first, where held-out scores get no better.

responses, groups of held-out questions ──► those of the newest version ──► 7 × 2019-12-06, 3 × 2019-12-03
"""

from __future__ import annotations

from collections import Counter

from schemas.events import AdvantagedGroup, Response
from streams.evaluation.diagnosis import RIGHT

SHOWN = 3


class HeldOutAnswers:
    """Answers of the newest version, and the rewards of those to held-out questions."""

    def __init__(self) -> None:
        self._texts_of = self._rewards_of = -1
        self._texts: dict[str, str] = {}
        self._rewards: dict[str, float] = {}

    def take_response(self, response: Response) -> None:
        """Add a response to any question."""
        if response.adapter_version > self._texts_of:
            self._texts_of, self._texts = response.adapter_version, {}
        if response.adapter_version == self._texts_of:
            self._texts[response.response_id] = response.text

    def take_group(self, group: AdvantagedGroup) -> None:
        """Add the group of a held-out question; it may come before its responses."""
        if group.adapter_version > self._rewards_of:
            self._rewards_of, self._rewards = group.adapter_version, {}
        if group.adapter_version == self._rewards_of:
            self._rewards |= {response.response_id: response.reward for response in group.responses}

    def commonest_wrong(self) -> list[tuple[str, int]]:
        """Return the newest version's commonest wrong answers, and how often each was given: at least twice."""
        wrong = (answer for answer, reward in self._rewards.items() if reward < RIGHT and answer in self._texts)
        texts = Counter(self._texts[answer].strip() for answer in wrong)
        return [(text, count) for text, count in texts.most_common(SHOWN) if count > 1]
