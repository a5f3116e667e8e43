"""What an environment showed to an agent, as whoever runs both says it: beside a call, and as a run begins and ends.

X-Streamward-Observed: {"environment": "guess@1", "seed": 7, "digest": "…"} ──► Observed ──► the call's turn
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from gateway.http.body import Body, read
from schemas.events import Observed
from streams.errors import CallError

HEADER = "X-Streamward-Observed"


class ObservedBody(Body):
    """What an environment showed, and what it made of the action before; the fields of an event's `Observed`."""

    environment: Annotated[str, Field(min_length=1, max_length=500)]
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)]
    digest: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    tool: Annotated[str | None, Field(max_length=500)] = None
    ok: bool | None = None
    reward: float | None = None

    @property
    def event(self) -> Observed:
        """What the log has of it."""
        return Observed(**self.model_dump())


def of_header(value: str | None) -> Observed | None:
    """Return what a call's header says. Raises CallError, naming the header."""
    if value is None:
        return None
    try:
        return read(ObservedBody, value.encode()).event
    except CallError as exc:
        raise CallError(exc.kind, f"{HEADER}: {exc.message}", HEADER) from exc
