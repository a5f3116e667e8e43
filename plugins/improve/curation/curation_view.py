"""Verdicts, the review queue and agreement as rows, for commands, REST and plugins.

A row of the queue has no verdict and no reason: people who know the judge's verdict tend to repeat it, and agreement
would measure that.
"""

from __future__ import annotations

from typing import Any

from plugins.improve.curation.agreement import Agreement, gwet_ac1, kappa, kappa_interval
from plugins.improve.curation.verdicts import PlacedVerdict
from plugins.improve.settings import Improve
from streams.output import moment


def queued_run(placed: PlacedVerdict) -> dict[str, Any]:
    """Return a run that waits for a person, without what the judge said."""
    event = placed.event
    return {
        "run": event.answer_id,
        "task_id": event.task_id,
        "policy": event.policy,
        "agent_id": event.agent_id,
        "scenario": event.scenario,
        "tenant": event.tenant,
        "created_at": moment(event.created_at),
        "verdict_id": event.event_id,
        "gates": [
            {"gate": gate.gate, "value": gate.value, "bound": gate.bound, "passed": gate.passed} for gate in event.gates
        ],
        "cut": list(event.cut),
    }


def verdict(placed: PlacedVerdict) -> dict[str, Any]:
    """Return a verdict, with what it rests on."""
    event = placed.event
    row = queued_run(placed) | {
        "verdict": event.verdict,
        "labeller": event.labeller,
        "actor": event.actor,
        "rationale": event.rationale,
        "rubric": event.rubric,
        "supersedes": event.supersedes,
        "recorded_at": str(placed.at),
    }
    judge = event.judge
    row["judge"] = (
        None if judge is None else {"model": judge.model, "endpoint": judge.endpoint, "verdict": judge.verdict}
    )
    return row


def agreement(measured: Agreement, rule: Improve, noun: str = "runs") -> dict[str, Any]:
    """Return how well a judge agrees with people, and whether it may promote alone; `noun`: what it judges."""
    table = measured.table
    low, high = kappa_interval(table)
    doubt = measured.doubt(rule, noun)
    return {
        "model": measured.judge.model,
        "endpoint": measured.judge.endpoint,
        "prompt_digest": measured.judge.prompt_digest,
        "runs": table.runs,
        "kappa": kappa(table),
        "kappa_low": low,
        "kappa_high": high,
        "ac1": gwet_ac1(table),
        "prevalence": table.prevalence,
        "false_promotions": table.false_promotions,
        "false_rejections": table.false_rejections,
        "coverage": measured.coverage,
        "disputed": measured.disputed,
        "promotes_alone": doubt is None,
        "reason": doubt or "it agrees with people as improve.min_kappa asks",
    }
