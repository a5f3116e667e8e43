"""The view of training runs says what the fold of their calls says, and their costs are in the months of tenants."""

from __future__ import annotations

from typing import Any

import pytest

from plugins.jobs.log import spending
from plugins.tinker.calls.call_names import policy_of
from plugins.tinker.calls.call_state import CallState
from plugins.tinker.calls_view import TRAINING_RUNS
from streams.errors import RefusedError
from tests.plugins.jobs.test_months import by_month, closing, folded, job, ms, ordered
from tests.plugins.tinker.session_calls import MODEL, SESSION, begin_session, create_model, numbered, result, sample
from tests.support.appended import Appended
from tests.support.log.whole_run import Written


def rows(log: Appended) -> list[dict[str, Any]]:
    with log.connect() as con:
        result = con.sql(TRAINING_RUNS.sql)
        return [dict(zip(result.columns, row, strict=True)) for row in result.fetchall()]


def test_a_training_run_is_what_the_fold_of_its_calls_says() -> None:
    """Of two models, one with a call sent twice, a failed, a refused and an open one, and a second result of one."""
    passes = [numbered("forward_backward", seq, examples=1) for seq in (1, 3, 5)]
    steps = [numbered("optim_step", seq) for seq in (2, 4)]
    save = numbered("save_weights", 6, path="last")
    drawn, refused = sample(0, model=MODEL), numbered("refused", 7)
    calls = [begin_session(), create_model(), create_model(1), *passes, *steps, save, drawn, passes[0], refused]
    usage = {"prompt_tokens": 10, "seconds": 2.0, "trainer_s": 1.5, "cost_usd": 0.25}
    results = [
        result(calls[1]),
        result(passes[0], **usage),
        result(steps[0], seconds=0.5),
        result(passes[1], category="user", error="no"),
        result(steps[1]),
        result(steps[1], seconds=9.0),
        result(save, version=1, uri="/store/1", path=f"tinker://{MODEL}/weights/last"),
        result(drawn, prompt_tokens=3, completion_tokens=7, cost_usd=0.5),
        result(refused, category="user", error=refused.refusal),
    ]
    state = CallState()
    for event in (*results, *calls):
        state.take(event)
    by_model = {row["model"]: row for row in rows(Appended(*calls, *results))}
    assert by_model.keys() == state.models.keys()
    for name, run in state.models.items():
        row = by_model[name]
        own = [call for call in state.calls.values() if call.model == name]
        ended = [state.results[call.call_id] for call in own if call.call_id in state.results]
        assert (row["session_id"], row["base_model"], row["rank"]) == (run.session_id, run.base_model, run.lora.rank)
        assert (row["calls"], row["last_call_at"].timestamp() * 1000) == (len(own), run.last_call_at)
        assert row["open"] == sum(state.is_pending(call.call_id) for call in own)
        assert row["versions"] == [each.version for each in state.checkpoints.values() if each.model_id == name]
        assert row["seconds"] == sum(each.seconds for each in ended)
    first, second = by_model[MODEL], by_model[create_model(1).model]
    assert (first["open"], first["failed"], first["steps"], first["samples"]) == (1, 1, 2, 1)
    assert (first["refused"], second["refused"]) == (1, 0)
    assert (first["prompt_tokens"], first["completion_tokens"], first["cost_usd"]) == (13, 7, 0.75)
    assert (second["calls"], second["open"], second["cost_usd"], second["versions"]) == (1, 1, None, [])


def called(log: Written, time: str, number: int, **fields: Any) -> None:
    """Write the result of a call of tenant `shop`, twice, as a worker and one that did not know of it do."""
    whole = {"created_at": ms(time), "tenant": "shop", "prompt_tokens": 10, "trainer_s": 2.0, "cost_usd": 0.5}
    for _ in range(2):
        log.write(result(numbered("forward", number), **whole | fields), 0)


def test_training_calls_count_once_in_the_month_of_their_results_beside_jobs() -> None:
    log = Written()
    for event in job("a", "shop", ("2026-11-10T00:00:00", 3)):
        log.write(event, 0)
    called(log, "2026-11-30T23:59:59", 1)
    called(log, "2026-12-01T00:00:00", 2)
    called(log, "2026-12-01T00:00:01", 3, cost_usd=None)
    called(log, "2026-12-01T00:00:02", 4, cost_usd=None, tenant=None, model=SESSION)
    known = folded(log.records)
    assert by_month(known) == {
        ("", "2026-12"): (0.0, False),
        ("shop", "2026-11"): (3.5, False),
        ("shop", "2026-12"): (0.5, False),
    }
    rows = spending.costs(known.months, ("policy", "job", "session"))
    assert [(row["policy"], row["job"], row["session"], row["prompt_tokens"], row["trainer_s"]) for row in rows] == [
        ("", "", SESSION, 10, 2.0),
        ("default", "a", "", 3, 0.0),
        (policy_of(MODEL), "", SESSION, 30, 6.0),
    ]
    assert set(known.months.tenants) == {"shop", ""}


def test_a_month_with_calls_is_closed_for_its_jobs_and_its_budget_has_both() -> None:
    log = Written()
    for event in job("a", "shop", ("2026-11-10T00:00:00", 40)):
        log.write(event, 0)
    called(log, "2026-11-20T00:00:00", 1, cost_usd=59.5)
    known = folded(log.records)
    budget = known.months.budget("shop", ms("2026-11-20T00:00:00"), 100.0)
    assert budget is not None and (budget.spent_usd, budget.problem()) == (99.5, None)
    assert budget.problem(0.5) == "100.0000 USD of 100.0000 are spent that are for tenant shop in 2026-11"
    with pytest.raises(RefusedError, match=r"tenant shop in 2026-11, 99\.50 are spent"):
        spending.check_month(known, ordered("shop", 1), ms("2026-11-20T00:00:00"), limit_usd=100.0)
    (event,) = closing(log, "2026-12-05T00:00:00")
    assert event.metrics["cost_usd"] == 40.0
    log.write(event, 0)
    assert by_month(folded(log.records)) == {("shop", "2026-11"): (99.5, True)}
