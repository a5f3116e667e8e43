"""A policy's versions over HTTP: what there is, and decisions about it.

    adapters, folded ──► policies that the key may see ──► versions, which serve, which is tried
    {version, reason, expected} ──► decisions.decide ──► it took effect, or 409 with what is there

A decision is written and read back: the log orders decisions that are made at once, and the second of two is refused. A
tenant decides about policies of its own alone, and of those that all share it sees no results of other tenants'
questions.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field
from starlette.requests import Request

from gateway.http.body import Answer, Body, PathQuery, Whole
from gateway.http.principal import actor_of, tenant_of
from gateway.http.request_record import denied
from gateway.http.route import REST
from gateway.log.open_log import AT_ONCE
from schemas.events import AdapterKind
from streams.access.tenants.tenant_names import is_of, may_know
from streams.adapters import decisions
from streams.adapters.decisions import AdapterDecision, ProposedDecision
from streams.adapters.version_row import row_of
from streams.adapters.versions import AdapterState, read_states
from streams.errors import CallError, NotFoundError, RefusedError
from streams.settings.model import Settings

LISTED = "GET /adapters lists policies and their versions"
"""Where the names of policies and versions are found."""
OF_OTHERS = ("held_out", "judged", "outside", "tuned_by", "uri")
"""What a tenant is not shown of a version that all share: others' suites and files are in it."""
Number = Annotated[Whole, Field(ge=0, lt=2**31)]
Reason = Annotated[str, Field(min_length=1, max_length=1000, pattern=r"\S", description="why; it is recorded")]
Primary = Annotated[Number, Field(description="the version that is primary now")]


class DecisionBody(Body):
    """A decision about a version."""

    version: Annotated[Number, Field(description="version to decide about")]
    expected: Primary | None = Field(None, description="only if this version is primary; default: whichever is")
    reason: Reason


class RollbackBody(Body):
    """A return to an older version."""

    version: Number | None = Field(None, description="version to return to; default: the primary before")
    expected: Annotated[Number, Field(description="the primary that is rolled back")]
    reason: Reason


class AdaptersQuery(PathQuery):
    """Which policies."""

    policy: str | None = Field(None, min_length=1, max_length=200, description="default: all of them")


class ServingAnswer(Answer):
    """Who answers: the primary, and the candidate that is tried on a share of the tasks."""

    primary: int
    candidate: int | None
    share: float
    newest: int
    primaries: list[int]


class JudgedAnswer(Answer):
    """What a canary came to."""

    verdict: str
    reason: str


class OutsideAnswer(Answer):
    """A model that another server answers for."""

    url: str
    model: str


class AdapterVersion(Answer):
    """One version. Of a policy that tenants share they see no `tuned_by`, `outside`, `uri`, `judged`, `held_out`."""

    policy: str
    version: int
    status: str
    share: float | None
    parent_version: int | None
    batches: str | None
    tuned_by: str | None = None
    outside: OutsideAnswer | None = None
    created_at: str | None
    promoted_at: str | None
    uri: str | None = None
    sha256: str | None
    base_digest: str | None
    judged: JudgedAnswer | None = None
    metrics: dict[str, float]
    held_out: dict[str, dict[str, float]] | None = None


class PolicyAdapters(Answer):
    """A policy's versions, and who serves."""

    object: Literal["adapters"]
    policy: str
    serving: ServingAnswer
    versions: list[AdapterVersion]


class AdapterList(Answer):
    """Every policy that one may know of."""

    object: Literal["list"]
    data: list[PolicyAdapters]


class AdapterDecisionAnswer(Answer):
    """A decision that took effect; `before`: the primary until then; `again`: it was in the log already."""

    object: Literal["adapter_decision"]
    policy: str
    version: int
    kind: Literal["promoted", "rejected", "rolled_back", "retired"]
    actor: str
    reason: str
    before: int
    serving: ServingAnswer
    recorded_at: str
    again: bool


DECISION = AdapterDecisionAnswer(
    object="adapter_decision",
    policy="sums",
    version=8,
    kind="promoted",
    actor="key 00112233445566ff",
    reason="as the evaluation says",
    before=7,
    serving=ServingAnswer(primary=8, candidate=None, share=0.0, newest=8, primaries=[0, 7, 8]),
    recorded_at="streamward.adapters[0]@12",
    again=False,
)


class PublishedAdapters:
    """Versions of policies, and decisions about them. Methods wait for the broker."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    @REST.get(
        "/adapters",
        may="adapters.read",
        ids=LISTED,
        at_once=AT_ONCE,
        tools={"list_versions": ""},
        toolsets=("log", "control"),
    )
    def list_adapters(self, request: Request, query: AdaptersQuery) -> AdapterList:
        """List policies, their versions, and who serves."""
        shared = self._settings.policy.name
        return visible_adapters(read_states(self._settings), tenant_of(request), shared, query.policy)

    @REST.post(
        "/adapters/{policy}/promote",
        may="adapters.promote",
        ids=LISTED,
        sends={"version": 8, "expected": 7, "reason": "it answers more questions"},
        example=DECISION,
        tools={"promote": ""},
        toolsets=("log", "control"),
    )
    def promote_adapter(self, request: Request, policy: str, body: DecisionBody) -> AdapterDecisionAnswer:
        """Make a version primary."""
        return self._decide(request, policy, "promoted", body)

    @REST.post(
        "/adapters/{policy}/reject",
        may="adapters.promote",
        ids=LISTED,
        sends={"version": 8, "reason": "it answers fewer questions"},
        example=DECISION.model_copy(update={"kind": "rejected"}),
        tools={"reject": ""},
        toolsets=("log", "control"),
    )
    def reject_adapter(self, request: Request, policy: str, body: DecisionBody) -> AdapterDecisionAnswer:
        """Take a version out of service, or keep it out."""
        return self._decide(request, policy, "rejected", body)

    @REST.post(
        "/adapters/{policy}/retire",
        may="adapters.promote",
        ids=LISTED,
        sends={"version": 3, "reason": "it is of no use any more"},
        example=DECISION.model_copy(update={"version": 3, "kind": "retired"}),
    )
    def retire_adapter(self, request: Request, policy: str, body: DecisionBody) -> AdapterDecisionAnswer:
        """Retire a version for good."""
        if body.version == 0:
            raise CallError(
                "conflict",
                "version 0 is the base model, which any roll-back may return to; it is never retired",
                "version",
            )
        return self._decide(request, policy, "retired", body)

    @REST.post(
        "/adapters/{policy}/rollback",
        may="adapters.promote",
        ids=LISTED,
        sends={"expected": 8, "reason": "it answers fewer questions"},
        example=DECISION.model_copy(update={"kind": "rolled_back"}),
        tools={"roll_back": ""},
        toolsets=("log", "control"),
    )
    def rollback_adapter(self, request: Request, policy: str, body: RollbackBody) -> AdapterDecisionAnswer:
        """Return to an older version."""
        return self._decide(request, policy, "rolled_back", body)

    def _decide(
        self, request: Request, policy: str, kind: AdapterKind, body: DecisionBody | RollbackBody
    ) -> AdapterDecisionAnswer:
        tenant, actor = tenant_of(request), actor_of(request)
        if not is_of(tenant, policy):
            if not may_see(tenant, policy, self._settings.policy.name):
                raise NotFoundError(no_policy(policy))
            rule = f"policy {policy} is shared; {actor} decides about those that begin with {tenant}."
            raise denied(request, "adapters.promote", rule, "policy")
        return _write_decision(self._settings, policy, kind, body, actor)


def may_see(tenant: str | None, policy: str, shared: str) -> bool:
    """Return whether a tenant may know of a policy; `shared` is the server's own, whatever its name."""
    return policy == shared or may_know(tenant, policy)


def visible_adapters(
    states: Mapping[str, AdapterState], tenant: str | None, shared: str, policy: str | None = None
) -> AdapterList:
    """Return what a tenant sees of all policies, or of one. Raises NotFoundError for one that it may not know of."""
    visible = {name: state for name, state in states.items() if may_see(tenant, name, shared)}
    if policy is not None:
        if policy not in visible:
            raise NotFoundError(no_policy(policy))
        visible = {policy: visible[policy]}
    return AdapterList(object="list", data=[_policy(visible[name], tenant) for name in sorted(visible)])


def _write_decision(
    settings: Settings, policy: str, kind: AdapterKind, body: DecisionBody | RollbackBody, actor: str
) -> AdapterDecisionAnswer:
    """Write a decision, and return what it made of the policy.

    Raises CallError(conflict) with what is there instead, NotFoundError for an unknown policy or version, LogError.
    """
    history = decisions.read_history(settings, policy)
    if len(history.state.versions) == 1 and policy not in read_states(settings):
        raise NotFoundError(no_policy(policy))
    try:
        version = body.version
        if version is None:
            version = decisions.rollback_target(history, body.expected or 0, actor=actor, reason=body.reason)
        proposed = ProposedDecision(kind=kind, version=version, actor=actor, reason=body.reason, expect=body.expected)
        return _answer(decisions.decide(settings, history, proposed))
    except RefusedError as exc:
        state = decisions.read_history(settings, policy).state
        raise CallError("conflict", str(exc), "expected", found={"serving": _serving(state).model_dump()}) from exc


def no_policy(policy: str) -> str:
    """Return the message about a policy that does not exist, or belongs to another tenant."""
    return f"there is no policy {policy[:80]!r}; GET /adapters lists those that there are"


def _policy(state: AdapterState, tenant: str | None) -> PolicyAdapters:
    rows = [row_of(state, number) for number in sorted(state.versions)]
    if not is_of(tenant, state.policy):
        rows = [{name: value for name, value in row.items() if name not in OF_OTHERS} for row in rows]
    versions = [AdapterVersion.model_validate(row) for row in rows]
    return PolicyAdapters(object="adapters", policy=state.policy, serving=_serving(state), versions=versions)


def _serving(state: AdapterState) -> ServingAnswer:
    serving = state.serving
    return ServingAnswer(
        primary=state.primary,
        candidate=serving.candidate,
        share=serving.share,
        newest=state.newest,
        primaries=list(state.primaries),
    )


def _answer(decision: AdapterDecision) -> AdapterDecisionAnswer:
    event = decision.event
    return AdapterDecisionAnswer.model_validate(
        {
            "object": "adapter_decision",
            "policy": event.policy,
            "version": event.version,
            "kind": event.kind,
            "actor": event.actor,
            "reason": event.reason,
            "before": decision.before,
            "serving": _serving(decision.state),
            "recorded_at": str(decision.at),
            "again": decision.again,
        }
    )
