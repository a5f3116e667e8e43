"""Answer prompts of tokens together, each as if it were alone.

    requests ──► equal prompts, run once in pieces ──► scores of their places, first tokens
                                   └──► a copy of the keys and values for each answer ──► a token a pass ──► done

A pass runs a piece of some prompts and a token of each answer (packed_pass.py). The result of a row depends only on the
row: linear layers by row_linear.py, attention by row, pieces that always begin at the same places of a prompt, draws
one by one. So the order in which rows are admitted, and how many, changes no bit.

Equal prompts are found by their tokens: programs often sample one prompt by many calls of one sample each.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, Literal

import torch
from torch import Tensor

from streams.engines.local.key_values import CacheShape, KeyValues
from streams.engines.local.packed_pass import PackedPass
from streams.engines.local.prompt_scores import DrawnSequence, PlaceScores, PromptDraw

PIECE_TOKENS = 512
"""Maximum tokens of one prompt, and of all prompts, in a pass: bounds the logits in memory."""
MOST_ROWS = 64
"""Maximum answers that are decoded together; the others wait."""
CACHE_BYTES = 1 << 30
"""Maximum bytes of keys and values of running prompts and answers; at least one always runs."""
Reason = Literal["stop", "length"] | None


@dataclass(slots=True)
class BatchRequest:
    """A request, and its results so far."""

    request: PromptDraw
    room: int
    """Maximum tokens of an answer."""
    scores: PlaceScores
    sequences: list[DrawnSequence]
    prompt_is_run: bool = False

    @property
    def is_done(self) -> bool:
        """Whether it is complete."""
        return self.prompt_is_run and all(sequence.reason is not None for sequence in self.sequences)


@dataclass(slots=True)
class PromptRow:
    """A prompt that is run once for all requests with it."""

    ids: Tensor
    requests: list[int]
    cache: KeyValues
    scores_places: bool
    waiting: deque[tuple[int, int]] = field(default_factory=deque)
    """Answers that wait for their copy: request, and number of the sample."""


@dataclass(slots=True)
class AnswerRow:
    """An answer that is decoded."""

    request: int
    number: int
    cache: KeyValues
    most_bytes: int


def run_pieces(
    model: Any, caches: Sequence[KeyValues], pieces: Sequence[Tensor], keeps: Sequence[int]
) -> Sequence[Tensor]:
    """Run the next tokens of each row; return the logits [kept, V] after the last tokens of each, float32. Functions of
    single numbers are computed for 32 at once, and by other code for the remainder. So an odd number of tokens is
    padded by one, and no row of a common width falls in the remainder.
    """
    ids, caches = torch.cat(tuple(pieces)), list(caches)
    counts = [len(piece) for piece in pieces]
    places = [torch.arange(end - keep, end) for end, keep in zip(accumulate(counts), keeps, strict=True)]
    if len(ids) % 2:
        ids, counts = torch.cat((ids, ids[:1])), [*counts, 1]
        caches.append(KeyValues(CacheShape.read(model)))
    logits = PackedPass(caches, counts).run(model, ids, torch.cat(places).to(ids.device))
    parts: Sequence[Tensor] = logits.float().split(list(keeps))
    return parts


class PromptBatch:
    """Requests that are answered with the model's present weights; call `step` until nothing `is_left`."""

    def __init__(
        self,
        model: Any,
        requests: Sequence[tuple[PromptDraw, int]],
        ends_with: Callable[[PromptDraw, Sequence[int]], bool],
    ) -> None:
        """Take requests, each with the room of its answers. `ends_with`: whether a token or text stops an answer."""
        self._model, self._ends_with, self._shape = model, ends_with, CacheShape.read(model)
        device = self._shape.device
        self.requests: list[BatchRequest] = []
        row_of: dict[tuple[int, ...], PromptRow] = {}
        for index, (request, room) in enumerate(requests):
            ids = torch.tensor(request.prompt, device=device)
            sequences = [DrawnSequence() for _ in range(request.samples)]
            self.requests.append(BatchRequest(request, room, PlaceScores(request, ids), sequences))
            row = row_of.setdefault(request.prompt, PromptRow(ids, [], KeyValues(self._shape), False))
            row.requests.append(index)
            row.scores_places |= request.scores_places
        self._waiting = deque(row_of.values())
        self._prompts: list[PromptRow] = []
        self._run: list[PromptRow] = []
        """Prompts that are run, with answers that wait."""
        self._answers: list[AnswerRow] = []

    @property
    def is_left(self) -> bool:
        """Whether anything is left to run."""
        return bool(self._waiting or self._prompts or self._run or self._answers)

    def step(self) -> Iterator[int]:
        """Run a pass; yield the requests that it has completed."""
        with torch.inference_mode():
            touched = [*self._pass()]
        yield from (index for index in dict.fromkeys(touched) if self.requests[index].is_done)

    def _pass(self) -> Iterator[int]:
        self._admit()
        pieces = self._pieces()
        begins = [row.cache.length for row, _ in pieces]
        ids = [self._ids_of(answer) for answer in self._answers]
        ids += [row.ids[begin : begin + count] for (row, count), begin in zip(pieces, begins, strict=True)]
        keeps = [1] * len(self._answers) + [count if row.scores_places else 1 for row, count in pieces]
        caches = [answer.cache for answer in self._answers] + [row.cache for row, _ in pieces]
        logits = run_pieces(self._model, caches, ids, keeps)
        answers, self._answers = self._answers, []
        for answer, row_logits in zip(answers, logits, strict=False):
            self._draw(answer.request, answer.number, row_logits)
            if self.requests[answer.request].sequences[answer.number].reason is None:
                self._answers.append(answer)
            else:
                yield answer.request
        for (row, _), begin, row_logits in zip(pieces, begins, logits[len(answers) :], strict=True):
            for index in row.requests:
                self.requests[index].scores.take(begin, row_logits)
            if row.cache.length == len(row.ids):
                yield from self._begin_answers(row, row_logits[-1:])

    def _ids_of(self, answer: AnswerRow) -> Tensor:
        return torch.tensor(
            self.requests[answer.request].sequences[answer.number].tokens[-1:], device=self._shape.device
        )

    # --- what runs ----------------------------------------------------------------------------------------------------

    def _admit(self) -> None:
        """Start as many rows as have room: answers first, since their prompts hold memory, then prompts."""
        for row in self._run:
            while row.waiting and len(self._answers) < MOST_ROWS:
                index, number = row.waiting[0]
                tokens = len(row.ids) + self.requests[index].room
                if self._answers and self._bytes() + tokens * self._shape.token_bytes > CACHE_BYTES:
                    return
                row.waiting.popleft()
                cache = row.cache.copy_beginning(len(row.ids))
                self._answers.append(AnswerRow(index, number, cache, tokens * self._shape.token_bytes))
        self._run = [row for row in self._run if row.waiting]
        while self._waiting and not self._run:
            needed = len(self._waiting[0].ids) * self._shape.token_bytes
            if (self._answers or self._prompts) and self._bytes() + needed > CACHE_BYTES:
                return
            self._prompts.append(self._waiting.popleft())

    def _bytes(self) -> int:
        """Return the maximum bytes that running rows may need."""
        prompts = sum(len(row.ids) for row in (*self._prompts, *self._run)) * self._shape.token_bytes
        return prompts + sum(answer.most_bytes for answer in self._answers)

    def _pieces(self) -> list[tuple[PromptRow, int]]:
        """Return the pieces of prompts to run now: whole ones, as many as fit, and at least one."""
        pieces: list[tuple[PromptRow, int]] = []
        left = PIECE_TOKENS
        for row in self._prompts:
            count = min(PIECE_TOKENS, len(row.ids) - row.cache.length)
            if pieces and count > left:
                break
            pieces.append((row, count))
            left -= count
        return pieces

    # --- answers ------------------------------------------------------------------------------------------------------

    def _begin_answers(self, row: PromptRow, logits: Tensor) -> Iterator[int]:
        """Draw the first token of each answer to a finished prompt; unfinished answers wait for a copy."""
        self._prompts.remove(row)
        logprobs = logits.log_softmax(-1)
        for index in row.requests:
            state = self.requests[index]
            state.prompt_is_run = True
            for number, sequence in enumerate(state.sequences):
                sequence.append(state.request, number, logits, logprobs)
                sequence.reason = self._reason(state, sequence)
                if sequence.reason is None:
                    row.waiting.append((index, number))
            yield index
        if row.waiting:
            self._run.append(row)

    def _draw(self, index: int, number: int, logits: Tensor) -> None:
        state = self.requests[index]
        sequence = state.sequences[number]
        sequence.append(state.request, number, logits, logits.log_softmax(-1))
        sequence.reason = self._reason(state, sequence)

    def _reason(self, state: BatchRequest, sequence: DrawnSequence) -> Reason:
        """Return why an answer ends here; None if it does not."""
        if self._ends_with(state.request, sequence.tokens):
            return "stop"
        return "length" if len(sequence.tokens) >= state.room else None
