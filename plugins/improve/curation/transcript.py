"""A run as text for its judge and its human reviewer.

    Finished, FinishedRun ──► one JSON object a line: messages, calls, results, errors, the end ──► at most N characters
                                                                                        └──► digest, what was cut

Each line is an object, so no text of a run can imitate a line of another role. The same run gives the same text. A
transcript that is too long loses its middle, which `cut` and a line in its place report. Feedback is excluded, since it
often comes later.

Not covered: images and files that messages name.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from schemas.events import Message
from streams.scorers.verdict import storable
from streams.stages.agents.trajectories.fold import TrajectoryStep
from streams.tools.query.finished import Finished
from streams.tools.runs.run_row import FinishedRun

NAME_CHARACTERS = 200
"""Of a name in a transcript: a role, a tool, why a run ended."""
LINE_ENDS = {0x85: "\\u0085", 0x2028: "\\u2028", 0x2029: "\\u2029"}
"""Characters that some show as the end of a line, and that JSON leaves alone."""
FIELD_SHARE = 4
"""One text of a transcript has at most one part in so many of all characters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Transcript:
    """A run as it is judged."""

    text: str
    digest: str
    """sha256 over `text`."""
    cut: tuple[str, ...] = ()
    """The parts that were left out, in words."""
    quotable: str = ""
    """Every text of the run: what a judge repeats of it is no verdict."""

    @property
    def lines(self) -> list[dict[str, Any]]:
        """The objects of its lines."""
        return [json.loads(line) for line in self.text.splitlines()]


@dataclass(frozen=True, slots=True)
class TranscriptEntry:
    """One line: its short fields, and the one that may be long."""

    head: Mapping[str, Any]
    field: str
    text: str

    @property
    def line(self) -> str:
        """The line without its end."""
        line = json.dumps({**self.head, self.field: self.text}, ensure_ascii=False, separators=(",", ":"))
        return storable(line).translate(LINE_ENDS)

    @property
    def place(self) -> str:
        """Where it is, for people."""
        turn = self.head.get("turn")
        subject = self.head.get("role") or self.head.get("calls") or self.field
        return f"{subject:.30}" if turn is None else f"turn {turn}, {subject:.30}"


def transcript_of(finished: Finished, row: FinishedRun, characters: int) -> Transcript:
    """Return the transcript of a run, with at most so many characters (1000 or more)."""
    entries = [*_entries(finished), _end(row)]
    quotable = storable("\n".join(entry.text for entry in entries))
    cut: list[str] = []
    lines = [_fit_line(entry, characters // FIELD_SHARE, cut) for entry in entries]
    text = "".join(f"{line}\n" for line in _without_middle(entries, lines, characters, cut))
    return Transcript(
        text=text,
        digest=hashlib.sha256(text.encode()).hexdigest(),
        cut=tuple(map(storable, cut)),
        quotable=f"{quotable}\n{text}",
    )


# --- its lines --------------------------------------------------------------------------------------------------------


def _entries(finished: Finished) -> Iterator[TranscriptEntry]:
    if finished.run is None:
        yield from _answer(finished)
    else:
        for step in finished.run.steps:
            yield from _turn(step)


def _answer(finished: Finished) -> Iterator[TranscriptEntry]:
    """Yield what a task asked, and its answer."""
    task, response = finished.task, finished.response
    for message in () if task is None else task.messages:
        yield from _message({}, message)
    if response is None:
        return
    if response.error is not None:
        yield TranscriptEntry({}, "error", response.error)
    else:
        yield TranscriptEntry({"role": "assistant", "finish": response.finish_reason}, "content", response.text)


def _turn(step: TrajectoryStep) -> Iterator[TranscriptEntry]:
    """Yield a model call: what is new before it, what the environment made of the one before, and the answer."""
    turn = step.turn
    head: dict[str, Any] = {"turn": turn.number}
    if step.chain:
        head["branch"] = step.chain
    if step.left_out is not None:
        head["state"] = step.left_out
    if turn.tools:
        names = ", ".join(tool.name for tool in turn.tools)
        yield TranscriptEntry(head, "tools", names)
    for message in turn.messages:
        yield from _message(head, message)
    if turn.observed is not None and turn.observed.ok is False:
        yield TranscriptEntry(head, "environment", "it could not use the action before")
    if turn.error is not None:
        yield TranscriptEntry(head, "error", turn.error)
    yield from _message(head | {"finish": turn.finish_reason}, turn.reply)
    if turn.malformed is not None:
        yield TranscriptEntry(head, "malformed", turn.malformed)


def _message(head: Mapping[str, Any], message: Message) -> Iterator[TranscriptEntry]:
    role = {**head, "role": _name(message.role)}
    if message.name is not None:
        role["name"] = _name(message.name)
    if message.content or not message.tool_calls:
        yield TranscriptEntry(role, "content", message.content)
    for call in message.tool_calls:
        yield TranscriptEntry({**role, "calls": _name(call.name)}, "arguments", call.arguments)


def _end(row: FinishedRun) -> TranscriptEntry:
    success = {} if row.success is None else {"success": row.success}
    return TranscriptEntry({"end": row.ending, **success}, "reason", row.reason or "")


def _name(name: str) -> str:
    return name if len(name) <= NAME_CHARACTERS else f"{name[:NAME_CHARACTERS]}…"


# --- cutting ----------------------------------------------------------------------------------------------------------


def _fit_line(entry: TranscriptEntry, most: int, cut: list[str]) -> str:
    """Return the line of an entry, with the middle of a text that is too long left out, which is added to `cut`."""
    line, kept, whole = entry.line, len(entry.text), len(entry.text)
    while len(line) > most and kept > 0:
        kept = kept * most * 9 // (len(line) * 10)
        begin, end = entry.text[: kept // 2], entry.text[whole - kept // 2 :] if kept > 1 else ""
        note = f"… {whole - 2 * (kept // 2):,} characters left out …"
        line = TranscriptEntry(entry.head, entry.field, begin + note + end).line
    if kept < whole:
        cut.append(f"{entry.place}: {whole - 2 * (kept // 2):,} of {whole:,} characters")
    return line


def _without_middle(entries: list[TranscriptEntry], lines: list[str], characters: int, cut: list[str]) -> Iterable[str]:
    """Return the lines that fit, the first ones and the last ones, with a line for what is left out between."""
    room = characters - sum(len(line) + 1 for line in lines)
    if room >= 0:
        return lines
    room = characters - 200  # for the line that says what is left out
    begin, end, used = 0, len(lines), 0
    while begin < end:
        from_end = begin > len(lines) - end
        line = lines[end - 1] if from_end else lines[begin]
        if used + len(line) + 1 > room:
            break
        used += len(line) + 1
        begin, end = (begin, end - 1) if from_end else (begin + 1, end)
    dropped = entries[begin:end]
    words = f"{len(dropped)} lines, from {dropped[0].place} to {dropped[-1].place}"
    cut.append(words)
    note = TranscriptEntry({}, "left_out", words).line
    return [*lines[:begin], note, *lines[end:]]
