"""An episode of the log comes out again from its seed and the recorded replies, or it is said where it does not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from plugins.environments.episode_replay import RecordedEpisode, ReplayedRun, replay_episodes
from plugins.environments.episodes.environment import Action, Environment, Observation
from plugins.environments.episodes.running_episode import LiveEpisode
from plugins.environments.listed import open_listed
from schemas.events import EpisodeStart
from tests.support.agent_calls import Recorded, assistant
from tests.support.factories import task, trajectory

GUESS = EpisodeStart(name="guess", seed=3)


def opened_here(start: EpisodeStart) -> Environment:
    """Open a listed environment in this thread."""
    return open_listed(start.name, start.settings)


def recorded(start: EpisodeStart, said: Sequence[str], **end: Any) -> RecordedEpisode:
    """Return what the log has of an episode in which the policy said this."""
    asked = task(environment=start, agent="environment", max_turns=8)
    episode, run = LiveEpisode(opened_here(start), start.name, start.seed, 8), Recorded()
    messages = list(episode.begin().messages)
    begun = trajectory("started", observed=episode.observed)
    for text in said:
        run.call(messages, observed=episode.observed, reply=assistant(text))
        observation = episode.act(Action(text)).observation
        messages += [assistant(text), *observation.messages]
    whole: dict[str, Any] = {"turns": len(said), "observed": episode.observed, "success": episode.success} | end
    return RecordedEpisode(asked, begun, trajectory(**whole), run.turns)


def once_more(of_log: RecordedEpisode) -> ReplayedRun:
    [run] = replay_episodes([of_log], opened_here)
    return run


def test_an_episode_comes_out_as_it_was_recorded() -> None:
    made = recorded(GUESS, ["8", "what?", "1", "2"])
    run = once_more(made)
    assert (run.turns, run.differs, run.skipped, run.environment) == (4, None, None, "guess")


@pytest.mark.parametrize(
    ("changes", "differs"),
    [
        ({"settings": '{"highest": 9}'}, "at first: digest is "),
        ({"seed": 4}, "at first: seed is 4, and was 3"),
        ({"name": "lookup"}, "at first: environment is lookup@1, and was guess@2; digest is "),
        ({"settings": '{"guesses": 3}'}, "at first: digest is "),
    ],
)
def test_an_environment_that_has_changed_is_named_with_the_first_difference(
    changes: dict[str, Any], differs: str
) -> None:
    made = recorded(GUESS, ["8", "1", "2", "3"])
    changed = replace(made, task=replace(made.task, environment=replace(GUESS, **changes)))
    assert str(once_more(changed).differs).startswith(differs)


def test_another_reward_and_another_end_are_differences() -> None:
    made = recorded(GUESS, ["8", "7"])
    second = made.turns[1]
    assert second.observed is not None
    paid = replace(made, turns=[made.turns[0], replace(second, observed=replace(second.observed, reward=0.5))])
    assert once_more(paid).differs == "before turn 1: reward is 0.0, and was 0.5"
    assert str(once_more(recorded(GUESS, ["8"], success=True)).differs) == "at last: success is None, and was True"
    assert str(once_more(recorded(GUESS, ["8"], observed=None)).differs).startswith("at last: the log does not say")


def test_a_run_that_was_cut_short_is_compared_as_far_as_it_went() -> None:
    cut = recorded(GUESS, ["8", "7"], ending="cancelled", observed=None)
    assert once_more(cut).differs is None
    assert once_more(replace(cut, ended=None)).turns == 2


def test_an_environment_that_nobody_has_here_is_skipped_with_the_reason() -> None:
    made = recorded(GUESS, ["8"])
    gone = replace(made, task=replace(made.task, environment=EpisodeStart(name="my:Own", seed=3)))
    run = once_more(gone)
    assert (run.turns, run.differs) == (0, None) and str(run.skipped).startswith("unknown_environment: ")


class DrawsFromTheClock:
    """It shows another word every time."""

    version, _drawn = "1", 0

    def reset(self, seed: int) -> Observation:
        DrawsFromTheClock._drawn += 1
        observation = open_listed("guess").reset(seed)
        return replace(
            observation,
            messages=(*observation.messages[:-1], replace(observation.messages[-1], content=str(self._drawn))),
        )


def test_an_environment_that_does_not_draw_from_its_seed_is_found_out() -> None:
    begun = LiveEpisode(DrawsFromTheClock(), "guess", 3, 8)  # type: ignore[arg-type]
    begun.begin()
    made = replace(recorded(GUESS, []), started=trajectory("started", observed=begun.observed))
    [run] = replay_episodes([made], lambda _: DrawsFromTheClock())  # type: ignore[arg-type, return-value]
    assert str(run.differs).startswith("at first: digest is ")
