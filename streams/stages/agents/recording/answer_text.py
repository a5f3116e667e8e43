"""The text of an answer while it is sampled, without what may not be shown yet.

    tokens ──► text, whole characters only ──► less a possible stop text, less a possible tool call ──► Delta

What was shown is never taken back: text that may turn out to be the beginning of a stop text, or of a tool call's
markup, waits for the tokens that decide it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

BROKEN = "\ufffd"


class AnswerText:
    """Grows by the tokens that have come."""

    def __init__(self, text_of: Callable[[Sequence[int]], str], stop: Sequence[str], markers: Sequence[str]) -> None:
        """`text_of` decodes tokens; `markers` are how a tool call may begin, if the answer may hold any."""
        self._text_of, self._stop, self._markers = text_of, [text for text in stop if text], tuple(markers)
        self._tokens: list[int] = []
        self._start = self._read = 0
        self._text = ""
        self._shown = 0

    def push(self, tokens: Iterable[int]) -> str:
        """Return what may be shown now that these tokens are there."""
        self._tokens += tokens
        before = self._text_of(self._tokens[self._start : self._read])
        now = self._text_of(self._tokens[self._start :])
        if not now.endswith(BROKEN):
            self._text += now[len(before) :]
            self._start, self._read = self._read, len(self._tokens)
        return self._show(self._certain())

    def rest(self, whole: str) -> str:
        """Return what was not shown yet of the finished answer."""
        return self._show_of(whole, len(whole))

    def _certain(self) -> int:
        """Return up to where the text is certain to be shown."""
        text, end = self._text, len(self._text)
        for pattern in (*self._stop, *self._markers):
            place = text.find(pattern)
            if place >= 0:
                end = min(end, place)
                continue
            overlap = next((n for n in range(min(len(pattern) - 1, len(text)), 0, -1) if text.endswith(pattern[:n])), 0)
            end = min(end, len(text) - overlap)
        if self._markers:  # spaces before a call are no part of the answer
            end = min(end, len(text[:end].rstrip()))
        return end

    def _show(self, end: int) -> str:
        return self._show_of(self._text, end)

    def _show_of(self, text: str, end: int) -> str:
        shown, self._shown = self._shown, max(self._shown, end)
        return text[shown:end]
