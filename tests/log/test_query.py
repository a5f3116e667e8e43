"""SQL over a real log: what the views hold and from where, what is missing, and the command."""

from __future__ import annotations

import json
import logging
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import confluent_kafka as ck
import pytest
from click.testing import Result
from confluent_kafka import admin
from pyarrow import parquet

from schemas.events import LeftOut, Response, Task
from streams.arrow import bulk, rules
from streams.errors import LogError, RefusedError
from streams.kafka import admin as cluster
from streams.kafka.client import client_config
from streams.kafka.producer import Producer
from streams.kafka.record import Record
from streams.settings.model import Kafka, Settings
from streams.tools.archive import sync
from streams.tools.archive.segments import ArchiveReader
from streams.tools.query import formats
from streams.tools.query.session import Session, connect
from streams.tools.query.source import Scope
from tests.support import older_schemas, processes
from tests.support.commands import invoke
from tests.support.doubles.object_store import bucket
from tests.support.factories import group, in_version_1, member, task
from tests.support.log import finished_run
from tests.support.log.shared_node import own_prefix
from tests.support.log.whole_run import SETTINGS, Written, event_of
from tests.support.processes import command, environment, spawn, spawn_and_wait, until

pytestmark = pytest.mark.kafka

T = finished_run.BEGIN_MS


def settings_in(folder: Path, bootstrap: str) -> Settings:
    """Return settings with topics and an archive named after a test's own folder."""
    topics = finished_run.topics(own_prefix())
    archive = Settings().archive.model_copy(update={"store": str(folder / "archive")})
    return Settings(kafka=Kafka(bootstrap=bootstrap), topics=topics, archive=archive)


@pytest.fixture(scope="module")
def told(kafka_bootstrap: str, tmp_path_factory: pytest.TempPathFactory) -> tuple[Settings, Written]:
    """The log of tests/support/log/finished_run.py, most of it archived, with bytes that are no event in both parts."""
    settings = settings_in(tmp_path_factory.mktemp("told"), kafka_bootstrap)
    written = finished_run.log()
    end = 1 + next(number for number, record in enumerate(written.records) if record.payload == b"{}")
    finished_run.put(settings, written.records[:end])
    sync.sync(settings)
    finished_run.put(settings, written.records[end:])
    return settings, written


@pytest.fixture
def own(kafka_bootstrap: str, tmp_path: Path) -> Settings:
    """Settings of one test alone, whose topics exist."""
    settings = settings_in(tmp_path, kafka_bootstrap)
    cluster.apply_topics(settings)
    return settings


@pytest.fixture
def session(told: tuple[Settings, Written]) -> Iterator[Session]:
    with Session(told[0]) as opened:
        yield opened


def answer(session: Session, sql: str) -> list[list[Any]]:
    return list(formats.rows(session.run(sql)))


def write(settings: Settings, *ids: str) -> None:
    processes.write(settings, *(task(task_id=name) for name in ids))


def run(settings: Settings, *args: str, **more: Any) -> Result:
    return invoke(settings, "query", *args, **more)


def places(records: list[Record]) -> list[list[int]]:
    return sorted([record.at.partition, record.at.offset] for record in records)


def good(written: Written, label: str) -> list[Record]:
    return [record for record in written.of(label) if record.payload != b"{}"]


# --- what the views hold ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("source", ["auto", "log"])
def test_a_view_has_each_record_once_wherever_it_lies(told: tuple[Settings, Written], source: Any) -> None:
    settings, written = told
    with Session(settings, source=source) as session:
        for name, view in session.views.items():
            if not view.sql:
                found = answer(session, f"FROM {name} SELECT _partition, _offset ORDER BY ALL")
                assert found == places(good(written, view.label)), name


def test_archived_and_live_rows_hold_what_the_events_hold(session: Session, told: tuple[Settings, Written]) -> None:
    sql = (
        "SELECT response_id, slot, text, sampling.max_tokens, completion_token_ids, logprobs, loss_mask FROM responses"
    )
    found = {row[0]: row[1:] for row in answer(session, sql)}
    events: list[Response] = [event_of(record) for record in good(told[1], "responses")]
    assert found == {
        e.response_id: [
            e.slot, e.text, e.sampling.max_tokens, list(e.completion_token_ids), list(e.logprobs), list(e.loss_mask)
        ]
        for e in events
    }  # fmt: skip


def test_members_of_a_group_are_the_same_from_archive_and_log(told: tuple[Settings, Written]) -> None:
    sql = "SELECT task_id, members, members[1].components AS parts, len(responses) AS count FROM groups ORDER BY ALL"
    found = []
    for source in ("auto", "log"):
        with Session(told[0], source=source) as session:
            found.append(answer(session, sql))
    assert found[0] == found[1]
    assert all(len(members) == count and "logprobs" not in members[0] for _, members, _, count in found[0])


def test_what_the_log_has_lost_is_read_from_the_archive(own: Settings) -> None:
    write(own, "a", "b", "c")
    sync.sync(own)
    cut(own, "tasks")
    write(own, "d")
    with Session(own) as session:
        assert answer(session, "SELECT task_id FROM tasks ORDER BY 1") == [["a"], ["b"], ["c"], ["d"]]
        assert session.omissions({"tasks"}) == []
    with Session(own.model_copy(update={"kafka": Kafka(bootstrap="127.0.0.1:1")}), source="archive") as session:
        assert answer(session, "SELECT task_id FROM tasks ORDER BY 1") == [["a"], ["b"], ["c"]]


def test_what_is_neither_in_the_archive_nor_in_the_log_is_named(own: Settings) -> None:
    write(own, "a", "b")
    sync.sync(own, ["tasks"])
    write(own, "a", "a")
    cut(own, "tasks")
    done = run(own, "tasks", "--output", "csv")
    assert done.exit_code == 1
    assert "2 records are neither in the archive nor in the log" in done.stderr
    assert run(own, "tasks", "--skip-bad").exit_code == 0
    assert run(own, "rewards").exit_code == 0


def cut(settings: Settings, label: str) -> None:
    """Delete every record of a topic, as retention does."""
    client = admin.AdminClient(client_config(settings.kafka))
    ends = cluster.offsets(settings, [label])
    for future in client.delete_records([ck.TopicPartition(*tp, end) for tp, (_, end) in ends.items()]).values():
        future.result()


def test_segments_in_an_object_store_are_read_from_there_and_nothing_else_is(
    own: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    with bucket(monkeypatch) as url:
        _read_from(own.model_copy(update={"archive": own.archive.model_copy(update={"store": f"{url}/archive"})}))


def _read_from(own: Settings) -> None:
    write(own, "a", "b")
    sync.sync(own, ["tasks"])
    cut(own, "tasks")
    with Session(own) as session:
        assert answer(session, "SELECT task_id FROM tasks ORDER BY 1") == [["a"], ["b"]]
        (segment, *_) = [s for p in (0, 1) for s in ArchiveReader(own).segments("tasks", p)]
        with pytest.raises(RefusedError):
            answer(session, f"FROM read_parquet('{segment.path}x')")


def test_a_session_ends_where_the_log_ended_when_it_was_opened(own: Settings) -> None:
    write(own, "a")
    with Session(own) as session:
        write(own, "b")
        assert answer(session, "SELECT task_id FROM tasks") == [["a"]]
        with session.renew() as fresh:
            assert answer(fresh, "SELECT task_id FROM tasks ORDER BY 1") == [["a"], ["b"]]


def test_a_renewed_session_reads_only_what_came_since(own: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    read, offsets = bulk.read, list[int]()

    def counted(*args: Any, **more: Any) -> Iterator[Any]:
        for rows in read(*args, **more):
            offsets.extend(rows.offsets)
            yield rows

    monkeypatch.setattr(bulk, "read", counted)
    write(own, *(f"old-{number}" for number in range(30)))
    with Producer(own) as producer:
        producer.send_bytes(own.topics.prefix + "tasks", b"bad", b"no event")
    count = "SELECT count(*), count(DISTINCT task_id) FROM tasks"
    session = Session(own)
    for renewed in range(4):
        assert answer(session, count) == [[30 + renewed, 30 + renewed]]
        assert [bad.reason for bad in session.bad({"tasks"})] == ["not_avro"]
        assert len(offsets) == 31 + renewed
        write(own, f"new-{renewed}")
        session = session.renew()
    with session, session.renew() as again:  # nothing was asked of the one before it
        assert answer(again, count) == [[34, 34]]
    assert len(offsets) == 35


def test_a_renewed_session_reads_a_recreated_topic_from_its_start(own: Settings) -> None:
    write(own, "a", "b")
    session = Session(own)
    assert answer(session, "SELECT task_id FROM tasks ORDER BY 1") == [["a"], ["b"]]
    name = own.topics.prefix + "tasks"
    client = admin.AdminClient(client_config(own.kafka))
    client.delete_topics([name])[name].result()
    until(lambda: name not in cluster.describe(own), "the topic to go")
    cluster.apply_topics(own)
    write(own, "c", "d", "e", "f")
    with session.renew() as fresh:
        assert answer(fresh, "SELECT task_id FROM tasks ORDER BY 1") == [["c"], ["d"], ["e"], ["f"]]


def test_a_statement_reads_only_what_it_names(session: Session) -> None:
    answer(session, "SELECT count(*) FROM tasks JOIN groups USING (task_id)")
    assert session.bad(set()) == []  # rewards and responses have bad records, and were not looked at
    answer(session, "SELECT count(*) FROM rewards")
    assert [bad.at.topic.split(".")[-1] for bad in session.bad({"rewards"})] == ["rewards"]


# --- a schema with a past ---------------------------------------------------------------------------------------------


def test_a_segment_from_before_a_field_was_there_has_its_default(
    own: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = older_schemas.written(tmp_path / "before", {Task: {"tenant"}}, newest=False)
    after = older_schemas.written(tmp_path / "after", {Task: {"tenant"}})
    with older_schemas.in_use(before):
        with Producer(own) as producer:
            producer.send_bytes(own.topics.prefix + "tasks", b"old", in_version_1(task(task_id="old"), before))
        with monkeypatch.context() as then:  # the release that wrote this segment had no rule about tenants
            then.setattr(rules, "hold", lambda event, events: True)
            sync.sync(own, ["tasks"])
    with older_schemas.in_use(after):
        with Producer(own) as producer:
            producer.send(task(task_id="new", tenant="us"))
        sync.sync(own, ["tasks"])
        with Session(own) as session:
            found = answer(session, "SELECT task_id, tenant, policy, _schema_id FROM tasks ORDER BY task_id")
    first, second = (schema.id for schema in after.versions("Task"))
    assert found == [["new", "us", "default", second], ["old", None, "default", first]]


# --- what an option narrows -------------------------------------------------------------------------------------------

SCOPES = [
    Scope(since_ms=T + 2 * finished_run.MINUTE_MS),
    Scope(until_ms=T + 65_000),
    Scope(since_ms=T + 65_000, until_ms=T + 4 * finished_run.MINUTE_MS),
    Scope(first=3),
    Scope(next=4),
    Scope(first=3, next=9, partition=1),
    Scope(partition=0),
    Scope(key="word-1"),
    Scope(key="nobody"),
]


@pytest.mark.parametrize("scope", SCOPES, ids=str)
def test_a_scope_shows_exactly_the_records_within(told: tuple[Settings, Written], scope: Scope) -> None:
    settings, written = told
    inside = [record for record in good(written, "responses") if within(record, scope)]
    with Session(settings, scope=scope) as session:
        found = answer(session, "SELECT _partition, _offset FROM responses ORDER BY ALL")
    assert found == places(inside)


def within(record: Record, scope: Scope) -> bool:
    return (
        (scope.since_ms is None or record.timestamp_ms >= scope.since_ms)
        and (scope.until_ms is None or record.timestamp_ms < scope.until_ms)
        and (scope.first is None or record.at.offset >= scope.first)
        and (scope.next is None or record.at.offset < scope.next)
        and scope.partition in (None, record.at.partition)
        and (scope.key is None or record.key == scope.key.encode())
    )


def test_a_join_looks_up_its_other_half_in_the_whole_log(told: tuple[Settings, Written]) -> None:
    scope = Scope(since_ms=T + 6 * finished_run.MINUTE_MS + 9050)  # sum-4's group is inside, its answers are not
    with Session(told[0], scope=scope) as session:
        found = answer(session, "SELECT text FROM group_responses WHERE task_id = 'sum-4' ORDER BY slot")
        assert found == [["17"], ["17"], ["89"]]
        assert answer(session, "SELECT count(*) FROM responses WHERE task_id = 'sum-4'") == [[0]]


def test_what_was_never_scored_has_no_mean_reward_anywhere(own: Settings) -> None:
    unanswered = [LeftOut(slot=slot, reason="unanswered") for slot in (0, 1)]
    nothing: dict[str, Any] = {"reward_mean": 0.0, "reward_std": 0.0}
    with Producer(own) as producer:
        producer.send(group(task_id="scored"))
        dropped: dict[str, Any] = {"dropped_reason": "unanswered", "responses": (), **nothing}
        producer.send(group(task_id="unanswered", left_out=tuple(unanswered), **dropped))
        late = (unanswered[0], LeftOut(slot=1, reason="incomplete"))
        producer.send(group(task_id="half", left_out=late, **dropped | {"reward_mean": 1.0}))
        producer.send(group(task_id="served", purpose="serve", **nothing))
        rated = tuple(member(slot, reward=float(slot), components={"rated": float(slot)}) for slot in (0, 1))
        producer.send(group(task_id="rated", purpose="serve", responses=rated))
        producer.flush()
        sync.sync(own, ["groups"])
        producer.send(group(task_id="bare", purpose="serve", **nothing))
    means = {"bare": None, "half": 1.0, "rated": 0.5, "scored": 0.5, "served": None, "unanswered": None}
    with Session(own) as session:
        assert dict(answer(session, "SELECT task_id, reward_mean FROM groups ORDER BY ALL")) == means
        assert answer(session, "SELECT sum(reward_mean), count(reward_std) FROM groups") == [[2.0, 3]]
        rewards = answer(
            session, "SELECT task_id, reward_mean, reward FROM group_responses WHERE slot = 1 ORDER BY ALL"
        )
        assert rewards == [
            ["bare", None, None], ["rated", 0.5, 1.0], ["scored", 0.5, 1.0], ["served", None, None],
        ]  # fmt: skip
    tail = ["events", "tail", "groups", "--until-end"]
    printed = invoke(own, *tail, "--output", "jsonl").stdout.splitlines()
    events = [json.loads(line)["event"] for line in printed]
    assert {event["task_id"]: event["reward_mean"] for event in events} == means
    table = invoke(own, *tail, "--output", "table").stdout
    assert "0/2                    unanswered" in table


# --- joins ------------------------------------------------------------------------------------------------------------


def test_a_group_written_twice_counts_once(told: tuple[Settings, Written], own: Settings) -> None:
    records = told[1].records
    first = next(record for record in told[1].of("groups"))
    finished_run.put(own, records)
    finished_run.put(own, [first])
    with Session(own) as session:
        assert answer(session, "SELECT count(*) FROM group_responses") == [[24]]
        assert answer(session, "SELECT count(*), count(DISTINCT response_id) FROM lineage") == [[18, 18]]


def test_a_task_written_again_as_by_a_retry_of_its_dead_letter_counts_once_in_a_join(own: Settings) -> None:
    records = finished_run.log().records
    tasks = [record for record in records if label_of(record) == "tasks" and record.payload != b"{}"]
    finished_run.put(own, records)
    finished_run.put(own, tasks[:2])
    count = "SELECT count(*) FROM group_responses JOIN {} USING (task_id)"
    with Session(own) as session:
        assert answer(session, count.format("tasks"))[0][0] > 24
        assert answer(session, count.format("unique_tasks")) == [[24]]
        assert answer(session, "SELECT count(*), count(DISTINCT task_id) FROM unique_tasks") == answer(
            session, "SELECT count(DISTINCT task_id), count(DISTINCT task_id) FROM tasks"
        )


# --- what cannot be read ----------------------------------------------------------------------------------------------


def test_records_that_are_no_events_are_counted_in_the_archive_and_in_the_log(told: tuple[Settings, Written]) -> None:
    settings, written = told
    bad = [record for record in written.records if record.payload == b"{}"]
    archived = [r for r in bad if r.at.offset < (ArchiveReader(settings).next_offset(label_of(r), r.at.partition) or 0)]
    assert 0 < len(archived) < len(bad)
    for record in bad:
        done = run(settings, label_of(record), "--output", "csv")
        assert done.exit_code == 1
        assert (
            f"1 record could not be read and left out, first {settings.topics.prefix}{label_of(record)}" in done.stderr
        )
        assert f"[{record.at.partition}]@{record.at.offset}: not_avro" in done.stderr
        assert run(settings, label_of(record), "--skip-bad").exit_code == 0


def label_of(record: Record) -> str:
    return record.at.topic.removeprefix(SETTINGS.topics.prefix)


def test_a_segment_that_is_gone_or_changed_is_named(own: Settings) -> None:
    write(own, "a")
    sync.sync(own, ["tasks"])
    (segment,) = [s for p in (0, 1) for s in ArchiveReader(own).segments("tasks", p)]
    data = Path(segment.path).read_bytes()
    Path(segment.path).write_bytes(data[:-9] + b"x" + data[-8:])
    done = run(own, "tasks")
    assert done.exit_code == 5 and segment.path in done.stderr
    Path(segment.path).unlink()
    done = run(own, "tasks")
    assert done.exit_code == 5 and segment.path in done.stderr
    assert run(own, "rewards").exit_code == 0


def test_a_broker_that_is_away_is_an_error_of_the_log(nowhere: Settings) -> None:
    done = run(nowhere, "tasks")
    assert done.exit_code == 5 and "did not answer" in done.stderr
    with pytest.raises(LogError):
        connect(settings=nowhere)


def test_a_broker_that_goes_away_while_a_statement_reads_is_an_error_of_the_log(own: Settings) -> None:
    write(own, "a")
    with Session(own) as session:
        cut(own, "tasks")  # what was to be read is gone
        with pytest.raises(LogError, match="Retention has cut it"):
            answer(session, "FROM tasks")


# --- the command and the notebook -------------------------------------------------------------------------------------


def test_a_notebook_has_an_ordinary_connection(
    told: tuple[Settings, Written], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, logger="streamward.query"):
        con = connect(settings=told[0], source="log")
        try:
            assert con.sql("SELECT count(*) FROM responses").fetchall() == [(24,)]
            con.execute("CREATE TABLE mine AS SELECT text FROM responses WHERE slot = 0")
            con.execute(f"COPY mine TO '{tmp_path}/mine.csv'")
        finally:
            con.close()
    assert (tmp_path / "mine.csv").read_text().startswith("text\n")
    assert "1 records are left out" in caplog.text


def test_a_topic_with_options_is_asked_without_sql(told: tuple[Settings, Written]) -> None:
    args = ("tasks", "--since", "2026-01-31T12:03", "--where", "scenario = 'words'", "--limit", "1")
    (line,) = run(told[0], *args).stdout.splitlines()
    assert json.loads(line)["scenario"] == "words"


def test_sql_comes_from_stdin_and_rows_go_to_a_file(told: tuple[Settings, Written], tmp_path: Path) -> None:
    target = tmp_path / "answer.parquet"
    args = ("-", "--output", "parquet", "--out", str(target))
    done = run(told[0], *args, input="SELECT task_id, _timestamp FROM tasks\nWHERE purpose = 'eval'")
    assert (done.exit_code, done.stdout) == (0, "")
    assert parquet.read_table(target).num_rows == 6
    assert list(tmp_path.iterdir()) == [target]


@pytest.mark.parametrize(
    ("args", "code", "said"),
    [
        (("SELECT nosuch FROM tasks",), 2, "LINE 1: SELECT nosuch"),
        (("tasks", "--where", "nosuch = 1"), 2, "nosuch"),
        (("respones",), 3, "did you mean responses"),
        (("COPY tasks TO '/tmp/never.csv'",), 4, "a query only reads"),
        (("FROM read_csv('/etc/passwd')",), 4, "--allow-files"),
        (("tasks", "--where", "policy = 'nobody'"), 0, ""),
    ],
)
def test_how_a_query_ends_is_its_exit_code(
    told: tuple[Settings, Written], args: tuple[str, ...], code: int, said: str
) -> None:
    done = run(told[0], *args)
    assert done.exit_code == code
    assert said in done.stderr and done.stdout == ""


def test_an_error_in_the_statement_is_all_that_the_process_says(told: tuple[Settings, Written]) -> None:
    done = spawn_and_wait(
        command("query", "SELECT nosuch FROM tasks"), env=environment(told[0]), capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert "LINE 1: SELECT nosuch" in done.stderr and "nanobind" not in done.stderr


def test_a_shell_takes_lines_from_a_pipe(told: tuple[Settings, Written]) -> None:
    done = run(told[0], "--output", "csv", input="SELECT count(*) AS n\nFROM tasks;\n.output jsonl\nSELECT 1 AS a;\n")
    assert (done.exit_code, done.stdout) == (0, 'n\n12\n{"a": 1}\n')


def test_following_prints_records_as_they_come(own: Settings, tmp_path: Path) -> None:
    write(own, "a", "b")
    with (tmp_path / "out").open("w") as out:
        process = spawn(
            command("query", "SELECT task_id FROM tasks WHERE task_id <> 'b'", "--follow", "--output", "csv"),
            env=environment(own), stdout=out,
        )  # fmt: skip
    try:
        printed = lambda: (tmp_path / "out").read_text().split()  # noqa: E731
        until(lambda: printed() == ["task_id", "a"], "what there is")
        write(own, "c", "b")
        until(lambda: printed() == ["task_id", "a", "c"], "what comes")
        write(own, "d")
        until(lambda: printed() == ["task_id", "a", "c", "d"], "what comes after that")
        process.send_signal(signal.SIGINT)
        assert process.wait(300) == 0
    finally:
        process.kill()
        process.wait()


def test_following_ends_at_its_limit(own: Settings) -> None:
    write(own, "a", "b", "c")
    done = run(own, "tasks", "--follow", "--limit", "2", "--output", "jsonl")
    assert done.exit_code == 0 and len(done.stdout.splitlines()) == 2
