"""Choose what a run reads of its store or its thread: what says most about its question, by another plugin's search.

    extends={"threads": "module:SEARCHES"} ──► MemorySearch ──► the best of the items, or of the messages left out

Not covered: more than the newest thousand of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from plugins.agents.registry.agent_log import MOST_ITEMS, AgentMemory
from plugins.threads.log.memory_log import MemoryLog
from plugins.threads.log.memory_state import MemoryItem, MemoryState, fields_of, namespace_of
from plugins.threads.log.thread_state import last_turns
from schemas import json_text
from schemas.events import Message
from streams.errors import CallError, SettingsError, StreamwardError
from streams.plugins.installed import extensions
from streams.settings.model import Settings

MOST_SEARCHED = 1000
NO_SEARCH = "needs a plugin that searches, and none is loaded (knowledge does)"
Fields = Mapping[str, Mapping[str, Any]]
MemorySearch = Callable[[Settings, str, Sequence[str]], Sequence[int]]
"""Returns the places of texts, the one that says most about a question first. Raises StreamwardError."""


def memory_search() -> MemorySearch | None:
    """Return the search that a loaded plugin adds; None if none does. Raises SettingsError."""
    return next(iter(extensions("threads")), None)


def memories(
    settings: Settings,
    memory: AgentMemory,
    tenant: str | None,
    messages: tuple[Message, ...],
    store: Callable[[], MemoryLog],
) -> Fields:
    """Return what an agent is to read of the store, and of its thread by a search. Raises CallError, LogError."""
    items, search = dict[str, dict[str, Any]](), memory.search
    over = None if search is None else search.over
    if memory.namespace is not None:
        below = partial(MemoryState.below, prefix=namespace_of(tenant, memory.namespace))
        most = memory.items or MOST_ITEMS
        items = fields_of(
            store().read(lambda state: _newest(below(state)) if over == "store" else [*below(state)][:most])
        )
    if search is None:
        return items
    question = next((message.content for message in reversed(messages) if message.role == "user"), "")
    if over == "store":
        return _best(settings, question, items, search.limit)
    return {**items, **_best(settings, question, _messages_before(messages, memory), search.limit)}


def _newest(items: Iterable[MemoryItem]) -> list[MemoryItem]:
    """Return the items that are searched, in their order."""
    last = sorted(items, key=lambda item: item.updated_at)[-MOST_SEARCHED:]
    return sorted(last, key=lambda item: (item.namespace, item.key))


def _messages_before(messages: tuple[Message, ...], memory: AgentMemory) -> Fields:
    """Return the messages of a thread that `turns` leaves out, by their place in it."""
    read = [message for message in last_turns(messages, memory.turns) if message.role != "system"]
    left = list(enumerate(messages))[: len(messages) - len(read)][-MOST_SEARCHED:]
    return {
        f"thread/{place}": {"role": message.role, "content": message.content}
        for place, message in left
        if message.role != "system" and message.content
    }


def _best(settings: Settings, question: str, fields: Fields, limit: int) -> Fields:
    """Return what says most about a question, in the order that it had. Raises CallError."""
    search = memory_search()
    if search is None:
        raise CallError("unsupported", f"memory_config.search {NO_SEARCH}")
    if len(fields) <= limit:
        return fields
    texts = [f"{name} {json_text.one_line(value)}" for name, value in fields.items()]
    try:
        best = {*search(settings, question, texts)[:limit]}
    except SettingsError as exc:
        raise CallError("unsupported", f"memory_config.search: {exc}") from exc
    except StreamwardError as exc:
        raise CallError("busy", f"memory_config.search: {exc}") from exc
    return {name: value for place, (name, value) in enumerate(fields.items()) if place in best}
