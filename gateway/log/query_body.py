"""A statement over HTTP, as it is sent. Whoever runs it is in statements.py, which needs DuckDB."""

from __future__ import annotations

from pydantic import Field

from gateway.http.body import Body, Whole

MOST = 1000
"""Rows of one answer, here and on the page."""


class QueryBody(Body):
    """A statement that only reads."""

    sql: str = Field(min_length=1, max_length=20_000, description="one SELECT, WITH, FROM, DESCRIBE, SUMMARIZE or SHOW")
    limit: Whole | None = Field(None, ge=1, le=MOST, description=f"most rows; default: {MOST}")
