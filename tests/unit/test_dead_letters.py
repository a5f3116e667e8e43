"""Letters and decisions, folded: what is open, what is decided, and by whom."""

from __future__ import annotations

import base64
from dataclasses import replace

import pytest
from hypothesis import given, strategies as st

from schemas import serde
from schemas.events import Coordinates, DeadLetter
from schemas.serde import Poison
from streams.cli.dlq import hex_dump
from streams.errors import NotFoundError, SettingsError
from streams.kafka.producer import GIVE_UP_S
from streams.kafka.record import Record, dead_letter, murmur2, partition_of
from streams.kafka.topics import SHAPES, topic_of
from streams.settings.model import Topics
from streams.tools.dead_letters.letters import (
    Letter,
    LetterDecision,
    Letters,
    Matching,
    RedriveTarget,
    decision,
    parse,
)
from streams.tools.dead_letters.originals import READS, Original, hopeless
from streams.tools.dead_letters.redrive import CLAIM_S, STALE_S, home
from tests.support.factories import T0, group, response, task

HERE = "dead-letters"
AT = Coordinates("p.responses", 3, 1041)


def source(at: Coordinates = AT, key: bytes | None = b"t1", payload: bytes | None = b"junk") -> Record:
    return Record(at, T0, key, payload)


def written(event: DeadLetter, offset: int, partition: int = 0, timestamp_ms: int = T0) -> Letter | LetterDecision:
    """Return what a reader finds where `event` was written."""
    found = parse(Record(Coordinates(HERE, partition, offset), timestamp_ms, b"t1", serde.encode(event)))
    assert not isinstance(found, Poison)
    return found


def a_letter(offset: int = 0, at: Coordinates = AT, *, stage: str = "scoring", reason: str = "unknown_task") -> Letter:
    found = written(dead_letter(source(at), stage=stage, reason=reason, error="no"), offset, timestamp_ms=T0 + offset)
    assert isinstance(found, Letter)
    return found


def a_decision(offset: int, attempt: int = 1, verdict: str = "retried", who: str = "mina") -> LetterDecision:
    event = decision(a_letter(), verdict, attempt, f"done by {who}", now_ms=T0, target=RedriveTarget(3, 2000))  # type: ignore[arg-type]
    found = written(event, offset)
    assert isinstance(found, LetterDecision)
    return found


def folded(*found: Letter | LetterDecision) -> Letters:
    letters = Letters()
    for one in found:
        letters.take(one)
    return letters


# --- the fold ---------------------------------------------------------------------------------------------------------


def test_a_decision_comes_back_from_the_log_as_it_was_made() -> None:
    found = a_decision(7, attempt=2)
    assert (found.source, found.verdict, found.attempt) == (AT, "retried", 2)
    assert (found.partition, found.end, found.said) == (3, 2000, "done by mina")


def test_the_first_claim_wins() -> None:
    letters = folded(a_letter(), a_decision(5, who="noah"), a_decision(4, who="mina"))
    assert [found.said for found in letters.decisions(AT)] == ["done by mina"]


def test_a_drop_behind_a_retry_of_the_same_attempt_changes_nothing() -> None:
    letters = folded(a_letter(), a_decision(4, verdict="retried"), a_decision(5, verdict="dropped"))
    assert letters.state(a_letter()) == "retried"


def test_the_next_attempt_decides_anew() -> None:
    letters = folded(a_letter(), a_decision(4), a_decision(5, attempt=2, verdict="dropped"))
    assert letters.state(a_letter()) == "dropped"


def test_an_attempt_without_the_one_before_it_is_void() -> None:
    letters = folded(a_letter(), a_decision(4, attempt=2), a_decision(5, attempt=1, verdict="dropped"))
    assert letters.state(a_letter()) == "dropped"
    assert len(letters.decisions(AT)) == 1


def test_a_letter_that_comes_after_the_decision_shares_its_fate() -> None:
    letters = folded(a_letter(), a_decision(4), a_letter(9, stage="advantages"))
    assert letters.matching(Matching(), "open") == []
    assert len(letters.matching(Matching(), "retried")) == 2


def test_another_record_has_a_fate_of_its_own() -> None:
    other = a_letter(1, AT._replace(offset=1042))
    assert folded(a_letter(), a_decision(4), other).matching(Matching(), "open") == [other]


def test_a_letter_written_twice_is_one_and_both_coordinates_name_it() -> None:
    letters = folded(a_letter(7), a_letter(2))
    assert letters.matching() == [a_letter(2)]
    assert letters.find(f"{HERE}[0]@7") == letters.find(f"{HERE}[0]@2") == [a_letter(2)]


HISTORY = st.lists(
    st.one_of(
        st.builds(a_letter, st.integers(0, 40), stage=st.sampled_from(["scoring", "advantages"])),
        st.builds(
            a_decision, st.integers(0, 40), st.integers(1, 4), st.sampled_from(["retried", "dropped"]),
            st.sampled_from(["mina", "noah"]),
        ),
    ),
    max_size=12,
    unique_by=lambda found: found.at,
)  # fmt: skip


@given(HISTORY, st.data())
def test_any_order_and_any_repetition_gives_the_same_fates(
    history: list[Letter | LetterDecision], data: st.DataObject
) -> None:
    again = data.draw(st.permutations([*history, *data.draw(st.lists(st.sampled_from(history)))] if history else []))
    letters, other = folded(*history), folded(*again)
    assert letters.matching() == other.matching()
    assert letters.decisions(AT) == other.decisions(AT)


@given(HISTORY)
def test_holding_decisions_are_numbered_in_order_and_only_more_follow(history: list[Letter | LetterDecision]) -> None:
    """What holds for a reader up to some offset holds for every later reader."""
    in_order = sorted(history, key=lambda found: found.at)
    before: list[LetterDecision] = []
    for count in range(len(in_order) + 1):
        now = folded(*in_order[:count]).decisions(AT)
        assert now[: len(before)] == before
        assert [found.attempt for found in now] == list(range(1, len(now) + 1))
        before = now


def test_a_claim_is_taken_over_only_when_its_record_can_no_longer_come() -> None:
    assert STALE_S > CLAIM_S + GIVE_UP_S


# --- what lies in the topic -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("payload", [None, b"", b"a", b"ab", b"abc"])
def test_a_letter_knows_the_size_of_a_payload_it_does_not_keep(payload: bytes | None) -> None:
    event = dead_letter(source(payload=payload), stage="policy", reason="not_avro", error="no")
    found = written(event, 0)
    assert isinstance(found, Letter)
    assert found.payload_bytes == (None if payload is None else len(payload))
    assert found.event.payload is None


@pytest.mark.parametrize(
    "changes",
    [
        {"reason": "forgotten"},
        {"headers": {}},
        {"headers": {"attempt": "?"}},
        {"headers": {"attempt": base64.b64encode(b"two").decode()}},
        {"headers": {"attempt": base64.b64encode(b"2").decode()}},
        {"dead_letter_id": "another"},
    ],
)
def test_a_decision_that_says_what_it_cannot_is_none(changes: dict[str, object]) -> None:
    event = replace(decision(a_letter(), "dropped", 1, "dropped", now_ms=T0), **changes)  # type: ignore[arg-type]
    assert isinstance(parse(Record(Coordinates(HERE, 0, 0), T0, b"t1", serde.encode(event))), Poison)


def test_decisions_about_a_record_without_a_key_have_one() -> None:
    event = dead_letter(source(key=None), stage="scoring", reason="unknown_task", error="no")
    found = written(event, 0)
    assert isinstance(found, Letter)
    made = decision(found, "dropped", 1, "dropped", now_ms=T0)
    assert base64.b64decode(made.key or "") == str(AT).encode()
    assert decision(a_letter(), "dropped", 1, "dropped", now_ms=T0).key == base64.b64encode(b"t1").decode()


# --- naming -----------------------------------------------------------------------------------------------------------


def test_a_letter_is_named_by_the_beginning_of_its_id_or_by_its_source() -> None:
    letters = folded(a_letter())
    name = a_letter().event.dead_letter_id
    for text in (name, name[:6], name[:6].upper(), str(AT), "responses[3]@1041", f"{HERE}[0]@0"):
        assert letters.find(text, prefix="p.") == [a_letter()], text


def test_too_little_of_an_id_or_an_id_of_several_is_refused() -> None:
    # both ids begin with the same six digits
    ids = ["aaaaaa11", "aaaaaa22"]
    letters = folded(*(replace(a_letter(n), event=replace(a_letter().event, dead_letter_id=ids[n])) for n in (0, 1)))
    with pytest.raises(SettingsError, match="too short"):
        letters.find("aaaaa")
    with pytest.raises(SettingsError, match="aaaaaa11, aaaaaa22"):
        letters.find("aaaaaa")
    assert letters.find("aaaaaa2")[0].event.dead_letter_id == "aaaaaa22"
    for text in ("bbbbbb", "responses[3]@7"):
        with pytest.raises(NotFoundError, match="admin dlq list --all"):
            letters.find(text)


# --- what mending helps -----------------------------------------------------------------------------------------------


def why(reason: str, event: object, *, stage: str = "advantages", payload: bytes | None = None) -> str | None:
    topic = topic_of(type(event), Topics())  # type: ignore[arg-type]
    original = Original(b"t1", payload or serde.encode(event), {})  # type: ignore[arg-type]
    return hopeless(a_letter(stage=stage, reason=reason), topic, original)


@pytest.mark.parametrize(
    "reason",
    ["superseded", "late", "contradictory", "unasked", "unknown_response", "wrong_key", "bad_adapter", "bad_signature"],
)
def test_what_the_log_has_decided_is_hopeless(reason: str) -> None:
    assert (why(reason, response()) or "").startswith(f"{reason}: ")


@pytest.mark.parametrize("reason", ["unknown_task", "malformed_reward", "too_large", "unusable", "something_new"])
def test_what_can_be_mended_is_not(reason: str) -> None:
    assert why(reason, response()) is None


@pytest.mark.parametrize("reason", ["not_avro", "unknown_schema", "wrong_event", "undecodable"])
def test_bytes_are_tried_out(reason: str) -> None:
    assert why(reason, task()) is None
    assert "cannot be decoded here either" in (why(reason, task(), payload=b"junk") or "")


def test_a_group_that_a_step_was_taken_without_is_hopeless() -> None:
    assert "step" in (why("not_avro", group(), stage="trainer") or "")


# --- places and bytes -------------------------------------------------------------------------------------------------


@given(st.text(max_size=40), st.integers(1, 64))
def test_a_record_belongs_where_its_key_puts_it(key: str, partitions: int) -> None:
    assert home(key.encode(), AT, partitions) == partition_of(key, partitions)


def test_a_record_without_a_key_belongs_where_it_was() -> None:
    assert home(None, AT, 8) == AT.partition
    assert home(b"", AT, 8) == (murmur2(b"") & 0x7FFFFFFF) % 8


def test_a_dump_shows_offset_bytes_and_ascii() -> None:
    assert list(hex_dump(b"0123456789abcdef\x1b~\x7f")) == [
        "00000000  30 31 32 33 34 35 36 37  38 39 61 62 63 64 65 66  |0123456789abcdef|",
        "00000010  1b 7e 7f" + " " * 15 + "  " + " " * 23 + "  |.~.|",
    ]


def test_a_retry_knows_the_readers_of_each_topic_that_the_audit_knows() -> None:
    audited = {(shape.reader.stage, label) for label, shape in SHAPES.items() if shape.reader is not None}
    assert audited <= {(stage, label) for stage, labels in READS.items() for label in labels}
