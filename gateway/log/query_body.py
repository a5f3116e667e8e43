"""A statement over HTTP, and its rows."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from gateway.http.body import Answer, Body, Whole

MOST = 1000
"""Maximum rows of one answer."""


class QueryBody(Body):
    """A statement that only reads."""

    sql: str = Field(min_length=1, max_length=20_000, description="one SELECT, WITH, FROM, DESCRIBE, SUMMARIZE or SHOW")
    limit: Whole | None = Field(None, ge=1, le=MOST, description=f"most rows; default: {MOST}")


class QueryAnswer(Answer):
    """Rows of a statement; `more`: there are others beyond the limit."""

    object: Literal["query"]
    columns: list[str]
    rows: list[list[Any]]
    more: bool
    left_out: list[str]
