"""Tests for guardrails about tasks that a policy agent answers: refused, withheld, words replaced, recorded."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from plugins.guardrails.guarded_tasks import GuardrailTaskGuard, build_task_guard
from plugins.guardrails.guardrail_door import GuardrailDoor
from plugins.guardrails.guardrail_settings import Guardrails
from plugins.guardrails.scanner import Scanner
from schemas.events import GuardrailVerdict, Message, Response, Task
from streams.engines.protocol import Completion, SamplingRequest
from streams.engines.scripted.scripted_engine import ScriptedEngine
from streams.kafka import admin as cluster
from streams.observability.metrics import OFF
from streams.settings.model import Batches, Policy, Settings
from streams.stages.policy import policy_agent
from streams.tools.audit.reading import Audit
from tests.plugins.guardrails.guarded import ATTACK, CARD
from tests.support import factories
from tests.support.beside import running_beside
from tests.support.processes import read, until, write

MAIL = "ann@example.org"


def task(name: str, question: str = "2 + 2 =", **changes: Any) -> Task:
    messages = (Message(role="user", content=question),)
    whole = {"policy": "p", "group_size": 2, "purpose": "serve", "verifier": '{"answer": "4"}'} | changes
    return factories.task(task_id=name, messages=messages, **whole)


def request(question: str = "2 + 2 =", **changes: Any) -> SamplingRequest:
    return SamplingRequest(sampling_id="s", task=task("t", question, **changes))


def completion(text: str, slot: int = 0) -> Completion:
    tokens = tuple(text.encode())
    return Completion(
        slot=slot,
        text=text,
        finish_reason="stop",
        prompt_token_ids=(1,),
        completion_token_ids=tokens,
        logprobs=(-0.5,) * len(tokens),
    )


def guard(**rule: Any) -> GuardrailTaskGuard:
    settings = Guardrails(**{"mode": "block"} | rule)
    return GuardrailTaskGuard(GuardrailDoor(settings, Scanner(settings)))


def test_a_refused_task_is_not_sampled_and_each_slot_says_why() -> None:
    guarded = guard().admit(request(ATTACK))
    assert guarded.refused is not None
    [error] = {slot.error for slot in guarded.refused}
    assert [slot.slot for slot in guarded.refused] == [0, 1]
    assert error is not None and "messages[0].content is refused by override/1" in error and "Ignore" not in error
    [event] = guarded.events
    assert isinstance(event, GuardrailVerdict)
    assert (event.place, event.agent_id, event.task_id, event.verdict, event.mode) == (
        "call",
        "p",
        "t",
        "block",
        "block",
    )
    again = guard().admit(request(ATTACK)).events[0]
    assert (
        isinstance(again, GuardrailVerdict) and again.verdict_id == event.verdict_id
    )  # a task that is sampled again counts once


def test_an_answer_is_withheld_by_name_and_the_other_slot_is_given() -> None:
    answers = guard().review(request(), [completion(f"The card is {CARD}."), completion("4", 1)])
    withheld, given = answers.completions
    assert (withheld.error, withheld.text, withheld.completion_token_ids) == ("withheld by card/1", "", ())
    assert withheld.origin is not None and withheld.origin.notes == {"withheld": "card/1"}
    assert given == completion("4", 1)
    [event] = answers.events
    assert isinstance(event, GuardrailVerdict) and (event.place, event.rule, event.verdict) == (
        "answer",
        "card/1",
        "block",
    )


def test_words_of_task_and_answer_are_replaced() -> None:
    guarded = guard(redacts="email").admit(request(f"I am {MAIL}."))
    assert guarded.request.task.messages[0].content == "I am [email]."
    [answer], _ = guard(redacts="email").review(request(), [completion(f"Write to {MAIL}.")])
    assert (answer.text, answer.completion_token_ids, answer.logprobs) == ("Write to [email].", (), ())
    assert answer.counts == (1, len(f"Write to {MAIL}."))


def test_an_answer_that_breaks_a_rule_of_its_policy_is_withheld() -> None:
    [answer], _ = guard(validates='{"p": {"pattern": "[0-9]+"}}', blocks="pattern").review(
        request(), [completion("no")]
    )
    assert answer.error == "withheld by pattern/1"


@pytest.mark.parametrize("purpose", ["train", "eval"])
def test_what_is_learned_from_is_sampled_as_it_is(purpose: str) -> None:
    asked, answers = request(ATTACK, purpose=purpose), [completion(f"The card is {CARD}.")]
    assert guard().admit(asked).events == () and guard().review(asked, answers) == (answers, ())
    every = guard(tasks="all", redacts="card")
    admission, (given, events) = every.admit(asked), every.review(asked, answers)
    assert admission.refused is None and admission.request is asked and given == answers
    assert [event.mode for event in (*admission.events, *events)] == ["monitor"] * 2  # type: ignore[union-attr]


def test_modes_call_them_tasks_and_a_policy_stands_for_an_agent() -> None:
    assert guard(modes="p@tasks=off").admit(request(ATTACK)).refused is None
    assert guard(modes="red.p=off").admit(request(ATTACK, tenant="red")).refused is None
    assert guard(mode="off", modes="red.p=block").admit(request(ATTACK, tenant="red")).refused is not None
    assert build_task_guard(Settings(), OFF) is None


class Says(ScriptedEngine):
    """Answers every slot with a card number, and slot 1 with an address and the question that it got."""

    def sample(self, requests: Sequence[SamplingRequest]) -> list[list[Completion]]:
        return [
            [
                replace(one, text=f"{MAIL}: {request.messages[0].content}" if one.slot else f"It is {CARD}.")
                for one in slots
            ]
            for request, slots in zip(requests, super().sample(requests), strict=True)
        ]


@pytest.mark.kafka
@pytest.mark.parametrize("fleet", [False, True])
def test_policy_agent_writes_the_verdicts_and_what_its_guard_lets_pass(settings: Settings, fleet: bool) -> None:
    rule = Guardrails(mode="block", redacts="email")
    topics = settings.topics.model_copy(update={"partitions": 2, "policy_partitions": 2})
    policy = Policy(name="p", engine="scripted", round_tasks=4)
    changed = {"topics": topics, "batches": Batches(groups=2), "policy": policy, "guardrails": rule}
    made = settings.model_copy(update=changed)
    cluster.apply_topics(made)
    write(made, task("good", f"I am {MAIL}."), task("bad", ATTACK), task("trained", f"{MAIL} 1", purpose="train"))
    found: dict[str, list[Response]] = {}

    def answered() -> bool:
        by_task = defaultdict(list)
        for _, response in read(made, Response):
            by_task[response.task_id].append(response)
        found.update(by_task)
        return {"good", "bad", "trained"} <= found.keys()

    with running_beside(lambda stop: policy_agent.run(made, stop=stop, engine=Says(), fleet=fleet)):
        until(answered, "answers to three tasks")
    assert {response.error for response in found["bad"]} == {
        "messages[0].content is refused by override/1: it tells the model to leave its instructions"
    }
    first, second = sorted(found["good"], key=lambda response: response.slot)
    assert [response.error for response in (first, second)] == ["withheld by card/1", None]
    assert (first.error, first.text, first.metadata["withheld"]) == ("withheld by card/1", "", "card/1")
    assert (second.text, len(second.completion_token_ids)) == ("[email]: I am [email].", 0)
    assert [CARD in response.text for response in found["trained"]] == [True, False]
    verdicts = [(event.place, event.rule, event.verdict) for _, event in read(made, GuardrailVerdict)]
    assert sorted(verdicts) == [
        ("answer", "card/1", "block"),
        ("answer", "email/1", "flag"),
        ("call", "email/1", "flag"),
        ("call", "override/1", "block"),
    ]
    assert not [finding for finding in Audit(made).look().findings if not finding.accounted]
