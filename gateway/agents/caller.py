"""The caller of a request, from path and headers, and what its environment showed before the call.

/agents/AGENT_ID/trajectories/TRAJECTORY_ID, X-Agent-ID, Idempotency-Key ─┐
X-Streamward-Observed: {"environment": "guess@1", "seed": 7, …} ──────────┴─► Caller, by the names in the log
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import partial
from typing import Annotated, NamedTuple, Protocol

from pydantic import Field
from starlette.requests import Request

from gateway.http import errors
from gateway.http.body import Body, Read, read, read_call
from gateway.http.intake import read_apart
from gateway.http.principal import AGENT_NAME, DEFAULT_AGENT, actor_of, tenant_of
from gateway.http.route import IDEMPOTENCY_KEY, Interface
from schemas import key_source
from schemas.events import Observed
from streams.access.tenants.tenant_names import is_of, named
from streams.errors import CallError

PREFIXES = ("/v1", "/agents/{agent_id}/v1", "/agents/{agent_id}/trajectories/{trajectory_id}/v1")
CALLS = Interface(PREFIXES)
MESSAGES = Interface(PREFIXES, errors.MESSAGES)
AGENT_ID = {
    "name": "X-Agent-ID",
    "in": "header",
    "description": "who calls, as `/agents/AGENT_ID` before the path says it, too; default: the agent `default`",
    "schema": {"type": "string", "pattern": r"^([A-Za-z0-9][A-Za-z0-9._:-]{0,127})?$"},
}
CALL_KEY = {**IDEMPOTENCY_KEY, "schema": {"type": "string"}}
OBSERVED = "X-Streamward-Observed"
WAITS = "x-stainless-timeout", "x-stainless-read-timeout"
"""Headers in which generated clients say how many seconds they wait for an answer."""


class Caller(NamedTuple):
    """The agent that calls, and what distinguishes this request from others."""

    agent_id: str
    trajectory_id: str | None
    request_digest: str
    retry_key: str | None
    observed: Observed | None = None
    """What its environment showed before the call."""
    cache_control: str | None = None
    limit_s: float | None = None
    """How long the client waits, seconds, as generated clients say."""
    subject: str | None = None
    """The person that it calls for, or that its key is derived from; None: nothing is sealed."""


class ObservedBody(Body):
    """What an environment showed, and what it made of the action before; the fields of an event's `Observed`."""

    environment: Annotated[str, Field(min_length=1, max_length=500)]
    seed: Annotated[int, Field(ge=-(2**63), le=2**63 - 1)]
    digest: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    tool: Annotated[str | None, Field(max_length=500)] = None
    ok: bool | None = None
    reward: float | None = None

    @property
    def event(self) -> Observed:
        """What the log has of it."""
        return Observed(**self.model_dump())


class FindsAgents(Protocol):
    """Knows turns and trajectories: the recorder of the agents' stage."""

    async def agent_of(self, name: str) -> str | None:
        """Return the agent of a turn or a trajectory; None if the id is unknown."""

    def policy_of(self, model: str) -> str | None:
        """Return the policy that a model's name leads to; None: an agent has to be looked up, or there is none."""


async def read_model_call(
    request: Request, model: type[Read], raw: bytes, recorder: FindsAgents
) -> tuple[Read, Caller]:
    """Return the body and the caller of a request. Raises CallError."""
    body, digest = await read_apart(partial(read_call, model), raw)
    caller, tenant = _caller(request, digest), tenant_of(request)
    policy = recorder.policy_of(getattr(body, "model", None) or "")
    caller = caller._replace(subject=await asyncio.to_thread(subject_of, request, _person_in(body), policy))
    return body, caller if tenant is None else await _of_tenant(tenant, caller, recorder)


def subject_of(request: Request, person: str | None, policy: str | None = None) -> str | None:
    """Return the pseudonym of whom a request to a policy is about; None: nothing is sealed.

    Raises CallError for an erased one.
    """
    try:
        return key_source.current().subject_of(tenant_of(request), person, actor_of(request), policy)
    except key_source.ErasedError:
        text = "this user was erased, and nothing is recorded for one any more; use another name, or none"
        raise CallError("conflict", text, "user") from None


def _person_in(body: Body) -> str | None:
    """Return the end user that the body of a call names, in the words of its protocol."""
    metadata = getattr(body, "metadata", None) or {}
    in_metadata = metadata.get("user_id") if isinstance(metadata, Mapping) else None
    names = (getattr(body, "safety_identifier", None), getattr(body, "user", None), in_metadata)
    return next((name for name in names if isinstance(name, str) and name), None)


def _caller(request: Request, digest: str) -> Caller:
    """Return the caller. Raises CallError if path and header disagree, or a name cannot be one."""
    path, header = request.path_params.get("agent_id"), request.headers.get("x-agent-id")
    if path is not None and header is not None and path != header:
        raise CallError("conflict", f"the path says agent {path}, X-Agent-ID says {header}; send one of them")
    agent_id, trajectory_id = path or header or DEFAULT_AGENT, request.path_params.get("trajectory_id")
    for kind, name in (("agent", agent_id), ("trajectory", trajectory_id)):
        if name is not None and not AGENT_NAME.fullmatch(name):
            raise CallError("invalid", f"{name!r} is no name of an {kind}; it has to match {AGENT_NAME.pattern}")
    # generated clients send the number of the attempt: then the same body is the same call
    tried_before = request.headers.get("x-stainless-retry-count", "0") != "0"
    return Caller(
        agent_id=agent_id,
        trajectory_id=trajectory_id,
        request_digest=digest,
        retry_key=request.headers.get("idempotency-key") or (digest if tried_before else None),
        observed=_observation(request.headers.get(OBSERVED)),
        cache_control=request.headers.get("cache-control"),
        limit_s=min(map(float, filter(str.isdecimal, map(request.headers.get, WAITS, ("", "")))), default=None) or None,
    )


def _observation(header: str | None) -> Observed | None:
    """Return the observation in a call's header. Raises CallError, naming the header."""
    if header is None:
        return None
    try:
        return read(ObservedBody, header.encode()).event
    except CallError as exc:
        raise CallError(exc.kind, f"{OBSERVED}: {exc.message}", OBSERVED) from exc


async def _of_tenant(tenant: str, caller: Caller, recorder: FindsAgents) -> Caller:
    """Return the caller by the names that the log has for a tenant's agents and trajectories. Raises CallError.

    A trajectory that the server named, and told the tenant, has no tenant in its name; it is known by its agent.
    """
    agent_id, trajectory_id = named(tenant, caller.agent_id), caller.trajectory_id
    if trajectory_id is not None:
        owner = await recorder.agent_of(trajectory_id)
        if owner is None or not is_of(tenant, owner):
            trajectory_id = named(tenant, trajectory_id)
    for name in (agent_id, trajectory_id or agent_id):
        if not AGENT_NAME.fullmatch(name):
            pattern = AGENT_NAME.pattern
            raise CallError("invalid", f"{name!r} is too long: with the tenant's name it has to match {pattern}")
    return caller._replace(agent_id=agent_id, trajectory_id=trajectory_id)
