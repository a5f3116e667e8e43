"""What a statement may do, which options fit it, how answers look, and the shell; on a log in which nothing is."""

from __future__ import annotations

import gc
import io
import json
import os
import signal
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyarrow import parquet

from schemas.events import AdvantagedGroup
from streams.errors import NotFoundError, RefusedError, SettingsError
from streams.kafka.topics import LABELS
from streams.plugins.installed import load_plugins
from streams.settings.load import save
from streams.settings.model import Archive, Settings
from streams.tools.archive.columns import MEMBERS, segment_schema
from streams.tools.archive.segments import ArchiveReader
from streams.tools.archive.tables import Segment
from streams.tools.query import archived, formats, options as query_options
from streams.tools.query.prompt import Shell, feed_all, is_whole, words
from streams.tools.query.session import Session, SessionLimits, connect
from streams.tools.query.source import Scope
from streams.tools.query.views import JOINS
from streams.tools.views.rights import LogRights

LONG = "SELECT sum(a.range * b.range) FROM range(10000000) AS a, range(1000000) AS b"


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(archive=Archive(store=str(tmp_path / "archive")))


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    """A session that tests share, as no statement changes it: opening one takes longer than most statements."""
    settings = Settings(archive=Archive(store=str(tmp_path_factory.mktemp("shared") / "archive")))
    with Session(settings, source="archive") as opened:
        yield opened


def answer(session: Session, sql: str) -> list[list[Any]]:
    return list(formats.rows(session.run(sql)))


def shown(session: Session, sql: str, output: str = "table") -> str:
    out = io.StringIO()
    formats.write(session.run(sql), output, out)
    return out.getvalue()


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


# --- views ------------------------------------------------------------------------------------------------------------


def test_groups_from_before_their_members_were_stored_are_decoded_again(settings: Settings, tmp_path: Path) -> None:
    archive, now = ArchiveReader(settings), segment_schema(AdvantagedGroup)
    folder = tmp_path / "archive" / archive.folder("groups")
    folder.mkdir(parents=True)
    held = []
    for name, schema in (("now", now), ("before", now.remove(now.get_field_index(MEMBERS)))):
        parquet.write_table(schema.empty_table(), folder / name)
        held.append(Segment("groups", 0, "", 0, 1, name, "", "", "", 1, 0, 1, 0, 0, (1,)))
    found = archived.sort(archive, AdvantagedGroup, held)
    assert [each.name for each in found.clean] == ["now"]
    assert [each.name for each in found.older] == ["before"]


def test_there_is_a_view_for_every_topic_and_each_can_be_read(session: Session) -> None:
    joins = {view.name for view in JOINS}
    joins |= {view.name for plugin, _, _ in load_plugins() for view in plugin.load_all(plugin.views)}
    assert {"group_responses", "lineage", "policy_checkpoints", "rollout", "runs", "unique_tasks"} <= joins
    assert {label.replace("-", "_") for label in LABELS} | joins == set(session.views)
    assert all(answer(session, f"FROM {name}") == [] for name in session.views)


def test_a_tenant_reads_every_view_by_a_condition(session: Session) -> None:
    restricted = LogRights("red", access=False).restrict("SELECT 1")
    assert [name for name in session.views if f"{name} AS (SELECT" not in restricted] == []
    assert all(answer(session, LogRights("red", access=False).restrict(f"FROM {name}")) == [] for name in session.views)


def test_tables_are_shown_as_the_views_that_there_are_and_no_others(session: Session, settings: Settings) -> None:
    assert [row[0] for row in answer(session, "SHOW TABLES")] == sorted(session.views)
    with Session(settings, source="archive", scope=Scope(since_ms=1)) as narrow:
        assert [row[0] for row in answer(narrow, "SHOW TABLES")] == sorted(narrow.views)


def test_columns_say_where_a_record_lies_and_then_what_it_holds(session: Session) -> None:
    names = [name for name, _ in session.columns("rewards")]
    assert names[:6] == ["_partition", "_offset", "_timestamp", "_key", "_schema_id", "reward_id"]
    assert dict(session.columns("rewards"))["components"] == "MAP(VARCHAR, DOUBLE)"


def test_an_unknown_view_is_named_with_those_there_are(session: Session) -> None:
    with pytest.raises(NotFoundError, match="'reward'; there are tasks"):
        session.columns("reward")


# --- what may be run --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "sql",
    [
        "COPY tasks TO '/tmp/never.csv'",
        "COPY (SELECT 1) TO '/tmp/never.parquet'",
        "ATTACH '/tmp/never.db'",
        "INSTALL httpfs",
        "LOAD httpfs",
        "SET enable_external_access = true",
        "RESET lock_configuration",
        "PRAGMA database_list",
        "CALL pragma_version()",
        "CREATE TABLE mine AS FROM tasks",
        "INSERT INTO tasks SELECT * FROM tasks",
        "WITH more AS (SELECT 1) INSERT INTO tasks FROM more",
        "DROP VIEW tasks",
        "EXPORT DATABASE '/tmp/never'",
        "EXPLAIN ANALYZE COPY tasks TO '/tmp/never.csv'",
        "/* SELECT */ EXPLAIN (ANALYZE) CREATE TABLE mine (a INT)",
        "BEGIN",
        "USE memory",
        "PREPARE p AS SELECT 1",
        "EXECUTE p",
        "CREATE MACRO m() AS 1",
        "CREATE SECRET s (TYPE s3)",
        "DETACH memory",
        "VACUUM",
        "UPDATE EXTENSIONS",
        "MERGE INTO tasks USING rewards USING (task_id) WHEN MATCHED THEN DELETE",
        "PIVOT tasks ON policy",  # which creates a type
        "EXPLAIN (FORMAT json, ANALYZE true) DROP VIEW tasks",
        "\u00a0DROP\u2003VIEW tasks",
        "WITH x AS (COPY (SELECT 1) TO '/tmp/never.parquet' (USE_TMP_FILE false)) SELECT 1",
        "WITH x AS (COPY tasks TO '/tmp/never.csv') FROM x",
        "FROM (WITH x AS MATERIALIZED (COPY tasks TO '/tmp/never.csv') FROM x)",
        "SELECT (WITH x AS (DELETE FROM tasks RETURNING 1) FROM x)",
        "WITH x AS (INSERT INTO tasks FROM tasks RETURNING task_id) FROM x",
        "WITH x AS (UPDATE tasks SET policy = 'x') SELECT 1",
        "WITH RECURSIVE x AS (SELECT 1 UNION (WITH y AS (COPY tasks TO '/tmp/never.csv') FROM y)) FROM x",
        "EXPLAIN ANALYZE WITH x AS (COPY tasks TO '/tmp/never.csv') SELECT 1",
        "DESCRIBE WITH x AS (COPY tasks TO '/tmp/never.csv') SELECT 1",
    ],
)
def test_what_does_not_only_read_is_refused(session: Session, sql: str) -> None:
    with pytest.raises(RefusedError, match="a query only reads"):
        session.parse(sql)


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT * FROM read_csv('/etc/passwd')",
        "SELECT content FROM read_text('/etc/hostname')",
        "SELECT * FROM glob('/etc/*')",
        "FROM '/etc/passwd.csv'",
        "FROM read_parquet('s3://bucket/file.parquet')",
        "FROM sniff_csv('/etc/passwd')",
        "FROM parquet_metadata('/etc/passwd')",
        "FROM duckdb_secrets()",
        "FROM enable_logging(storage = 'file', storage_config = {'path': '/tmp/never'})",
    ],
)
def test_a_statement_that_reads_cannot_read_files(session: Session, sql: str) -> None:
    if "(" in sql:  # the name of a file may be that of a table: only the lock tells
        with pytest.raises(RefusedError, match="--allow-files lets a query read and write files"):
            session.parse(sql)
    with pytest.raises(RefusedError, match="--allow-files"):
        answer(session, sql)


@pytest.mark.parametrize(
    "sql",
    [
        "FROM duckdb_settings()",
        "SELECT (SELECT count(*) FROM duckdb_settings())",
        "WITH x AS (FROM duckdb_memory()) FROM x",
        "DESCRIBE FROM duckdb_settings()",
        "EXPLAIN FROM duckdb_settings()",
        "PIVOT duckdb_settings() ON name IN ('threads') USING first(value)",
        "FROM tasks, LATERAL pragma_table_info('tasks')",
        "FROM checkpoint()",
        "FROM query('FROM duckdb_settings()')",
        "FROM query_table('tasks')",
        "FROM histogram('tasks', policy)",
        "FROM pandas_scan(12345)",
        "FROM arrow_scan(1, 2, 3)",
        "FROM json_execute_serialized_sql(json_serialize_sql('SELECT 1'))",
        "SELECT current_setting('temp_directory')",
        "SELECT list_transform(['temp_directory'], lambda name: name.current_setting())",
        "SELECT getvariable('a')",
        "SELECT write_log('a')",
        "SELECT json_serialize_plan('SELECT current_setting(''temp_directory'')', optimize := true)",
        "SELECT get_block_size('memory')",
        "SELECT system.main.current_setting('threads')",
        "FROM system.main.duckdb_settings()",
    ],
)
def test_a_statement_calls_no_function_that_is_about_more_than_its_rows(session: Session, sql: str) -> None:
    with pytest.raises(RefusedError, match=r"\(\) is refused: a query reads the views of the log"):
        session.parse(sql)


@pytest.mark.parametrize(
    "sql",
    [
        "FROM duckdb_views",
        "FROM DUCKDB_TABLES",
        "TABLE sqlite_master",
        "FROM pg_settings",
        "FROM information_schema.tables",
        "FROM system.information_schema.tables",
        "FROM live.main_tasks",
        "DESCRIBE duckdb_tables",
        "SHOW ALL TABLES",
        "SHOW DATABASES",
        "SHOW memory_limit",
        "SELECT * FROM (WITH duckdb_views AS (SELECT 1) FROM duckdb_views), duckdb_views",
    ],
)
def test_a_statement_reads_no_table_but_the_views_of_the_log(session: Session, sql: str) -> None:
    with pytest.raises(SettingsError, match="SHOW TABLES names"):
        session.parse(sql)


def test_a_statement_that_nests_too_deeply_is_refused(session: Session) -> None:
    with pytest.raises(RefusedError, match="nested so deeply"):
        session.parse("FROM " + "(FROM " * 900 + "range(1)" + ")" * 900)


def test_what_is_explained_is_what_is_run(session: Session) -> None:
    """Comments nest in DuckDB, so what seems to be a comment may not be one, and the other way round."""
    hidden = "/* /* */ explain select 1 -- */ explain analyze drop view tasks"
    with pytest.raises(RefusedError, match="an EXPLAIN with comments"):
        session.parse(hidden)
    assert session.parse("EXPLAIN (ANALYZE, FORMAT json) FROM tasks").tables == {"tasks"}


@pytest.mark.parametrize(
    "sql",
    [
        "SHOW TABLES",
        "SHOW tasks",
        "FROM main.tasks JOIN whole.responses USING (task_id)",
        "FROM tasks, LATERAL unnest(messages)",
        "SELECT * FROM range(3), generate_series(1, 2), repeat(1, 2), json_each('[1]')",
        "UNPIVOT (SELECT 1 AS a, 2 AS b) ON a, b",
        "WITH RECURSIVE t AS (SELECT 1 AS x UNION ALL SELECT x + 1 FROM t WHERE x < 3) FROM t",
    ],
)
def test_a_statement_may_read_and_combine_the_views_as_it_likes(session: Session, sql: str) -> None:
    answer(session, session.parse(sql).sql)


@pytest.mark.parametrize(
    "sql", ["COPY tasks TO '/tmp/never.csv'", "ATTACH '/tmp/never.db'", "SET enable_external_access = true", "LOAD x"]
)
def test_the_lock_holds_where_the_parser_is_not_asked(session: Session, sql: str) -> None:
    with pytest.raises(RefusedError):
        answer(session, sql)
    assert not Path("/tmp/never.csv").exists() and not Path("/tmp/never.db").exists()  # noqa: S108


def test_files_can_be_read_when_they_are_allowed(settings: Settings, tmp_path: Path) -> None:
    (tmp_path / "mine.csv").write_text("a\n7\n")
    sql = f"FROM read_csv('{tmp_path}/mine.csv')"
    with Session(settings, source="archive", limits=SessionLimits(allow_files=True)) as opened:
        assert answer(opened, opened.parse(sql).sql) == [[7]]
    assert sql_of(settings, sql, allow_files=True) == sql
    with pytest.raises(RefusedError, match="--allow-files"):
        asked(settings, sql)


def test_a_variable_of_the_program_is_no_table(session: Session) -> None:
    import pyarrow

    secret = pyarrow.table({"a": [1]})
    with pytest.raises(SettingsError, match="secret does not exist"):
        answer(session, "FROM secret")
    assert len(secret) == 1


@pytest.mark.parametrize(
    ("sql", "found"),
    [
        ("SELECT * FROM tasks AS t JOIN responses USING (task_id)", {"tasks", "responses"}),
        ("WITH tasks AS (FROM rewards) SELECT * FROM tasks", {"rewards"}),
        ("SELECT 'FROM tasks' -- FROM groups", set()),
        ("EXPLAIN SELECT * FROM GROUPS", {"groups"}),
        ("DESCRIBE batches", {"batches"}),
        ("SUMMARIZE batches", {"batches"}),
        ("SELECT (SELECT max(value) FROM rewards) FROM lineage", {"rewards", "lineage"}),
    ],
)
def test_a_statement_names_the_views_it_reads(session: Session, sql: str, found: set[str]) -> None:
    assert session.parse(sql).tables == found


@pytest.mark.parametrize(
    ("sql", "plain"),
    [
        ("FROM tasks", True),
        ("SELECT policy, upper(scenario), len(messages) FROM tasks WHERE policy = 'x' AND group_size > 3", True),
        ("SELECT count(*) FROM tasks", False),
        ("SELECT policy FROM tasks GROUP BY policy", False),
        ("SELECT DISTINCT policy FROM tasks", False),
        ("SELECT policy FROM tasks ORDER BY 1", False),
        ("SELECT row_number() OVER () FROM tasks", False),
        ("SELECT policy FROM tasks WHERE task_id IN (SELECT task_id FROM rewards)", False),
        ("SELECT policy FROM tasks, rewards", False),
        ("DESCRIBE tasks", False),
    ],
)
def test_a_statement_can_be_followed_if_each_row_is_of_one_record(session: Session, sql: str, plain: bool) -> None:
    assert session.parse(sql).plain is plain


def test_a_view_is_made_when_a_statement_names_it_and_an_error_knows_those_that_none_named(settings: Settings) -> None:
    with Session(settings, source="archive") as fresh:
        assert answer(fresh, "SELECT count(*) FROM Group_Responses") == [[0]]
        made = {name for (name,) in fresh.con.execute("SHOW TABLES").fetchall()}
        assert "group_responses" in made and "lineage" not in made
        with pytest.raises(SettingsError, match='Did you mean "lineage"'):
            answer(fresh, "FROM lineag")


@pytest.mark.parametrize(
    ("sql", "said"),
    [
        ("SELECT polcy FROM tasks", "LINE 1: SELECT polcy FROM tasks\n               ^^^^^"),
        ("SELECT 1,\n  nosuch(2)", "LINE 2:   nosuch(2)"),
        ("FROM task", 'Did you mean "tasks"'),
        ("SELECT task_idd FROM tasks", '"task_id"'),
        ("SELCT 1", "LINE 1: SELCT 1"),
        ("SELECT CAST('a' AS INT)", "Could not convert string 'a'"),
    ],
)
def test_an_error_says_where_and_which_names_are_near(session: Session, sql: str, said: str) -> None:
    with pytest.raises(SettingsError) as raised:
        answer(session, session.parse(sql).sql)
    assert said in str(raised.value)


@pytest.mark.parametrize(
    ("sql", "count"),
    [
        ("", 0), ("-- nothing", 0), (";;", 0), ("SELECT 1; SELECT 2", 2), ("SELECT 1;; DROP VIEW tasks", 2),
        ("SELECT 1 /* ; */; -- ;\nCOPY tasks TO '/tmp/never.csv'", 2), ("EXPLAIN SELECT 1; DROP VIEW tasks", 2),
        ("SELECT ';'; SELECT $$;$$; SELECT 1", 3),
    ],
)  # fmt: skip
def test_one_statement_is_run_at_a_time(session: Session, sql: str, count: int) -> None:
    with pytest.raises(SettingsError, match=f"expected one SQL statement, got {count}"):
        session.parse(sql)


@pytest.fixture
def ctrl_c() -> Iterator[None]:
    """Let Ctrl-C raise KeyboardInterrupt, whatever a command that ran in this process before made of it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("ctrl_c")
def test_a_statement_can_be_interrupted_and_the_session_goes_on(session: Session) -> None:
    threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        answer(session, LONG)
    assert answer(session, "SELECT 1") == [[1]]


def test_who_leaves_early_does_not_wait_for_the_rest(session: Session) -> None:
    batches = session.run("SELECT a.range FROM range(1000000) AS a, range(1000000) AS b").batches
    assert len(next(batches)) > 0
    batches.close()  # type: ignore[attr-defined]
    assert answer(session, "SELECT 1") == [[1]]


def test_an_error_while_a_statement_runs_is_not_masked_by_the_closing(settings: Settings) -> None:
    """Its first rows come at once and the others never: DuckDB is at work when the session is closed."""
    sql = "SELECT range FROM range(1000000000000) WHERE range < 3000 OR hash(range) = 1"
    with pytest.raises(RefusedError, match="not empty"), Session(settings, source="archive") as session:
        result = session.run(sql)
        assert len(next(result.batches))
        raise RefusedError("not empty")


def test_a_notebook_names_a_settings_file_or_values_by_key(settings: Settings, tmp_path: Path) -> None:
    file = save(settings, tmp_path, by="a test")
    for con in (
        connect(str(file), source="archive"),
        connect(file, settings={"topics.prefix": "other."}, source="archive"),
        connect(settings={"archive.store": settings.archive.store}, source="archive"),
    ):
        assert con.sql("SELECT count(*) FROM lineage").fetchall() == [(0,)]
        con.close()
    with pytest.raises(SettingsError, match=r"did you mean topics\.prefix"):
        connect(settings={"topics.prefx": "lab."})
    with pytest.raises(SettingsError, match="give one of them"):
        connect(file, settings=settings)


def test_a_connection_that_nobody_holds_any_more_is_freed(settings: Settings) -> None:
    con = connect(settings=settings, source="archive")
    assert con.sql("SELECT count(*) FROM lineage").fetchall() == [(0,)]
    gone = weakref.ref(con)
    del con
    gc.collect()
    assert gone() is None


# --- options ----------------------------------------------------------------------------------------------------------


def asked(settings: Settings, sql: str | None, **options: Any) -> query_options.QueryRequest:
    return query_options.check_request(settings, query_options.QueryOptions(sql=sql, **options), lambda: "SELECT 7")


def sql_of(settings: Settings, sql: str, **options: Any) -> str:
    statement = asked(settings, sql, **options).statement
    assert statement is not None
    return statement.sql


def test_a_topic_stands_for_all_of_it_by_any_of_its_names(settings: Settings) -> None:
    assert {sql_of(settings, name) for name in ("group-control", "group_control", "streamward.group-control")} == {
        'FROM "group_control"'
    }
    assert sql_of(settings, "tasks", where="policy = 'x' -- mine") == "FROM \"tasks\" WHERE (policy = 'x' -- mine\n)"
    assert sql_of(settings, "-") == "SELECT 7"


def test_an_unknown_topic_is_named_with_the_nearest(settings: Settings) -> None:
    with pytest.raises(NotFoundError, match="'respones'; did you mean responses"):
        asked(settings, "respones")


def test_a_condition_cannot_become_another_statement(settings: Settings) -> None:
    with pytest.raises((SettingsError, RefusedError)):
        asked(settings, "tasks", where="true); COPY tasks TO 'x'; SELECT (1")


@pytest.mark.parametrize(
    ("sql", "options", "said"),
    [
        ("SELECT 1 FROM tasks", {"where": "true"}, "--where goes with a TOPIC"),
        ("FROM tasks JOIN rewards USING (task_id)", {"first": 3}, "--from needs a statement that reads one topic"),
        (
            "FROM tasks JOIN rewards USING (task_id)",
            {"partition": 3},
            "--partition needs a statement that reads one topic",
        ),
        ("SELECT 1", {"end": 3}, "--to needs a statement that reads one topic"),
        ("FROM tasks JOIN groups USING (task_id)", {"key": "t1"}, "--key needs topics with the same key"),
        ("SELECT 1", {"since": "2h"}, "--since and --until choose records"),
        ("tasks", {"first": 5, "end": 3}, "--to 3 is before --from 5"),
        ("tasks", {"since": "yesterday"}, "--since yesterday"),
        ("DESCRIBE tasks", {"limit": 3}, "--limit is for rows of data"),
        ("SELECT count(*) FROM tasks", {"follow": True, "output": "jsonl"}, "--follow prints rows as records come"),
        ("lineage", {"follow": True, "output": "jsonl"}, "--follow prints rows as records come"),
        ("tasks", {"follow": True, "output": "json"}, "--follow prints as records come"),
        ("tasks", {"follow": True, "until": "1h", "output": "csv"}, "--follow has no end; leave out --until"),
        ("tasks", {"follow": True, "end": 4, "output": "csv"}, "--follow has no end; leave out --to"),
        ("tasks", {"follow": True, "source": "archive"}, "--follow reads the log"),
        ("tasks", {"output": "parquet"}, "--output parquet needs a file"),
        (None, {"limit": 3}, "--limit needs a TOPIC or SQL"),
        (None, {"key": "k"}, "--key needs a TOPIC or SQL"),
    ],
)
def test_an_option_that_a_statement_cannot_take_is_a_usage_error(
    settings: Settings, sql: str | None, options: dict[str, Any], said: str
) -> None:
    with pytest.raises(SettingsError) as raised:
        asked(settings, sql, **options)
    assert said in str(raised.value)


def test_topics_with_the_same_key_can_be_asked_for_one_key(settings: Settings) -> None:
    assert asked(settings, "FROM tasks JOIN rewards USING (task_id)", key="t1").scope.key == "t1"


# --- how answers look -------------------------------------------------------------------------------------------------


def test_a_table_shows_escaped_what_a_terminal_would_obey(session: Session) -> None:
    for output in ("table", "markdown"):
        text = shown(session, "SELECT chr(27) || '[2J' AS said, {'a': chr(155)} AS inside", output)
        assert "\x1b" not in text and "\x9b" not in text
        assert r"\x1b[2J" in text


def test_numbers_and_times_are_printed_whole(session: Session) -> None:
    sql = (
        "SELECT 9223372036854775807 AS big, sum(a)::HUGEINT AS sums, 1234567.5::DOUBLE AS price, 0.1::FLOAT AS tenth, "
        "TIMESTAMPTZ '2026-01-31 12:00:00.5+00' AS at, TIMESTAMP '294000-01-01' AS far, 1.50::DECIMAL(9,2) AS dec, "
        "true AS yes, NULL AS nothing FROM range(10000000000, 10000000003) AS t(a)"
    )
    (row,) = (json.loads(line) for line in shown(session, sql, "jsonl").splitlines())
    assert (row["big"], row["sums"], row["price"], row["dec"]) == (9223372036854775807, 30000000003, 1234567.5, 1.5)
    assert (row["at"], row["yes"], row["nothing"]) == ("2026-01-31T12:00:00.500Z", True, None)
    assert row["far"] is not None
    table = shown(session, sql).splitlines()[1]
    assert "9223372036854775807  30000000003  1234567.5" in table and "e+" not in table


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("DATE '99999-01-01'", 35_804_357),
        ("DATE 'infinity'", 2**31 - 1),
        ("[DATE 'infinity', DATE '1970-01-02']", [2**31 - 1, 1]),
        ("{'a': TIMESTAMPTZ '294000-01-01'}", {"a": 9_215_576_668_800_000_000}),
        ("MAP {'a': [TIMESTAMP '294000-01-01']}", {"a": [9_215_576_668_800_000_000]}),
    ],
)
def test_a_date_that_python_does_not_reach_is_a_number(session: Session, sql: str, expected: Any) -> None:
    assert answer(session, f"SELECT {sql}") == [[expected]]


def test_a_date_that_cannot_be_shown_is_an_error_with_the_way_out(session: Session) -> None:
    with pytest.raises(SettingsError, match="cast them to VARCHAR"):
        answer(session, "SELECT union_value(a := DATE 'infinity')")


def test_json_is_one_array_and_an_empty_answer_is_an_empty_one(session: Session) -> None:
    assert json.loads(shown(session, "SELECT range AS a FROM range(3)", "json")) == [{"a": 0}, {"a": 1}, {"a": 2}]
    assert shown(session, "FROM tasks", "json") == "[]\n"
    assert shown(session, "FROM tasks", "jsonl") == ""


def test_a_json_object_keeps_columns_of_the_same_name(session: Session) -> None:
    assert json.loads(shown(session, "SELECT 1 AS a, 2 AS a", "jsonl")) == {"a": 1, "a_1": 2}


def test_maps_and_lists_are_json_inside_every_format(session: Session) -> None:
    sql = "SELECT MAP {'x': 1.5} AS m, [{'t': TIMESTAMP '2026-01-31 12:00:00'}] AS l"
    assert json.loads(shown(session, sql, "jsonl")) == {"m": {"x": 1.5}, "l": [{"t": "2026-01-31T12:00:00.000"}]}
    assert '"{""x"": 1.5}"' in shown(session, sql, "csv")


def test_markdown_keeps_its_columns_whatever_is_in_a_cell(session: Session) -> None:
    text = shown(session, "SELECT 'a|b' AS x, chr(10) AS y, 3 AS n", "markdown")
    assert text == "| x | y | n |\n| --- | --- | ---: |\n| a\\|b | \\n | 3 |\n"


def test_csv_has_a_header_also_without_rows(session: Session) -> None:
    assert shown(session, "SELECT task_id, policy FROM tasks", "csv") == "task_id,policy\n"


def test_a_table_that_the_terminal_has_no_room_for_is_printed_a_column_a_line(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    out = Terminal()
    formats.write(session.run("SELECT 'one' AS first_column, repeat('x', 30) AS second_column"), "table", out)
    assert out.getvalue().splitlines()[1:] == ["first_column   one", "second_column  " + "x" * 30]


def test_parquet_holds_the_types_as_they_are(session: Session, tmp_path: Path) -> None:
    count = formats.write_file(session.run("SELECT range AS a, [range] AS l FROM range(3)"), "parquet", tmp_path / "x")
    assert count == 3
    assert parquet.read_table(tmp_path / "x").to_pylist()[2] == {"a": 2, "l": [2]}


def test_a_file_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), query_options.new_file(tmp_path / "x") as half:
        half.write_text("begun")
        raise ZeroDivisionError
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(SettingsError, match="--out"), query_options.new_file(tmp_path / "no" / "x"):
        pass


# --- the shell --------------------------------------------------------------------------------------------------------


@pytest.fixture
def shell(session: Session) -> Shell:
    return Shell(session, output="csv", out=io.StringIO(), err=io.StringIO())


def told(shell: Shell, *lines: str) -> tuple[str, str]:
    """Return what the shell printed, and what it said on stderr, for these lines."""
    feed_all(shell, lines)
    out, err = shell._out, shell._err
    assert isinstance(out, io.StringIO) and isinstance(err, io.StringIO)
    return out.getvalue(), err.getvalue()


def test_a_statement_may_take_several_lines_and_runs_at_its_end(shell: Shell) -> None:
    assert shell.feed("SELECT 1 AS a,")
    assert shell.prompt != "streamward> "
    assert told(shell, "2 AS b;") == ("a,b\n1,2\n", "")


@pytest.mark.parametrize(
    ("sql", "whole"),
    [
        ("SELECT 1;", True), ("SELECT 1; ", True), ("SELECT 1; -- done", True), ("SELECT ';", False),
        ("SELECT 1 -- ;", False), ("SELECT 'ä;';", True), ("SELECT ';'", False), ("", False),
    ],
)  # fmt: skip
def test_a_statement_ends_at_a_semicolon_that_is_in_no_string(sql: str, whole: bool) -> None:
    assert is_whole(sql) is whole


def test_an_error_is_said_and_the_shell_goes_on(shell: Shell) -> None:
    out, err = told(shell, "SELECT nosuch;", "COPY tasks TO 'x';", ".nosuch", "SELECT 3 AS c;")
    assert out == "c\n3\n"
    assert "nosuch" in err and "a query only reads" in err and ".help lists them" in err


def test_the_last_statement_needs_no_semicolon(shell: Shell) -> None:
    assert told(shell, "SELECT 3 AS c") == ("c\n3\n", "")


def test_quit_ends_the_shell(shell: Shell) -> None:
    assert shell.feed(".quit") is False
    assert told(shell, ".quit", "SELECT 3 AS c;") == ("", "")


def test_the_commands_say_what_there_is(shell: Shell) -> None:
    out, _ = told(shell, ".tables", ".schema rewards", ".help")
    assert "lineage" in out and "scorer_version" in out and ".refresh" in out


def test_output_changes_how_answers_look(shell: Shell) -> None:
    out, err = told(shell, ".output jsonl", "SELECT 3 AS c;", ".output sideways")
    assert out == '{"c": 3}\n'
    assert "table, json, jsonl, csv, markdown" in err


@pytest.mark.usefixtures("ctrl_c")
def test_an_interrupt_ends_the_statement_and_not_the_shell(shell: Shell) -> None:
    threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
    assert told(shell, f"{LONG};", "SELECT 3 AS c;") == ("c\n3\n", "interrupted\n")


def test_refresh_opens_the_log_again(settings: Settings) -> None:
    shell = Shell(Session(settings, source="archive"), output="csv", out=io.StringIO(), err=io.StringIO())
    before = shell.session
    assert told(shell, ".refresh", "SELECT 3 AS c;") == ("c\n3\n", "")
    assert shell.session is not before
    shell.session.close()


def test_words_views_and_columns_can_be_completed(session: Session) -> None:
    known = words(session)
    assert known["SELECT"] == "SQL" and known["tasks"] == "view" and known["adapter_version"] == "INTEGER"
