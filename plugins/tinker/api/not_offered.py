"""What the SDK may ask for and this server has not: each path is refused by its name, with what there is instead.

The SDK does not repeat a request that got 400, so its program ends at the first of them.
"""

from __future__ import annotations

from typing import NoReturn

from starlette.responses import Response

from plugins.tinker.api.interface import TINKER, TRAIN
from streams.errors import CallError

ARCHIVE = "GET /api/v1/training_runs/MODEL/checkpoints/weights/NAME/archive gives the files of saved weights"


def refuse(name: str, instead: str) -> NoReturn:
    """Raise the CallError of a path."""
    raise CallError("unsupported", f"{name} is not offered by this server: {instead}")


class TinkerNotOffered:
    """The routes that are refused."""

    @TINKER.post("/auth/token", may=None, answers={}, refuses=())
    async def tinker_token(self) -> Response:
        """Refuse tokens of Tinker's operator."""
        refuse("auth/token", "send a key of this server with tml- before it, or an access token")

    @TINKER.get("/auth/apikey/me", may=TRAIN, answers={}, refuses=())
    async def tinker_own_key(self) -> Response:
        """Refuse to show a key to itself."""
        refuse("auth/apikey/me", "GET /auth/permissions says what a key may do")

    @TINKER.delete("/auth/apikey/me", may=TRAIN, answers={}, refuses=())
    async def tinker_delete_own_key(self) -> Response:
        """Refuse to let a key delete itself."""
        refuse("auth/apikey/me", "an administrator of the server revokes keys")

    @TINKER.get("/audit", may=TRAIN, answers={}, refuses=())
    async def tinker_audit(self) -> Response:
        """Refuse the audit log of an organization."""
        refuse("audit", "the log itself is one; `streamward query` and `streamward audit` read it")

    @TINKER.get("/billing/usage/events", may=TRAIN, answers={}, refuses=())
    async def tinker_usage(self) -> Response:
        """Refuse bills."""
        refuse("billing/usage/events", "GET /costs sums what sessions used")

    @TINKER.get("/billing/usage/checkpoints/current", may=TRAIN, answers={}, refuses=())
    async def tinker_storage_usage(self) -> Response:
        """Refuse bills of storage."""
        refuse("billing/usage/checkpoints/current", "GET /api/v1/checkpoints has the size of all saved weights")

    @TINKER.post("/sessions/search", may=TRAIN, answers={}, refuses=())
    async def tinker_search_sessions(self) -> Response:
        """Refuse to search sessions."""
        refuse("sessions/search", "GET /api/v1/sessions lists them")

    @TINKER.put("/sessions/{session_id}/project", may=TRAIN, answers={}, refuses=())
    async def tinker_assign_project(self) -> Response:
        """Refuse projects."""
        refuse("sessions/ID/project", "there are no projects; a key's tenant says whose a session is")

    @TINKER.get("/sessions/{session_id}/trace_export", may=TRAIN, answers={}, refuses=())
    async def tinker_export_trace(self) -> Response:
        """Refuse traces as a file."""
        refuse("sessions/ID/trace_export", "with tracing.endpoint each call is in the trace of its client")

    @TINKER.get(
        "/training_runs/{model_id}/checkpoints/external_weights/{name}/external_weights_urls",
        may=TRAIN,
        answers={},
        refuses=(),
    )
    async def tinker_external_urls(self) -> Response:
        """Refuse addresses of files in such a bucket."""
        refuse("external_weights_urls", ARCHIVE)

    @TINKER.post(
        "/training_runs/{model_id}/checkpoints/{kind}/{name}/publish",
        may=TRAIN,
        answers={},
        refuses=(),
    )
    async def tinker_publish(self) -> Response:
        """Refuse to show weights to all tenants."""
        refuse("publish", "weights are their tenant's; `streamward adapters export` gives them to others")

    @TINKER.delete("/training_runs/{model_id}/checkpoints/{kind}/{name}/publish", may=TRAIN, answers={}, refuses=())
    async def tinker_unpublish(self) -> Response:
        """Refuse what there is nothing to do about."""
        refuse("publish", "no weights are public here")
