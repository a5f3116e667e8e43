"""Follow the registered agents, and read the parts of a registration that take effect.

    agents ──► a thread that follows ──► the newest event of each agent
    memory_config {"turns": 4, "namespace": ["people"], "items": 20} ──► AgentMemory ──► what the model gets to read

A field without effect is refused when an agent is registered, or, for older registrations, when it runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Self

from pydantic import Field, ValidationError, model_validator

from schemas import json_text
from schemas.events import MEMORY_LABEL, AgentEvent, Coordinates
from schemas.faults import OutsideObject, faults
from streams.errors import EventError
from streams.kafka.named_states import FollowedStates, RegistryShape
from streams.references import REFERENCE
from streams.settings.model import Settings

MOST_ITEMS = 100
"""Most items of the store that an agent is given with each run."""
RESERVED = "ap."
"""How the Agent Protocol's own capabilities begin."""
PROTOCOL_CAPABILITIES = ("ap.io.messages", "ap.io.streaming")
"""Those that every agent here has."""

Label = Annotated[str, Field(pattern=rf"^{MEMORY_LABEL.pattern}$")]


Prompt = Annotated[str, Field(min_length=1, max_length=200)]


class RememberRule(OutsideObject):
    """What a run leaves in the store: the answer of a prompt, or of a function, is an item."""

    on: Literal["run", "verdict"] = Field("run", description="run: after each run that succeeds; verdict: each verdict")
    prompt: Prompt | None = Field(None, description="NAME@VERSION or NAME@ALIAS: it is asked for the item")
    function: Annotated[str, Field(pattern=f"^{REFERENCE}$")] | None = Field(
        None, description="one of the server's threads.functions, MODULE:NAME: it returns the item"
    )
    namespace: list[Label] | None = Field(
        None, min_length=1, description="of the items; default: memory_config.namespace"
    )

    @model_validator(mode="after")
    def _has_one_maker(self) -> Self:
        if (self.prompt is None) == (self.function is None):
            raise ValueError("set one of prompt and function")
        return self


class CompactionRule(OutsideObject):
    """When the beginning of a thread is replaced by a summary, for the model; the thread keeps its messages."""

    over_tokens: int = Field(ge=1, description="once the thread's messages, as the model reads them, have more tokens")
    turns: int = Field(ge=1, le=10_000, description="last questions that stay as they are, with what followed")
    prompt: Prompt = Field(description="NAME@VERSION or NAME@ALIAS: it is asked for the summary")


class SearchRule(OutsideObject):
    """Where an agent gets what says most about its question instead of all."""

    over: Literal["store", "thread"] = Field(
        description="store: the items of the namespace; thread: the messages that turns leaves out"
    )
    limit: int = Field(5, ge=1, le=MOST_ITEMS, description="most items, or messages")


class AgentMemory(OutsideObject):
    """What an agent gets to read of its thread and of the store, and what its runs leave there; nothing is left out
    unless it says so.
    """

    turns: int | None = Field(None, ge=1, le=10_000, description="the thread's last questions, with what followed")
    namespace: list[Label] | None = Field(
        None, min_length=1, description="of the store: its items are given with a run"
    )
    items: int | None = Field(None, ge=1, le=MOST_ITEMS, description=f"most of them; default: {MOST_ITEMS}")
    search: SearchRule | None = Field(
        None, description="of its store or its thread it gets what says most about the last question, by an index"
    )
    remember: RememberRule | None = Field(None, description="what a run leaves in the store")
    compaction: CompactionRule | None = Field(None, description="when the beginning of a thread is summarized")

    @property
    def has_items(self) -> bool:
        """Whether a run is given more than messages of its thread as they are."""
        return self.namespace is not None or self.search is not None

    @property
    def fault(self) -> str | None:
        """Why these cannot take effect together; None if they can."""
        if self.items is not None and self.namespace is None:
            return "memory_config.items needs a namespace; name the one whose items the agent gets"
        if (
            self.search is not None
            and self.search.over == "store"
            and (self.namespace is None or self.items is not None)
        ):
            return "memory_config.search over the store needs a namespace, and limit instead of items"
        if self.search is not None and self.search.over == "thread" and self.turns is None:
            return "memory_config.search over the thread needs turns; without them the agent reads all of it"
        if self.remember is not None and (self.remember.namespace or self.namespace) is None:
            return "memory_config.remember needs a namespace; name the one that gets its items"
        if self.turns is not None and self.compaction is not None:
            return "memory_config.turns leaves out what memory_config.compaction would summarize; use one of them"
        return None


def read_memory(text: str) -> AgentMemory:
    """Return what `memory_config` says. Raises EventError that names its first fault."""
    fields = object_of(text)
    try:
        memory = AgentMemory.model_validate(fields)
    except ValidationError as exc:
        raise EventError(next(faults(exc, AgentMemory, fields, "memory_config")).text) from exc
    if (fault := memory.fault) is not None:
        raise EventError(fault)
    return memory


def capability_problem(capability: str) -> str | None:
    """Return why an agent cannot claim a capability; None if it can."""
    if capability.startswith(RESERVED) and capability not in PROTOCOL_CAPABILITIES:
        known = " and ".join(PROTOCOL_CAPABILITIES)
        return f"{capability!r} is a name of the Agent Protocol, and agents here have {known}; use a name of your own"
    return None


def object_of(text: str | None) -> dict[str, Any]:
    """Return the object in a text; an empty one for None. Raises EventError for another text."""
    try:
        value = {} if text is None else json_text.parse(text)
    except ValueError as exc:
        raise EventError(f"it is no JSON: {exc}") from exc
    if not isinstance(value, dict):
        raise EventError("expected a JSON object")
    return value


@dataclass(frozen=True, slots=True)
class _Registration:
    newest: AgentEvent | None = None
    ids: frozenset[str] = frozenset()
    """Of all its events."""

    @property
    def agent(self) -> AgentEvent | None:
        """What the agent is; None if it is not registered."""
        return self.newest if self.newest is not None and self.newest.kind == "registered" else None


def _refusal(state: _Registration, event: AgentEvent) -> str | None:
    return "it was written before" if event.event_id in state.ids else None


def _fold(state: _Registration, event: AgentEvent, _: Coordinates) -> _Registration:
    return state if _refusal(state, event) else _Registration(event, state.ids | {event.event_id})


AGENTS = RegistryShape(
    *("agents", "agent", AgentEvent, lambda _: _Registration(), _refusal, _fold),
    is_there=lambda state: state.agent is not None,
)


class AgentLog(FollowedStates[AgentEvent, _Registration]):
    """Every registered agent. Use as a context manager; methods may be called from any thread."""

    def __init__(self, settings: Settings) -> None:
        """Raises NotFoundError without the topic, LogError if the broker does not answer."""
        super().__init__(settings, AGENTS)

    @classmethod
    def read(cls, settings: Settings) -> Mapping[str, AgentEvent]:
        """Return what each agent is in this log now, by its name. Raises as `__init__`."""
        return _agents(AGENTS.read(settings))

    def get(self, agent_id: str) -> AgentEvent | None:
        """Return a registered agent by its name in the log; None if not found. Raises as `agents`."""
        return self.state(agent_id).agent

    @property
    def agents(self) -> Mapping[str, AgentEvent]:
        """What each agent is, by its name in the log. Raises LogError once the log cannot be read."""
        return _agents(self.states)


def _agents(states: Mapping[str, _Registration]) -> dict[str, AgentEvent]:
    return {name: agent for name, state in states.items() if (agent := state.agent) is not None}
