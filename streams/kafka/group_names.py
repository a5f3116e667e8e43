"""Names of consumer groups. A name contains everything that decides which records the group's members serve.

    stage, policy or fleet, agent, base model ──► GroupScope ──► group: the name    serves: or is the record skipped?

Members of a group share its partitions, so what one of them skips no other reads. Two processes that skip different
records may therefore not be members of one group, and both answers follow from the same fields here. The groups of a
plugin begin as it declares (`Plugin.groups`).

| reader | group | skipped |
|---|---|---|
| `streams`, `scoring` | `streams`, `scoring` | nothing |
| `policy` | `policy-POLICY` | tasks of other policies, and of agents |
| `policy --fleet` | `policy-@FLEET`, with fleet.policies and the base model | those of policies outside the fleet |
| `agents run` | `agents-AGENT@POLICY`, `agents-AGENT@@FLEET` | tasks of other agents and policies |
| `train` | `trainer-POLICY`, `trainer-@FLEET` with fleet.policies | batches of other policies |
| `serve`, of which one answers for a log | `serve` | nothing |
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass

from streams.settings.model import Fleet

STREAMS, SCORING, SERVER = "streams", "scoring", "serve"
COMMITTING = (STREAMS, SCORING, "policy-", "agents-", "trainer-")
"""Groups that have commits; a prefix that ends in a dash is followed by what the members serve."""
BEGINNINGS = tuple(name for name in COMMITTING if name.endswith("-"))
"""Prefixes of the group names that say what the members serve; those of plugins are declared."""
_DIGITS = 8
"""Length of a digest in a name."""
_OF_AGENT = re.compile(r"agents-(?P<agent>.+?)@(?P<policy>@?[^@]+)")
_OF_POLICY = re.compile(r"(policy|trainer)-(?P<policy>[^@]+)")


def begin(stage: str, agent: str | None = None) -> str:
    """Return the prefix of the names of a stage's groups; a policy follows, or @ and a fleet."""
    return f"{stage}-" if agent is None else f"{stage}-{agent}@"


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupScope:
    """What the members of a group serve: one policy or those of a fleet, by themselves or as an agent."""

    stage: str
    fleet: Fleet
    policy: str | None = None
    """The only policy; None: the policies of `fleet`."""
    agent: str | None = None
    base: str | None = None
    """Digest of the only base model that a fleet serves; None: it serves any."""

    @property
    def group(self) -> str:
        """The name of the group, without topics.prefix."""
        return begin(self.stage, self.agent) + (self.policy or self._fleet_name)

    @property
    def _fleet_name(self) -> str:
        patterns = sorted({pattern.strip() for pattern in self.fleet.policies.split(",")} - {""})
        chosen = "" if "*" in patterns else "~" + hashlib.sha256(",".join(patterns).encode()).hexdigest()[:_DIGITS]
        return f"@{self.fleet.name}{chosen}" + ("" if self.base is None else f"+{self.base[:_DIGITS]}")

    def includes(self, group: str) -> bool:
        """Whether a group is this one, or a fleet's that serves the same policies with some base model."""
        return group == self.group or (self.policy is None and group.startswith(f"{self.group}+"))

    def serves(self, policy: str, agent: str | None = None, base: str | None = None) -> bool:
        """Whether a record is served: of this policy and agent, whose newest version is of this base model, if known.

        Every other one is for the members of another group.
        """
        if agent != self.agent:
            return False
        if self.policy is not None:
            return policy == self.policy
        return self.fleet.serves(policy) and (self.base is None or base in (None, self.base))


def policy_in(group: str) -> str | None:
    """Return the one policy that the members of a group answer or train; None if there are several or none."""
    match = _OF_POLICY.fullmatch(group)
    return None if match is None else match["policy"]


def agent_in(group: str) -> tuple[str, str | None] | None:
    """Return the agent that a group runs and its policy, None for those of a fleet; None for another group."""
    match = _OF_AGENT.fullmatch(group)
    return None if match is None else (match["agent"], None if match["policy"][0] == "@" else match["policy"])
