"""A person's words are readable with the key of that person, and by nobody without it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from schemas import key_source, versions
from schemas.avro_schema import Shape, shapes
from schemas.events import EVENTS, AdvantagedGroup, Event, Message, Response, Reward, Task, problems
from schemas.key_source import NoKeys
from schemas.sealing import ERASED_BEFORE
from schemas.serde import EncodeError, Poison, decode, decode_closed, encode
from schemas.tokens import VIEWS, LossMask, Octets
from streams.arrow.decode import DecodedRows, Judged, Reading, judge
from streams.arrow.events import decode_events
from streams.kafka.topics import SHAPES
from streams.tools.archive.columns import payloads_of, store_rows
from tests.support.any_event import any_event, records
from tests.support.factories import group, member, response, reward, task
from tests.support.subject_keys import SubjectKeys
from tests.support.thoroughness import examples

CANARY = "heliotrope"
WITH_SUBJECT: tuple[type[Event], ...] = tuple(kind for kind in EVENTS if "subject" in shapes(kind))


@pytest.fixture
def keys() -> Iterator[SubjectKeys]:
    source = SubjectKeys()
    key_source.use(source)
    yield source
    key_source.use(NoKeys())


def of_subject(kind: type[Event]) -> st.SearchStrategy[Any]:
    return records(kind).map(lambda event: dataclasses.replace(event, subject="ann"))


any_of_subject = st.sampled_from(WITH_SUBJECT).flatmap(of_subject)


@settings(max_examples=examples(150))
@given(any_of_subject)
def test_every_event_with_a_subject_comes_back_and_gives_the_same_bytes_again(event: Any) -> None:
    key_source.use(SubjectKeys())
    payload = encode(event)
    assert decode(payload, type(event)) == event
    assert encode(decode(payload, type(event))) == payload  # type: ignore[arg-type]
    key_source.use(NoKeys())


@settings(max_examples=examples(150))
@given(any_of_subject)
def test_what_is_in_clear_breaks_no_rule_and_is_written_unchanged(event: Any) -> None:
    key_source.use(SubjectKeys())
    payload = encode(event)
    key_source.use(NoKeys())
    closed: Any = decode_closed(payload, type(event))
    assert list(problems(closed)) == []
    assert closed.sealed and closed.subject == "ann"
    assert encode(closed) == payload


@settings(max_examples=examples(60))
@given(st.lists(any_event | any_of_subject, max_size=12), st.sampled_from(WITH_SUBJECT), st.sampled_from(range(4)))
def test_sealed_rows_in_bulk_are_what_they_are_one_by_one(events: list[Any], kind: Any, state: int) -> None:
    source = SubjectKeys()
    key_source.use(source)
    payloads = [encode(event) for event in events]
    if state:
        (source.erased, source.unknown, source.erased)[state - 1].add("ann")
    one_by_one = [decode(payload, kind) for payload in payloads]
    columns, wrong = decode_events(kind, payloads)
    assert wrong == {i: event for i, event in enumerate(one_by_one) if isinstance(event, Poison)}
    assert (columns[0] if columns else []) == [event for event in one_by_one if not isinstance(event, Poison)]
    key_source.use(NoKeys())


def test_a_member_of_a_group_and_its_tokens_are_sealed_and_its_lengths_are_not(keys: SubjectKeys) -> None:
    whole = group(responses=(member(),))
    sealed = dataclasses.replace(whole, subject="ann")
    closed = decode_closed(encode(sealed), AdvantagedGroup)
    assert isinstance(closed, AdvantagedGroup)
    (before,), (after,) = whole.responses, closed.responses
    assert set(after.completion_token_ids) <= {0} and after.completion_token_ids != before.completion_token_ids
    assert (after.completion_tokens, after.loss_tokens) == (before.completion_tokens, before.loss_tokens)
    assert (after.reward, after.advantage) == (before.reward, before.advantage)


# --- three states -----------------------------------------------------------------------------------------------------


def test_an_erased_event_is_said_to_be_erased_and_an_unknown_key_is_not(keys: SubjectKeys) -> None:
    payload = encode(response(text=CANARY, subject="ann"))
    keys.unknown.add("ann")
    unknown = decode(payload, Response)
    assert isinstance(unknown, Poison) and unknown.reason == "unknown_key"
    keys.unknown.clear()
    keys.erased.add("ann")
    erased = decode(payload, Response)
    assert isinstance(erased, Poison) and erased.reason == "erased"


def test_an_event_of_an_erased_subject_is_written_without_its_words(keys: SubjectKeys) -> None:
    keys.erased.add("ann")
    payload = encode(response(text=CANARY, subject="ann"))
    keys.erased.clear()
    closed = decode_closed(payload, Response)
    assert isinstance(closed, Response) and closed.sealed.data == ERASED_BEFORE
    erased = decode(payload, Response)
    assert isinstance(erased, Poison) and erased.reason == "erased"


def test_a_process_without_keys_writes_nothing_of_a_subject() -> None:
    with pytest.raises(EncodeError, match="no key store is set"):
        encode(task(subject="ann"))


# --- a ciphertext opens in its own record alone -----------------------------------------------------------------------


def test_no_field_in_clear_can_be_changed_and_no_ciphertext_moved(keys: SubjectKeys) -> None:
    first, second = (reward(response(slot=slot), subject="ann", rationale=CANARY) for slot in (0, 1))
    closed = decode_closed(encode(first), Reward)
    other = decode_closed(encode(second), Reward)
    assert isinstance(closed, Reward) and isinstance(other, Reward)
    for forged in (dataclasses.replace(closed, value=0.5), dataclasses.replace(closed, sealed=other.sealed)):
        read = decode(encode(forged), Reward)
        assert isinstance(read, Poison) and read.reason == "altered"


def test_a_record_with_sealed_bytes_and_no_subject_is_undecodable(keys: SubjectKeys) -> None:
    read = decode(encode(response(sealed=Octets(b"x" * 40))), Response)
    assert isinstance(read, Poison) and read.reason == "undecodable"


# --- reading without opening ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reading", "wrong", "texts"),
    [("opened", {1: "erased"}, ["", CANARY]), ("either", {}, ["", "", CANARY]), ("closed", {}, ["", "", ""])],
)
def test_columns_have_what_is_in_them_or_what_is_in_clear(
    keys: SubjectKeys, reading: Reading, wrong: dict[int, str], texts: list[str]
) -> None:
    answers = [response(text=""), response(text="gone", subject="bob"), response(text=CANARY, subject="ann")]
    payloads: list[bytes | None] = [encode(answer) for answer in answers]
    keys.erased.add("bob")
    judged: Judged = judge(Response, payloads, reading=reading)
    assert {place: poison.reason for place, poison in judged.wrong.items()} == wrong
    column = judged.fields(Response)[list(shapes(Response)).index("text")]
    assert [text for text in column.to_pylist() if text is not None] == texts


def test_the_archive_keeps_ciphertext_and_gives_back_the_same_bytes(keys: SubjectKeys) -> None:
    payload = encode(response(text=CANARY, subject="ann"))
    rows = DecodedRows("responses", [0], [7], [1_700_000_000_000], [b"t"], [payload], [])
    stored = store_rows(Response, rows)
    assert stored.table["_payload"].to_pylist() == [None]
    assert stored.table["text"].to_pylist() == [""]
    assert payloads_of(versions.files().newest(Response), stored.table) == [payload]


# --- which fields -----------------------------------------------------------------------------------------------------

NOBODYS = {
    "GroupControl": "time, as a record",
    "Batch": "refers to groups",
    "AdapterEvent": "files of weights: what they learnt is not undone by a key (docs/privacy.md)",
    "DeadLetter": "has the record as it was written, which is sealed itself",
    "ExperimentEvent": "names of topics and settings",
    "AgentEvent": "what an operator registers",
    "JobEvent": "what a customer orders: its questions are a data set",
    "AccessEvent": "accounts, which `people` removes",
    "RequestEvent": "has no body",
    "GuardrailVerdict": "names rule, place and spans, and no text",
    "PrivacyEvent": "says what became of whom, by a pseudonym",
    "AnnotationEvent": "rows of files, which are removed with the file",
    "DatasetEvent": "counts and digests",
    "TriggerEvent": "counts and means",
    "SampleEvent": "rows of another trainer's queue, which it clears",
    "QueueEvent": "names of queues",
    "PromptEvent": "what an operator writes",
    "ToolEvent": "what an operator registers",
    "TrainingCall": "data of another trainer, which it sends and keeps",
    "TrainingResult": "the same",
}
"""Events without a subject, and why."""
IN_CLEAR = {
    "id": "task_id response_id reward_id group_id turn_id trajectory_id event_id sampling_id parent_id run_id call_id "
    "thread_id thread document_id answer_id item_turn answer_turn verdict_id supersedes child_run remote_task "
    "tool_call_id id retry_key checkpoint runs",
    "a name that code or an operator gives": "policy scenario tenant agent agent_id engine role tool tool_id source "
    "formula credit rubric rule media_type namespace key actor program file commit environment name type alias "
    "prompt_version prompt_alias model memory_config scorer_version protocol ignored gate dropped_reason cut endpoint "
    "source_topic Response.branches.reason AdvantagedGroup.responses.branches.reason AdvantagedGroup.left_out.reason "
    "Turn.reason ThreadEvent.call.error",
    "a digest of no words": "base_digest tokenizer_digest template_digest sha256 rubric_digest prompt_digest "
    "ThreadEvent.call.digest",
    "a trace, or the pseudonym": "traceparent subject",
}
"""Names of text fields that stay in clear, and why."""


def texts_in_clear(kind: Any, path: str = "") -> Iterator[str]:
    """Yield the paths of text fields, and of values per token, that are not marked."""
    for name, shape in shapes(kind).items():
        if shape.personal is None:
            yield from _texts_in_clear(shape, f"{path}.{name}")


def _texts_in_clear(shape: Shape, path: str) -> Iterator[str]:
    if dataclasses.is_dataclass(shape.base):
        yield from texts_in_clear(shape.base, path)
    elif shape.base in (tuple, dict) and shape.item is not None:
        yield from _texts_in_clear(shape.item, path)
    elif shape.base is str or (shape.base in VIEWS and shape.base not in (LossMask, Octets)):
        yield path


def test_every_text_of_an_event_with_a_subject_is_sealed_or_listed_with_a_reason() -> None:
    listed = {name for names in IN_CLEAR.values() for name in names.split()}
    unlisted = [f"{kind.__name__}{path}" for kind in WITH_SUBJECT for path in texts_in_clear(kind)]
    assert [path for path in unlisted if listed.isdisjoint((path, path.rpartition(".")[2]))] == []
    assert NOBODYS.keys() == {kind.__name__ for kind in EVENTS} - {kind.__name__ for kind in WITH_SUBJECT}


@pytest.mark.parametrize("kind", sorted({shape.event for shape in SHAPES.values()}, key=lambda kind: kind.__name__))
def test_sealed_is_the_last_field_of_every_version_that_has_it(kind: Any) -> None:
    for schema in versions.files().versions(kind.__name__):
        names = [field["name"] for field in schema.definition["fields"]]
        assert "sealed" not in names[:-1]
        assert ("subject" in names) == (names[-1] == "sealed")


def test_metadata_of_the_system_stay_in_clear_and_a_callers_do_not(keys: SubjectKeys) -> None:
    written = task(subject="ann", metadata={"purpose": "serve", "note": CANARY})
    closed = decode_closed(encode(written), Task)
    assert isinstance(closed, Task) and closed.metadata == {"purpose": "serve"}


PER_EVENT: dict[str, Any] = {"task": task, "response": response}


@pytest.mark.parametrize("name", PER_EVENT)
def test_no_byte_in_the_log_has_a_planted_word(keys: SubjectKeys, name: str) -> None:
    message = (Message(role="user", content=CANARY),)
    changes = {"task": {"messages": message, "verifier": f'{{"answer": "{CANARY}"}}'}, "response": {"text": CANARY}}
    assert CANARY.encode() not in encode(PER_EVENT[name](subject="ann", **changes[name]))
