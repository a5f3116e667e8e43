"""The rights of each role, in one table and one function.

    principal, action, tenant and agent of the object ──► decide ──► Decision: allowed or not, and why

Each of the five roles is a set of the 19 actions and of those that plugins declare, with rules for tenants and agents,
and keys that are bound to an agent have one more set: the whole table fits one screen. casbin took 195 µs a decision, a
set 0.1 µs, so casbin's answers would have to be cached in a table like this one.

Not covered: rights on single objects, and custom roles.
"""

from __future__ import annotations

from functools import cache
from typing import Literal, NamedTuple, NewType, Protocol, get_args

from schemas.events import AccessRole
from streams.errors import SettingsError
from streams.plugins.installed import plugin_entries

CoreAction = Literal[
    "models.read",
    "files.read",
    "agents.read",
    "groups.read",
    "adapters.read",
    "log.query",
    "log.read",
    "chat.call",
    "chat.logprobs",
    "feedback.give",
    "tasks.submit",
    "rewards.give",
    "scores.try",
    "runs.write",
    "files.write",
    "agents.write",
    "letters.decide",
    "adapters.promote",
    "code.run",
]
PluginAction = NewType("PluginAction", str)
"""An action that a plugin declares (`Plugin.actions`)."""
Action = CoreAction | PluginAction
ACTIONS: tuple[Action, ...] = get_args(CoreAction)
"""Those of the core."""
ROLES: tuple[AccessRole, ...] = get_args(AccessRole)
"""From the least to the most, except that a promoter releases what trainers train, and neither does both."""

_LOOKS: frozenset[Action] = frozenset(
    {"models.read", "files.read", "agents.read", "groups.read", "adapters.read", "log.query", "log.read"}
)
_ASKS: frozenset[Action] = _LOOKS | {
    *("chat.call", "chat.logprobs", "feedback.give", "tasks.submit", "rewards.give", "scores.try"),
    *("runs.write", "files.write"),
}
ALLOWED: dict[AccessRole, frozenset[Action]] = {
    "viewer": _LOOKS,
    "submitter": _ASKS,
    "trainer": _ASKS | {"agents.write", "letters.decide"},
    "promoter": _LOOKS | {"adapters.promote"},
    "admin": frozenset(ACTIONS),
}
"""Of the core's actions. `code.run` is needed to name an entry point or an environment by reference, which is then
executed."""
OF_AN_AGENT: frozenset[Action] = frozenset({"models.read", "chat.call", "feedback.give", "groups.read", "runs.write"})
"""What a key that is bound to an agent may do at most, and only with calls, answers, tasks and runs of that agent: the
agent's programs have it."""


@cache
def declared_actions() -> dict[PluginAction, tuple[str, ...]]:
    """Return the actions of the loaded plugins, with their roles. Raises SettingsError for one that cannot be."""
    declared = {}
    for action, (plugin, roles) in plugin_entries(lambda plugin: plugin.actions, "action", ACTIONS).items():
        if unknown := {*roles} - {*ROLES}:
            raise SettingsError(
                f"plugin {plugin.name}: {action} is for {', '.join(unknown)}; expected some of {', '.join(ROLES)}"
            )
        declared[PluginAction(action)] = roles
    return declared


def every_action() -> tuple[Action, ...]:
    """Return the actions of the core, and those of the loaded plugins. Raises SettingsError if one cannot be."""
    return (*ACTIONS, *declared_actions())


@cache
def allowed_to(role: AccessRole) -> frozenset[Action]:
    """Return the actions of a role; admin has all. Raises as `every_action`."""
    declared = declared_actions().items()
    return ALLOWED[role] | {action for action, roles in declared if role in roles or role == "admin"}


class Principal(Protocol):
    """The principal of a request: an AccessKey, or a User who logged in."""

    @property
    def who(self) -> str:
        """Its name in messages: key ID, or user NAME."""

    @property
    def subject_id(self) -> str:
        """Its id in events of its requests: the id of a key, or user NAME."""

    @property
    def roles(self) -> tuple[AccessRole, ...]:
        """Each allows what it allows; a key has one."""

    @property
    def tenant(self) -> str | None:
        """The tenant that owns the jobs and files it sees; None: all tenants."""

    @property
    def agent_id(self) -> str | None:
        """The only agent that it may be; None: any."""


class Decision(NamedTuple):
    """Whether a principal may do something, and why."""

    allowed: bool
    why: str


def decide(principal: Principal, action: Action, *, tenant: str | None = None, agent_id: str | None = None) -> Decision:
    """Return whether a principal may do `action` to an object of `tenant`, as agent `agent_id`; None: of no tenant in
    particular.

    Whether a key is revoked, or a login has ended, is not checked here: `AccessLog.find` returns no such principal.
    """
    description = f"{principal.who} has {'role' if len(principal.roles) == 1 else 'roles'} {', '.join(principal.roles)}"
    if action not in _actions_of_roles(principal):
        may = ", ".join(role for role in ROLES if action in allowed_to(role))
        return Decision(False, f"{description}, and {action} is for: {may}")
    if principal.tenant is not None and tenant is not None and tenant != principal.tenant:
        return Decision(False, f"{principal.who} is of another tenant")
    if principal.agent_id is not None and (action not in OF_AN_AGENT or agent_id not in (None, principal.agent_id)):
        rule = f"{principal.who} may only act as agent {principal.agent_id}"
        limits = ", ".join(may for may in ACTIONS if may in OF_AN_AGENT)
        return Decision(False, rule if action in OF_AN_AGENT else f"{rule}, with {limits}, and not {action}")
    return Decision(True, f"{description}, which may {action}")


def _actions_of_roles(principal: Principal) -> frozenset[Action]:
    return frozenset().union(*(allowed_to(role) for role in principal.roles))
