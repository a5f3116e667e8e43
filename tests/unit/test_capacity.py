"""What a load needs: the arithmetic agrees with events as they are encoded, and with what the benchmarks printed."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from schemas.serde import encode
from streams.cli.root import cli
from streams.errors import SettingsError
from streams.stages.advantages.rows import dump
from streams.stages.advantages.state import ClosedGroup
from streams.tools import capacity
from streams.tools.capacity import CapacityPlan, Load, Rates
from tests.benchmarks.whole_groups import PROMPT_TOKENS, whole
from tests.support.log.join_partition import Log

BENCHMARKS = Path(__file__).parents[2] / "docs" / "benchmarks.md"
LOAD = Load(
    responses_s=80,
    prompt_tokens=PROMPT_TOKENS,
    completion_tokens=256,
    slots=8,
    scorers=1,
    score_s=0.001,
    answer_s=10,
    retention_days=7,
    rates=Rates(20_000, 13_300),
)
PLAN = CapacityPlan(partitions=8, policy_partitions=2, batch_groups=16, policies=1, remembered_s=3600)


@pytest.mark.parametrize("tokens", [32, 256, 1024])
def test_the_bytes_of_a_group_are_those_of_its_events(tokens: int) -> None:
    events = whole("some", tokens)
    log, read = Log(), (events.task, *events.responses, *events.rewards)
    for event in read:
        log.read(event)
    encoded = sum(len(encode(event)) for event in (*read, log.group()))
    assert capacity.bytes_of_group(replace(LOAD, completion_tokens=tokens)) == pytest.approx(encoded, rel=0.05)


@pytest.mark.parametrize("tokens", [32, 256, 1024])
def test_the_join_costs_what_its_benchmark_printed(tokens: int) -> None:
    """Two of the three points made the constants; the one between them did not."""
    case = f"| join | live, loop, against Kafka Streams, {tokens} tokens, of CPU | "
    (per_s,) = re.findall(rf"^{re.escape(case)}([\d.]+) \|", BENCHMARKS.read_text(encoding="utf-8"), re.MULTILINE)
    assert 1 / capacity.join_s(8, tokens) == pytest.approx(float(per_s), rel=0.05)


def test_a_load_ten_times_as_large_needs_ten_times_as_much_until_something_is_full() -> None:
    one, ten, much = capacity.needs(LOAD, PLAN, (1, 10, 1000))
    assert ten.log_mib_s == pytest.approx(10 * one.log_mib_s)
    assert ten.open_groups == 10 * one.open_groups == 1000
    assert one.full == ()
    assert much.streams > 8
    assert [line.partition("=")[0].partition(":")[0] for line in much.full] == [
        "topics.partitions",
        "topics.policy_partitions",
        "policies",
        "batches.groups",
        "trainer.processes",
    ]


def test_more_policies_share_the_ranks() -> None:
    (alone,) = capacity.needs(LOAD, PLAN, (100,))
    (shared,) = capacity.needs(LOAD, replace(PLAN, policies=100), (100,))
    assert alone.trainers == shared.trainers
    assert any("batches.groups" in line for line in alone.full)
    assert not any("batches.groups" in line for line in shared.full)


@pytest.mark.parametrize("tokens", [32, 1024])
def test_a_row_takes_what_the_join_writes(tokens: int) -> None:
    events, log = whole("some", tokens), Log()
    for event in (events.task, *events.responses, *events.rewards):
        log.read(event)
    assert isinstance(log.state, ClosedGroup)
    key = events.task.task_id
    held = {key: dump(log.state)}
    in_memory = sys.getsizeof(held[key]) + sys.getsizeof(key) + sys.getsizeof(held) / 2
    assert pytest.approx(in_memory, rel=0.05) == capacity.ROW_BYTES + 8 * capacity.ROW_SLOT_BYTES


def test_fewer_groups_are_remembered_for_less_time() -> None:
    (hour,) = capacity.needs(LOAD, PLAN, (1,))
    (minute,) = capacity.needs(LOAD, replace(PLAN, remembered_s=60), (1,))
    assert hour.rows_gib > 50 * minute.rows_gib
    assert hour.back_s > 50 * minute.back_s


def test_a_load_of_nothing_is_refused() -> None:
    with pytest.raises(SettingsError, match="completion_tokens is 0"):
        capacity.needs(replace(LOAD, completion_tokens=0), PLAN, (1,))


def run(*arguments: str) -> tuple[int, str, str]:
    done = CliRunner().invoke(cli, ["admin", "capacity", *arguments])
    return done.exit_code, done.stdout, done.stderr


def test_the_command_prints_a_row_for_each_multiple() -> None:
    code, out, _ = run("--responses-per-s", "5", "--times", "1,2", "--output", "jsonl")
    rows = [json.loads(line) for line in out.splitlines()]
    assert code == 0
    assert [row["responses_s"] for row in rows] == [5, 10]
    assert rows[0]["full"] == []


@pytest.mark.parametrize("times", ["", "1,x", "0"])
def test_multiples_that_are_none_are_refused(times: str) -> None:
    code, _, err = run("--times", times)
    assert code == 2
    assert f"--times={times}: expected numbers above 0" in err
