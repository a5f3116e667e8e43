"""Find held-out questions in the rows of training data: three figures, and which of them is a leak.

    questions of suites ──► SuiteIndex ◄── texts of a row
                                └──► exact, coverage, template ──► is it a leak?

- exact: the row, or a line of it, says what the question says (question_text.py); or all words of the question follow
  one another in it, from 6 words on anywhere, from 3 words and 12 characters on between punctuation or the ends of
  a line, and not as a part of a longer calculation; or a generated task has the same parameters.
- coverage: 8-grams of the row cover more than half of the question's words, which is the rule of Tulu 3
  (arXiv:2411.15124, section 3.2). Questions of fewer than 16 words have 4-grams, those of fewer than 8 none.
- template: the same text with other numbers and names.

The two most copied n-gram rules flag every question of a template, since its questions share all words but a few. So a
row leaks if it is exact; or if it is covered, has all numbers of the question, another frame, and covers more than half
of the words in n-grams that at most 3 questions have. A template match alone is reported, but is not a leak.

Not covered: paraphrases, translations, and questions that differ only in numbers and names.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

from schemas.events import Task
from schemas.json_text import parse
from streams.evaluation.suite import Suite
from streams.rows.question_text import Words, is_apart, words_of
from streams.rows.row_texts import SYSTEM_ROLES, RowTexts, parameters_of

LONG_GRAM, SHORT_GRAM = 8, 4
LONG_QUESTION, SHORT_QUESTION = 16, 8
"""Words from which on a question has n-grams of 8, and of 4."""
MOST_COVERED = 0.5
"""Tulu's rule: more of the question's words than that."""
DISTINCTIVE = 3
"""An n-gram of more questions is part of a template, and no evidence."""
CANDIDATES = 8
"""Questions of a common n-gram that a row is compared with, for the figure of coverage."""
LEAST_LINE = 3
"""Words of a line that is compared alone, and of a question that is looked for inside a text."""
LEAST_CHARACTERS = 12
"""Of a question that is looked for inside a text: shorter ones are everyday words."""
FREE_WORDS = 6
"""A shorter question is found only between punctuation: "Tell me a joke" is not "Tell me a joke about it"."""
Rule = Literal["exact", "parameters", "coverage", "template"]
Gram = tuple[int, ...]


class SuiteQuestion(NamedTuple):
    """A question of a suite, or a long answer of it."""

    suite: str
    number: int
    """From 0, in the order of the suite."""
    text: str
    parameters: str | None = None
    """Fields that identify a generated episode, since its text does not."""
    is_answer: bool = False


class QuestionMatch(NamedTuple):
    """A question that was found in a row."""

    rule: Rule
    question: SuiteQuestion
    text: str
    """The text of the row that it was found in."""
    share: float
    """Of the question's words that are covered."""
    is_leak: bool


class _Grams(NamedTuple):
    """The n-grams of a question, each with the place of its first word."""

    size: int
    places: tuple[tuple[Gram, int], ...]


class SuiteIndex:
    """Held-out questions, to be looked for in rows."""

    def __init__(self, questions: Iterable[SuiteQuestion]) -> None:
        """Two questions with the same words are looked for once, under the name of the first."""
        self.questions: list[SuiteQuestion] = []
        self._words: list[Words] = []
        self._exact: dict[tuple[str, ...], int] = {}
        self._frames: dict[tuple[str, ...], int] = {}
        self._parameters: dict[str, int] = {}
        self._numbers: dict[str, int] = {}
        self._grams: list[_Grams] = []
        self._postings: dict[int, defaultdict[Gram, list[int]]] = {
            LONG_GRAM: defaultdict(list),
            SHORT_GRAM: defaultdict(list),
        }
        for question in questions:
            self._add(question)
        self._anchors = self._anchors_of_runs()

    def __len__(self) -> int:
        return len(self.questions)

    def _add(self, question: SuiteQuestion) -> None:
        number = len(self.questions)
        if question.parameters is not None:
            if self._parameters.setdefault(question.parameters, number) == number:
                self._append(question, Words((), ()))
            return
        words = words_of(question.text)
        if not words.exact or self._exact.setdefault(words.exact, number) != number:
            return
        if words.frame:
            self._frames.setdefault(words.frame, number)
        self._append(question, words)

    def _append(self, question: SuiteQuestion, words: Words) -> None:
        self.questions.append(question)
        self._words.append(words)
        size = _gram_size(len(words.exact))
        numbers = [self._numbers.setdefault(word, len(self._numbers)) for word in words.exact]
        places = (
            tuple((tuple(numbers[start : start + size]), start) for start in range(len(numbers) - size + 1))
            if size
            else ()
        )
        self._grams.append(_Grams(size, places))
        for gram in dict.fromkeys(gram for gram, _ in places):
            self._postings[size][gram].append(len(self.questions) - 1)

    def matches(self, row: RowTexts) -> list[QuestionMatch]:
        """Return what is found in a row: leaks, or else one match for each rule that it is under."""
        if row.parameters is not None and (number := self._parameters.get(row.parameters)) is not None:
            return [QuestionMatch("parameters", self.questions[number], row.parameters, 1.0, True)]
        matches = [match for text in row.texts for match in self._matches_of(text)]
        leaks = [match for match in matches if match.is_leak]
        return leaks or list({match.rule: match for match in reversed(matches)}.values())

    def _matches_of(self, text: str) -> Iterator[QuestionMatch]:
        words = words_of(text)
        exact = self._exact_matches(text, words)
        if exact:
            yield from exact
            return
        if (template := self._frames.get(words.frame)) is not None:
            yield QuestionMatch("template", self.questions[template], text, 0.0, False)
        yield from self._coverage_matches(text, words)

    def _exact_matches(self, text: str, words: Words) -> list[QuestionMatch]:
        numbers = [self._exact.get(words.exact)]
        if "\n" in text.strip():
            lines = (words_of(line).exact for line in text.splitlines())
            numbers += [self._exact.get(line) for line in lines if len(line) >= LEAST_LINE]
        numbers += self._runs_in(text, words.exact)
        questions = dict.fromkeys(number for number in numbers if number is not None)
        return [QuestionMatch("exact", self.questions[number], text, 1.0, True) for number in questions]

    def _anchors_of_runs(self) -> dict[tuple[str, ...], list[tuple[int, int]]]:
        """Return the rarest three words of each question that is looked for inside a text, with its place there."""
        long_enough = {
            number: words.exact
            for number, words in enumerate(self._words)
            if len(words.exact) >= LEAST_LINE and len(" ".join(words.exact)) >= LEAST_CHARACTERS
        }
        counts = Counter(gram for exact in long_enough.values() for gram in _threes(exact))
        anchors: defaultdict[tuple[str, ...], list[tuple[int, int]]] = defaultdict(list)
        for number, exact in long_enough.items():
            place, gram = min(enumerate(_threes(exact)), key=lambda three: counts[three[1]])
            anchors[gram].append((number, place))
        return dict(anchors)

    def _runs_in(self, text: str, exact: Sequence[str]) -> Iterator[int]:
        """Yield the questions that appear in a text word for word."""
        for position, gram in enumerate(_threes(exact)):
            for number, place in self._anchors.get(gram, ()):
                question, start = self._words[number].exact, position - place
                end = start + len(question)
                if start < 0 or tuple(exact[start:end]) != question or _is_continued(exact, start, end):
                    continue
                if len(question) >= FREE_WORDS or is_apart(text, start, end):
                    yield number

    def _coverage_matches(self, text: str, words: Words) -> Iterator[QuestionMatch]:
        grams = self._grams_of(words.exact)
        rare: Counter[int] = Counter()
        common: dict[int, None] = {}
        for size, row_grams in grams.items():
            postings = self._postings[size]
            for gram in row_grams:
                numbers = postings[gram]
                if len(numbers) <= DISTINCTIVE:
                    rare.update(numbers)
                elif len(common) < CANDIDATES:
                    common.update(dict.fromkeys(numbers[:CANDIDATES]))
        is_covered = False
        for number, _ in rare.most_common(CANDIDATES):
            match = self._compare(number, text, words, grams)
            if match is not None and (match.is_leak or not is_covered):
                is_covered = True
                yield match
        for number in () if is_covered else common:
            if (match := self._compare(number, text, words, grams)) is not None:
                yield match
                return

    def _grams_of(self, words: Sequence[str]) -> dict[int, set[Gram]]:
        """Return the n-grams of a row that some question has, by their size."""
        numbers = [self._numbers.get(word, -1) for word in words]
        grams: dict[int, set[Gram]] = {}
        for size, postings in self._postings.items():
            if not postings:
                continue
            present: set[Gram] = set()
            run = 0  # words in a row that questions have, up to here
            for place, number in enumerate(numbers):
                run = run + 1 if number >= 0 else 0
                if run >= size and (gram := tuple(numbers[place - size + 1 : place + 1])) in postings:
                    present.add(gram)
            if present:
                grams[size] = present
        return grams

    def _compare(self, number: int, text: str, words: Words, grams: Mapping[int, set[Gram]]) -> QuestionMatch | None:
        """Return the match by coverage of a question; None if no more than half of it is covered."""
        size, places = self._grams[number]
        present, postings = grams.get(size, set()), self._postings[size]
        covered: set[int] = set()
        telling: set[int] = set()
        covered_telling: set[int] = set()
        for gram, start in places:
            span = range(start, start + size)
            is_telling = len(postings[gram]) <= DISTINCTIVE
            if is_telling:
                telling.update(span)
            if gram in present:
                covered.update(span)
                if is_telling:
                    covered_telling.update(span)
        share = len(covered) / len(self._words[number].exact)
        if share <= MOST_COVERED:
            return None
        question = self._words[number]
        is_leak = (
            len(covered_telling) > MOST_COVERED * len(telling)
            and words.frame != question.frame
            and question.numbers <= words.numbers
        )
        return QuestionMatch("coverage", self.questions[number], text, share, is_leak)


def _gram_size(words: int) -> int:
    """Return the size of the n-grams of a question; 0: it is too short for any."""
    return LONG_GRAM if words >= LONG_QUESTION else SHORT_GRAM if words >= SHORT_QUESTION else 0


def _threes(exact: Sequence[str]) -> Iterator[tuple[str, ...]]:
    return zip(exact, exact[1:], exact[2:], strict=False)


def _is_continued(exact: Sequence[str], start: int, end: int) -> bool:
    """Return whether an operator before or after these words makes them a part of a longer calculation."""
    before = exact[start - 1] if start and exact[start][0].isdigit() else "="
    after = exact[end] if end < len(exact) and exact[end - 1][0].isdigit() else "="
    return any(word != "=" and not word[0].isalnum() for word in (before, after))


# --- tasks ------------------------------------------------------------------------------------------------------------


def questions_of(suite: Suite) -> Iterator[SuiteQuestion]:
    """Yield the questions of a suite, and its long answers."""
    for index, task in enumerate(suite.questions):
        yield from questions_of_task(task, suite.name, index)


def questions_of_task(task: Task, suite: str, index: int) -> Iterator[SuiteQuestion]:
    """Yield the question of a held-out task: the last message of the user; and its answer, if that is long."""
    text = next((message.content for message in reversed(task.messages) if message.role not in SYSTEM_ROLES), "")
    yield SuiteQuestion(suite, index, text, parameters_of(task.environment))
    answer = _answer(task.verifier)
    if len(words_of(answer).exact) >= SHORT_QUESTION:
        yield SuiteQuestion(suite, index, answer, is_answer=True)


def _answer(verifier: str) -> str:
    try:
        answer = parse(verifier).get("answer")
    except (ValueError, AttributeError):
        return ""
    return answer if isinstance(answer, str) else ""
