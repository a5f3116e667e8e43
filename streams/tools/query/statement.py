"""Check a statement before it is run: may it run, what does it read, and can it be followed?

    SQL ──► one statement? reads only? ──► the views it names ──► Statement

DuckDB's own parser decides, so a string or a comment with `COPY` in it is not a COPY. Nothing is bound and no file is
touched: that is left to the run, and the connection is locked, too (streams/tools/query/session.py).

A name that is hidden from the parser, as in query_table('tasks'), is not found. Such a statement runs, but takes no
option that depends on what it reads.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import duckdb

from streams.errors import RefusedError, SettingsError

ALLOWED = "SELECT, WITH, FROM, VALUES, DESCRIBE, SUMMARIZE, SHOW and EXPLAIN"
_EXPLAIN = re.compile(
    r"(?:\s|--[^\n]*(?:\n|$)|/\*.*?\*/)*explain\b(?:\s*\([^)]*\)|\s+analyze\b)?", re.IGNORECASE | re.DOTALL
)


class Statement(NamedTuple):
    """One statement that only reads."""

    sql: str
    tables: frozenset[str]
    """The tables and views it names, as far as the parser sees them; its own CTEs are not among them."""
    rows: bool
    """Whether it returns rows of data, and so takes a limit: not EXPLAIN, DESCRIBE, SUMMARIZE or SHOW."""
    plain: bool
    """Whether each row depends on one record of one table alone, so that it can be followed."""


def parse(con: duckdb.DuckDBPyConnection, sql: str) -> Statement:
    """Return the one statement in `sql`.

    Raises SettingsError if there is none, or several, or it cannot be parsed; RefusedError if it does more than read.
    """
    try:
        statements = con.extract_statements(sql)
    except duckdb.Error as exc:
        raise sql_error(exc) from exc
    if len(statements) != 1:
        raise SettingsError(f"expected one SQL statement, got {len(statements)}. Run them one by one")
    if statements[0].type == duckdb.StatementType.EXPLAIN:
        head = _EXPLAIN.match(sql)
        inner = parse(con, sql[head.end() :]) if head else None
        if inner is None:
            raise _refusal("this EXPLAIN")
        return Statement(sql, inner.tables, False, False)
    if statements[0].type != duckdb.StatementType.SELECT:
        raise _refusal(statements[0].type.name)
    tree = _tree(con, sql)
    ctes = {str(entry["key"]).lower() for node in _nodes(tree) for entry in node.get("cte_map", {}).get("map", ())}
    tables = frozenset(
        str(node["table_name"]).strip('"').lower()
        for node in _nodes(tree)
        if node.get("type") in ("BASE_TABLE", "SHOW_REF") and node.get("table_name")
    )
    shows = any(node.get("type") == "SHOW_REF" for node in _nodes(tree))
    plain = not shows and _is_plain(con, tree)
    return Statement(sql, tables - ctes, not shows, plain)


def sql_error(exc: duckdb.Error) -> SettingsError | RefusedError:
    """Return our error for one of DuckDB's about a statement. It has the position and similar names."""
    text = str(exc).strip()
    if isinstance(exc, duckdb.PermissionException) or "the configuration has been locked" in text:
        return RefusedError(f"{text}\nQueries read the log only; --allow-files lets a query read and write files")
    return SettingsError(text)


def _refusal(kind: str) -> RefusedError:
    return RefusedError(
        f"{kind} is refused: a query only reads. What may be run: {ALLOWED}. Results go to a file with --out"
    )


def _tree(con: duckdb.DuckDBPyConnection, sql: str) -> Any:
    ((text,),) = con.execute("SELECT json_serialize_sql(?)", [sql]).fetchall()
    return json.loads(text).get("statements", [])


def _nodes(tree: Any) -> Iterator[dict[str, Any]]:
    """Yield every object in a syntax tree, outer ones first."""
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, dict):
            yield node
            waiting += node.values()
        elif isinstance(node, list):
            waiting += node


def _is_plain(con: duckdb.DuckDBPyConnection, tree: Any) -> bool:
    """Return whether the statement is SELECT ... FROM one table [WHERE ...], without anything over several rows."""
    if len(tree) != 1:
        return False
    node = tree[0]["node"]
    whole = ("modifiers", "group_expressions", "having", "qualify", "sample")
    if node.get("type") != "SELECT_NODE" or any(node.get(part) for part in whole) or node["cte_map"]["map"]:
        return False
    if node["from_table"]["type"] != "BASE_TABLE":
        return False
    nodes = [node_part for part in ("select_list", "where_clause") for node_part in _nodes(node.get(part))]
    if any(node_part.get("class") in ("WINDOW", "SUBQUERY") for node_part in nodes):
        return False
    functions = {str(node_part["function_name"]).lower() for node_part in nodes if node_part.get("class") == "FUNCTION"}
    rows = con.execute(
        "SELECT count(*) FROM duckdb_functions() WHERE function_type = 'aggregate' AND list_contains(?, function_name)",
        [sorted(functions)],
    ).fetchall()
    return rows == [(0,)]
