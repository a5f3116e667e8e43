"""Runs that have ended in a log, with the verdict of a judge on each."""

from __future__ import annotations

import threading

from plugins.improve.curation.curator import run_once
from schemas.events import CurationEvent, Message
from streams.kafka.producer import Producer
from streams.settings.model import Scoring, Settings
from streams.tools.query.finished import FinishedSelection
from tests.plugins.improve.runs import chat_turn, finished
from tests.support.doubles.judge import judging, says
from tests.support.factories import trajectory
from tests.support.processes import read

SECRET = "The judge finds it PERFECT."


def judge_runs(settings: Settings, agents: dict[str, str]) -> None:
    """Write runs that have ended, each of an agent, and let a curator with a judge look at them."""
    with Producer(settings) as producer:
        for name, agent in agents.items():
            of_agent = {"agent_id": agent, "policy": "sums"}
            question = Message(role="user", content=f"question of {agent}")
            calls = [chat_turn(0, run=name, messages=(question,), **of_agent)]
            ended = finished(*calls, run=name, **of_agent).ended
            chat = {"sampling_id": None, "slot": None, "group_size": None, "purpose": "serve"}
            assert ended is not None
            for event in (trajectory("started", trajectory_id=name, task_id=name, **chat, **of_agent), *calls, ended):
                producer.send(event)
        producer.flush()
    with judging(says({"verdict": "promote", "rationale": SECRET})) as judge:
        judged = settings.model_copy(update={"scoring": Scoring(judge_url=judge.url, judge_model="m")})
        run_once(judged, FinishedSelection(purpose="serve", unfit=True), stop=threading.Event())


def verdicts(settings: Settings, run: str) -> list[CurationEvent]:
    return [event for _, event in read(settings, CurationEvent) if event.answer_id == run]
