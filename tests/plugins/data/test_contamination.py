"""Held-out questions in training data: what counts as the same, what does not, and what the refusal says."""

from __future__ import annotations

import json
import random
import re
import unicodedata
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path

import pytest
from click.testing import CliRunner
from faker import Faker

from plugins.data.contamination.contamination_report import CONTAMINATION, ContaminationReport, check_rows
from plugins.data.contamination.suite_index import (
    SuiteIndex,
    SuiteQuestion,
    questions_of_task,
)
from schemas.conventions import CONTAMINATION_ALLOWED_BY
from schemas.events import EpisodeStart, Message, Task
from streams.cli.root import cli
from streams.errors import ContaminatedError
from streams.rows.question_text import words_of
from streams.rows.row_texts import RowTexts, row_of_task, texts_of
from streams.stages.tasks.generators import OWN, TaskSpec, families_of_plugins, generate
from tests.support import factories

RNG = random.Random(20261126)
SYLLABLES = [consonant + vowel for consonant in "bcdfghjklmnprstvw" for vowel in "aeiou"]
WORDS = sorted({"".join(RNG.choices(SYLLABLES, k=RNG.randint(1, 4))) for _ in range(6000)})
WEIGHTS = list(accumulate(1 / (place + 10) for place in range(len(WORDS))))


def words(count: int) -> list[str]:
    return RNG.choices(WORDS, cum_weights=WEIGHTS, k=count)


def free_text(count: int) -> str:
    return " ".join(words(count)).capitalize() + "."


def index_of(*texts: str) -> SuiteIndex:
    return SuiteIndex(SuiteQuestion("sums@1", number, text) for number, text in enumerate(texts))


def check(index: SuiteIndex, *texts: str) -> ContaminationReport:
    return check_rows(index, (RowTexts(f"row {number}", (text,)) for number, text in enumerate(texts)))


def asks(text: str, **changes: object) -> Task:
    return factories.task(messages=(Message(role="user", content=text),), **changes)


# --- what is the same -------------------------------------------------------------------------------------------------


QUESTION = "Qué año fue: «El Ingenioso Hidalgo», part 1? Naïve cafés & ﬁne ½ print."


@pytest.mark.parametrize(
    "text",
    [
        QUESTION.upper(),
        QUESTION.lower(),
        QUESTION.replace(":", " -").replace("«", '"').replace("»", '"').replace("?", "!!"),
        unicodedata.normalize("NFD", QUESTION),
        unicodedata.normalize("NFKC", QUESTION),
        QUESTION.replace(" ", "\u00a0\n"),
        f"Answer in one word.\n{QUESTION}\n",
    ],
)
def test_a_leak_in_another_case_punctuation_unicode_form_or_line_is_exact(text: str) -> None:
    report = check(index_of(QUESTION), text)
    assert report.figures()["exact"] == report.figures()["leaks"] == 1


def test_the_order_of_json_keys_hides_no_leak() -> None:
    rows = [{"city": "Ulm", "days": 3, "units": "C"}, {"units": "C", "days": 3, "city": "Ulm"}]
    report = check(index_of(json.dumps(rows[0])), json.dumps(rows[1], indent=1))
    assert report.figures()["exact"] == 1


def test_another_operator_or_number_is_another_question() -> None:
    index = index_of("What is 4 + 7?", "Compute 1,000 - 3.5 =")
    others = ["What is 4 - 7?", "What is 4 * 7?", "What is 47?", "What is 4 + 7 + 3?", "Compute 1,000 - 35 ="]
    assert check(index, *others).figures()["leaks"] == 0
    assert check(index, "what is 4+7", "COMPUTE 1000 − 3.5").figures()["leaks"] == 2


def test_a_leak_in_the_answer_of_a_row_is_found() -> None:
    row = {
        "messages": [
            {"role": "system", "content": "Reply with the name of the city only."},
            {"role": "user", "content": "Give me a quiz question."},
            {"role": "assistant", "content": "What is the capital of France?"},
        ]
    }
    report = check_rows(index_of("what is the capital of france"), [RowTexts("row 1", texts_of(row))])
    assert report.figures()["leaks"] == 1


def test_a_long_reference_answer_of_a_suite_is_looked_for_too_and_a_short_one_is_not() -> None:
    long = "Because the moon pulls at the near side of the sea more than at the far side"
    for answer, leaks in ((long, 1), ("the moon", 0)):
        task = asks("Why are there tides?", verifier=json.dumps({"answer": answer}))
        report = check(SuiteIndex(questions_of_task(task, "tides@1", 0)), answer)
        assert report.figures()["leaks"] == leaks
    assert "is the answer to question 0 of suite tides@1" in str(
        check(
            SuiteIndex(questions_of_task(asks("Why?", verifier=json.dumps({"answer": long})), "tides@1", 0)), long
        ).leaks[0]
    )


# --- inside a text ----------------------------------------------------------------------------------------------------

SHORT = (
    "What is the capital of France?",
    "Who wrote Faust?",
    "What is 4 + 7?",
    "How many moons has Mars?",
    "法国的首都是哪里?",
)
BESIDE = (
    "Question: {}", "Q: {} A:", "{} Answer in one word.", "You may ask: {}", "Sure. {} I know that one!", "**{}**",
    "1. {} 11", "<q>{}</q>", "Quiz ({})",
)  # fmt: skip


@pytest.mark.parametrize("beside", BESIDE)
@pytest.mark.parametrize("question", SHORT)
def test_a_short_question_is_found_with_other_words_beside_it(question: str, beside: str) -> None:
    report = check(index_of(*SHORT), beside.format(question))
    assert report.figures()["exact"] == report.figures()["leaks"] == 1
    assert report.leaks[0].match.question.text == question


@pytest.mark.parametrize("beside", [*BESIDE, "{}"])
@pytest.mark.parametrize(
    "text",
    [
        "What is the cap\u200bital of France?",
        "What is the cap\u00adital of France?",
        "What is the cap\u2060ital\ufe0f of\u00a0France?",
        "Wh\u0430t is the \u0441apit\u0430l \u043ef France?",
        "What is the capital of Fr\u03b1nce?",
        "What is the capital of \uff26\uff52\uff41\uff4e\uff43\uff45?",
        "What is the cap\x08ital of France?",
    ],
)
def test_what_a_reader_cannot_see_hides_no_leak(text: str, beside: str) -> None:
    assert check(index_of(SHORT[0]), beside.format(text)).figures()["leaks"] == 1


@pytest.mark.parametrize(
    "text",
    [
        "What is 4 + 7 + 3?", "What is 14 + 7?", "I say: 3 * 4 + 7 = 19.", "so 4 + 7 = 11", "Tell me a joke about cats",
        "Hello, how are you?", "Yes or no?", "Write a story about the sea.", "What is the capital of Spain?",
        "Who wrote Faust and Egmont?", "He knows who wrote Faust, I think.", "Compute the sum of 4 + 7 - 2 now",
    ],
)  # fmt: skip
def test_everyday_words_and_parts_of_other_questions_are_no_leak(text: str) -> None:
    everyday = ("Tell me a joke", "Hello", "yes", "Write a story.", "4 + 7 =", "Compute the sum of 4 + 7")
    assert check(index_of(*SHORT, *everyday), text).figures()["leaks"] == 0


@pytest.mark.parametrize("locale", ["ru_RU", "uk_UA", "el_GR", "bg_BG", "hy_AM", "en_US"])
def test_folding_letters_that_look_alike_makes_no_two_texts_one_and_is_the_same_in_capitals(locale: str) -> None:
    fake = Faker(locale)
    fake.seed_instance(20261128)
    texts = list(dict.fromkeys(fake.sentence() for _ in range(2000)))
    plain = {tuple(re.findall(r"\w+", text.casefold())) for text in texts}
    assert len({words_of(text).exact for text in texts}) == len(plain)
    assert all(words_of(text).exact == words_of(text.upper()).exact for text in texts)


# --- free text --------------------------------------------------------------------------------------------------------


def changed(text: str, share: float) -> str:
    return " ".join(words(1)[0] if RNG.random() < share else word for word in text.split())


def test_planted_leaks_are_all_found_and_nine_of_ten_with_three_percent_of_their_words_changed() -> None:
    """The large measurement is `python -m tests.benchmarks contamination`."""
    questions = [free_text(RNG.randint(5, 80)) for _ in range(300)]
    index = index_of(*questions)
    clean = [free_text(RNG.randint(20, 110)) for _ in range(3000)]
    assert check(index, *clean).figures()["leaks"] == 0
    for change in (str.upper, lambda text: text.replace(".", " !")):
        assert check(index, *map(change, questions)).figures()["leaks"] == len(questions)
    near = check(index, *(changed(question, 0.03) for question in questions))
    assert near.figures()["leaks"] >= 0.9 * len(questions)


def test_a_question_inside_a_longer_text_is_found_and_covered_if_a_word_is_put_in() -> None:
    question = free_text(20)
    report = check(index_of(question), f"{free_text(30)} {question} {free_text(30)}")
    assert report.figures()["leaks"] == 1 and report.leaks[0].match.rule == "exact"
    parted = f"{question[: len(question) // 2]} uh {question[len(question) // 2 :]}"
    report = check(index_of(question), f"{free_text(30)} {parted} {free_text(30)}")
    assert report.figures()["leaks"] == 1 and report.leaks[0].match.rule == "coverage"


# --- templates --------------------------------------------------------------------------------------------------------


def shop() -> str:
    name, first, second = RNG.choice(["Anna", "Ben", "Carla"]), *RNG.sample(["apples", "pears", "plums"], 2)
    counts = [RNG.randint(2, 60) for _ in range(3)]
    return (
        f"A shop sells {counts[0]} {first} and {counts[1]} {second} for {counts[2]} euros each. How many euros does "
        f"{name} pay for all of them together?"
    )


def eight_word_rule(questions: Sequence[str], rows: Sequence[str]) -> int:
    """The rule of open-r1 as it is copied: any 8 words in common."""

    def grams(text: str) -> set[tuple[str, ...]]:
        said = text.lower().split()
        return {tuple(said[at : at + 8]) for at in range(len(said) - 7)}

    held_out = set().union(*map(grams, questions))
    return sum(bool(grams(row) & held_out) for row in rows)


def test_other_questions_of_a_template_are_three_figures_and_no_leak() -> None:
    questions = [shop() for _ in range(200)]
    rows = [text for text in (shop() for _ in range(1000)) if text not in questions]
    assert eight_word_rule(questions, rows) == len(rows), "which is why it cannot be the gate"
    figures = check(index_of(*questions), *rows).figures()
    assert figures["coverage"] > 0.9 * len(rows) and figures["template"] > 0.9 * len(rows)
    assert figures["exact"] == 0 and figures["leaks"] <= 0.02 * len(rows)
    reworded = [question.replace("together?", "altogether?") for question in questions]
    assert check(index_of(*questions), *reworded).figures()["leaks"] == len(reworded)


def test_a_short_question_is_caught_though_it_has_no_gram_of_eight_words() -> None:
    question = "What is the capital of France?"
    assert eight_word_rule([question], [question]) == 0, "which is why it cannot be the gate"
    assert check(index_of(question), question).figures()["leaks"] == 1
    other = check(index_of(question), "What is the capital of Spain?").figures()
    assert (other["template"], other["leaks"]) == (1, 0)


def test_the_frame_of_a_text_in_capitals_has_its_words() -> None:
    assert words_of("HOW MANY APPLES HAS ANNA").frame == ("how", "many", "apples", "has", "anna")


# --- generated tasks --------------------------------------------------------------------------------------------------


def test_episodes_are_compared_by_their_parameters_and_not_by_what_they_all_show() -> None:
    def episode(seed: int, settings: str) -> Task:
        return asks("Guess my number.", environment=EpisodeStart(name="guess", settings=settings, seed=seed))

    index = SuiteIndex(questions_of_task(episode(7, '{"low": 1, "high": 9}'), "guess@1", 0))
    rows = [episode(8, '{"low": 1, "high": 9}'), episode(7, '{"low": 1, "high": 5}'), episode(7, '{"high":9,"low":1}')]
    report = check_rows(index, (row_of_task(task, str(number)) for number, task in enumerate(rows)))
    assert [(leak.place, leak.match.rule) for leak in report.leaks] == [("2", "parameters")]


@pytest.mark.parametrize(
    ("family", "options"), [("sums", {"terms": 3}), *((family, {}) for family in (*OWN, *families_of_plugins()))]
)
def test_no_generator_gives_its_own_held_out_questions_away(family: str, options: dict[str, int]) -> None:
    held_out, train = (
        generate(TaskSpec(family=family, count=count, purpose=purpose, policy="p", options=options), now_ms=0)
        for count, purpose in ((30, "eval"), (200, "train"))
    )
    index = SuiteIndex(
        question for number, task in enumerate(held_out) for question in questions_of_task(task, "s", number)
    )
    assert check_rows(index, (row_of_task(task, task.task_id) for task in train)).leaks == []


# --- the refusal ------------------------------------------------------------------------------------------------------


def test_the_refusal_names_rows_questions_and_rule_and_the_event_names_who_let_them_in() -> None:
    report = check(index_of("What is the capital of France?", "Who wrote Faust?"), "Hello.", "who wrote faust")
    with pytest.raises(ContaminatedError) as refused:
        report.refuse("train.jsonl", "Leave them out")
    assert str(refused.value).splitlines() == [
        "train.jsonl: contaminated: 1 of 2 rows give away held-out questions (1 of suite sums@1), whose score would "
        "then measure memory:",
        '  row 1: "who wrote faust" is question 1 of suite sums@1 (exact): "Who wrote Faust?"',
        "Leave them out",
    ]
    assert refused.value.exit_code == 4
    assert report.metadata("ann") == {CONTAMINATION: '{"sums@1": 1}', CONTAMINATION_ALLOWED_BY: "ann"}
    clean = check(index_of("Who wrote Faust?"), "Hello.")
    clean.refuse("train.jsonl", "")
    assert clean.metadata("ann") == {}


def test_a_question_of_two_suites_is_looked_for_once() -> None:
    questions = [SuiteQuestion(suite, 0, "Who wrote Faust?") for suite in ("a@1", "b@1")]
    assert len(SuiteIndex(questions)) == 1


def test_up_starts_nothing_with_a_task_that_gives_a_held_out_question_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    line = '{{"prompt": "{}", "answer": "x", "reward_sources": ["exact"]}}\n'
    (tmp_path / "train.jsonl").write_text("".join(map(line.format, ("Who wrote Emma?", "who wrote FAUST"))))
    (tmp_path / "held-out.jsonl").write_text(line.format("Who wrote Faust?"))
    command = ("--set", "policy.engine=scripted", "up", "--tasks", "train.jsonl", "--held-out", "held-out.jsonl")
    refused = CliRunner().invoke(cli, command)
    assert refused.exit_code == 4, refused.output
    assert "nothing was started: contaminated: 1 of 2 rows" in refused.stderr
    assert 'task 2: "who wrote FAUST" is question 0 of suite held-out@' in refused.stderr
