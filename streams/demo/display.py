"""Show a running loop: a live picture on a terminal, plain lines elsewhere.

    Progress ──► rich panel, drawn four times a second    or    one line at each change that matters

Not covered: the log itself. `streamward events tail` shows records.
"""

from __future__ import annotations

import time
from collections import deque
from types import TracebackType
from typing import Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from streams.demo.progress import PLACES, HeldOut, Progress, waits

BARS = "▁▂▃▄▅▆▇█"
RATE_WINDOW_S = 10.0
PLAIN_EVERY_S = 10.0


class Display:
    """The picture of one run. Use as a context manager."""

    def __init__(self, console: Console, *, steps: int, started_at: float) -> None:
        self._console = console
        self._steps = steps
        self._started_at = started_at
        self._live = Live(console=console, refresh_per_second=4, transient=True) if console.is_terminal else None
        self._samples: deque[tuple[float, int, int]] = deque()
        self._last_plain = 0.0
        self._last_key: tuple[int, int] = (-1, -1)

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        if self._live is not None:
            self._live.stop()

    def say(self, line: str) -> None:
        """Print a line that stays."""
        self._console.print(line, highlight=False, soft_wrap=True)

    def update(self, progress: Progress, memory_bytes: int) -> None:
        """Draw the state of things."""
        now = time.monotonic()
        self._samples.append((now, progress.counts["responses"], progress.counts["groups"]))
        while now - self._samples[0][0] > RATE_WINDOW_S:
            self._samples.popleft()
        if self._live is not None:
            self._live.update(self._picture(progress, now, memory_bytes))
            return
        key = (progress.versions, len(progress.held_out))
        if key != self._last_key or now - self._last_plain > PLAIN_EVERY_S:
            self._last_key, self._last_plain = key, now
            self.say(self._line(progress, now))

    def _rates(self) -> tuple[float, float]:
        (t0, r0, g0), (t1, r1, g1) = self._samples[0], self._samples[-1]
        span = max(t1 - t0, 1e-9)
        return ((r1 - r0) / span, (g1 - g0) / span) if t1 > t0 else (0.0, 0.0)

    def _line(self, progress: Progress, now: float) -> str:
        responses, _ = self._rates()
        latest = _latest(progress.held_out)
        score = "held-out not scored yet" if latest is None else f"held-out {latest.exact:.2f} at v{latest.version}"
        doing = "; ".join(f"{name} {what}" for name, what in waits(progress)[::2])
        return (
            f"{now - self._started_at:6.1f} s  v{progress.versions}/{self._steps}  {score}  "
            f"{progress.counts['responses']} responses ({responses:.0f}/s), {progress.counts['groups']} groups, "
            f"{progress.batches} batches  |  {doing}"
        )

    def _picture(self, progress: Progress, now: float, memory_bytes: int) -> RenderableType:
        responses, groups = self._rates()
        head = Text.assemble(
            (f"{now - self._started_at:.0f} s", "bold"),
            f"   adapter v{progress.primary} serves, v{progress.versions} of {self._steps} trained   ",
            f"{responses:.0f} responses/s   {groups:.1f} groups/s   {memory_bytes / 2**30:.1f} GiB",
        )
        places = Table(box=None, pad_edge=False, show_header=True, header_style="dim")
        for place in PLACES:
            places.add_column(place, justify="right", min_width=9)
        places.add_row(*(str(progress.places[place]) for place in PLACES))
        doing = Table.grid(padding=(0, 2))
        for name, what in waits(progress):
            doing.add_row(Text(name, "bold"), what)
        parts: list[RenderableType] = [head, Text(), places, Text(), trend(progress.held_out), Text(), doing]
        if progress.counts["dead-letters"]:
            parts.append(Text(f"{progress.counts['dead-letters']} dead letters: streamward dlq list"))
        return Panel(Group(*parts), title="streamward: where every group is", title_align="left", border_style="dim")


def trend(held_out: dict[int, HeldOut]) -> Text:
    """Return the held-out scores as bars, one a version, with the first and the latest in figures."""
    if not held_out:
        return Text("held-out exact match: not scored yet", "dim")
    scores = [held_out[version] for version in sorted(held_out)]
    bars = "".join(BARS[round(score.exact * (len(BARS) - 1))] for score in scores)
    first, last = scores[0], scores[-1]
    text = Text.assemble("held-out exact match  ", (bars, "green"), f"  v{first.version} {first.exact:.2f}")
    return text if first is last else text.append(f"  to  v{last.version} {last.exact:.2f}", "bold green")


def _latest(held_out: dict[int, HeldOut]) -> HeldOut | None:
    return held_out[max(held_out)] if held_out else None
