"""Replace the beginning of a thread by a summary, for the model alone.

    the thread's messages:   system │ a b c d │ e f    ──► compacted: stands_for, messages: request, summary
    what later runs read:    system │ request, summary │ e f │ …

The summary and its place are in the log, so every server gives later runs the same beginning, token for token, until
the next summary. It is an exchange, a request and its answer: chat templates want roles to alternate.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from hashlib import sha256

from plugins.agents.registry.agent_log import CompactionRule
from schemas import json_text
from schemas.events import Message, ThreadEvent
from streams.stages.agents.trajectories.chat_format import message_of

RULE = "last-turns/1"
"""The rule: the last `turns` questions stay, with what followed; a summary is made of what is before them, the earlier
summary included. A new version where the same messages would be compacted otherwise."""
REQUEST = "Summarize our conversation so far."
"""The request that the model reads before the summary, recorded with it."""


def as_read(messages: tuple[Message, ...], compaction: ThreadEvent | None) -> tuple[Message, ...]:
    """Return what a model reads for the messages of a thread."""
    if compaction is None or compaction.stands_for is None:
        return messages
    return (*messages[: _system(messages)], *compaction.messages, *messages[compaction.stands_for :])


def cuts(messages: Sequence[Message], rule: CompactionRule, compaction: ThreadEvent | None) -> Iterator[int]:
    """Yield how many messages a new summary may stand for: first all but the last turns, then each time half as many
    turns, in case those are too long to be read at once.
    """
    begins = 0 if compaction is None else compaction.stands_for or 0
    questions = [place for place in range(begins, len(messages)) if messages[place].role == "user"]
    count = len(questions) - rule.turns
    while count > 0:
        yield questions[count]
        count //= 2


def digest_of(messages: Sequence[Message]) -> str:
    """Return the sha256 over the sha256 of each message of a conversation, as JSON."""
    said = messages[_system(messages) :]
    digests = (sha256(json_text.one_line(message_of(message)).encode()).hexdigest() for message in said)
    return sha256("\n".join(digests).encode()).hexdigest()


def summary_source(messages: tuple[Message, ...], count: int, compaction: ThreadEvent | None) -> tuple[Message, ...]:
    """Return what a summary of the first `count` messages is made of."""
    return as_read(messages[:count], compaction)[_system(messages) :]


def _system(messages: Sequence[Message]) -> int:
    """Return the number of messages before the conversation: 1 with the system's."""
    return int(bool(messages) and messages[0].role == "system")
