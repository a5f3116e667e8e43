"""Whether the policies of the log move or are stuck, in the words of `streamward status` and the page."""

from __future__ import annotations

from typing import Literal

from starlette.requests import Request

from gateway.http.body import Answer
from gateway.http.principal import principal_of
from gateway.http.route import REST
from streams.access.tenants.tenant_names import is_of
from streams.kafka import times
from streams.output import moment
from streams.settings.model import Settings
from streams.tools import status
from streams.tools.standstill import Motion, Standstill, standstills


class PolicyMotion(Answer):
    """Whether one policy moves; `until`: when what it waits for is given up."""

    policy: str
    motion: Motion
    since: str | None
    waits_for: str
    until: str | None
    what_to_do: str
    text: str


class LoopMotion(Answer):
    """The policies, those that are stuck first."""

    object: Literal["list"]
    data: list[PolicyMotion]


_STUCK = PolicyMotion(
    policy="sums",
    motion="stuck",
    since="2026-11-21T14:30:21Z",
    waits_for="1 batch waits for trainer, and no process does it",
    until=None,
    what_to_do="start `streamward train`",
    text="sums is stuck since 2026-11-21 14:30:21 UTC (4 min): 1 batch waits for trainer, and no process does it. "
    "What to do: start `streamward train`",
)


class LoopState:
    """The route that says whether anything is stuck."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    @REST.get(
        "/status",
        may="groups.read",
        refuses=(),
        example=LoopMotion(object="list", data=[_STUCK]),
        at_once=1,  # each reads the newest records of the log
        tools={"is_anything_stuck": "Say of each policy whether it moves, what it waits for if not, and what to do."},
    )
    def get_status(self, request: Request) -> LoopMotion:
        """Say whether anything is stuck."""
        principal = principal_of(request)
        tenant = None if principal is None else principal.tenant
        now_ms = times.now_ms()
        rows = standstills(self._settings, status.look(self._settings, now_ms=now_ms), now_ms)
        return LoopMotion(object="list", data=[_answer(row) for row in rows if is_of(tenant, row.policy)])


def _answer(row: Standstill) -> PolicyMotion:
    since, until = (None if at is None else moment(at) for at in (row.since_ms, row.cause.until_ms))
    return PolicyMotion(
        policy=row.policy,
        motion=row.motion,
        since=since,
        waits_for=row.cause.waits_for,
        until=until,
        what_to_do=row.cause.way_out,
        text=str(row),
    )
