"""SQL over the log for programs, which only reads. sql_rows.py runs a statement, which needs DuckDB."""

from __future__ import annotations

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
        tools={"query_log": "Ask the log in SQL (DuckDB): one statement that reads. `SHOW TABLES` lists the views."},
    )
    def query_log(self, body: QueryBody) -> QueryAnswer:
        """Read the log by SQL."""
        view = self._log.view
        from gateway.log.sql_rows import run_query  # which needs DuckDB

        return run_query(view, body)
