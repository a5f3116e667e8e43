"""The LLM judge, against a real HTTP server that behaves well or badly."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler
from typing import Any

import pytest
from pydantic import SecretStr

from schemas.events import Message, RewardSource, Task
from schemas.serde import encode
from streams.observability.tracing.context import Context
from streams.scorers import ScoreOutcome, Scorers
from streams.settings.model import Scoring
from streams.stages.scoring.agent import reward_of
from tests.support.doubles.judge import JudgeServer, a_response, judging, raw, says

TASK = Task(
    task_id="t1",
    created_at=1,
    policy="default",
    messages=(Message(role="system", content="Be brief."), Message(role="user", content="What is {answer}?")),
    verifier='{"answer": "the reference text"}',
    reward_sources=(RewardSource(name="judge"),),
)
RESPONSE = a_response("forty-two {reference}")


def silence(handler: BaseHTTPRequestHandler) -> None:
    time.sleep(1.5)


def hangs_up(handler: BaseHTTPRequestHandler) -> None:
    handler.close_connection = True


def drips(handler: BaseHTTPRequestHandler) -> None:
    """A byte now and then: no single read is late, the whole answer is."""
    handler.send_response(200)
    handler.send_header("Content-Length", "100000")
    handler.end_headers()
    for _ in range(40):
        handler.wfile.write(b" ")
        handler.wfile.flush()
        time.sleep(0.1)


@pytest.fixture
def judge() -> Iterator[JudgeServer]:
    with judging() as state:
        yield state


def score(
    judge: JudgeServer, *, retries: int = 0, timeout_s: float = 5.0, trace: Context | None = None, **settings: Any
) -> ScoreOutcome:
    scoring = Scoring(
        judge_url=judge.url,
        judge_model="small-judge",
        judge_key=SecretStr("s3cret"),
        retries=retries,
        timeout_s=timeout_s,
    )
    with Scorers(scoring) as scorers:
        source = RewardSource(name="judge", settings=json.dumps(settings))
        return scorers.score(TASK, RESPONSE, source, trace=trace)


def test_the_judge_gives_its_score_between_0_and_1_and_its_reason(judge: JudgeServer) -> None:
    judge.answers = [says({"score": 7, "reason": "Nearly."})]
    found = score(judge)
    assert (found.value, found.components, found.rationale) == (0.7, {"score": 7.0}, "Nearly.")
    assert found.version == "judge/1 small-judge"


def test_the_judge_sees_question_answer_reference_and_rubric_and_braces_in_them_stay(judge: JudgeServer) -> None:
    judge.answers = [says({"score": 1})]
    score(judge, rubric="Count the vowels.")
    [(path, headers, body)] = judge.requests
    asked = body["messages"][0]["content"]
    assert path == "/v1/chat/completions" and headers["Authorization"] == "Bearer s3cret"
    assert body["model"] == "small-judge" and body["response_format"] == {"type": "json_object"}
    for piece in ("What is {answer}?", "forty-two {reference}", "the reference text", "Count the vowels.", "Be brief."):
        assert asked.count(piece) == 1


def test_half_an_emoji_in_the_reason_costs_a_character_and_not_the_reward(judge: JudgeServer) -> None:
    judge.answers = [says('{"score": 7, "reason": "Good \\ud83d"}')]
    found = score(judge)
    assert (found.value, found.rationale) == (0.7, "Good ?")
    encode(reward_of(RESPONSE, TASK.reward_sources[0], found, 1))


def test_a_template_of_ones_own_and_another_scale(judge: JudgeServer) -> None:
    judge.answers = [says({"score": -1})]
    found = score(judge, template="{answer} from {low} to {high}", low=-1, high=1, json_mode=False)
    assert found.value == 0.0
    assert judge.requests[0][2]["messages"][0]["content"] == "forty-two {reference} from -1 to 1"
    assert "response_format" not in judge.requests[0][2]


@pytest.mark.parametrize(
    "content",
    [
        '```json\n{"score": 5}\n```',
        'I think {this} is good: {"score": 5, "reason": "x"} {"score": 9}',
        '{"score": 5.0}',
    ],
)
def test_a_score_is_found_within_fences_and_words(judge: JudgeServer, content: str) -> None:
    judge.answers = [says(content)]
    assert score(judge).value == 0.5


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (says("seven of ten"), "gave no JSON object with a score"),
        (says({"grade": 7}), "gave no JSON object with a score"),
        (says({"score": 11}), "gave score 11; expected a number from 0 to 10"),
        (says('{"score": NaN}'), "gave score nan"),
        (says({"score": True}), "gave score True"),
        (says({"score": "7"}), "gave score '7'"),
        (says("{" * 100_000), "gave no JSON object with a score"),
        (raw(b"<html>not json"), "sent no chat completion"),
        (raw(b'{"choices": []}'), "sent no chat completion"),
        (raw(b'{"choices": [{"message": {"content": null}}]}'), "a message without text"),
        (raw(b" " * (1024 * 1024 + 1)), "sent more than 1048576 bytes"),
    ],
    ids=range(11),
)
def test_an_answer_that_is_no_score_is_an_error_and_never_a_guess(
    judge: JudgeServer, answer: Callable[[BaseHTTPRequestHandler], None], message: str
) -> None:
    judge.answers = [answer]
    found = score(judge)
    assert (found.value, found.reason) == (None, "judge_answer")
    assert found.error is not None and message in found.error


@pytest.mark.parametrize("answer", [silence, drips])
def test_a_judge_that_is_too_slow_is_given_up_as_a_whole(
    judge: JudgeServer, answer: Callable[[BaseHTTPRequestHandler], None]
) -> None:
    judge.answers = [answer]
    found = score(judge, timeout_s=0.5)
    assert (found.value, found.reason) == (None, "timeout")
    assert found.error is not None and "did not answer within 0.5 s" in found.error


def test_a_judge_with_a_passing_fault_is_asked_again(judge: JudgeServer) -> None:
    judge.answers = [raw(b"overloaded", 503), hangs_up, says({"score": 10})]
    found = score(judge, retries=2)
    assert (found.value, found.tries) == (1.0, 3)


def test_a_judge_is_asked_in_the_trace_of_its_score_each_time_and_in_none_without(judge: JudgeServer) -> None:
    trace = Context("4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7", 0)
    judge.answers = [raw(b"", 503), says({"score": 5})]
    assert score(judge, retries=1, trace=trace).tries == 2
    assert [headers["traceparent"] for _, headers, _ in judge.requests] == [trace.traceparent] * 2
    assert trace.traceparent.endswith("-00"), "what is not sampled stays so"
    assert all(headers["Authorization"] == "Bearer s3cret" for _, headers, _ in judge.requests)
    score(judge)
    assert "traceparent" not in judge.requests[-1][1]


def test_a_judge_that_keeps_failing_is_asked_a_bounded_number_of_times(judge: JudgeServer) -> None:
    judge.answers = [raw(b"boom", 500)]
    found = score(judge, retries=2)
    assert (found.value, found.reason, len(judge.requests)) == (None, "judge_refused", 3)
    assert found.error is not None and "HTTP 500: 'boom'" in found.error


def test_a_judge_that_refuses_the_key_is_not_asked_again(judge: JudgeServer) -> None:
    judge.answers = [raw(b"bad key", 401)]
    found = score(judge, retries=2)
    assert (found.reason, len(judge.requests)) == ("judge_refused", 1)
    assert found.error is not None and "judge_key" in found.error and "s3cret" not in found.error


def test_a_judge_that_is_not_there_says_where_it_was_sought() -> None:
    found = score(JudgeServer([], url="http://127.0.0.1:9/v1"))
    assert found.reason == "judge_unreachable"
    assert found.error is not None and "http://127.0.0.1:9/v1/chat/completions" in found.error


def test_a_judge_that_nobody_configured_says_what_to_set() -> None:
    with Scorers(Scoring()) as scorers:
        found = scorers.score(TASK, RESPONSE, RewardSource(name="judge"))
    assert found.reason == "bad_settings" and found.error is not None and "scoring.judge_url" in found.error


def test_the_judge_can_be_a_part_of_a_mix(judge: JudgeServer) -> None:
    judge.answers = [says({"score": 5, "reason": "Half."})]
    mix = {"of": [{"name": "judge", "weight": 0.5}, {"name": "length", "weight": 0.5, "settings": {"limit": 6}}]}
    with Scorers(Scoring(judge_url=judge.url, judge_model="m")) as scorers:
        found = scorers.score(TASK, RESPONSE, RewardSource(name="mix", settings=json.dumps(mix)))
    assert (found.value, found.rationale) == (0.5, "Half.")
    assert found.components == {"judge": 0.5, "judge.score": 5.0, "length": 0.5, "length.length": 3.0}
