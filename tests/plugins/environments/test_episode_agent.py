"""The built-in agent plays an episode between the policy and an environment, and records what each showed."""

from __future__ import annotations

import threading
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from plugins.agents.runs.agent_process import ProgramRun
from plugins.agents.runs.connection_pool import KeptAlive
from plugins.agents.runs.run_server import AgentServer
from plugins.environments.episode_agent import EpisodeAgent
from plugins.environments.episode_calls import CallFailed, ModelCalls
from plugins.environments.episodes.environment import Action, Observation, StepResult
from plugins.environments.listed import open_listed
from schemas.events import EpisodeStart, Message, Observed, Response
from streams.settings.model import Settings
from streams.stages.agents.recording.run_end import TrajectoryEnd
from tests.plugins.agents.test_agent_runs import Run, events, settings, turns_of, url
from tests.support.factories import task

__all__ = ["settings", "url"]

pytestmark = pytest.mark.kafka


class Countdown:
    """It shows a number, the policy says it again, and it shows the next one: down to 0, or up to a fault."""

    version = "2"

    def __init__(self, fault: Any = None) -> None:
        self._fault = fault

    def reset(self, seed: int) -> Observation:
        self._left = seed
        return Observation((Message(role="system", content="Say it again."), Message(role="user", content=str(seed))))

    def step(self, action: Action) -> StepResult:
        said, self._left = self._left, self._left - 1
        if self._left == 1 and self._fault is not None:
            raise self._fault
        observation = Observation((Message(role="user", content=str(self._left)),))
        ok = action.text == str(said)
        return StepResult(observation, 0.25 * ok, self._left == 0, ok=ok, success=ok if self._left == 0 else None)


def played(
    url: str, name: str, environment: Any, seed: int = 3, slot: int = 0, dead_share: float = 0, **changes: Any
) -> TrajectoryEnd:
    """Play the episode of `seed` as the run of a task, and return how it ended."""
    start = EpisodeStart(name="countdown", seed=seed)
    whole: dict[str, Any] = {"policy": "sums", "environment": start, "max_turns": 8, "group_size": 2, "agent": "adder"}
    asked = task(**{"task_id": f"task-{name}"} | whole | changes)
    stop = threading.Event()
    with (
        closing(EpisodeAgent(url, lambda _: environment, time_limit_s=60, dead_share=dead_share)) as agent,
        closing(AgentServer(url, "adder", stop)) as server,
    ):
        work = agent.work(asked)
        known = server.begin(asked, name, slot, {}, work.observed)
        run = ProgramRun("adder", known.trajectory_id, asked, f"{server.url}/{known.trajectory_id}", Path())
        end = work.run(run, stop)
        server.end(known.trajectory_id, end)
    return end


def test_the_built_in_agent_takes_the_policy_through_an_episode_turn_by_turn(settings: Settings, url: str) -> None:
    end = played(url, "played", Countdown())
    assert (end.ending, end.reason, end.success) == ("completed", "its environment ended it after 3 turns", True)
    run = Run(url, "played")
    [response], said = events(settings, run, Response), turns_of(settings, run)
    assert [turn.reply.content for turn in said] == ["3", "2", "1"]
    assert [(turn.continuity, turn.observed.environment, turn.observed.seed) for turn in said] == [
        (continuity, "countdown@2", 3) for continuity in ("first", "extends", "extends")
    ]
    assert [turn.observed.reward for turn in said] == [None, 0.25, 0.25]
    assert [(turn.ok, turn.reward) for turn in response.turns] == [(True, 0.25)] * 3
    assert (response.success, response.error) == (True, None)
    tokens = list(response.completion_token_ids)
    for turn, of_log in zip(response.turns, said, strict=True):
        assert tokens[turn.start : turn.end] == list(of_log.completion_token_ids)
    assert response.turns[0].observation != response.turns[1].observation


def test_an_episode_that_has_its_turns_is_cut_off_and_the_response_says_so(settings: Settings, url: str) -> None:
    assert played(url, "capped", Countdown(), max_turns=2).success is False
    [response] = events(settings, Run(url, "capped"), Response)
    assert (response.error, response.success, response.steps) == (None, False, 2)
    assert response.metadata["ended"] == "truncated: it was cut off after 2 turns"


class Absent:
    """It cannot begin."""

    version = "1"

    def reset(self, seed: int) -> Observation:
        raise FileNotFoundError("its rules are gone")


def test_the_session_of_an_environment_is_released_however_its_run_ends(url: str) -> None:
    class Counted(Countdown):
        sessions = 0

        def reset(self, seed: int) -> Observation:
            self.sessions += 1
            return super().reset(seed)

        def end_session(self) -> None:
            self.sessions -= 1

    ended, cut, broken = Counted(), Counted(), Counted(OSError("full"))
    assert played(url, "ended", ended).ending == "completed"
    assert played(url, "cut", cut, max_turns=1).success is False
    assert played(url, "broken", broken).ending == "failed"
    assert (ended.sessions, cut.sessions, broken.sessions) == (0, 0, 0)


@pytest.mark.parametrize(
    ("name", "environment", "reason"),
    [
        (
            "raises",
            Countdown(OSError("full")),
            "exception: countdown: step raised OSError: full",
        ),
        ("absent", Absent(), "exception: countdown: reset raised FileNotFoundError: its rules are gone"),
    ],
)
def test_an_environment_that_fails_is_the_end_of_its_run_and_of_nothing_else(
    settings: Settings, url: str, name: str, environment: Any, reason: str
) -> None:
    assert played(url, name, environment).reason.startswith(reason)
    assert played(url, name, Countdown(), slot=1).ending == "completed"
    [failed], [other] = (events(settings, Run(url, name, slot), Response) for slot in range(2))
    assert failed.error.startswith(f"failed: {reason}") and not failed.completion_token_ids
    assert other.error is None


def test_episodes_that_are_made_to_fail_are_those_of_train_tasks_and_answer_with_an_error(
    settings: Settings, url: str
) -> None:
    ends = [played(url, "dies", Countdown(), slot=slot, dead_share=1.0) for slot in range(2)]
    assert {end.ending for end in ends} == {"failed"}
    assert played(url, "asked", Countdown(), dead_share=1.0, purpose="eval").ending == "completed"
    dead = [events(settings, Run(url, "dies", slot), Response)[0] for slot in range(2)]
    assert all(one.error.startswith("failed: crashed: environments.dead_share") for one in dead)


def test_an_environment_that_nobody_has_is_the_end_of_the_run(settings: Settings, url: str) -> None:
    for start, reason in (
        (
            EpisodeStart(name="calculater", seed=1),
            "unknown_environment: no environment is called",
        ),
        (None, "no_environment: its task names none"),
    ):
        work = EpisodeAgent(url, lambda start: open_listed(start.name, start.settings), time_limit_s=60).work(
            task(environment=start)
        )
        end = work.run(ProgramRun("adder", "t", task(), url, Path()), threading.Event())
        assert end.ending == "failed" and end.reason.startswith(reason)


@pytest.mark.parametrize(
    ("nowhere", "ending", "reason"),
    [
        (False, "failed", r"call 1 was refused: messages\[0\]"),
        (True, "timeout", r"it ran for 0\.1 s, which is its"),
    ],
)
def test_a_call_that_is_refused_or_takes_too_long_is_the_end_of_the_run(
    url: str, nowhere: bool, ending: str, reason: str
) -> None:
    address = "http://127.0.0.1:1" if nowhere else f"{url}/agents/adder/trajectories/refused"
    with closing(KeptAlive(address)) as http:
        run = ProgramRun("adder", "refused", task(), address, Path())
        calls = ModelCalls(http, run, 0.1 if nowhere else 60, threading.Event())
        with pytest.raises(CallFailed, match=reason) as failed:
            calls.answer([{"role": "nobody"}], [], Observed(environment="countdown@2", seed=1, digest="0" * 64))
    assert failed.value.ending == ending
