"""The guard of tasks that a policy agent answers: the rules of the door, with the policy in the place of an agent.

    task ──► GuardrailDoor ──► refused: every slot fails with the rule; words replaced; or as it is
    answer ──► GuardedAnswer ──► withheld: its slot fails with the rule; words replaced, then without tokens

Tasks that something is learned from, or measured on, are looked at with guardrails.tasks=all, and only recorded.
"""

from __future__ import annotations

from dataclasses import replace

from plugins.guardrails.call_texts import call_texts
from plugins.guardrails.guardrail_door import GuardedAnswer, GuardrailDoor, TextOrigin
from plugins.guardrails.guardrail_settings import Guardrails, strictest
from plugins.guardrails.scanner import Scanner
from schemas.conventions import REDACTED, WITHHELD
from schemas.events import Event, GuardrailMode, Message, Task, derive_id
from streams.access.tenants.tenant_names import named
from streams.engines.protocol import Completion, SamplingRequest, TokenCounts, failed_slot
from streams.engines.sampling_step import passes_steps
from streams.engines.task_guard import GuardedAnswers, GuardedRequest, TaskGuard
from streams.engines.token_stream import AnswerOrigin
from streams.observability.metrics import Meter
from streams.settings.model import Settings
from streams.stages.agents.recording.calls import ModelCall

PROTOCOL = "tasks"
"""Their name in guardrails.modes."""


def build_task_guard(settings: Settings, meter: Meter) -> TaskGuard | None:
    """Return the guard of the settings; None: nothing is looked at. Raises SettingsError."""
    rule = settings.of_plugin(Guardrails)
    return GuardrailTaskGuard(GuardrailDoor(rule, Scanner(rule), meter)) if rule.is_on else None


class GuardrailTaskGuard(TaskGuard):
    """Looks at tasks and answers."""

    def __init__(self, door: GuardrailDoor) -> None:
        self._door = door

    def admit(self, request: SamplingRequest) -> GuardedRequest:
        """Return the decision about a task: refused, with words replaced, or told to treat text as data."""
        task = request.task
        if (mode := self._mode(task, "call")) is None:
            return GuardedRequest(request)
        call = ModelCall(
            agent_id=named(task.tenant, task.policy),
            model=task.policy,
            protocol="chat",
            messages=task.messages,
            sampling=task.sampling,
            request_digest=task.task_id,
        )
        origin = TextOrigin("call", call.agent_id, mode, task.task_id, task.policy, task_id=task.task_id)
        admission = self._door.decide(call, origin, self._door.scan_all(call_texts(call, None)))
        if (refusal := admission.refusal) is not None:
            refused = [failed_slot(slot, str(refusal)) for slot in range(task.group_size)]
            return GuardedRequest(request, admission.events, refused)
        if admission.call is not call:
            request = replace(request, task=replace(task, messages=admission.call.messages))
        return GuardedRequest(request, admission.events)

    def review(self, request: SamplingRequest, completions: list[Completion]) -> GuardedAnswers:
        """Return the decision about answers."""
        task = request.task
        if (mode := self._mode(task, "answer")) is None:
            return GuardedAnswers(completions)
        agent_id, reviewed, events = named(task.tenant, task.policy), list[Completion](), list[Event]()
        check = self._door.checks(agent_id, task.messages)
        for completion in completions:
            if completion.error is not None:
                reviewed.append(completion)
                continue
            response_id = derive_id(request.sampling_id, completion.slot)
            origin = TextOrigin(
                "answer", agent_id, mode, response_id, task.policy, turn_id=response_id, task_id=task.task_id
            )
            answer, reply = GuardedAnswer(self._door, origin, check), Message(role="assistant", content=completion.text)
            verdict = answer.decide(reply, answer.look(reply))
            reviewed.append(_to_give(completion, answer, verdict.reply.content))
            events += verdict.events
        return GuardedAnswers(reviewed, events)

    def _mode(self, task: Task, place: str) -> GuardrailMode | None:
        """Return the mode in force for a task; None: it is not looked at."""
        mode = self._door.rule.mode_of(named(task.tenant, task.policy), place, PROTOCOL)
        if mode == "off" or not (passes_steps(task) or self._door.rule.tasks == "all"):
            return None
        return strictest(mode) if passes_steps(task) else "monitor"


def _to_give(completion: Completion, answer: GuardedAnswer, text: str) -> Completion:
    """Return an answer as it is given: one with replaced words has no tokens, which would spell them."""
    notes = dict(completion.origin.notes) if completion.origin else {}
    if answer.withheld is not None:
        failed = failed_slot(completion.slot, f"withheld by {answer.withheld}")
        return replace(failed, origin=_origin(completion, {**notes, WITHHELD: answer.withheld}))
    if answer.redacted is None:
        return completion
    counts = TokenCounts(len(completion.prompt_token_ids), len(completion.completion_token_ids))
    return replace(
        completion,
        text=text,
        completion_token_ids=(),
        logprobs=(),
        counts=completion.counts or counts,
        origin=_origin(completion, {**notes, REDACTED: answer.redacted}),
    )


def _origin(completion: Completion, notes: dict[str, str]) -> AnswerOrigin:
    return replace(completion.origin or AnswerOrigin(), notes=notes)
