"""Check a statement before it runs: is it allowed, what does it read, and can it be followed?

    SQL ──► one statement? reads only? the views of the log alone? ──► the views it names ──► Statement

DuckDB's own parser decides, so a string or a comment with `COPY` in it is not a COPY. Nothing is bound and no file is
touched: that is left to the run, and the connection is locked, too (streams/tools/query/session.py).

A SELECT can do more than read the log: a CTE may be a COPY or a DELETE, and table functions open files, show settings,
run other statements, and take addresses in memory. So there is a list of what a statement may contain: kinds of
queries, table functions, and names. If files are allowed, so are all functions and names: then the user who runs the
process has typed the statement.

The lock would not stop a COPY: DuckDB may write every file that it may read, including the archive's segments.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from typing import Any, NamedTuple

import duckdb

from schemas import json_text
from streams.errors import RefusedError, SettingsError

ALLOWED = "SELECT, WITH, FROM, VALUES, DESCRIBE, SUMMARIZE, SHOW and EXPLAIN"
TABLE_FUNCTIONS = ("range", "generate_series", "unnest", "repeat", "repeat_row", "json_each", "json_tree")
"""Table functions that make rows of their arguments alone."""
_SETTINGS = (
    *("current_setting", "getvariable", "getenv", "get_block_size", "write_log"),
    *("pg_get_viewdef", "pg_get_constraintdef", "json_serialize_plan"),
)
"""Functions that are about the process, not about rows; the last plans any statement, settings filled in."""
_QUERIES = ("SELECT_NODE", "SET_OPERATION_NODE", "RECURSIVE_CTE_NODE", "CTE_NODE")
"""Kinds of queries, also of those in a query, that only read."""
_SCHEMAS = ("", "main", "whole")
_SHOWN = '"tables"'
"""What SHOW TABLES reads."""
_EXPLAIN = re.compile(r"\s*explain\b(?:\s*\([\w\s,]*\)|\s+analyze\b)?", re.IGNORECASE)
"""The head of an EXPLAIN; one with comments in it is not taken apart."""


class Statement(NamedTuple):
    """One statement that only reads."""

    sql: str
    tables: frozenset[str]
    """The tables and views that the parser finds in it, without its own CTEs."""
    rows: bool
    """Whether it returns rows of data, and so takes a limit: not EXPLAIN, DESCRIBE, SUMMARIZE or SHOW."""
    plain: bool
    """Whether each row depends on one record of one table alone, so that it can be followed."""


def parse(con: duckdb.DuckDBPyConnection, sql: str, *, allow_files: bool = False) -> Statement:
    """Return the one statement in `sql`. With `allow_files` it may read more than the views of the log.

    Raises SettingsError unless it is one statement that parses and reads no other table; RefusedError if it does more
    than read.
    """
    try:
        statements = con.extract_statements(sql)
    except duckdb.Error as exc:
        raise sql_error(exc) from exc
    if len(statements) != 1:
        raise SettingsError(f"expected one SQL statement, got {len(statements)}. Run them one by one")
    kind = _kind(statements[0])
    if kind == duckdb.StatementType.EXPLAIN:
        head = _EXPLAIN.match(sql)
        inner = parse(con, sql[head.end() :], allow_files=allow_files) if head else None
        if inner is None:
            raise _refusal("an EXPLAIN with comments before or in its head")
        return Statement(sql, inner.tables, False, False)
    if kind != duckdb.StatementType.SELECT:
        raise _refusal(kind.name)
    tree = _tree(con, sql)
    _check_queries(tree)
    if not allow_files:
        _check_reads(tree)
    ctes = {str(entry["key"]).lower() for node in _nodes(tree) for entry in node.get("cte_map", {}).get("map", ())}
    tables = frozenset(
        str(node["table_name"]).strip('"').lower()
        for node in _nodes(tree)
        if node.get("type") in ("BASE_TABLE", "SHOW_REF") and node.get("table_name")
    )
    shows = any(node.get("type") == "SHOW_REF" for node in _nodes(tree))
    plain = not shows and _is_plain(con, tree)
    return Statement(sql, tables - ctes, not shows, plain)


def _kind(statement: duckdb.Statement) -> duckdb.StatementType:
    """Return the kind of a statement. Raises RefusedError for one that DuckDB's Python has no name for."""
    try:
        return statement.type
    except ValueError as exc:
        raise _refusal("a statement of this kind") from exc


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
    try:
        tree = json_text.parse(text)
    except ValueError as exc:
        raise _refusal("a statement that is nested so deeply") from exc
    if tree["error"]:
        raise _refusal(f"a statement that DuckDB cannot take apart ({tree.get('error_message')})")
    return tree["statements"]


def _check_queries(tree: Any) -> None:
    """Raise RefusedError if a query in a statement does more than read: `WITH x AS (COPY … TO …) SELECT 1`."""
    for node in _nodes(tree):
        if "cte_map" in node and node.get("type") not in _QUERIES:  # every query has one
            raise _refusal(f"{str(node.get('type')).removesuffix('_QUERY_NODE')} in a query")


def _check_reads(tree: Any) -> None:
    """Raise SettingsError or RefusedError if a statement reads anything but the views of the log."""
    for node in _nodes(tree):
        name = str(node.get("table_name") or "").lower()
        if node.get("type") == "BASE_TABLE":
            schema = str(node.get("schema_name") or "").lower()
            if schema not in _SCHEMAS or name in _system_views():
                full_name = f"{schema}.{name}" if schema else name
                raise SettingsError(f"{full_name} is no view of the log; SHOW TABLES names them")
        elif node.get("type") == "SHOW_REF":
            is_special = node.get("show_type") == "SHOW_SPECIAL" and name != _SHOWN
            if is_special or name.startswith("__") or name in _system_views() | _settings():
                raise SettingsError(f"SHOW {name} is not about the log; SHOW TABLES names its views")
        elif node.get("type") == "TABLE_FUNCTION":
            function = str(node["function"].get("function_name")).lower()
            if function not in TABLE_FUNCTIONS:
                raise _function_refusal(function)
        elif node.get("class") == "FUNCTION" and str(node.get("function_name")).lower() in _SETTINGS:
            raise _function_refusal(str(node["function_name"]))


def _function_refusal(name: str) -> RefusedError:
    return RefusedError(
        f"{name}() is refused: a query reads the views of the log, and of table functions it may call "
        f"{', '.join(TABLE_FUNCTIONS)}. --allow-files lets a query read and write files"
    )


@cache
def _system_views() -> frozenset[str]:
    """Return the names of DuckDB's own views that need no schema."""
    return _names("SELECT lower(view_name) FROM duckdb_views() WHERE internal AND schema_name <> 'information_schema'")


@cache
def _settings() -> frozenset[str]:
    """Return the names of DuckDB's settings, which SHOW knows but FROM does not: `threads` is one of our views."""
    return _names("SELECT lower(name) FROM duckdb_settings()")


def _names(sql: str) -> frozenset[str]:
    with duckdb.connect() as con:
        return frozenset(name for (name,) in con.execute(sql).fetchall())


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
