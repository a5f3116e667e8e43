"""Prompts over HTTP: versions, aliases, and what they earned.

    {name, template or messages} ──► PromptLog ──► created ──► a version for ever       POST /prompts/templates
    {version} ──► PromptLog ──► withdrawn: nothing new names it                         POST …/templates/{name}/withdraw
    {alias, version, expected} ──► PromptLog ──► activated, or 409                      POST …/templates/{name}/activate
    view prompt_rewards ──► by version, and one against another                          GET /prompts/evaluate

A tenant's prompt has the tenant's name before its own, as its agents have; it sees no other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated, Literal

from pydantic import Field, model_validator
from starlette.requests import Request

from gateway.http.body import Answer, Body, PathQuery, Whole
from gateway.http.principal import actor_of, principal_of, tenant_of
from gateway.http.route import REST
from gateway.log.open_log import AT_ONCE, OpenLog
from plugins.prompts.search.activation import activate
from plugins.prompts.versions.prompt_log import Activation, PromptLog, PromptText
from plugins.prompts.versions.prompt_state import PromptState, PromptVersion
from schemas.conversation import Conversation
from schemas.events import Message, PromptVariable
from schemas.prompt_text import VariableType, types_of
from streams.access.tenants.tenant_names import named, own_of
from streams.errors import CallError, EventError
from streams.output import moment
from streams.settings.model import Settings

LISTED = "GET /prompts/templates lists prompts"
"""Where the names of prompts are found."""
Name = Annotated[str, Field(min_length=1, max_length=128)]
Number = Annotated[Whole, Field(ge=0, lt=2**31)]
Reason = Annotated[str, Field(min_length=1, max_length=1000, pattern=r"\S")]


class TemplateBody(Body):
    """A version of a prompt: its text, with {{name}} where the value of a variable goes."""

    name: Name
    template: str | None = Field(None, description="a system message")
    messages: Conversation | None = Field(None, description="or several, also calls of tools and their results")
    variables: dict[str, VariableType] | None = Field(None, description="types by name; default: each is a string")
    alias: Name | None = Field(None, description="let this alias mean the version, e.g. production")
    reason: Reason = Field("asked for", description="why; it is recorded")

    @model_validator(mode="after")
    def _says_it_once(self) -> TemplateBody:
        if (self.template is None) == (self.messages is None):
            raise ValueError("give either template or messages")
        return self

    def text(self, prompt: str, *, actor: str) -> PromptText:
        """Return the text of a new version of `prompt`, which is the name in the log."""
        if self.messages is None:
            messages: tuple[Message, ...] = (Message(role="system", content=self.template or ""),)
        else:
            messages = tuple(message.message for message in self.messages)
        types = types_of(message.content for message in messages) if self.variables is None else self.variables
        variables = tuple(PromptVariable(name=name, type=kind) for name, kind in types.items())
        return PromptText(prompt=prompt, messages=messages, variables=variables, actor=actor, reason=self.reason)


class ActivateBody(Body):
    """An alias that is to mean a version."""

    alias: Name
    version: Number
    expected: Number | None = Field(None, description="only if the alias means this version now; 0: none yet")
    reason: Reason = Field("asked for", description="why; it is recorded")


class WithdrawBody(Body):
    """A version that is not to be named any more."""

    version: Number
    reason: Reason = Field("asked for", description="why; it is recorded")


class TemplateCall(Answer):
    """A call of a tool in an example."""

    id: str
    name: str
    arguments: str = Field(description="JSON object")


class TemplateMessage(Answer):
    """A message of a prompt."""

    role: str
    content: str
    name: str | None = None
    tool_call_id: str | None = None
    tool_calls: list[TemplateCall] = Field([], description="of the assistant")


class TemplateAnswer(Answer):
    """A version of a prompt."""

    object: Literal["prompt_version"]
    name: str
    version: int
    aliases: dict[str, float] = Field(description="the share of the users of each alias that get this version")
    digest: str
    messages: list[TemplateMessage]
    variables: dict[str, str]
    created_at: str
    actor: str
    reason: str
    job_id: str | None = Field(description="the search that proposed it")
    withdrawn: str | None = Field(None, description="why nothing may name it any more")


class TemplateList(Answer):
    """Every version of every prompt that one may know of."""

    object: Literal["list"]
    data: list[TemplateAnswer]


class AliasAnswer(Answer):
    """An alias, and the version that it means."""

    object: Literal["prompt_alias"]
    name: str
    alias: str
    version: int


class TemplatesQuery(PathQuery):
    """Which prompts."""

    name: str | None = Field(None, min_length=1, max_length=128, description="only versions of this prompt")


class EvaluateQuery(PathQuery):
    """A prompt, and two of its versions to compare."""

    name: str = Field(min_length=1, max_length=128)
    version: int | None = Field(None, ge=1, lt=2**31)
    against: int | None = Field(None, ge=1, lt=2**31, description="compare with this version on equal questions")
    policy: str | None = Field(None, min_length=1, max_length=200, description="only answers of this policy")
    scenario: str | None = Field(None, min_length=1, max_length=200, description="only tasks of this scenario")

    @model_validator(mode="after")
    def _names_two(self) -> EvaluateQuery:
        if (self.version is None) != (self.against is None):
            raise ValueError("give version and against, or neither")
        return self


class VersionEarnings(Answer):
    """What one version earned."""

    version: int
    tasks: int
    questions: int
    mean_reward: float
    low: float
    high: float
    tokens: float


class PromptEvaluation(Answer):
    """What a prompt earned, the best version first."""

    object: Literal["prompt_evaluation"]
    name: str
    versions: list[VersionEarnings]
    comparison: dict[str, float] | None = Field(description="version against the other, on the questions of both")


EXAMPLE = TemplateAnswer(
    object="prompt_version",
    name="sums",
    version=2,
    aliases={"production": 1.0},
    digest="2c26b46b68ffc68ff99b453c1d30413413422d706483bfa0f98a5e886266e7ae",
    messages=[TemplateMessage(role="system", content="Answer in {{language}}.")],
    variables={"language": "string"},
    created_at="2026-01-01T00:00:00.000Z",
    actor="api",
    reason="asked for",
    job_id=None,
)


class PromptTemplates:
    """The prompts of the log. Methods wait for the broker."""

    def __init__(self, settings: Settings, log: OpenLog) -> None:
        self._settings, self._log = settings, log

    @REST.post(
        "/prompts/templates",
        may="tasks.submit",
        further={"alias": "adapters.promote"},
        status=201,
        ids=LISTED,
        at_once=AT_ONCE,
        refuses=(404, 409),
        sends={"name": "sums", "template": "Answer in {{language}}.", "alias": "production"},
        example=EXAMPLE,
    )
    def create_template(self, request: Request, body: TemplateBody) -> TemplateAnswer:
        """Create a version of a prompt. A text that a version has already is that version."""
        prompts = self._log.registry(PromptLog)
        try:
            text = body.text(named(tenant_of(request), body.name), actor=actor_of(request))
            version, _ = prompts.create(text)
            if body.alias is not None:
                chosen = ActivateBody(alias=body.alias, version=version.number, reason=body.reason)
                self._activate(request, version.name, chosen)
        except EventError as exc:
            raise CallError("invalid", str(exc)) from exc
        return template_answer(version, prompts.state(version.name))

    @REST.get(
        "/prompts/templates",
        may="log.read",
        refuses=(),
        at_once=AT_ONCE,
        example=TemplateList(object="list", data=[EXAMPLE]),
    )
    def list_templates(self, request: Request, query: TemplatesQuery) -> TemplateList:
        """List versions of prompts."""
        tenant = tenant_of(request)
        wanted = None if query.name is None else named(tenant, query.name)
        states = own_of(tenant, self._log.registry(PromptLog).states)
        chosen = [state for name, state in states.items() if wanted in (None, name)]
        return TemplateList(
            object="list", data=[template_answer(version, state) for state in chosen for version in state.versions]
        )

    @REST.post(
        "/prompts/templates/{name}/activate",
        may="adapters.promote",
        ids=LISTED,
        at_once=AT_ONCE,
        refuses=(404, 409),
        sends={"alias": "production", "version": 2, "expected": 1},
        example=AliasAnswer(object="prompt_alias", name="sums", alias="production", version=2),
    )
    def activate_template(self, request: Request, name: str, body: ActivateBody) -> AliasAnswer:
        """Let an alias of a prompt mean a version."""
        name = named(tenant_of(request), name)
        try:
            self._activate(request, name, body)
        except EventError as exc:
            raise CallError("invalid", str(exc)) from exc
        return AliasAnswer(object="prompt_alias", name=name, alias=body.alias, version=body.version)

    @REST.post(
        "/prompts/templates/{name}/withdraw",
        may="adapters.promote",
        ids=LISTED,
        at_once=AT_ONCE,
        refuses=(404, 409),
        sends={"version": 1, "reason": "names a person"},
        example=EXAMPLE.model_copy(update={"version": 1, "aliases": {}, "withdrawn": "names a person"}),
    )
    def withdraw_template(self, request: Request, name: str, body: WithdrawBody) -> TemplateAnswer:
        """Withdraw a version of a prompt: no alias, task, call or job can name it from now on."""
        name, prompts = named(tenant_of(request), name), self._log.registry(PromptLog)
        try:
            prompts.withdraw(name, body.version, actor=actor_of(request), reason=body.reason)
        except EventError as exc:
            raise CallError("invalid", str(exc)) from exc
        state = prompts.get(name)
        return template_answer(state.versions[body.version - 1], state)

    def _activate(self, request: Request, name: str, body: ActivateBody) -> None:
        order = Activation(
            prompt=name,
            alias=body.alias,
            version=body.version,
            actor=actor_of(request),
            reason=body.reason,
            expect=body.expected,
        )
        activate(self._settings, self._log.registry(PromptLog), order)

    @REST.get(
        "/prompts/evaluate",
        may="log.read",
        ids=LISTED,
        at_once=1,  # the view answers one after the other
        example=PromptEvaluation(
            object="prompt_evaluation",
            name="sums",
            versions=[
                VersionEarnings(version=2, tasks=80, questions=40, mean_reward=0.61, low=0.55, high=0.67, tokens=12.5)
            ],
            comparison=None,
        ),
    )
    def evaluate_prompt(self, request: Request, query: EvaluateQuery) -> PromptEvaluation:
        """Return what the tasks with each version of a prompt earned, and one version against another."""
        view = self._log.view
        from plugins.prompts.search import earnings  # which needs DuckDB
        from streams.tools.views.rights import LogRights

        name = self._log.registry(PromptLog).get(named(tenant_of(request), query.name)).prompt
        statement = earnings.rows_sql(name, policy=query.policy, scenario=query.scenario)
        with view.snapshot(LogRights.of(principal_of(request))) as log:
            rows = log.rows(statement)
        comparison = None
        if query.version is not None and query.against is not None:
            comparison = earnings.compare(rows, query.version, query.against).metrics()
        return PromptEvaluation(
            object="prompt_evaluation",
            name=name,
            versions=[
                VersionEarnings(**{field: getattr(one, field) for field in VersionEarnings.model_fields})
                for one in earnings.earnings(rows)
            ],
            comparison=comparison,
        )


def template_answer(
    version: PromptVersion, state: PromptState, rendered: Sequence[Message] | None = None
) -> TemplateAnswer:
    """Return a version as it is answered; `rendered`: its messages with values."""
    shares = {
        alias: arm.share
        for alias, target in state.aliases.items()
        for arm in target.arms
        if arm.version == version.number
    }
    return TemplateAnswer(
        object="prompt_version",
        name=version.name,
        version=version.number,
        aliases=shares,
        digest=version.digest,
        messages=[_message(message) for message in (version.messages if rendered is None else rendered)],
        variables={variable.name: variable.type for variable in version.variables},
        created_at=moment(version.created_at),
        actor=version.actor,
        reason=version.reason,
        job_id=version.job_id,
        withdrawn=state.withdrawn[version.number].reason if version.number in state.withdrawn else None,
    )


def _message(message: Message) -> TemplateMessage:
    return TemplateMessage.model_validate(asdict(message))
