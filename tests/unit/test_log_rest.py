"""The log over REST: tasks as they are sent, which answer a score is about, groups, statements and versions."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from gateway.http.application import Application
from gateway.http.body import read, read_fields
from gateway.http.door import Door
from gateway.http.limits import KeyLimits
from gateway.log import (
    adapters as adapter_orders,
    group_view,
    named_code,
    rewards as outside_rewards,
)
from gateway.log.group_answer import GroupAnswer
from gateway.log.query_body import QueryAnswer, QueryBody
from gateway.log.rewards import RewardBody
from gateway.log.sql_rows import LogOverHttp, run_query
from gateway.log.tasks import LogNames, TaskBody, task_of
from gateway.rooms.routes import TABLE
from gateway.server import log_rooms
from schemas.events import AccessRole, EpisodeStart, Response, RewardSource, Task
from streams.errors import CallError, NotFoundError, RefusedError
from streams.settings.model import Archive, Policy, Scoring, Serve, Settings
from streams.stages.agents.registered_agents import KnownAgent
from streams.stages.tasks.task_index import same
from streams.tools.query import formats
from streams.tools.views import statement_process
from tests.support.callers import BEARER, Known, Written, key
from tests.support.factories import T0, changed, response, state_after, task, trained
from tests.support.log import page_log
from tests.support.log.archive_of import archived
from tests.support.thoroughness import FULL

SETTINGS = Settings(policy=Policy(name="sums"))


def made(body: dict[str, Any], tenant: str | None = None, agents: Mapping[str, KnownAgent] | None = None) -> Task:
    sent = read_fields(TaskBody, json.dumps(body).encode())
    return task_of(sent, SETTINGS, tenant=tenant, actor="key k1", now_ms=T0, names=LogNames(agents or {}))


def refused(body: dict[str, Any], tenant: str | None = None) -> CallError:
    with pytest.raises(CallError) as problem:
        made(body, tenant)
    return problem.value


# --- tasks ------------------------------------------------------------------------------------------------------------


def test_a_task_is_sent_in_its_short_form_or_with_its_own_fields() -> None:
    short = made({"task_id": "t1", "input": "4 + 7 =", "metadata": {"topic": "sums"}})
    assert (short.task_id, short.policy, short.messages[0].content) == ("t1", "sums", "4 + 7 =")
    assert short.metadata == {"source": "key k1", "topic": "sums"}
    assert (short.purpose, short.group_size) == ("serve", 1), "nobody scores it"
    assert made({"input": "4 + 7 =", "answer": 11}).purpose == "train"
    whole = made(
        {
            "messages": [{"role": "user", "content": "4 + 7 ="}],
            "verifier": {"answer": "11"},
            "reward_sources": ["exact", {"name": "length", "weight": 0.5, "settings": {"limit": 6}}],
            "sampling": {"stop": ["."]},
        }
    )
    assert [source.name for source in whole.reward_sources] == ["exact", "length"]
    assert (whole.sampling.stop, whole.messages) == ((".",), short.messages)
    assert made({"input": "4 + 7 ="}).task_id == made({"input": "4 + 7 ="}).task_id


@pytest.mark.parametrize(
    ("body", "says", "parameter"),
    [
        ({"task_id": "t1"}, "give one of input, prompt and messages", None),
        ({"input": "a", "prompt": "b"}, "give one of input, prompt and messages", None),
        ({"input": "a", "anwser": 2}, "there is no field anwser; did you mean answer?", "anwser"),
        ({"input": "a", "task_id": "a/b"}, "task_id: String should match pattern", "task_id"),
        ({"input": "a", "group_size": "8"}, "group_size", "group_size"),
        ({"input": "a", "reward_sources": ["exakt"]}, "did you mean exact?", None),
        ({"input": "a", "answer": 1, "sampling": {"temperature": 0}}, "greedy answers have no logprobs", None),
    ],
)
def test_a_task_that_is_wrong_is_refused_with_the_reason(body: Any, says: str, parameter: str | None) -> None:
    problem = refused(body)
    assert says in problem.message and problem.parameter == parameter
    assert "--map" not in problem.message


def test_what_a_tenant_names_is_its_own_and_what_its_key_says() -> None:
    body = {"task_id": "t1", "input": "?", "agent": "calc", "thread": "long", "purpose": "serve"}
    mine = made(body, "red")
    assert (mine.task_id, mine.tenant, mine.agent, mine.thread) == ("red.t1", "red", "red.calc", "red.long")
    assert made(body, "red", agents={"calc": KnownAgent("sums")}).agent == "calc", "it is registered for all"
    assert made(body, "red", agents={"calc": KnownAgent("blue.sums")}).agent == "red.calc", "it is of another tenant"
    assert made({"input": "?"}, "red").task_id != made({"input": "?"}, "blue").task_id
    assert made({"input": "?"}, "red").task_id.startswith("red.")
    assert made({"input": "?", "task_id": "blue.t1"}, "red").task_id == "red.blue.t1"
    assert refused({"input": "?", "tenant": "blue"}, "red").parameter == "tenant"


def test_a_task_of_an_agent_that_names_no_scorer_has_those_that_the_agent_is_registered_with() -> None:
    short = RewardSource(name="length", settings='{"limit": 6}')
    agents = {"calc": KnownAgent("sums", (short,)), "red.calc": KnownAgent("sums")}
    body = {"task_id": "t1", "input": "4 + 7 =", "agent": "calc"}
    scored = made(body, agents=agents)
    assert (scored.reward_sources, scored.purpose) == ((short,), "train")
    assert made({**body, "answer": 11}, agents=agents).reward_sources == scored.reward_sources
    assert made({**body, "reward_sources": ["exact"], "answer": 11}, agents=agents).reward_sources[0].name == "exact"
    assert made({**body, "agent": "other"}, agents=agents).purpose == "serve"
    assert made(body, "red", agents=agents).reward_sources == scored.reward_sources, "it is registered for all"
    assert made({**body, "agent": "red.calc"}, "red", agents=agents).reward_sources == ()


def test_the_same_task_is_the_same_whoever_sends_it_and_whenever() -> None:
    one = made({"task_id": "t1", "input": "?", "purpose": "serve", "metadata": {"a": "b"}})
    assert same(one, changed(one, created_at=T0 + 1, metadata={"source": "user ann", "a": "b"}))
    assert not same(one, changed(one, metadata={"a": "c"})) and not same(one, changed(one, group_size=3))


def test_a_tenant_names_only_scorers_that_the_operator_allows() -> None:
    rule = Serve(auth="keys", tenant_scorers="exact, mix, mine:quick")

    def why(name: str, settings: str = "{}") -> str | None:
        return named_code.why_not_of_tenant([RewardSource(name=name, settings=settings)], rule)

    assert why("exact") is None and why("mine:quick") is None
    assert "serve.tenant_scorers allows exact, mix, mine:quick" in str(why("regex", '{"pattern": "a"}'))
    assert "'judge'" in str(why("mix", '{"of": [{"name": "exact"}, {"name": "judge", "settings": {"rubric": "?"}}]}'))
    assert why("other:function") is not None
    assert named_code.why_not_of_tenant([RewardSource(name="judge")], Serve()) is not None, "it costs money"


def test_a_function_and_an_environment_by_reference_are_code() -> None:
    rule = Serve(outside_scorers="people:ann")
    mixed = RewardSource(name="mix", settings='{"of": [{"name": "mine:quick"}]}')
    assert named_code.code_of([RewardSource(name="exact"), RewardSource(name="people:ann")], rule) is None
    assert "mine:quick" in str(named_code.code_of([mixed], rule))
    for name in ("mine:Maze", "gymnasium:FrozenLake-v1", "mcp:rm -rf /"):
        assert name in str(named_code.code_of_environment(EpisodeStart(name=name, seed=1)))


# --- scores from outside ----------------------------------------------------------------------------------------------


def scored(**given: Any) -> RewardBody:
    return read(RewardBody, json.dumps({"task_id": "t1", "score": 0.5, "scoring_agent_id": "ann", **given}).encode())


ANSWERS = [response(slot=slot) for slot in range(3)]


def test_a_score_is_about_exactly_one_answer() -> None:
    assert outside_rewards.choose_response(ANSWERS, scored(slot=2)).slot == 2
    assert outside_rewards.choose_response([*ANSWERS, *ANSWERS], scored(slot=2)).slot == 2, (
        "a record that came twice is one"
    )
    assert outside_rewards.choose_response(ANSWERS, scored(response_id=ANSWERS[1].response_id)).slot == 1
    alone = response(group_size=1)
    assert outside_rewards.choose_response([alone], scored()) == alone


@pytest.mark.parametrize(
    ("answers", "given", "kind", "listed"),
    [
        (ANSWERS, {}, "invalid", 3),
        (ANSWERS[:1], {}, "invalid", 1),  # the others of its group may come
        ([*ANSWERS, response(sampling_id="s2", slot=1)], {"slot": 1}, "invalid", 4),
        (ANSWERS, {"slot": 7}, "not_found", 3),
        (ANSWERS, {"slot": 0, "response_id": ANSWERS[1].response_id}, "not_found", 3),
        ([], {"slot": 0}, "not_found", 0),
        ([response(error="out of memory")], {"slot": 0}, "conflict", 1),
    ],
)
def test_a_score_that_is_about_no_answer_in_particular_is_refused_with_all_of_them(
    answers: list[Response], given: dict[str, Any], kind: str, listed: int
) -> None:
    with pytest.raises(CallError) as problem:
        outside_rewards.choose_response(answers, scored(**given))
    assert problem.value.kind == kind and problem.value.found is not None
    assert len(problem.value.found["responses"]) == listed
    assert all(one.response_id in problem.value.message for one in answers if one.error is None)


def test_only_a_source_that_the_operator_lists_speaks_for_a_scorer() -> None:
    asks = task(reward_sources=(RewardSource(name="exact"), RewardSource(name="people:ann")))
    listed = Settings(serve=Serve(outside_scorers="people:ann, exact"))

    def source(name: str, settings: Settings, of: Task = asks) -> str:
        said = {"metadata": {"criteria": "tone"}, "rationale": "polite", "response_id": ANSWERS[0].response_id}
        body = scored(scoring_agent_id=name, **said)
        one = outside_rewards.reward_of(body, of, ANSWERS[0], settings, now_ms=T0)
        assert (one.response_id, one.metadata, one.rationale) == (body.response_id, {"criteria": "tone"}, "polite")
        return one.source

    assert source("people:ann", listed) == "people:ann"
    assert source("people:ann", Settings()) == "feedback/people:ann"
    assert source("people:ann", listed, task()) == "feedback/people:ann", "the task does not ask it"
    assert source("exact", listed) == "feedback/exact", "it is run"
    run_here = listed.model_copy(update={"scoring": Scoring(modules="people")})
    assert source("people:ann", run_here) == "feedback/people:ann"


# --- groups, statements, versions -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def view(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LogOverHttp]:
    log = page_log.small_log()
    log["tasks"].append(task(task_id="red.secret", tenant="red", agent="red.calc", group_size=1))
    settings = Settings(archive=Archive(store=str(tmp_path_factory.mktemp("archive") / "archive")))
    archived(settings, log, count(T0, 1000))
    found = LogOverHttp(settings, "archive")
    yield found
    found.close()


def shown(view: LogOverHttp, task_id: str, asks: Any = None) -> GroupAnswer:
    with view.snapshot() as snapshot:
        return group_view.read_group(snapshot, view.settings, task_id, asks)


def test_a_group_is_shown_slot_by_slot_with_its_reasons(view: LogOverHttp) -> None:
    found = shown(view, "taught")
    assert (found.verdict, found.group and found.group.reward_mean, len(found.slots)) == ("taught", 0.5, 4)
    first = found.slots[0]
    assert (first.text, first.reward, (first.advantage or 0) > 0) == ("The sum is 11.", 1.0, True)
    assert [(one.source, one.value, one.rationale) for one in first.rewards] == [("exact", 1.0, "compared with 11")]
    assert first.recorded_at is not None and first.recorded_at.startswith("streamward.responses[")
    few = shown(view, "few")
    assert few.slots[1].left_out == "the answer failed" and few.slots[1].error == "out of memory"
    assert (few.group and few.group.dropped_reason, few.verdict) == ("too_few_scored", "nothing")
    assert (shown(view, "waiting").group, shown(view, "waiting").verdict) == (None, "waits")


def test_a_group_is_found_by_its_whole_id_and_by_whose_it_is_alone(view: LogOverHttp) -> None:
    red = key(tenant="red")
    for asked in ("red.secret", "secret"):
        assert shown(view, asked, red).task_id == "red.secret"
    others = [(key(tenant="blue"), "red.secret"), (red, "taught"), (key(agent_id="other"), "red.secret")]
    for asks, task_id in [*others, (None, "red.secre"), (red, "secre"), (None, "no such task")]:
        with pytest.raises(NotFoundError, match=f"^there is no task '{task_id}'$"):
            shown(view, task_id, asks)
    own = shown(view, "red.secret", key(tenant="red", agent_id="calc")).task
    assert own is not None and own.tenant == "red"
    assert shown(view, "taught", key()).task_id == "taught"


def asked(view: LogOverHttp, sql: str, **given: Any) -> QueryAnswer:
    return run_query(view, QueryBody(sql=sql, **given))


def test_a_statement_gets_rows_up_to_its_limit(view: LogOverHttp) -> None:
    found = asked(view, "SELECT task_id, purpose FROM tasks ORDER BY task_id", limit=2)
    assert (found.columns, found.rows) == (["task_id", "purpose"], [["easy", "train"], ["few", "train"]])
    assert found.more and not asked(view, "SELECT 1").more


@pytest.mark.parametrize(
    ("sql", "kind"),
    [
        ("SELEC 1", "invalid"),
        ("SELECT 1; SELECT 2", "invalid"),
        ("FROM access", "invalid"),  # it has hashes of passwords, and no name leads there
        ("FROM whole.access", "invalid"),
        ("FROM live.main_access", "invalid"),
        ("FROM key_use", "invalid"),
        ("CREATE TABLE t AS SELECT 1", "unsupported"),
        ("FROM read_text('/etc/passwd')", "unsupported"),
        ("DROP VIEW tasks", "unsupported"),
        ("CHECKPOINT", "unsupported"),
        ("FROM checkpoint()", "unsupported"),
        ("FROM duckdb_settings()", "unsupported"),
        ("SELECT current_setting('temp_directory')", "unsupported"),
        ("FROM pandas_scan(12345)", "unsupported"),  # an address in memory
        ("FROM duckdb_views", "invalid"),
        ("SELECT repeat('x', 20_000_000)", "too_large"),
        *([("SELECT repeat('x', 20_000_000) FROM range(100)", "too_large")] if FULL else []),  # 2 GB in one batch
        ("SELECT length(repeat('x', 2_000_000_000))", "too_large"),  # which nobody but the kernel counts
    ],
)
def test_a_statement_that_may_not_be_run_is_refused(view: LogOverHttp, sql: str, kind: str) -> None:
    with pytest.raises(CallError) as problem:
        asked(view, sql)
    assert problem.value.kind == kind, problem.value.message


def test_no_statement_writes_into_the_archive_whose_files_it_may_read(tmp_path: Path) -> None:
    settings = Settings(archive=Archive(store=str(tmp_path / "archive")))
    archived(settings, {"tasks": [task()]}, count(T0, 1000))
    [segment] = (tmp_path / "archive").rglob("*.parquet")
    before = segment.read_bytes()
    copy = f"COPY (SELECT 1) TO '{segment}' (FORMAT parquet, USE_TMP_FILE false)"
    with contextlib.closing(LogOverHttp(settings, "archive")) as view:
        with view.session() as session:
            for sql in (copy, f"WITH x AS ({copy}) SELECT 1", f"WITH x AS ({copy}) FROM x", f"EXPLAIN ANALYZE {copy}"):
                with pytest.raises(CallError, match=r"COPY( in a query)? is refused: a query only reads"):
                    asked(view, sql)
                with pytest.raises(RefusedError, match="a query only reads"):
                    session.parse(sql)
            assert segment.read_bytes() == before
            list(formats.rows(session.run(f"WITH x AS ({copy}) SELECT 1")))  # the parser alone prevents it
        assert segment.read_bytes() != before


def test_a_statement_that_runs_too_long_is_ended(view: LogOverHttp) -> None:
    sql = "SELECT sum(a.range * b.range) FROM range(10000000) a, range(1000000) b"
    deaf = "SELECT levenshtein(repeat('a', 1000000), repeat('b', 1000000))"  # within one function nothing is heard
    for statement in (sql, deaf):
        with pytest.raises(CallError, match="was ended") as problem:
            run_query(view, QueryBody(sql=statement), longest_s=0.05)
        assert problem.value.kind == "unsupported"
        assert asked(view, "SELECT 1").rows == [[1]], "the next is answered, by another process if need be"


BOUNDS = r"ran for 0\.3 s and was ended|more memory than the 1024 MiB|maximum supported string size"


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT count(*) FROM range(1000000000000) WHERE range % 7 = 3",
        "WITH RECURSIVE t AS (SELECT 1 AS x UNION ALL SELECT x + 1 FROM t) SELECT count(*) FROM t",
        "WITH RECURSIVE t AS (SELECT 1 AS x UNION ALL SELECT x FROM t, range(10)) SELECT count(*) FROM t",
        "SELECT count(*) FROM range(1000000) AS a, range(1000000) AS b WHERE a.range * b.range % 7 = 3",
        "SELECT list(range) FROM range(1000000000)",
        "SELECT length(repeat('x', 1000000000000))",
        "SELECT sleep_ms(600000)",
    ],
)
def test_a_statement_that_would_hold_the_machine_ends_within_its_bounds_and_says_which(
    view: LogOverHttp, sql: str
) -> None:
    with pytest.raises(CallError, match=BOUNDS):
        run_query(view, QueryBody(sql=sql), longest_s=0.3)
    assert asked(view, "SELECT 1").rows == [[1]], "the next is answered"


def test_a_statement_has_a_connection_of_its_own_in_a_process_that_is_kept_while_it_is_sound(view: LogOverHttp) -> None:
    assert asked(view, "SELECT 1").rows == [[1]]
    process = view.statements._idle
    assert process is not None and asked(view, "SELECT count(*) FROM tasks").rows != [[0]]
    with pytest.raises(CallError, match="syntax error"):
        asked(view, "SELEC 1")
    assert view.statements._idle is process, "an error of its writer is none of the process"
    with pytest.raises(CallError, match="more memory than the 1024 MiB"):
        asked(view, "SELECT length(repeat('x', 2_000_000_000))")
    assert view.statements._idle is None, "what is left of it would be taken from the next"


def test_a_third_statement_at_once_is_told_to_come_again(view: LogOverHttp) -> None:
    with statement_process._slot(), statement_process._slot(), pytest.raises(CallError) as problem:
        asked(view, "SELECT 1")
    assert problem.value.kind == "busy"


def test_versions_are_listed_for_whoever_may_know_of_the_policy() -> None:
    states = {name: state_after([trained(1, policy=name)], name) for name in ("sums", "red.coach", "blue.coach")}

    def names(tenant: str | None, only: str | None = None) -> list[str]:
        return [one.policy for one in adapter_orders.visible_adapters(states, tenant, "sums", only).data]

    assert names(None) == ["blue.coach", "red.coach", "sums"]
    assert names("red") == ["red.coach", "sums"] and names("red", "red.coach") == ["red.coach"]
    for nobody in ("blue.coach", "grey.coach"):
        with pytest.raises(NotFoundError, match=f"there is no policy '{nobody}'"):
            names("red", nobody)
    mine, shared = adapter_orders.visible_adapters(states, "red", "sums").data
    assert mine.versions[1].model_fields_set - shared.versions[1].model_fields_set == set(adapter_orders.OF_OTHERS)
    assert (mine.serving.primary, mine.versions[1].parent_version) == (0, 0)


# --- through the door -------------------------------------------------------------------------------------------------


def behind_the_door(role: AccessRole, written: Written | None = None, **given: Any) -> TestClient:
    nothing: Any = None
    app = Application(log_rooms(SETTINGS, nothing), version="0", max_body_bytes=100_000)
    return TestClient(Door(app, TABLE, Known(role, **given), KeyLimits(Serve()), written))


def test_texts_are_scored_and_what_is_run_takes_the_role_for_it() -> None:
    written = Written()
    http = behind_the_door("submitter", written)
    body = {"scorer": "exact", "texts": ["11", "12"], "answer": 11}
    found = http.post("/score", headers=BEARER, json=body).json()
    assert [(one["value"], one["error"]) for one in found["data"]] == [(1.0, None), (0.0, None)]
    denied = http.post("/api/v1/score", headers=BEARER, json=body | {"scorer": "os:system"})
    assert denied.status_code == 403 and denied.json()["error"]["code"] == "permission_denied"
    assert "code.run is for: admin" in denied.json()["error"]["message"]
    said = [(one.action, one.allowed, one.status) for one in written.events]
    assert said == [("scores.try", True, 200), ("code.run", False, 403)]
    unlisted = behind_the_door("admin").post("/score", headers=BEARER, json=body | {"scorer": "os:system"})
    assert (unlisted.status_code, "scoring.modules lists no module" in unlisted.text) == (400, True)
    tenants = behind_the_door("admin", tenant="red")
    assert tenants.post("/score", headers=BEARER, json=body).status_code == 200
    assert tenants.post("/score", headers=BEARER, json=body | {"scorer": "os:system"}).status_code == 403
    for wrong in ({"scorer": "exakt"}, {"texts": []}, {"answer": None}, {"settings": {"no": 1}}):
        assert http.post("/score", headers=BEARER, json=body | wrong).status_code == 400, wrong


def test_a_tenant_decides_about_its_own_policies_and_queries_nothing() -> None:
    http = behind_the_door("admin", tenant="red")
    body = {"version": 1, "expected": 0, "reason": "better"}
    shared = http.post("/adapters/sums/promote", headers=BEARER, json=body)
    assert (shared.status_code, "begin with red." in shared.text) == (403, True)
    for nobody in ("blue.coach", "grey.coach"):
        answer = http.post(f"/adapters/{nobody}/rollback", headers=BEARER, json=body)
        assert (answer.status_code, answer.json()["error"]["message"].partition(";")[0]) == (
            404,
            f"there is no policy '{nobody}'",
        )
    assert http.post("/query", headers=BEARER, json={"sql": "FROM tasks"}).status_code == 403
    one = behind_the_door("viewer", agent_id="calc").post(
        "/query", headers=BEARER | {"X-Agent-ID": "calc"}, json={"sql": "FROM tasks"}
    )
    assert (one.status_code, "may only act as agent calc, with models.read" in one.text) == (403, True)
