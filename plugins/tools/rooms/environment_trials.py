"""Environments over HTTP: played three times and described, and kept under a name.

{environment, settings, seed} ──► three equal episodes ──► what it shows           POST /rl/environments
… with a name ──► an entry of the registry, which tasks and jobs name              GET /rl/environments
"""

from __future__ import annotations

from contextlib import closing
from typing import Annotated, Any

from pydantic import Field
from starlette.requests import Request

from gateway.http.body import Body, Whole, compact
from gateway.http.principal import actor_of, tenant_of
from gateway.http.route import REST
from gateway.log.open_log import AT_ONCE, OpenLog
from gateway.log.tool_answer import shown_tools
from plugins.environments.environment_pool import EnvironmentPool
from plugins.environments.episodes.environment import Observation
from plugins.environments.episodes.trial_episode import TrialEpisode, handwritten_actions, try_twice
from plugins.environments.settings import Environments
from plugins.tools.registry.tool_body import read_body
from plugins.tools.registry.tool_log import RegistryDecision, ToolLog
from plugins.tools.registry.tool_state import Offer, ToolState
from plugins.tools.rooms.environment_answers import KeptEnvironment, KeptEnvironments, ShownMessage, TriedEnvironment
from schemas.events import EpisodeStart, Message
from schemas.json_text import parse_or_text
from schemas.tool_text import offer_digest
from streams.access.tenants.tenant_names import named, own_of
from streams.errors import CallError, CallErrorKind, EventError
from streams.settings.model import Settings

MOST_ACTIONS = 64
DEFAULT_ACTIONS = 32
KINDS: dict[str, CallErrorKind] = {"unknown_environment": "not_found", "not_allowed": "unsupported"}
"""Of an environment's errors, those that are not about the request."""


class EnvironmentBody(Body):
    """An environment to try."""

    environment: str = Field(min_length=1, max_length=500, description="a listed one, or a reference that is allowed")
    seed: Annotated[Whole, Field(ge=-(2**63), le=2**63 - 1)] | None = Field(None, description="default: 0")
    settings: dict[str, Any] | None = Field(None, description="of the environment")
    actions: Annotated[list[str], Field(min_length=1, max_length=MOST_ACTIONS)] | None = Field(
        None, description="what the policy writes, text or calls of tools; default: at random"
    )
    name: Annotated[str, Field(min_length=1, max_length=128)] | None = Field(
        None, description="keep it in the registry under this name, which tasks and jobs may use"
    )
    max_turns: Annotated[Whole, Field(ge=1, le=MOST_ACTIONS)] | None = Field(
        None, description=f"most actions; default: {DEFAULT_ACTIONS}"
    )


class EnvironmentTrials:
    """The routes of environments."""

    def __init__(self, settings: Settings, log: OpenLog) -> None:
        self._settings, self._log = settings, log

    @REST.get(
        "/rl/environments",
        may="agents.read",
        refuses=(),
        at_once=AT_ONCE,
    )
    def list_environments(self, request: Request) -> KeptEnvironments:
        """List the environments of the registry."""
        entries = own_of(tenant_of(request), self._log.registry(ToolLog).states).values()
        return KeptEnvironments(object="list", data=[_row(entry) for entry in entries if entry.environment is not None])

    @REST.post(
        "/rl/environments",
        may="code.run",
        ids="`streamward agents environments list` prints those of this machine",
        refuses=(404, 409),
        at_once=1,  # each may take minutes, and a process of its own
        sends={"environment": "calculator", "seed": 1},
    )
    def try_environment(self, request: Request, body: EnvironmentBody) -> TriedEnvironment:
        """Play an episode of an environment three times, say what it shows, and keep it if it gets a name."""
        settings = compact(body.settings or {}, "settings")
        start = EpisodeStart(name=body.environment, settings=settings, seed=body.seed or 0)
        actions = None if body.actions is None else handwritten_actions(body.actions)
        with closing(EnvironmentPool(self._settings.of_plugin(Environments), self._settings)) as pool:
            try:
                episode = try_twice(pool.open, start, body.max_turns or DEFAULT_ACTIONS, actions)
            except EventError as exc:
                parameter = "settings" if exc.reason == "bad_settings" else "environment"
                raise CallError(KINDS.get(exc.reason, "invalid"), str(exc), parameter) from exc
        if body.name is not None:
            self._keep(request, body, episode)
        return _environment(body, episode)

    def _keep(self, request: Request, body: EnvironmentBody, episode: TrialEpisode) -> None:
        """Write an entry of the registry. Raises CallError, RefusedError."""
        fields = {
            "tool_id": body.name,
            "endpoint": f"environment:{body.environment}",
            "settings": body.settings,
            "seed": body.seed,
            "max_turns": body.max_turns,
        }
        shown, decision = episode.observation, RegistryDecision(actor_of(request), "tried over HTTP")
        try:
            checked = read_body({name: value for name, value in fields.items() if value is not None})
            name = named(tenant_of(request), checked.tool_id)
            self._log.registry(ToolLog).add(checked.order(name), _offer(shown, episode), decision)
        except EventError as exc:
            raise CallError("invalid", str(exc), "name") from exc


def _offer(shown: Observation, episode: TrialEpisode) -> Offer:
    version = episode.observed[0].environment.rpartition("@")[2]
    digest = offer_digest(shown.tools, shown.messages)
    return Offer(tools=shown.tools, messages=shown.messages, digest=digest, version=version)


def _row(entry: ToolState) -> KeptEnvironment:
    start, offer = entry.environment, entry.accepted
    if start is None or offer is None or entry.added is None:
        raise CallError("not_found", f"there is no environment {entry.tool_id}")
    return KeptEnvironment(
        name=entry.tool_id,
        environment=start.name,
        settings=parse_or_text(start.settings),
        seed=start.seed,
        max_turns=entry.added.max_turns,
        version=offer.version,
        trusted=entry.is_trusted,
        digest=offer.digest,
        messages=_messages(offer.messages),
        tools=shown_tools(offer.tools),
    )


def _messages(messages: tuple[Message, ...]) -> list[ShownMessage]:
    return [ShownMessage(role=message.role, content=message.content) for message in messages]


def _environment(body: EnvironmentBody, episode: TrialEpisode) -> TriedEnvironment:
    observation = episode.observed[0]
    return TriedEnvironment(
        environment=observation.environment,
        seed=observation.seed,
        settings=body.settings or {},
        deterministic=True,
        messages=_messages(episode.observation.messages),
        tools=shown_tools(episode.observation.tools),
        digest=observation.digest,
        actions=len(episode.steps),
        ended=bool(episode.steps) and episode.steps[-1][1].is_over,
        success=episode.success,
        name=body.name,
    )
