"""Text of an answer as it comes, of which nothing leaves that belongs to a finding of a verdict of block.

    text so far ──► scanned up to where it is certain ──► may leave: all but the last `hold_back` characters
                                 ├── a finding that is redacted ──► its name leaves instead
                                 └── a finding with verdict block ──► up to its start, and no further

A finding is certain once MARGIN characters follow it: fewer could still make it something else, as digits that make a
card an order number. Of a finding of at most `hold_back` characters no character leaves; a longer one may
have begun to.

Not covered: rules that need more than MARGIN characters before them to see that they do not hold.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from plugins.guardrails.scanner import Finding, Scanner
from streams.stages.agents.recording.call_guard import ReleasedText

MARGIN = 64
"""Characters around a finding on which it may depend."""
STEP = 48
"""New characters after which the text is scanned again."""


class ReleaseWindow:
    """How much of a text may leave."""

    def __init__(self, scanner: Scanner, hold_back: int) -> None:
        self._scanner, self._hold_back = scanner, hold_back
        self.length = 0
        """Characters of the text that were decided about, and left or were replaced."""
        self.withheld: Finding | None = None
        """The finding before which the text ends."""
        self.redacted: Finding | None = None
        """The first finding that was replaced."""
        self._text, self._unchanged = "", 0
        self._scanned = 0
        """Length of the text when it was last scanned."""

    @property
    def text_out(self) -> ReleasedText:
        """The text that has left."""
        return ReleasedText(self._text, self.length if self.redacted is None else self._unchanged)

    def release(self, text: str, *, is_whole: bool = False) -> ReleasedText:
        """Return what may leave of the text so far. After `withheld` it stays so."""
        if self.withheld is not None or (not is_whole and len(text) < self._scanned + STEP):
            return self.text_out
        self._scanned = len(text)
        start = max(0, self.length - MARGIN)
        certain = len(text) if is_whole else max(0, len(text) - MARGIN)
        limit = len(text) if is_whole else len(text) - self._hold_back - MARGIN
        places = (
            (begin + start, end + start, finding) for begin, end, finding in stops(self._scanner.scan(text[start:]))
        )
        for begin, end, finding in sorted(places, key=lambda place: place[:2]):
            if end <= self.length and begin < self.length:
                continue
            if end > certain:
                limit = min(limit, begin)
                break
            self.pass_on(text, begin)
            if finding.verdict == "block":
                self.withheld = finding
                return self.text_out
            self._replace(begin, end, finding)
        return self.pass_on(text, limit)

    def pass_on(self, text: str, length: int) -> ReleasedText:
        """Let a text leave up to a length, and return what has left."""
        if length > self.length:
            self._text += text[self.length : length]
            self.length = length
        return self.text_out

    def _replace(self, begin: int, end: int, finding: Finding) -> None:
        if self.redacted is None:
            self.redacted, self._unchanged = finding, self.length
        if begin >= self.length:
            self._text += f"[{finding.name}]"
        self.length = max(self.length, end)


def stops(findings: Sequence[Finding]) -> Iterator[tuple[int, int, Finding]]:
    """Yield each place of a finding that does not leave: with verdict block, or redacted."""
    for finding in findings:
        if finding.verdict == "block" or finding.is_redacted:
            yield from ((start, end, finding) for start, end in finding.spans)
