"""Agents over HTTP: what an agent is, written to the log.

    POST /rl/agents ──► its model, prompt, tools and scorers are known ──► an AgentEvent

An order over HTTP names no address and no function that a server would call.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import AfterValidator, Field
from starlette.requests import Request

from gateway.http.body import Answer, Body, compact
from gateway.http.principal import AGENT_NAME, tenant_of
from gateway.http.route import IDEMPOTENCY_KEY, REST, idempotency_key
from gateway.log.named_code import check_scorers
from gateway.log.tool_answer import ToolAnswer, shown_tools
from plugins.agents.registry.agent_log import AgentMemory, capability_problem, read_memory
from plugins.agents.registry.registration import register
from schemas.conventions import TOOL_IDS
from schemas.conversation import ToolSchema
from schemas.events import AgentEvent, AgentType, RewardSource, Task, Tool
from schemas.json_text import parse_or_text
from streams.access.tenants.tenant_names import named
from streams.adapters.versions import known_policies, read_state
from streams.errors import CallError, EventError, NotFoundError
from streams.kafka.followed import FollowedOnDemand
from streams.output import moment
from streams.scorers.scorer_check import unusable_scorer
from streams.settings.model import Settings
from streams.stages.agents.registered_agents import AgentRegistry
from streams.stages.tasks.line_steps import CompletedTask, LineSteps, log_now, names_of_tenant
from streams.stages.tasks.prompted import named_prompt
from streams.stages.tasks.task_line import RewardSourceLine

MOST_SOURCES = 16


class AgentTool(Body):
    """A function that an agent calls."""

    name: str = Field(min_length=1, max_length=200)
    description: str | None = None
    parameters: ToolSchema | None = None


def _check_capability(capability: str) -> str:
    if (problem := capability_problem(capability)) is not None:
        raise ValueError(problem)
    return capability


Capability = Annotated[str, Field(min_length=1, max_length=200), AfterValidator(_check_capability)]


class AgentConfig(Body):
    """What an agent is, as the log has it."""

    agent_id: str = Field(pattern=rf"^{AGENT_NAME.pattern}$", description="what it is called in paths and tasks")
    name: str | None = Field(None, min_length=1, max_length=200, description="for people; default: agent_id")
    type: AgentType | None = Field(None, description="how it came about; default: PROMPT_BASED")
    model_id: str = Field(description="the policy that answers its calls, or POLICY@7")
    memory_config: AgentMemory | None = Field(None, description="what it reads of its thread and of the agents' store")
    capabilities: Annotated[list[Capability], Field(max_length=100)] | None = Field(
        None, description="what it can do, as its card says it to other agents"
    )
    tools: Annotated[list[AgentTool], Field(max_length=100)] | None = Field(None, description="recorded")
    tool_ids: Annotated[list[str], Field(max_length=100)] | None = Field(
        None, description="tools of the registry, which its key may call"
    )
    reward_sources: Annotated[list[RewardSourceLine], Field(max_length=MOST_SOURCES)] | None = Field(
        None, description="scorers of its tasks and jobs that name none"
    )
    prompt: str | None = Field(
        None, min_length=1, max_length=200, description="PROMPT_BASED: NAME@VERSION or NAME@ALIAS of its tasks"
    )


class OrderedSource(Answer):
    """A scorer, with its weight and its settings."""

    name: str
    weight: float
    settings: Any


class RegisteredAgent(Answer):
    """An agent as the log has it."""

    agent_id: str
    name: str
    type: AgentType
    model_id: str
    memory_config: Any
    capabilities: list[str]
    tools: list[ToolAnswer]
    reward_sources: list[OrderedSource] = Field(description="of its tasks and jobs that name none")
    prompt: str | None = Field(None, description="that its tasks begin with where they name none")
    created_at: str


AGENT = RegisteredAgent(
    agent_id="calc",
    name="calc",
    type="PROMPT_BASED",
    model_id="sums",
    memory_config={},
    capabilities=["arithmetic"],
    tools=[],
    reward_sources=[OrderedSource(name="exact", weight=1.0, settings={})],
    created_at="2026-01-01T00:00:00.000Z",
)


class AgentRegistration:
    """The route that registers agents. It waits for the broker."""

    def __init__(self, settings: Settings, agents: FollowedOnDemand[AgentRegistry]) -> None:
        self._settings, self._agents = settings, agents

    @REST.post(
        "/rl/agents",
        may="agents.write",
        ids="GET /v1/models lists models",
        status=201,
        parameters=(IDEMPOTENCY_KEY,),
        sends={
            "agent_id": "calc",
            "model_id": "sums",
            "capabilities": ["arithmetic"],
            "reward_sources": [{"name": "exact"}],
        },
        example=AGENT,
    )
    def register_agent(self, request: Request, body: AgentConfig) -> RegisteredAgent:
        """Write what an agent is."""
        key = idempotency_key(request)
        self._check_model(body.model_id)
        sources = tuple(source.reward_source() for source in body.reward_sources or ())
        self._check_sources(request, sources)
        tools = tuple(
            Tool(name=tool.name, description=tool.description or "", parameters=compact(tool.parameters or {}, "tools"))
            for tool in body.tools or ()
        )
        equipped, references = self._with_named_tools(request, tools, body.tool_ids or ())
        event = AgentEvent(
            event_id="",
            agent_id=body.agent_id,
            created_at=0,
            metadata={TOOL_IDS: " ".join(references)} if references else {},
            kind="registered",
            name=body.name or body.agent_id,
            type=body.type or "PROMPT_BASED",
            model_id=body.model_id,
            memory_config=self._memory_config(request, body.memory_config),
            capabilities=tuple(body.capabilities or ()),
            tools=equipped.tools,
            reward_sources=sources,
            prompt=self._prompt_of(request, body),
        )
        registered_event = register(self._settings, event, key=key)
        self._agents.open().catch_up()  # so that the next call knows it
        return _agent(registered_event)

    def _with_named_tools(self, request: Request, tools: tuple[Tool, ...], ids: Sequence[str]) -> CompletedTask:
        """Return a task with the tools of an agent, those that it names included. Raises CallError."""
        task, tenant = Task(task_id="", created_at=0, policy="", tools=tools), tenant_of(request)
        if not ids:
            return CompletedTask(task)
        names = names_of_tenant(tenant, {"tool_ids": ids})
        try:
            return LineSteps(log_now(self._settings), tenant).complete("tool_ids", task, names["tool_ids"])
        except ValueError as exc:
            raise CallError("invalid", str(exc), "tool_ids") from exc

    def _check_sources(self, request: Request, sources: tuple[RewardSource, ...]) -> None:
        """Raise CallError for reward sources that cannot score, or that the sender may not name."""
        check_scorers(request, self._settings.serve, sources)
        names = [source.name for source in sources]
        if repeated := sorted({name for name in names if names.count(name) > 1}):
            problem = f"reward_sources: {repeated[0]!r} is named twice; combine them in one `mix`"
            raise CallError("invalid", problem, "reward_sources")
        if reason := unusable_scorer(self._settings.scoring, sources):
            raise CallError("invalid", f"reward_sources: {reason}", "reward_sources")

    def _prompt_of(self, request: Request, body: AgentConfig) -> str | None:
        """Return the prompt of an agent by its name in the log. Raises CallError for one that it cannot answer with."""
        if body.prompt is None:
            return None
        if (kind := body.type or "PROMPT_BASED") != "PROMPT_BASED":
            problem = f"prompt: an agent of type {kind} answers as it was trained; register a PROMPT_BASED one"
            raise CallError("invalid", problem, "prompt")
        return self._logged_prompt(request, body.prompt, "prompt")

    def _logged_prompt(self, request: Request, name: str, field: str) -> str:
        """Return a prompt by its name in the log. Raises CallError if it does not exist, or has variables."""
        try:
            use = named_prompt(LineSteps(log_now(self._settings)), named(tenant_of(request), name), {}, "")
        except NotFoundError as exc:
            raise CallError("not_found", f"{field}: {exc}", field) from exc
        except EventError as exc:
            raise CallError("invalid", f"{field}: {exc}", field) from exc
        return f"{use.name}@{use.alias or use.version}"

    def _memory_config(self, request: Request, memory: AgentMemory | None) -> str:
        """Return what an agent remembers as the log has it. Raises CallError."""
        fields = {} if memory is None else memory.model_dump(exclude_none=True)
        for part in ("remember", "compaction"):
            rule = fields.get(part, {})
            if "prompt" in rule:
                rule["prompt"] = self._logged_prompt(request, rule["prompt"], f"memory_config.{part}.prompt")
        text = compact(fields, "memory_config")
        try:
            read_memory(text)
        except EventError as exc:
            raise CallError("invalid", str(exc), "memory_config") from exc
        return text

    def _check_model(self, model_id: str) -> None:
        """Raise CallError for a model that there is not."""
        policy, at, number = model_id.partition("@")
        exists = policy in known_policies(self._settings)
        if exists and at:
            is_number = number.isdecimal() and len(number) <= 9
            exists = is_number and int(number) in read_state(self._settings, policy).versions
        if not exists:
            problem = f"model_id: there is no model {model_id[:80]!r}; GET /v1/models lists what is served"
            raise CallError("not_found", problem, "model_id")


def _agent(event: AgentEvent) -> RegisteredAgent:
    return RegisteredAgent(
        agent_id=event.agent_id,
        name=event.name,
        type=event.type,
        model_id=event.model_id,
        memory_config=parse_or_text(event.memory_config),
        capabilities=list(event.capabilities),
        tools=shown_tools(event.tools),
        reward_sources=[
            OrderedSource(name=source.name, weight=source.weight, settings=parse_or_text(source.settings))
            for source in event.reward_sources
        ],
        prompt=event.prompt,
        created_at=moment(event.created_at),
    )
