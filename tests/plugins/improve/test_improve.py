"""`improve run` on a real log: each step of the way from served runs to a job is one process, and all meet."""

from __future__ import annotations

from pathlib import Path

import pytest

from plugins.improve.settings import Improve
from plugins.jobs.orders.job_settings import Jobs
from schemas.events import CurationEvent, DatasetEvent, JobEvent, Message, TriggerEvent
from streams.kafka import admin
from streams.settings.model import Prices, Settings
from tests.plugins.improve.runs import chat_turn, events_of_chat
from tests.support.processes import read, running, until, write

pytestmark = pytest.mark.kafka
RULE = """
name = "three"
policy = "default"
actions = ["tune"]

[when]
promotable = 3

[tune]
dataset = "good"
"""


def serve_runs(settings: Settings, count: int) -> None:
    """Write runs that reached their goal."""
    for number in range(count):
        question = Message(role="user", content=f"{number} + 1 =")
        reply = Message(role="assistant", content=str(number + 1))
        turn = chat_turn(0, run=f"run-{number}", messages=(question,), reply=reply)
        write(settings, *events_of_chat(f"run-{number}", turn, success=True))


def test_served_runs_are_judged_collected_and_a_reason_to_retrain_by_one_command(
    settings: Settings, tmp_path: Path
) -> None:
    log = settings.model_copy(
        update={
            "improve": Improve(gates="min_success=1", promote_by_gates="*"),
            "prices": Prices(prompt_usd=0.0, completion_usd=0.0),
            "jobs": Jobs(trainer_hour_usd=1.0, max_budget_usd=1.0),
        }
    )
    admin.apply_topics(log)
    rule = tmp_path / "retrain.toml"
    rule.write_text(RULE)
    serve_runs(log, 3)
    with running(log, tmp_path, f"improve run --rule {rule}"):
        until(lambda: any(read(log, JobEvent)), "a job", folder=tmp_path / ".streamward/improve/logs")
    verdicts = [event for _, event in read(log, CurationEvent)]
    assert sorted((event.answer_id, event.verdict) for event in verdicts) == [
        (f"run-{number}", "promote") for number in range(3)
    ]
    ((_, build),) = read(log, DatasetEvent)
    assert (build.dataset, sum(build.scenarios.values())) == ("good", 3)
    crossings = [event for _, event in read(log, TriggerEvent) if event.kind == "crossed"]
    jobs = {event.job_id for _, event in read(log, JobEvent)}
    assert [crossing.signal for crossing in crossings] == ["promotable"]
    assert jobs == {crossing.job_id for crossing in crossings}
