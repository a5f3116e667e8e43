"""Text of an answer as it comes, of which nothing leaves that belongs to a finding of a verdict of block.

    text so far ──► scanned up to where it is certain ──► may leave: all but the last `hold_back` characters
                                 └── a finding with verdict block ──► up to its start, and no further

A finding is certain once MARGIN characters follow it: fewer could still make it something else, as digits that make a
card an order number. Of a finding of at most `hold_back` characters no character leaves; a longer one may
have begun to.

Not covered: rules that need more than MARGIN characters before them to see that they do not hold.
"""

from __future__ import annotations

from collections.abc import Sequence

from plugins.guardrails.scanner import Finding, Scanner

MARGIN = 64
"""Characters around a finding on which it may depend."""
STEP = 48
"""New characters after which the text is scanned again."""


class ReleaseWindow:
    """How much of a text may leave."""

    def __init__(self, scanner: Scanner, hold_back: int) -> None:
        self._scanner, self._hold_back = scanner, hold_back
        self.length = 0
        """Characters that may leave."""
        self.withheld: Finding | None = None
        """The finding before which the text ends."""
        self._scanned = 0
        """Length of the text when it was last scanned."""

    def release(self, text: str, *, is_whole: bool = False) -> int:
        """Return how many characters of the text so far may leave. After `withheld` it stays so."""
        if self.withheld is not None or (not is_whole and len(text) < self._scanned + STEP):
            return self.length
        self._scanned = len(text)
        start = max(0, self.length - MARGIN)
        findings = self._scanner.scan(text[start:])
        certain = len(text) if is_whole else max(0, len(text) - MARGIN)
        blocked = [(begin + start, end + start, finding) for begin, end, finding in blocks(findings)]
        blocked = [entry for entry in blocked if entry[1] > self.length or entry[0] >= self.length]
        final = [entry for entry in blocked if entry[1] <= certain]
        if final:
            begin, _, self.withheld = min(final, key=lambda entry: entry[0])
            self.length = max(self.length, begin)
            return self.length
        limit = len(text) if is_whole else len(text) - self._hold_back - MARGIN
        self.length = max(self.length, min([limit, *(begin for begin, _, _ in blocked)]))
        return self.length


def blocks(findings: Sequence[Finding]) -> list[tuple[int, int, Finding]]:
    """Return each place of a finding with verdict block."""
    return [(start, end, finding) for finding in findings if finding.verdict == "block" for start, end in finding.spans]
