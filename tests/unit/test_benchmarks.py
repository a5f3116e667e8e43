"""The benchmarks can be listed, and their table kept. `make bench` runs them, never a test: tests do not time."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import pytest

from schemas.serde import encode
from tests.benchmarks.__main__ import NAMES, main
from tests.benchmarks.peers import PeerGroup, PeerMember, difference, peer_group
from tests.benchmarks.side_by_side import by_turns, line
from tests.benchmarks.table import BEGIN, END, write
from tests.benchmarks.whole_groups import EVENTS, SLOTS, whole
from tests.support.factories import group, member, response

REPO = Path(__file__).parents[2]


def test_every_benchmark_is_listed_with_what_it_measures(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--list"]) == 0
    listed = {text.split()[0]: text.split(maxsplit=1)[1] for text in capsys.readouterr().out.splitlines()}
    assert tuple(listed) == NAMES and {"join", "page"} < set(NAMES)
    assert all(listed.values())


def test_an_unknown_benchmark_is_a_usage_error_that_names_those_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["jion"])
    printed = capsys.readouterr().err
    assert "'jion'" in printed and "join" in printed


def test_ours_and_peer_take_turns() -> None:
    calls: list[str] = []
    by_turns({"ours": lambda: calls.append("ours"), "peer": lambda: calls.append("peer")}, rounds=2)
    assert calls == ["ours", "peer"] * 3  # the first turn warms up and is not measured


def test_no_turn_begins_after_the_time_given_but_enough_for_a_median_are_taken() -> None:
    measured = by_turns({"ours": lambda: "made"}, rounds=5, budget_s=0, warm=False)
    assert [made for _, made in measured["ours"]] == ["made"] * 3


def test_a_result_says_target_machine_and_peer() -> None:
    missed = line(
        "join", "live", ours=1.23456, peer=4, unit="groups/s", ratio=0.30864, peer_is="it", target=0.5, more=1
    )
    assert {key: value for key, value in missed.items() if key != "machine"} == {
        "bench": "join", "case": "live", "ours": 1.235, "peer": 4.0, "unit": "groups/s", "ratio": 0.3086,
        "target": 0.5, "met": False, "peer_is": "it", "more": 1,
    }  # fmt: skip
    assert missed["machine"]["cores"] >= 1
    assert line("join", "live", ours=1, peer=2, unit="s", ratio=0.5, peer_is="it", target=0.5)["met"]
    assert "met" not in line("join", "live", ours=1, peer=2, unit="s", ratio=0.5, peer_is="it")


def test_the_groups_that_load_a_log_are_whole_and_can_be_written() -> None:
    group = whole("4 + 7")
    events = [group.task, *group.responses, *group.rewards]
    assert len(events) == EVENTS and all(encode(event) for event in events)
    assert {response.response_id for response in group.responses} == {reward.response_id for reward in group.rewards}
    assert len({response.prompt_token_ids for response in group.responses}) == 1
    assert len({response.completion_token_ids for response in group.responses}) == SLOTS
    assert whole("4 + 7").task.task_id == group.task.task_id != whole("4 + 8").task.task_id


# --- the join's peers ------------------------------------------------------------------------------------------------


def peers_group(slots: int = 2) -> PeerGroup:
    """Return the group that a peer should make of two responses with the rewards 0 and 1."""
    sent = [response(slot=slot) for slot in range(slots)]
    members = [PeerMember(r.slot, r.response_id, float(r.slot), r.slot - 0.5, encode(r)) for r in sent]
    return PeerGroup("t1", members)


def differs(theirs: PeerGroup) -> str | None:
    ours = group(responses=tuple(member(slot, reward=float(slot), advantage=slot - 0.5) for slot in range(2)))
    return difference(theirs, ours, {r.response_id: r for r in (response(slot=slot) for slot in range(2))})


def test_a_peers_record_is_read_as_it_is_written_and_nothing_may_follow() -> None:
    record = b"\0\0\0\2t1\0\0\0\1" + struct.pack(">ii2sddi1s", 3, 2, b"r3", 1.0, -0.5, 1, b"x")
    assert peer_group(record) == PeerGroup("t1", [PeerMember(3, "r3", 1.0, -0.5, b"x")])
    with pytest.raises(ValueError, match="1 bytes behind"):
        peer_group(record + b"y")


def test_a_peers_group_that_is_ours_differs_in_nothing() -> None:
    assert differs(peers_group()) is None


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"slot": 2}, "against"),
        ({"response_id": "another"}, "against"),
        ({"reward": 0.5}, "against"),
        ({"advantage": 0.6}, "advantage 0.6 against 0.5"),
        ({"payload": encode(response(slot=1, text="another"))}, "not the bytes"),
        ({"payload": b""}, "not the bytes"),
    ],
)
def test_what_a_peers_group_has_otherwise_is_named(change: dict[str, Any], what: str) -> None:
    first, second = peers_group().members
    assert what in (differs(PeerGroup("t1", [first, second._replace(**change)])) or "")


def test_a_peers_group_that_lacks_a_member_differs() -> None:
    assert differs(peers_group(slots=1)) is not None


# --- the table -------------------------------------------------------------------------------------------------------


def result(bench: str, case: str, ours: float) -> dict[str, object]:
    return line(bench, case, ours=ours, peer=2.0, unit="s", ratio=2.0 / ours, peer_is="another", target=4.0)


def test_a_run_replaces_the_rows_of_its_benchmarks_and_no_others() -> None:
    document = f"before\n{BEGIN}\n{END}\nafter\n"
    document = write(document, [result("join", "live", 1.0), result("join", "gone", 1.0), result("help", "it", 0.25)])
    document = write(document, [result("join", "live", 0.5)])
    rows = [text for text in document.splitlines() if text.startswith("| ")]
    assert [row.split(" | ")[:3] for row in rows[2:]] == [["| help", "it", "0.25"], ["| join", "live", "0.5"]]
    assert "≥ 4, met" in document and document.startswith("before\n") and document.endswith("after\n")


def test_a_document_without_a_place_for_the_table_is_refused() -> None:
    with pytest.raises(ValueError, match=r"bench:begin"):
        write("no markers", [])
