"""Registered agents, as the plugin that registers them has others read them.

    agent_id ──► AgentRegistry of a loaded plugin ──► AgentEvent: model and prompt of calls that name the agent
                                                  ──► KnownAgent: policy, scorers and prompt of its tasks and jobs

Without such a plugin no agent is registered: calls name a model, and tasks their scorers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import NamedTuple, Protocol, Self

from schemas.events import AgentEvent, AgentType, RewardSource
from streams.plugins.installed import load_only
from streams.settings.model import Settings


class AgentRegistry(Protocol):
    """Every registered agent, followed from when it is made. A plugin names its own as `agents`."""

    def __init__(self, settings: Settings) -> None:
        """Raises NotFoundError without the topic, LogError if the broker does not answer."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *exc: object) -> None: ...

    @classmethod
    def read(cls, settings: Settings) -> Mapping[str, AgentEvent]:
        """Return what each agent is in this log now, by its name. Raises as `__init__`."""

    @property
    def is_broken(self) -> bool:
        """Whether the topic became unreadable; then it has to be followed again."""

    @property
    def agents(self) -> Mapping[str, AgentEvent]:
        """What each agent is, by its name in the log. Raises LogError once the log cannot be read."""

    def get(self, agent_id: str) -> AgentEvent | None:
        """Return a registered agent; None if not found. Raises as `agents`."""

    def catch_up(self) -> None:
        """Return once what the log has now is taken in. Raises LogError."""


class NoAgents:
    """The registry of a log in which no agent is registered."""

    is_broken = False
    agents: Mapping[str, AgentEvent] = {}

    def __init__(self, settings: Settings) -> None:
        """Open nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None: ...

    @classmethod
    def read(cls, settings: Settings) -> Mapping[str, AgentEvent]:
        return {}

    def get(self, agent_id: str) -> AgentEvent | None:
        return None

    def catch_up(self) -> None: ...


@cache
def agent_registry() -> type[AgentRegistry]:
    """Return that of the loaded plugins; without one, no agent is registered. Raises SettingsError for two."""
    registry: type[AgentRegistry] = load_only(lambda plugin: plugin.agents, "register agents") or NoAgents
    return registry


class KnownAgent(NamedTuple):
    """A registered agent, with the fields that orders need."""

    policy: str
    """The policy that answers its calls."""
    reward_sources: tuple[RewardSource, ...] = ()
    """Default reward sources of its tasks and jobs."""
    type: AgentType = "PROMPT_BASED"
    """How it was registered."""
    prompt: str | None = None
    """Default prompt of its tasks: NAME@VERSION or NAME@ALIAS."""


def known_agents(settings: Settings) -> dict[str, KnownAgent]:
    """Return every registered agent. Raises as `AgentRegistry.read`."""
    return {
        name: KnownAgent(agent.model_id.partition("@")[0], agent.reward_sources, agent.type, agent.prompt)
        for name, agent in agent_registry().read(settings).items()
    }


def agent_lookup(settings: Settings) -> Callable[[str], KnownAgent | None]:
    """Return what finds a registered agent; None: not registered. The first question reads the log, and may raise."""
    agents = cache(lambda: known_agents(settings))

    def find(name: str) -> KnownAgent | None:
        return agents().get(name)

    return find
