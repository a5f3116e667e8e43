"""Verdicts, the review queue and agreement as rows, for commands, REST and plugins.

A row of the queue has no verdict and no reason: people who know the judge's verdict tend to repeat it, and agreement
would measure that.
"""

from __future__ import annotations

from dataclasses import asdict
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
        **{name: getattr(event, name) for name in ("task_id", "policy", "agent_id", "scenario", "tenant")},
        "created_at": moment(event.created_at),
        "verdict_id": event.event_id,
        "gates": [asdict(gate) for gate in event.gates],
        "cut": list(event.cut),
    }


def verdict(placed: PlacedVerdict) -> dict[str, Any]:
    """Return a verdict, with what it rests on."""
    event = placed.event
    names = ("verdict", "labeller", "actor", "rationale", "rubric", "supersedes")
    judge = (
        None if event.judge is None else {name: getattr(event.judge, name) for name in ("model", "endpoint", "verdict")}
    )
    fields = {name: getattr(event, name) for name in names}
    return queued_run(placed) | fields | {"recorded_at": str(placed.at), "judge": judge}


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
