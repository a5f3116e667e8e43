"""Scorers and environments that a request names, and whether its sender may name them.

of a tenant ──► those that serve.tenant_scorers lists          other keys ──► what is executed code takes code.run
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from starlette.requests import HTTPConnection, Request

from gateway.http.principal import principal_of, tenant_of
from gateway.http.request_record import denied
from schemas.events import EpisodeStart, RewardSource, Task
from streams.access.roles import decide
from streams.errors import CallError
from streams.scorers import SCORERS, ScoreError, parts
from streams.settings.model import Serve
from streams.stages.tasks.episodes import episode_player


def check_named(request: Request, rule: Serve, task: Task, parameter: str = "reward_sources") -> None:
    """Raise CallError for a scorer or an environment that the sender of a task may not name."""
    check_scorers(request, rule, task.reward_sources, parameter)
    check_environment(request, task.environment)


def check_environment(request: HTTPConnection, start: EpisodeStart | None) -> None:
    """Raise CallError for an environment that the sender may not name."""
    environment = code_of_environment(start)
    if environment is None:
        return
    if tenant_of(request) is not None:
        raise denied(request, "code.run", f"{environment}, which takes a key without a tenant", "environment")
    _check_code(request, environment, "environment")


def check_scorers(
    request: HTTPConnection, rule: Serve, sources: Collection[RewardSource], parameter: str = "reward_sources"
) -> None:
    """Raise CallError for a scorer that the sender may not name."""
    if tenant_of(request) is not None:
        if (problem := why_not_of_tenant(sources, rule)) is not None:
            raise denied(request, "code.run", problem, parameter)
    elif (scorer := code_of(sources, rule)) is not None:
        _check_code(request, scorer, parameter)


def _check_code(request: HTTPConnection, code: str, parameter: str) -> None:
    """Raise CallError if the sender may not have code executed."""
    principal = principal_of(request)
    if principal is not None and not (decision := decide(principal, "code.run")).allowed:
        raise denied(request, "code.run", f"{code}; {decision.why}", parameter)


def scorers_of(sources: Collection[RewardSource]) -> Iterator[str]:
    """Yield every scorer that reward sources name, those in a mix too. Raises CallError for one that there is not."""
    for source in sources:
        try:
            mixed = parts(source)
        except ScoreError as exc:
            raise CallError("invalid", f"reward_sources: {exc}", "reward_sources") from exc
        yield source.name
        yield from (part.name for part in mixed if part.name != source.name)


def why_not_of_tenant(sources: Collection[RewardSource], rule: Serve) -> str | None:
    """Return why a tenant may not name these reward sources; None if it may."""
    allowed = rule.scorers_of_tenants
    for name in scorers_of(sources):
        if name not in allowed:
            return (
                f"scorer {name[:80]!r} is none that tenants may name; serve.tenant_scorers allows "
                f"{', '.join(allowed) or 'none'}"
            )
    return None


def code_of(sources: Collection[RewardSource], rule: Serve) -> str | None:
    """Return the first reward source that is executed code, in words; None if there is none.

    Scorers of serve.outside_scorers are not run here.
    """
    for name in scorers_of(sources):
        if name not in SCORERS and name not in rule.scorers_outside:
            return f"scorer {name[:80]!r} is a function that is run"
    return None


def code_of_environment(start: EpisodeStart | None) -> str | None:
    """Return why an environment is executed code, in words; None if it is built in, or there is none."""
    if start is None or episode_player().is_built_in(start.name):
        return None
    return f"environment {start.name[:80]!r} is none of those that are built in, and is run"
