"""SQL over the log for programs, which only reads. sql_rows.py runs a statement, which needs DuckDB."""

from __future__ import annotations

from starlette.requests import Request

from gateway.http.principal import principal_of
from gateway.http.request_record import denied
from gateway.http.route import REST
from gateway.log.open_log import OpenLog
from gateway.log.query_body import QueryAnswer, QueryBody


class Statements:
    """The route that takes statements."""

    def __init__(self, log: OpenLog) -> None:
        self._log = log

    @REST.post(
        "/query",
        may="log.query",
        refuses=(),
        sends={"sql": "SELECT task_id, policy FROM tasks", "limit": 2},
        example=QueryAnswer(
            object="query", columns=["task_id", "policy"], rows=[["sum-1", "sums"]], more=False, left_out=[]
        ),
    )
    def query_log(self, request: Request, body: QueryBody) -> QueryAnswer:
        """Read the log by SQL."""
        principal = principal_of(request)
        if principal is not None and principal.agent_id is not None:
            rule = f"{principal.who} may only act as agent {principal.agent_id}, and a statement reads what all did"
            raise denied(request, "log.query", rule)
        view = self._log.view
        from gateway.log.sql_rows import run_query  # which needs DuckDB

        return run_query(view, body)
