"""The listed environments: what they show, what they pay, and the same again for the same seed."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any

import pytest

from plugins.environments.episodes.environment import Action, EpisodeError, Observation, StepResult, digest
from plugins.environments.episodes.running_episode import LiveEpisode, play
from plugins.environments.games.calculator import work_out
from plugins.environments.games.distractor import Distractor
from plugins.environments.games.text_game import MOST_CALLS
from plugins.environments.listed import LISTED, open_listed
from schemas.events import Message, ToolCall

WORDS = ("4", "left", "right", "red", "blue", "calc(2 + 2)", "get(owl)", "", "get(", "12", "nonsense")


def text(*written: str) -> list[Action]:
    return [Action(one) for one in written]


def call(name: str, **arguments: object) -> ToolCall:
    return ToolCall(id=f"c{len(arguments)}", name=name, arguments=json.dumps(arguments))


def begun(name: str, seed: int = 0, *, turns: int = 100, **settings: Any) -> tuple[LiveEpisode, Observation]:
    episode = LiveEpisode(open_listed(name, json.dumps(settings)), name, seed, turns)
    return episode, episode.begin()


def last(observation: Observation) -> str:
    return observation.messages[-1].content


def answers(results: list[StepResult]) -> list[str]:
    return [last(result.observation) for result in results]


def rewards(results: list[StepResult]) -> list[float | None]:
    return [result.reward for result in results]


def written(name: str, rng: random.Random) -> Iterator[Action]:
    """Yield actions, of use and of none, for ever."""
    command = LISTED[name].command
    while True:
        word = rng.choice([*WORDS, *map(str, range(1, 10))])
        calls = tuple(call(command.name, **{command.parameter: word}) for _ in range(rng.randrange(3)))
        yield Action(word, calls)


# --- what every listed environment promises ---------------------------------------------------------------------------


@pytest.mark.parametrize("tools", [False, True])
@pytest.mark.parametrize("name", LISTED)
def test_the_same_seed_and_actions_give_the_same_episode_again(name: str, tools: bool) -> None:
    for seed in range(20):
        one, other = open_listed(name, json.dumps({"tools": tools})), open_listed(name, json.dumps({"tools": tools}))
        other.reset(seed + 1)  # what an object did before is forgotten
        seen = []
        for environment in (one, other, one):
            episode = LiveEpisode(environment, name, seed, environment.max_turns)
            digests = [digest(episode.begin())]
            results = play(episode, written(name, random.Random(seed)))
            seen.append((digests + [digest(result.observation) for result in results], results))
        assert seen[0] == seen[1] == seen[2]


@pytest.mark.parametrize("name", LISTED)
def test_seeds_differ(name: str) -> None:
    observation, results = set(), set()
    for seed in range(30):
        episode, first = begun(name, seed)
        observation.add(digest(first))
        results.add(episode.act(Action("5")))
    assert len(observation) > 1 or len(results) > 1


@pytest.mark.parametrize("name", LISTED)
def test_the_worked_example_takes_turns_and_uses_the_format_that_was_asked_for(name: str) -> None:
    plain, tools = open_listed(name).reset(3), open_listed(name, '{"tools": true}').reset(3)
    roles = [message.role for message in plain.messages]
    assert roles[0] == "system" and roles[1::2] == ["user"] * (len(roles) // 2) and set(roles[2::2]) == {"assistant"}
    assert not plain.tools and [tool.name for tool in tools.tools] == [LISTED[name].command.name]
    calls = [made.id for message in tools.messages for made in message.tool_calls]
    assert calls == [message.tool_call_id for message in tools.messages if message.role == "tool"] != []


@pytest.mark.parametrize("name", LISTED)
def test_no_number_of_useless_turns_earns_anything_beyond_a_good_run(name: str) -> None:
    best = {"distractor": 3.0}.get(name, 1.0)
    for seed in range(40):
        episode, _ = begun(name, seed)
        results = [result for result, _ in zip(acting(episode, name, seed), range(60), strict=False)]
        assert sum(result.reward or 0 for result in results) <= best


def acting(episode: LiveEpisode, name: str, seed: int) -> Iterator[StepResult]:
    for action in written(name, random.Random(seed)):
        if episode.is_over:
            return
        yield episode.act(action)


# --- each of them -----------------------------------------------------------------------------------------------------


def test_the_calculator_pays_for_one_call_and_for_the_right_answer() -> None:
    episode, observation = begun("calculator")
    right = str(work_out(last(observation)))
    results = play(episode, text(f"calc({last(observation)})", f"calc({last(observation)})", right))
    assert answers(results) == [f"result: {right}", f"result: {right}", "right"]
    assert rewards(results) == [0.2, 0.0, 0.8]
    assert [(result.tool, result.ok) for result in results] == [("calc", True), ("calc", True), (None, True)]
    assert episode.success is True
    wrong = StepResult(
        Observation((Message(role="user", content="wrong"),)), reward=0.0, terminated=True, success=False
    )
    assert play(begun("calculator")[0], text("17")) == [wrong]


@pytest.mark.parametrize(
    ("expression", "said"),
    [
        ("9 ** 9 ** 9", "expected whole numbers"),
        ("__import__('os')", "expected whole numbers"),
        ("1 / 2", "expected whole numbers"),
        ("1 // 0", "division by zero"),
        ("2 +", "expected whole numbers"),
        ("10000000000000000000 * 10000000000000000000 * 10000000000", "more than 40 digits"),
        ("(" * 90 + "1" + ")" * 90, "1"),
        ("", "expected whole numbers"),
        ("True + 1", "expected whole numbers"),
    ],
)
def test_the_calculator_says_what_it_cannot_work_out(expression: str, said: str) -> None:
    result = begun("calculator")[0].act(Action(f"calc({expression})"))
    assert said in last(result.observation) and not result.is_over


def test_a_chain_is_followed_to_its_number_and_pays_each_key_once() -> None:
    episode, observation = begun("lookup", keys=3)
    results, word = [], last(observation)
    for _ in range(3):
        kind, word = word.split(": ")
        assert kind == "word"
        results.append(episode.act(Action(f"get({word})")))
        again = episode.act(Action(f"get({word})"))
        assert (again.reward, again.observation) == (0.0, results[-1].observation)
        word = last(results[-1].observation)
    assert rewards(results) == [0.1, 0.1, 0.1] and word.isdecimal()
    assert episode.act(Action(word)).reward == pytest.approx(0.7) and episode.success


def test_a_guess_is_hinted_at_and_a_later_one_is_worth_less() -> None:
    for seed in range(16):
        episode, _ = begun("guess", seed)
        low, high, made = 1, 8, 0
        while not episode.is_over:
            made, number = made + 1, (low + high) // 2
            result = episode.act(Action(str(number)))
            low, high = (number + 1, high) if last(result.observation) == "higher" else (low, number - 1)
        assert (episode.success, result.reward) == (True, pytest.approx(1 - 0.05 * (made - 1)))


def test_a_run_that_misses_is_paid_for_numbers_and_for_guesses_that_fit() -> None:
    environment = open_listed("guess")
    seed = next(seed for seed in range(99) if environment.reset(seed) and environment.__dict__["_right"] == 8)
    results = play(begun("guess", seed)[0], text("4", "2", "nine", "6"))  # 2 does not fit `higher than 4`
    assert answers(results) == ["higher", "higher", "error: expected a number from 1 to 8", "higher"]
    assert rewards(results) == [0.0, 0.0, 0.0, pytest.approx(0.1 * 3 / 4 + 0.1 * 2 / 4)]
    assert [result.ok for result in results] == [True, True, False, True] and results[-1].success is False


def test_a_room_looks_the_same_byte_for_byte_however_a_run_came_there() -> None:
    episode, _ = begun("corridor", moves=40)
    seen: dict[str, set[str]] = {}
    for result in play(episode, text(*["left", "right"] * 20)):
        seen.setdefault(last(result.observation), set()).add(digest(result.observation))
    assert len(seen) >= 2 and all(len(digests) == 1 for digests in seen.values())


def test_the_shortest_way_along_the_corridor_is_worth_most() -> None:
    for seed in range(20):
        totals = []
        for detour in (0, 1, 3):
            episode, observation = begun("corridor", seed, moves=40)
            places = [int(word) for word in last(observation).replace(",", " ").split() if word.isdecimal()]
            key, door, room = places
            way = ["left", "right"] * detour if room > 1 and room - 1 != key else ["right", "left"] * detour
            if room + 1 in (key,) and way[:1] == ["right"]:
                way = []
            way += ["left" if key < room else "right"] * abs(key - room)
            way += ["left" if door < key else "right"] * abs(door - key)
            results = play(episode, text(*way))
            assert episode.success
            totals.append(sum(result.reward or 0 for result in results))
        assert totals[0] == pytest.approx(1.0) and totals == sorted(totals, reverse=True)


def test_a_game_of_tic_tac_toe_is_won_by_search_and_never_answered_otherwise() -> None:
    def best(moves: tuple[str, ...], seed: int) -> float:
        episode, _ = begun("tictactoe", seed)
        results = play(episode, text(*moves))
        if episode.is_over:
            return sum(result.reward or 0 for result in results)
        board = last(results[-1].observation) if results else last(open_listed("tictactoe").reset(seed))
        free = [square for square in "123456789" if square in board]
        found = 0.0
        for square in free:
            found = max(found, best((*moves, square), seed))
            if found == 1.0:
                break
        return found

    assert {best((), seed) for seed in range(4)} <= {0.5, 1.0}


def test_a_square_that_is_taken_is_an_error_and_the_third_one_loses() -> None:
    episode, _ = begun("tictactoe", 1)
    assert episode.act(Action("5")).ok
    results = play(episode, text("5", "x", "10", "1"))
    assert [result.ok for result in results] == [False] * 3 and results[-1].success is False
    assert last(results[0].observation).startswith("error: free are ")


def test_one_turn_decides_and_the_others_pay_what_the_seed_has_drawn() -> None:
    sums = {True: 0.0, False: 0.0}
    for seed in range(200):
        game = open_listed("distractor")
        assert isinstance(game, Distractor)
        word = last(game.reset(seed)).split("\n")[0].removeprefix("word: ")
        pays = game.payments()
        first, second = (turn for turn in pays[1])
        assert pays[1] == {first: float(first == word), second: float(second == word)}
        for turn in (0, 2):
            assert set(pays[turn].values()) <= {0.0, 1.0}
            sums[turn == 0] += pays[turn][first] - pays[turn][second]
        episode, _ = begun("distractor", seed)
        results = play(episode, text(first, word, second))
        assert rewards(results) == [pays[0][first], 1.0, pays[2][second]] and episode.success
    assert all(abs(total) < 50 for total in sums.values())  # no mean: sqrt(200 / 2) is 10


def test_the_gradient_of_the_distractor_is_known_exactly() -> None:
    """The policy gradient, over every way to play an episode, against the formula in the module."""
    game = open_listed("distractor")
    assert isinstance(game, Distractor)
    game.reset(7)
    pays = [list(turn.values()) for turn in game.payments()]
    chance = [0.3, 0.6, 0.8]
    exact = [p * (1 - p) * (turn[0] - turn[1]) for p, turn in zip(chance, pays, strict=True)]
    summed = [0.0] * 3
    for way in range(8):
        bits = [way >> turn & 1 for turn in range(3)]
        likely = [p if bit == 0 else 1 - p for p, bit in zip(chance, bits, strict=True)]
        total = sum(turn[bit] for turn, bit in zip(pays, bits, strict=True))
        for turn in range(3):
            score = (1 - chance[turn]) if bits[turn] == 0 else -chance[turn]
            summed[turn] += likely[0] * likely[1] * likely[2] * total * score
    assert summed == pytest.approx(exact)


# --- what a policy may write ------------------------------------------------------------------------------------------


def test_a_tool_that_does_not_exist_is_answered_by_the_one_that_does() -> None:
    plain = begun("calculator")[0].act(Action("compute(1 + 1)"))
    assert (last(plain.observation), plain.ok) == ("error: there is no tool compute, only calc", False)
    assert plain.tool == "compute"
    called = begun("calculator", tools=True)[0].act(Action("", (call("compute", expression="1 + 1"),)))
    assert (last(called.observation), called.ok, called.tool) == (last(plain.observation), False, "compute")


@pytest.mark.parametrize(
    "arguments", ["{}", "[]", "no JSON", '{"expression": null}', '{"expression": "1", "base": 2}', '{"x": "1"}',
                  '{"expression": "' + "1" * 300 + '"}', "[" * 100_000],
)  # fmt: skip
def test_wrong_arguments_are_answered_by_what_the_tool_takes(arguments: str) -> None:
    episode, _ = begun("calculator", tools=True)
    result = episode.act(Action("", (ToolCall(id="a", name="calc", arguments=arguments),)))
    assert last(result.observation) == "error: calc takes expression, a text of at most 200 characters"
    assert (result.ok, result.is_over, result.observation.messages[0].tool_call_id) == (False, False, "a")


def test_parallel_calls_are_carried_out_in_order_and_each_is_answered() -> None:
    calls = tuple(ToolCall(id=str(n), name="guess", arguments=json.dumps({"number": n})) for n in range(1, 9))
    result = begun("guess", tools=True, guesses=10)[0].act(Action("", calls))
    assert result.terminated and result.success
    answered = [message.tool_call_id for message in result.observation.messages]
    assert answered == [str(number) for number in range(1, len(answered) + 1)]
    assert result.reward == pytest.approx(1 - 0.05 * (len(answered) - 1))


def test_calls_without_end_are_answered_up_to_a_limit() -> None:
    calls = tuple(call("calc", expression="1 + 1") for _ in range(1000))
    result = begun("calculator", tools=True)[0].act(Action("", calls))
    assert len(result.observation.messages) == MOST_CALLS + 1 and not result.ok
    assert last(result.observation) == f"error: at most {MOST_CALLS} calls at once"


def test_a_policy_that_calls_for_ever_is_cut_off_and_told_so() -> None:
    episode, _ = begun("calculator", turns=5)
    results = play(episode, text(*["calc(1 + 1)"] * 99))
    assert len(results) == episode.turns == 5
    assert (results[-1].truncated, results[-1].terminated, episode.success) == (True, False, False)
    assert sum(result.reward or 0 for result in results) == pytest.approx(0.2)


@pytest.mark.parametrize("name", LISTED)
@pytest.mark.parametrize("said", ["", " ", "\n", "a" * 100_000, "\ud800", "calc(", "()", "-", "٣", "1" * 5000])
def test_any_text_is_an_answer_and_never_an_exception(name: str, said: str) -> None:
    for tools in (False, True):
        result = begun(name, tools=tools)[0].act(Action(said))
        assert result.observation.messages


# --- settings ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "settings", "match"),
    [
        ("calculater", "{}", "did you mean calculator"),
        ("calculator", "{", "no JSON"),
        ("calculator", "[]", "expected a JSON object"),
        ("calculator", '{"digits": 99}', "calculator.digits: "),
        ("calculator", '{"digit": 2}', "no setting 'digit'; known: tools, digits"),
        ("distractor", '{"decides": 4}', "decides is 4; there are 3 turns"),
        ("guess", '{"guesses": true}', "guess.guesses"),
    ],
)
def test_a_wrong_name_or_setting_is_named(name: str, settings: str, match: str) -> None:
    with pytest.raises(EpisodeError, match=match):
        open_listed(name, settings)
