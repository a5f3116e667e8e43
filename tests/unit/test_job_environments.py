"""Jobs on episodes of an environment: what may be ordered, and the tasks that are made of its seeds."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from schemas.events import JobQuestion, problems
from tests.support.factories import episodes_spec, job_event

QUESTION = JobQuestion(query="4 + 7 =")


def environment(**changes: Any) -> Any:
    return dataclasses.replace(episodes_spec().environment, **changes)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"environment": None}, "spec.questions is empty and spec.environment null; a job trains on questions, or on"),
        ({"questions": (QUESTION,)}, "spec.questions and spec.environment are both set; a job trains on questions, or"),
        ({"agent": None}, "agent is None and max_turns 4; name the agent that plays its"),
        ({"max_turns": None}, "max_turns None; name the agent that plays its episodes, and 1 to 1024"),
        ({"max_turns": 1025}, "max_turns 1025; name the agent that plays its episodes, and 1 to 1024"),
        ({"environment": environment(seeds=())}, "seeds is empty; a job needs at least one to train on"),
        ({"environment": environment(held_out_seeds=(3,))}, "a seed twice in seeds and held_out_seeds"),
        ({"environment": environment(held_out_temperature=-1.0)}, "held_out_temperature is -1.0; expected 0 or more"),
        ({"environment": environment(settings="[]")}, "settings is '[]'; expected a JSON object"),
        ({"environment": environment(settings="{")}, "settings is '{'; expected a JSON object"),
    ],
)
def test_a_record_of_a_job_in_an_environment_says_what_is_wrong_with_it(changes: dict[str, Any], says: str) -> None:
    (problem,) = problems(job_event("created", spec=episodes_spec(**changes)))
    assert says in problem


def test_a_record_of_a_job_in_an_environment_may_be_written() -> None:
    assert not list(problems(job_event("created", spec=episodes_spec())))
