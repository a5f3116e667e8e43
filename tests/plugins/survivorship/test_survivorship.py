"""The views tell what was left out of training, how old the rest is, and where the time went, as counted by hand."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Sequence
from typing import Any

import pytest

from schemas.events import Response
from streams.settings.model import Settings
from streams.tools.query.view_list import view_lists
from tests.support import processes
from tests.support.commands import invoke
from tests.support.factories import batch, group, member, response, task, trained, turn

pytestmark = pytest.mark.kafka
LENGTHS = {f"t{number}": random.Random(number).choices(range(1, 9), k=2) for number in range(12)}
"""Of the answers to each task, in tokens."""
LEFT_OUT = {name: [length + 4 for length in LENGTHS[name]] for name in ("t9", "t10", "t11")}


def rows_of(settings: Settings, view: str, *options: str) -> list[dict[str, Any]]:
    done = invoke(settings, "query", view, *options, "--output", "jsonl")
    assert done.exit_code == 0, done.output
    return [json.loads(line) for line in done.stdout.splitlines()]


def z_of(trained: Sequence[float], others: Sequence[float]) -> float:
    """Return the standardised statistic of Mann and Whitney, by comparing each with each."""
    n, k = len(trained) + len(others), len(trained)
    wins = sum((one > other) + 0.5 * (one == other) for one in trained for other in others)
    both = [*trained, *others]
    ties = sum(both.count(value) ** 3 - both.count(value) for value in {*both})
    return (wins - k * (n - k) / 2) / math.sqrt(k * (n - k) / 12 * (n + 1 - ties / (n * (n - 1))))


def answer_of(name: str, slot: int, length: int) -> Response:
    per_token = {"completion_token_ids": (1,) * length, "logprobs": (-0.5,) * length, "loss_mask": (True,) * length}
    return response(
        task_id=name,
        sampling_id=name,
        slot=slot,
        group_size=2,
        latency_ms=10.0 * length,
        completion_tokens=length,
        adapter_version=1 if name in ("t0", "t1") else 0,
        **per_token,
    )


@pytest.fixture
def run(made: Settings) -> Settings:
    """Twelve tasks, of which the three with the longest answers are in no batch; one answer is of an agent's run."""
    lengths = {**LENGTHS, **LEFT_OUT}
    answers = {name: [answer_of(name, slot, one) for slot, one in enumerate(both)] for name, both in lengths.items()}
    asked = [task(task_id=name, group_size=2) for name in lengths]
    served = task(task_id="served", purpose="serve", group_size=1), answer_of("served", 0, 500)
    processes.write(made, *asked, *served)
    offsets = []
    for name, both in answers.items():
        places = processes.write(made, *both)
        members = tuple(
            member(one.slot, response_id=one.response_id, partition=at.partition, offset=at.offset)
            for one, at in zip(both, places, strict=True)
        )
        left_out: dict[str, Any] = {"dropped_reason": "too_long", "responses": ()} if name in LEFT_OUT else {}
        made_of: dict[str, Any] = {"responses": members, "adapter_version": both[0].adapter_version} | left_out
        (at,) = processes.write(made, group(task_id=name, **made_of))
        offsets += [] if left_out else [at]
    for sequence, some in enumerate((offsets[:4], offsets[4:])):
        places_of = tuple(place.offset for place in some)
        processes.write(made, batch(sequence, groups_partition=some[0].partition, groups_offsets=places_of))
    of_run = answers["t5"][0].response_id
    turns = (turn(trajectory_id=of_run, task_id="t5", number=n, adapter_version=v) for n, v in enumerate((0, 2)))
    processes.write(made, *turns)
    return made


def test_answers_that_are_in_no_batch_are_compared_with_those_that_are(run: Settings) -> None:
    rows = {row["measure"]: row for row in rows_of(run, "survivorship")}
    in_batch = [float(length) for name, both in LENGTHS.items() if name not in LEFT_OUT for length in both]
    others = [float(length) for both in LEFT_OUT.values() for length in both]
    row = rows["completion_tokens"]
    assert (row["sampled"], row["trained"]) == (24, 18), "an answer to a user is no sample"
    assert row["trained_mean"] == pytest.approx(sum(in_batch) / 18)
    assert row["sampled_mean"] == pytest.approx(sum(in_batch + others) / 24)
    assert row["z"] == pytest.approx(z_of(in_batch, others)) and row["z"] < -1.96 and row["differs"]
    assert rows["latency_ms"]["z"] == pytest.approx(row["z"]), "ranks are of no unit"
    assert (rows["turns"]["z"], rows["turns"]["differs"]) == (None, False), "all are equal"
    assert rows["failed"]["sampled_mean"] == 0


def test_batches_say_how_old_their_answers_are(run: Settings) -> None:
    first, second = rows_of(run, "staleness")
    assert (first["batch"], first["groups"], first["responses"], first["known_share"]) == (0, 4, 8, 1)
    assert (second["mean_age"], second["oldest_age"], second["longest_span"]) == (1, 1, 2)
    assert (first["oldest_version"], first["newest_version"], first["longest_span"]) == (0, 1, 0)
    tokens = {name: sum(LENGTHS[name]) for name in ("t0", "t1", "t2", "t3")}
    age = {"t0": -1, "t1": -1, "t2": 0, "t3": 0}
    weighted = sum(age[name] * tokens[name] for name in tokens) / sum(tokens.values())
    assert first["token_mean_age"] == pytest.approx(weighted)
    (only,) = rows_of(run, "staleness", "--from", "1")
    assert only == second, "a range is of batches"


def test_time_in_which_answers_overlap_counts_once(made: Settings) -> None:
    begun_ms, at_s = 1_700_000_000_000, {0: (0, 4), 1: (1, 3), 2: (3, 5), 3: (9, 10)}
    asked = [task(task_id=name, purpose=name, group_size=4) for name in ("train", "eval")]
    answers = [
        response(
            task_id=name,
            sampling_id=name,
            slot=slot,
            group_size=4,
            adapter_version=1,
            latency_ms=1000.0 * (ended - begun),
            created_at=begun_ms + 1000 * ended,
        )
        for name, shown in (("train", at_s), ("eval", {0: (4, 6)}))
        for slot, (begun, ended) in shown.items()
    ]
    steps = [
        trained(number, metrics={"step_s": 0.5 * number}, created_at=begun_ms + 10_000 * number) for number in (1, 2)
    ]
    processes.write(made, *asked, *answers, answers[0], *steps)
    (row,) = rows_of(made, "stages")
    assert (row["version"], row["responses"]) == (1, 5), "an answer that was written twice is one"
    assert (row["train_s"], row["held_out_s"], row["serve_s"]) == (pytest.approx(6), pytest.approx(2), None)
    assert (row["step_s"], row["until_next_s"]) == (1, 10)


@pytest.mark.parametrize("name", ["survivorship", "staleness", "stages"])
def test_the_lists_of_the_page_have_these_rows(run: Settings, name: str) -> None:
    listed, rows = view_lists()[name], rows_of(run, view_lists()[name].statement({}))
    assert rows and all({*row} == {*listed.columns} for row in rows)
    assert len(rows) == len(rows_of(run, name))
