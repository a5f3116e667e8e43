"""The tools that a server calls for a run: what answers runs asks, and what a plugin with a registry answers.

    ServerPart.run_tools ──► RunTools ◄── find: may it be called now? ◄── call: its result ◄── a run of an agent
    the actor who requested the run ──► CallRights: its key or user as it is now

A run that is denied a tool continues: its model reads the reason as the tool's result.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from gateway.http.authentication import Authentication
from schemas.events import AccessRole, RunCall
from streams.access.roles import Principal, decide
from streams.access.tenants.tenant_names import tenant_in, without_tenant
from streams.stages.agents.tool_guard import ToolFlow


class CallableTool(NamedTuple):
    """A tool that may be called."""

    tool_id: str
    digest: str
    """sha256 of its accepted description."""
    idempotent: bool
    """Whether a call may be made again if its result was lost."""
    needs_consent: bool
    """Whether a person is asked before each call."""
    agent: str | None = None
    """The agent that answers its calls, each by a run of its own; None: it is no agent, and `call` makes them."""
    handoff: bool = False
    """Whether its result is the answer of the run."""
    keeps_state: bool = False
    """Whether a call depends on those before it in its run, so that they are made one after the other."""


class ToolReply(NamedTuple):
    """The end of a call."""

    text: str
    """What the model reads."""
    error: str | None = None
    """Why there is no result, in a word: denied, not_found, untrusted, timeout, failed … INPUT_REQUIRED: it asks."""


class CallInRun(NamedTuple):
    """A call, and what its run called before it."""

    arguments: str
    """JSON object."""
    before: Sequence[RunCall] = ()
    """The calls of tools that were made and gave an answer, in order."""


class CallStop:
    """A call, as it can be ended from another thread, also before its endpoint is open.

    A task of another server may answer it (`task_id`), which `accept` takes in and continues without this process.
    """

    def __init__(
        self,
        message_id: str = "",
        task_id: str | None = None,
        answer: str | None = None,
        accept: Callable[[str], None] | None = None,
    ) -> None:
        """`message_id`: the call's name for that server; `answer`: to what its agent asked."""
        self._lock, self.is_stopped = threading.Lock(), False
        self._kill: Callable[[], None] | None = None
        self.message_id, self.task_id, self.answer, self._accept = message_id, task_id, answer, accept

    def accept(self, task_id: str) -> None:
        """Take in which task answers the call."""
        self.task_id = task_id
        if self._accept is not None:
            self._accept(task_id)

    def leave(self) -> None:
        """Return from the call without its result; its task continues."""
        self.is_stopped = True

    def arm(self, kill: Callable[[], None]) -> None:
        """Take what ends the call now."""
        with self._lock:
            self._kill = kill
        if self.is_stopped:
            kill()

    def disarm(self) -> None:
        """Take in that the call has ended: what made it is free for the next one, which nothing here may end."""
        with self._lock:
            self._kill = self._accept = None

    def stop(self) -> None:
        """End the call: it fails, or it has its result already."""
        with self._lock:
            self.is_stopped, kill = True, self._kill
        if kill is not None:
            kill()


class RunTools(Protocol):
    """Registered tools, by `ID@DIGEST` as an agent is registered with them. Methods wait for broker and endpoints."""

    def find(self, reference: str, principal: Principal | None) -> CallableTool | ToolReply:
        """Return a tool that a principal may call now, or why it may not. Raises LogError."""

    def call(self, reference: str, principal: Principal | None, run: CallInRun, stop: CallStop) -> ToolReply:
        """Return the result of a call. Raises LogError before it was made."""

    def cancel(self, reference: str, principal: Principal | None, task_id: str) -> None:
        """Cancel the task of another server that answers a call. Raises StreamwardError."""

    def flow(self, name: str, tenant: str | None) -> ToolFlow | None:
        """Return what is declared of a tool that a tenant sees, by its id or as models call it; None: nothing is.

        Of several tools that are called so, what any of them declares. Raises LogError.
        """


class CallRights(NamedTuple):
    """The rights with which a run calls tools."""

    principal: Principal | None = None
    """None: the server asks for no keys."""
    denied: str | None = None
    """Why it calls nothing."""


class OfTenant(NamedTuple):
    """A principal of all tenants, as it is for one of them."""

    who: str
    subject_id: str
    roles: tuple[AccessRole, ...]
    tenant: str
    agent_id: str | None


def rights_of(auth: Authentication | None, actor: str, agent: str) -> CallRights:
    """Return the present rights of the actor who requested a run of `agent`, by its name in the log. Raises LogError.

    A key may have been revoked since, and a user have other roles. A run of a tenant's agent is its tenant's alone.
    """
    if auth is None:
        return CallRights()
    principal = auth.principals.of_actor(actor)
    if isinstance(principal, str):
        return CallRights(denied=principal)
    tenant = tenant_in(agent)
    decision = decide(principal, "chat.call", agent_id=without_tenant(tenant, agent))
    if principal.tenant is None and tenant is not None:
        principal = OfTenant(principal.who, principal.subject_id, principal.roles, tenant, principal.agent_id)
    return CallRights(principal, None if decision.allowed else decision.why)
