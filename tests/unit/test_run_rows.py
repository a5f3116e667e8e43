"""The figures of a run: its course, tokens and cost, and the tools that it called, on events made by hand."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from schemas.conventions import FAILED_TOOLS, RatedAnswer, feedback
from schemas.events import Coordinates, JobPrices, Message, Observed, Reward, ToolCall, Turn, derive_id
from streams.settings.model import Prices, Serve, Settings
from streams.stages.agents.trajectories.fold import fold
from streams.tools.query.finished import Finished
from streams.tools.runs.run_row import FigureRules, FinishedRun, run_row
from streams.tools.runs.tool_use import ToolUse, tool_use
from tests.support.agent_calls import ADD, Recorded, assistant, system, user
from tests.support.factories import T0, group, member, response, reward, task, trajectory

RULES = FigureRules(JobPrices(prompt=10.0, completion=100.0), frozenset({"handoff"}))


def direct(**changes: Any) -> Finished:
    """Return the answer to slot 0 of a task without an agent, in its group."""
    answer = response(**changes)
    return Finished(
        position=Coordinates("streamward.groups", 0, 0),
        answer_id=answer.response_id,
        task_id="t1",
        purpose="train",
        task=task(scenario="sums", thread="th1"),
        group=group(),
        member=member(reward=0.25, components={"exact": 0.25}),
        response=answer,
    )


def of_agent(run: Recorded, **changes: Any) -> Finished:
    """Return a chat that has ended."""
    name = run.trajectory_id
    alone: dict[str, Any] = {"trajectory_id": name, "task_id": name, "sampling_id": None, "slot": None}
    alone |= {"group_size": None, "purpose": "serve"}
    ended = trajectory(created_at=T0 + 900, turns=len(run.turns), **alone | changes)
    return Finished(
        position=Coordinates("streamward.trajectories", 0, 1),
        answer_id=name,
        task_id=name,
        purpose="serve",
        run=fold(run.turns, ended),
        began=trajectory("started", created_at=T0 - 5, **alone),
        ended=ended,
    )


def tool_result(call: str, content: str = "11") -> Message:
    return Message(role="tool", content=content, tool_call_id=call)


def says(*calls: tuple[str, str, str]) -> dict[str, Any]:
    """Return the changes of a turn that calls tools: id, name, arguments of each."""
    made = tuple(ToolCall(id=call, name=name, arguments=arguments) for call, name, arguments in calls)
    return {"reply": Message(role="assistant", content="", tool_calls=made), "finish_reason": "tool_calls"}


class Tools:
    """A conversation with tools: each reply is sent back with the results of its calls."""

    def __init__(self) -> None:
        self.run = Recorded("chat-1")
        self._history = [system("You add."), user("4 + 7 =")]

    def call(self, *calls: tuple[str, str, str], results: tuple[Message, ...] = (), **changes: Any) -> Turn:
        """Record a turn that calls tools; `results` are sent with the next."""
        turn = self.run.call(self._history, [ADD], **says(*calls) | changes)
        self._history = [*self.run.history(turn), *results]
        return turn

    def answer(self, **changes: Any) -> Turn:
        """Record a turn that calls none."""
        turn = self.run.call(self._history, [ADD], **{"reply": assistant("It is 11.")} | changes)
        self._history = [*self.run.history(turn), user("and now?")]
        return turn

    @property
    def use(self) -> ToolUse:
        return tool_use(self.run.turns, None, {"handoff"})


def shown(tool: str | None, ok: bool | None = True, digest: str = "d" * 64) -> Observed:
    return Observed(environment="walk@1", seed=1, digest=digest, tool=tool, ok=ok)


# --- course, tokens, cost ---------------------------------------------------------------------------------------------


def test_an_answer_without_an_agent_is_a_run_of_one_turn() -> None:
    assert run_row(direct(), RULES) == FinishedRun(
        answer_id=derive_id("s1", 0),
        task_id="t1",
        policy="default",
        agent_id=None,
        scenario="sums",
        tenant=None,
        purpose="train",
        thread="th1",
        run_ids=(derive_id("s1", 0),),
        versions=(0,),
        began_ms=T0 - 2,
        ended_ms=T0 + 10,
        ending="completed",
        reason="stop",
        turns=1,
        failed_turns=0,
        malformed=0,
        tool_calls=0,
        failed_tools=0,
        retries=0,
        rewrites=0,
        recoveries=0,
        escalations=0,
        latency_ms=12.5,
        prompt_tokens=3,
        sampled_tokens=2,
        cost_usd=(3 * 10 + 2 * 100) / 1e6,
        reward=0.25,
        scores={},
        feedback=None,
        success=None,
        verdict=None,
    )


def test_an_answer_that_failed_is_a_failed_run_with_its_reason() -> None:
    row = run_row(direct(error="out of memory"), RULES)
    assert (row.ending, row.reason, row.turns, row.failed_turns) == ("failed", "out of memory", 1, 1)


def test_a_chat_runs_from_its_first_call_to_its_last_answer_however_long_it_was_kept_open() -> None:
    run = Recorded("red.chat")
    first = run.call([user("4 + 7 =")], adapter_version=2, agent_id="red.calc")
    run.call([*run.history(first), user("and twice that?")], adapter_version=3, agent_id="red.calc", error="gone")
    row = run_row(of_agent(run, agent_id="red.calc", success=True), RULES, "promote")
    assert (row.began_ms, row.ended_ms, row.ending, row.latency_ms) == (T0 - 5, T0 + 900, "completed", 11.0)
    assert (row.versions, row.turns, row.failed_turns, row.scenario, row.tenant) == ((2, 3), 2, 1, "chat", "red")
    assert (row.prompt_tokens, row.sampled_tokens) == (6, 4)  # the second call's prompt has the first's, counted once
    assert (row.success, row.verdict) == (True, "promote")


def test_a_run_without_prices_has_no_cost() -> None:
    assert run_row(direct(), FigureRules()).cost_usd is None


def test_the_cost_of_a_judge_is_a_part_of_the_runs_also_where_it_failed() -> None:
    answer = direct()
    scores = {
        "judge": reward(answer.response, source="judge", components={"tries": 1.0, "cost_usd": 0.5}),
        "second": reward(answer.response, source="second", error="no verdict", components={"cost_usd": 0.25}),
        "exact": reward(answer.response),
    }
    row = run_row(replace(answer, scores=scores), RULES)
    assert row.cost_usd == pytest.approx(0.75 + 230 / 1e6)
    assert row.scores == {"judge": 1.0, "exact": 1.0}


def test_prices_and_tools_are_those_of_the_settings() -> None:
    settings = Settings(
        prices=Prices(prompt_usd=1.0, completion_usd=2.0),
        serve=Serve(escalation_tools="to_person, call_boss"),
    )
    assert FigureRules.of(settings) == FigureRules(
        JobPrices(prompt=1.0, completion=2.0), frozenset({"to_person", "call_boss"})
    )
    assert FigureRules.of(Settings()) == FigureRules(None, frozenset({"escalate", "handoff", "transfer_to_human"}))


def test_feedback_on_a_run_and_on_its_turns_counts_alike() -> None:
    run = Recorded("chat-1")
    turn = run.call([user("4 + 7 =")])
    opinions = {name: [_opinion(name, value)] for name, value in (("chat-1", 1.0), (turn.turn_id, 0.0))}
    assert run_row(replace(of_agent(run), feedback=opinions), RULES).feedback == 0.5


def _opinion(about: str, value: float) -> Reward:
    return feedback(RatedAnswer(about, "chat-1", "default", 0, T0), value, source="ada", reason=None, now_ms=T0)


# --- tools ------------------------------------------------------------------------------------------------------------


def test_calls_of_tools_are_those_in_answers_that_arrived() -> None:
    tools = Tools()
    tools.call(("c1", "add", "{}"), ("c2", "add", '{"a": 1}'), delivered=False)
    tools.call(("c1", "add", "{}"), ("c2", "add", '{"a": 1}'), results=(tool_result("c1"), tool_result("c2")))
    tools.answer()
    assert tools.use == ToolUse(tool_calls=2)


@pytest.mark.parametrize(
    ("content", "failed"),
    [
        ('{"content": [], "isError": true}', 1),
        ('{"content": [], "isError": false}', 0),
        ('{"isError": "true"}', 0),
        ('[{"isError": true}]', 0),
        ('{"isError": true', 0),
        ("error: no such file", 0),
        ('{"error": "not found"}', 0),
    ],
)
def test_a_tool_failed_if_its_result_says_so_by_its_protocol_and_not_in_words(content: str, failed: int) -> None:
    tools = Tools()
    tools.call(("c1", "add", "{}"), results=(tool_result("c1", content),))
    tools.answer()
    assert tools.use.failed_tools == failed


def test_a_result_that_its_client_sent_as_failed_is_a_failed_tool_and_recovers_with_the_next_that_succeeds() -> None:
    tools = Tools()
    tools.call(("c,1", "add", "{}"), results=(tool_result("c,1"),))
    tools.call(("c2", "add", '{"a": 1}'), results=(tool_result("c2"),), metadata={FAILED_TOOLS: json.dumps(["c,1"])})
    assert tools.use == ToolUse(tool_calls=2, failed_tools=1)
    tools.answer()
    assert tools.use == ToolUse(tool_calls=2, failed_tools=1, recoveries=1)


def test_the_same_call_again_is_a_retry_and_with_other_arguments_it_is_not() -> None:
    tools = Tools()
    tools.call(("c1", "add", '{"a": 1}'), results=(tool_result("c1"),))
    tools.call(("c2", "add", '{"a": 2}'), results=(tool_result("c2"),))
    tools.call(("c3", "add", '{"a": 1}'), results=(tool_result("c3"),))
    tools.answer()
    assert tools.use == ToolUse(tool_calls=3, retries=1)


def test_a_rewritten_history_is_a_retry_and_its_results_count_once() -> None:
    run = Recorded("chat-1")
    first = run.call([system("You add."), user("4 + 7 =")], [ADD], **says(("c1", "add", "{}")))
    failed = tool_result("c1", '{"isError": true}')
    run.call([*run.history(first), failed], [ADD])
    last = run.call([system("You add well."), *run.history(first)[1:], failed], [ADD])
    assert last.continuity == "rewrites"
    assert tool_use(run.turns, None, ()) == ToolUse(tool_calls=1, failed_tools=1, retries=1, rewrites=1)


def test_a_turn_that_failed_recovers_with_an_answer_after_it() -> None:
    tools = Tools()
    tools.answer()
    tools.answer(error="the engine ended")
    assert tools.use.recoveries == 0
    tools.answer()
    assert tools.use.recoveries == 1


def test_a_tool_that_hands_over_is_an_escalation() -> None:
    tools = Tools()
    tools.call(("c1", "handoff", '{"to": "ann"}'))
    assert tools.use == ToolUse(tool_calls=1, escalations=1)


def test_an_environment_says_which_actions_were_calls_and_which_of_them_failed() -> None:
    run = Recorded("chat-1")
    shows = (shown(None, None), shown("calc", False), shown("calc"), shown(None, False))
    history = [user("walk")]
    for observed in shows:
        turn = run.call(history, reply=assistant("calc(1)"), observed=observed)
        history = [*run.history(turn), user("ok")]
    # the third action called nothing, the fourth is known from the end
    assert tool_use(run.turns, shown("calc", False), ()) == ToolUse(tool_calls=3, failed_tools=2, recoveries=1)


def test_an_action_whose_call_was_sent_again_counts_once() -> None:
    run = Recorded("chat-1")
    first = run.call([user("walk")], observed=shown(None, None), **says(("c1", "calc", "{}")))
    history = [*run.history(first), tool_result("c1")]
    run.call(history, observed=shown("calc", False), error="busy")
    run.call(history, observed=shown("calc", False))
    assert tool_use(run.turns, None, ()) == ToolUse(tool_calls=1, failed_tools=1, recoveries=1)


def test_a_history_that_was_changed_is_a_rewrite_whether_it_forks_or_begins_anew() -> None:
    run = Recorded("chat-1")
    asked = [system("You add."), user("4 + 7 =")]
    for choice in range(2):
        run.call(asked, [ADD], choice=choice, choices=2, **says(("c1", "add", "{}")))
    own = Message(role="assistant", content="", tool_calls=(ToolCall(id="c1", name="add", arguments='{"a": 4}'),))
    run.call([*asked, own, Message(role="tool", content="11", tool_call_id="c1")], [ADD])
    run.call([system("You add."), user("So far: 11.")], [ADD])
    assert [turn.continuity for turn in run.turns] == ["first", "forks", "forks", "rewrites"]
    assert tool_use(run.turns, None, ()).rewrites == 2, "a second answer to one call changes no history"
