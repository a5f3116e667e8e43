"""A page of a list in OpenAI's form: `after=last_id` asks for the next."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, Protocol

from gateway.http.body import Answer
from streams.errors import CallError


class PageAnswer(Answer):
    """A page of a list: `after=last_id` asks for the next."""

    object: Literal["list"]
    has_more: bool
    first_id: str | None
    last_id: str | None


class HasId(Protocol):
    """An item of a page."""

    id: str


def page(items: Sequence[HasId], after: str | None, limit: int) -> dict[str, Any]:
    """Return the fields of a page: `limit` of the items after the one called `after`. Raises CallError (not_found)."""
    start = 0
    if after is not None:
        ids = [item.id for item in items]
        if after not in ids:
            raise CallError("not_found", f"after: there is no {after[:80]!r} in this list; give an id of it", "after")
        start = ids.index(after) + 1
    data = items[start : start + limit]
    ends = {"first_id": data[0].id if data else None, "last_id": data[-1].id if data else None}
    return {"object": "list", "data": list(data), "has_more": start + limit < len(items)} | ends
