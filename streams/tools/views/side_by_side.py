"""A task's answers side by side: their common beginning, where they differ, and their rewards.

tokens, or words where their texts are not known ──► the shared beginning, and how each continues
group, rewards, turns                            ──► a column for each slot
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from streams.tools.views.group_outcome import left_out_text
from streams.tools.views.log_view import Row
from streams.tools.views.task import TaskHistory

_WORD = re.compile(r"\s+|\w+|[^\w\s]")
COMPARED_CHARACTERS = 20_000
"""Of each text."""
LONG_CHARACTERS, LONG_LINES = 300, 4
"""A text beyond either is shown in part, to be scrolled: all answers of a group fit one look."""


class TokenTexts(Protocol):
    """A tokenizer: an engine's `Rendering`."""

    @property
    def tokenizer_digest(self) -> str:
        """The digest of the tokenizer in records of answers."""

    def token_bytes(self, token: int) -> bytes:
        """Return what a token adds to the text."""


@dataclass(frozen=True, slots=True)
class SlotAnswer:
    """One slot: its answer, if any, and its outcome."""

    slot: int
    response: Row | None
    member: Row | None
    """What the group has of it; None if it is not in the group."""
    rewards: list[Row]
    opinions: list[Row]
    """Rewards that no source of the task gave: what people said."""
    turns: list[Row]
    left_out: str | None
    """Why it is not in the group."""
    continuation: str
    """Its text from where the answers differ."""

    @property
    def sign(self) -> str:
        """Whether it was better (+) or worse (-) than its siblings, or neither (0); empty without an advantage."""
        if self.member is None:
            return ""
        advantage = self.member["advantage"]
        return "0" if not advantage else "+" if advantage > 0 else "-"

    @property
    def is_long(self) -> bool:
        """Whether its text is too long to be shown whole."""
        return len(self.continuation) > LONG_CHARACTERS or self.continuation.count("\n") >= LONG_LINES


@dataclass(frozen=True, slots=True)
class SharedBeginning:
    """What all answers begin with."""

    text: str
    tokens: int
    """How many tokens all completions begin with."""
    by_token: bool
    """Whether texts are divided where tokens differ; else at the first word that does."""


@dataclass(frozen=True, slots=True)
class AnswerColumns:
    """All slots of a task."""

    shared: SharedBeginning
    slots: list[SlotAnswer]
    largest: float
    """The largest advantage, whatever its sign."""


def align(task: TaskHistory, texts: TokenTexts | None = None) -> AnswerColumns:
    """Return every slot of a task; of several samplings the one that the group has, else the newest.

    `texts` is a tokenizer: answers that were made with it are compared token by token.
    """
    sampling = _sampling(task)
    responses = {row["slot"]: row for row in task.responses if row["sampling_id"] == sampling}
    shared = _shared_beginning([row for row in responses.values() if not row["error"]], texts)
    size = max([task.group_size, *(slot + 1 for slot in responses)])
    slots = [_slot(task, slot, responses.get(slot), shared.text) for slot in range(size)]
    largest = max((abs(member["advantage"]) for member in task.members.values()), default=0.0)
    return AnswerColumns(shared, slots, largest)


def _slot(task: TaskHistory, slot: int, response: Row | None, shared_text: str) -> SlotAnswer:
    response_id = None if response is None else response["response_id"]
    rewards = [row for row in task.rewards if row["response_id"] == response_id]
    is_source = [not task.sources or row["source"] in task.sources for row in rewards]
    reasons = {entry["slot"]: entry["reason"] for entry in (task.group or {}).get("left_out") or ()}
    return SlotAnswer(
        slot,
        response,
        task.members.get(slot),
        rewards=[row for row, own in zip(rewards, is_source, strict=True) if own],
        opinions=[row for row, own in zip(rewards, is_source, strict=True) if not own],
        turns=[row for row in task.turns if row["trajectory_id"] == response_id],
        left_out=left_out_text(reasons[slot]) if slot in reasons else None,
        continuation="" if response is None or response["error"] else response["text"][len(shared_text) :],
    )


def _sampling(task: TaskHistory) -> str | None:
    samplings = {row["response_id"]: row["sampling_id"] for row in task.responses}
    for entry in (*task.members.values(), *((task.group or {}).get("left_out") or ())):
        if entry["response_id"] in samplings:
            return str(samplings[entry["response_id"]])
    return str(task.responses[-1]["sampling_id"]) if task.responses else None


# --- the shared beginning ---------------------------------------------------------------------------------------------


def _shared_beginning(responses: Sequence[Row], texts: TokenTexts | None) -> SharedBeginning:
    written, tokens = [row["text"] for row in responses], [row["completion_token_ids"] or [] for row in responses]
    count = shared_length(tokens) if len(tokens) > 1 else 0
    if texts is not None and {row["tokenizer_digest"] for row in responses} == {texts.tokenizer_digest}:
        shared = shared_by_token(written, tokens, texts.token_bytes)
        if shared is not None:
            return SharedBeginning(shared, count, by_token=True)
    return SharedBeginning(shared_words(written), count, by_token=False)


def shared_words(texts: Sequence[str]) -> str:
    """Return the words that all texts begin with; less than two texts share nothing.

    >>> shared_words(["4 + 7 is 11.", "4 + 7 is 12."])
    '4 + 7 is '
    """
    if len(texts) < 2:
        return ""
    words = [_WORD.findall(text[:COMPARED_CHARACTERS]) for text in texts]
    return "".join(words[0][: shared_length(words)])


def shared_by_token(
    texts: Sequence[str], tokens: Sequence[Sequence[int]], token_bytes: Callable[[int], bytes]
) -> str | None:
    """Return the text of the common first tokens; None if the texts do not match the tokens.

    A character whose bytes are divided between two tokens belongs to the second.

    >>> shared_by_token(["ab", "ac"], [[97, 98], [97, 99]], lambda token: bytes([token]))
    'a'
    """
    if len(texts) < 2:
        return None
    shared = b"".join(map(token_bytes, tokens[0][: shared_length(tokens)])).decode(errors="ignore")
    return shared if all(text.startswith(shared) for text in texts) else None


def shared_length(rows: Sequence[Sequence[object]]) -> int:
    """Return how many elements all rows begin with."""
    count = 0
    for column in zip(*rows, strict=False):
        if any(element != column[0] for element in column[1:]):
            break
        count += 1
    return count
