"""Bias by counterfactual over HTTP and on the command line: of a scorer, of a policy's versions.

    {scorer, texts} ──► each text and its swap, scored ──┐
    {scorer, policy} ──► recorded answers, newest first ─┼──► pairs ──► difference, interval ──► guardrail-verdicts
    {policy, suite} ──► results of each version ─────────┘

Not covered: new answers. A suite of swapped copies has a version answer them (`streamward evaluate`).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Literal

from pydantic import Field
from starlette.requests import Request

from gateway.http.body import Answer, Body
from gateway.http.principal import WITHOUT_KEYS, principal_of, sees_task, tenant_of
from gateway.http.route import REST
from gateway.log.named_code import check_scorers
from gateway.log.open_log import OpenLog
from plugins.guardrails.bias.counterfactual import (
    AnsweredTask,
    BiasFigure,
    BiasPair,
    bias_figure,
    pairs_of_outcomes,
    score_swaps,
)
from plugins.guardrails.guardrail_settings import Guardrails
from schemas.events import GuardrailVerdict, Message, Response, RewardSource, Task, derive_id
from schemas.serde import Poison
from streams.access.roles import PluginAction
from streams.access.tenants.tenant_names import named
from streams.adapters.versions import read_state
from streams.errors import CallError, SettingsError
from streams.kafka import times
from streams.kafka.admin import read_topic
from streams.kafka.producer import Producer
from streams.scorers.term_swaps import TermSwaps, read_terms
from streams.settings.model import Settings

RULE = "bias/1"
MOST_TEXTS = 32
AT_ONCE = 2


class BiasBody(Body):
    """A scorer with texts, or with recorded answers of a policy; or a policy and its suite of swapped copies."""

    scorer: str | None = Field(None, min_length=1, max_length=500, description="a built-in one, or module:function")
    settings: dict[str, Any] | None = Field(None, description="of the scorer")
    texts: Annotated[list[str] | None, Field(min_length=1, max_length=MOST_TEXTS)] = Field(
        None, description="answers to the prompt"
    )
    prompt: str | None = Field(None, description="the question")
    policy: str | None = Field(None, max_length=256, description="score its recorded answers again")
    suite: str | None = Field(
        None, max_length=256, description="with policy: compare its versions' rewards on this suite of swapped copies"
    )
    limit: int = Field(100, ge=1, le=1000, description="most recorded answers, the newest")
    terms: str | None = Field(None, max_length=4000, description="FIRST=SECOND, …; default: guardrails.bias_terms")


class BiasRow(Answer):
    """The bias of one version's answers, or of all texts."""

    version: int | None
    n: int = Field(description="pairs of a text and its swap")
    first: float = Field(description="mean score with the first terms")
    second: float = Field(description="mean score with the second terms")
    difference: float = Field(description="first minus second")
    low: float | None = Field(description="of the interval at 95 %; null: too few pairs")
    high: float | None
    largest: float = Field(description="the largest difference of a pair, without its sign")
    proven: bool = Field(description="the interval has no zero in it")


class BiasFigures(Answer):
    """Bias by counterfactual."""

    object: Literal["list"]
    without_terms: int = Field(description="texts without any of the terms")
    failed: int = Field(description="pairs without both scores")
    data: list[BiasRow]


EXAMPLE = BiasFigures(
    object="list",
    without_terms=0,
    failed=0,
    data=[
        BiasRow(version=None, n=8, first=0.7, second=0.6, difference=0.1, low=0.02, high=0.18, largest=0.2, proven=True)
    ],
)


class BiasDetection:
    """The route that measures bias."""

    def __init__(self, settings: Settings, log: OpenLog) -> None:
        self._settings = settings

    @REST.post(
        "/guardrails/bias/detect",
        may=PluginAction("guardrails.check"),  # a scorer that is executed code takes code.run, too
        at_once=AT_ONCE,
        refuses=(404,),
        ids="`streamward evaluate` has the results of a suite",
        sends={"scorer": "length", "settings": {"limit": 40}, "texts": ["He is a doctor."]},
        example=EXAMPLE,
    )
    def detect_bias(self, request: Request, body: BiasBody) -> BiasFigures:
        """Compare scores of texts and of their swaps."""
        terms = self._settings.of_plugin(Guardrails).bias_terms if body.terms is None else body.terms
        try:
            swaps = TermSwaps(read_terms(terms))
        except ValueError as exc:
            raise CallError("invalid", str(exc), "terms") from exc
        if (body.suite is None) == (body.scorer is None):
            raise CallError("invalid", "give a scorer, or a policy and its suite", "suite")
        if body.suite is not None:
            return self._of_suite(request, body.policy or self._settings.policy.name, body.suite)
        source = RewardSource(name=body.scorer or "", settings=json.dumps(body.settings or {}))
        check_scorers(request, self._settings.serve, [source], "scorer")
        if (body.texts is None) == (body.policy is None):
            raise CallError("invalid", "give texts, or the policy of recorded answers", "texts")
        answers = self._sent_texts(body) if body.texts is not None else self._recorded_answers(request, body)
        try:
            scored = score_swaps(self._settings.scoring, source, answers, swaps)
        except SettingsError as exc:  # no judge, or a module that is not listed
            raise CallError("unsupported", str(exc), "scorer") from exc
        subject = f"scorer {source.name}"
        rows = [self._row(request, subject, version, pairs) for version, pairs in pairs_by_version(scored.pairs)]
        return BiasFigures(object="list", without_terms=scored.without_terms, failed=scored.failed, data=rows)

    def _of_suite(self, request: Request, policy: str, suite: str) -> BiasFigures:
        """Return the bias of each version with results of a suite."""
        if tenant_of(request) is not None:
            raise CallError("permission_denied", "results of versions take a key without a tenant", "suite")
        rows = []
        for number, version in sorted(read_state(self._settings, policy).versions.items()):
            pairs = pairs_of_outcomes(version.outcomes.get(suite, ()))
            if pairs:
                rows.append(self._row(request, f"{policy}@{number} on {suite}", number, pairs, policy))
        if not rows:
            problem = f"no version of {policy} has results of swapped copies in suite {suite}"
            raise CallError("not_found", f"{problem}; `streamward evaluate` asks them", "suite")
        return BiasFigures(object="list", without_terms=0, failed=0, data=rows)

    def _sent_texts(self, body: BiasBody) -> list[AnsweredTask]:
        task = Task(
            task_id=derive_id("bias", body.scorer or ""),
            created_at=times.now_ms(),
            policy=self._settings.policy.name,
            purpose="serve",
            group_size=1,
            messages=() if body.prompt is None else (Message(role="user", content=body.prompt),),
        )
        return [AnsweredTask(task, text) for text in body.texts or ()]

    def _recorded_answers(self, request: Request, body: BiasBody) -> list[AnsweredTask]:
        """Return the newest recorded answers of a policy to tasks that a request may see. Raises LogError."""
        tasks = {
            task.task_id: task
            for task in self._events("tasks", Task)
            if task.policy == body.policy and sees_task(principal_of(request), task.tenant, task.agent)
        }
        responses = [
            response
            for response in self._events("responses", Response)
            if response.task_id in tasks and response.finish_reason != "error"
        ]
        newest = sorted(responses, key=lambda response: response.created_at)[-body.limit :]
        return [AnsweredTask(tasks[answer.task_id], answer.text, answer.adapter_version) for answer in newest]

    def _events(self, label: str, kind: type[Any]) -> Iterator[Any]:
        for record in read_topic(self._settings, label):
            event = record.decode(kind)
            if not isinstance(event, Poison):
                yield event

    def _row(
        self, request: Request, subject: str, version: int | None, pairs: Sequence[BiasPair], policy: str | None = None
    ) -> BiasRow:
        """Return the figure of pairs, and record it as a verdict."""
        figure = bias_figure(pairs)
        self._record(request, subject, figure, policy)
        bias = figure.difference
        is_known = bias.n > 1
        return BiasRow(
            version=version,
            n=bias.n,
            first=figure.first,
            second=figure.second,
            difference=bias.value,
            low=bias.low if is_known else None,
            high=bias.high if is_known else None,
            largest=figure.largest,
            proven=figure.is_proven and is_known,
        )

    def _record(self, request: Request, subject: str, figure: BiasFigure, policy: str | None) -> None:
        bias, now_ms = figure.difference, times.now_ms()
        verdict = GuardrailVerdict(
            verdict_id=derive_id("route", RULE, subject, bias.value, bias.n, now_ms),
            agent_id=named(tenant_of(request), WITHOUT_KEYS),
            created_at=now_ms,
            kind="bias",
            rule=RULE,
            verdict="flag" if figure.is_proven else "pass",
            mode="monitor",
            place="route",
            policy=policy,
            field_path="texts",
            score=bias.value,
            reason=f"{subject}: {figure.first:.3g} with the first terms, {figure.second:.3g} with the second, on "
            f"{bias.n} pairs; difference {bias.low:+.3g} to {bias.high:+.3g}",
        )
        with Producer(self._settings, linger_ms=0) as producer:
            producer.send(verdict)


def pairs_by_version(pairs: dict[int | None, list[BiasPair]]) -> list[tuple[int | None, list[BiasPair]]]:
    """Return pairs in the order of their versions."""
    return sorted(pairs.items(), key=lambda row: -1 if row[0] is None else row[0])


ROOMS = (BiasDetection,)
