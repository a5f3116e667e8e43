"""What a commit notes about changelogs, and which ones are not to be trusted."""

from __future__ import annotations

import pytest

from streams.worker.changelogs import Changelogs, Extent, distrust, read_note

TOPIC = "streams-open-groups-changelog"


def note_of(**extents: tuple[int, int]) -> str:
    changelogs = Changelogs()
    changelogs.accept({(topic, 0): Extent(*extent) for topic, extent in extents.items()})
    return changelogs.note(0)


def test_note_grows_with_what_is_acknowledged_and_is_read_back() -> None:
    changelogs = Changelogs()
    changelogs.accept({(TOPIC, 0): Extent(2, 7), (TOPIC, 1): Extent(0, 90)})
    assert changelogs.acknowledged((TOPIC, 0), 7) is None
    assert changelogs.acknowledged((TOPIC, 0), 9) is None
    assert read_note(changelogs.note(0)) == {TOPIC: Extent(2, 10)}
    assert read_note(changelogs.note(1)) == {TOPIC: Extent(0, 90)}
    assert changelogs.note(2) == ""


def test_record_acknowledged_late_does_not_shorten_the_note() -> None:
    # It had been written the recovery read the end, and its acknowledgement came after.
    changelogs = Changelogs()
    changelogs.accept({(TOPIC, 0): Extent(0, 7)})
    assert changelogs.acknowledged((TOPIC, 0), 5) is None
    assert read_note(changelogs.note(0)) == {TOPIC: Extent(0, 7)}


def test_changelog_that_goes_back_under_the_worker_is_noticed() -> None:
    changelogs = Changelogs()
    changelogs.accept({(TOPIC, 0): Extent(0, 7)})
    assert changelogs.acknowledged((TOPIC, 0), 7) is None
    why = f"{TOPIC}[0]: a record was written at 0, though 7 had been written"
    assert changelogs.acknowledged((TOPIC, 0), 0) == why


@pytest.mark.parametrize(
    ("found", "why"),
    [
        (Extent(0, 10), None),
        (Extent(0, 12), None),
        (Extent(0, 9), "ends at 9, but 9 had been written"),
        (Extent(0, 0), "ends at 0, but 9 had been written (it was recreated or emptied)"),
        (Extent(3, 10), "begins at 3, but began at 0 before"),
        (Extent(10, 10), "begins at 10, but began at 0 before"),
    ],
)
def test_changelog_is_trusted_only_if_nothing_of_what_was_noted_is_gone(found: Extent, why: str | None) -> None:
    notes = [note_of(open=(0, 4)), "", note_of(open=(0, 10))]
    assert distrust({"open": found}, notes, committed=True) == ({} if why is None else {"open": why})


def test_cut_that_was_accepted_is_not_found_again() -> None:
    assert distrust({"open": Extent(3, 12)}, [note_of(open=(3, 10))], committed=True) == {}


def test_table_that_no_commit_knows_yet_starts_empty() -> None:
    found = {"open": Extent(0, 10), "new": Extent(0, 0)}
    assert distrust(found, [note_of(open=(0, 10))], committed=True) == {}


@pytest.mark.parametrize("metadata", ["", "by hand", '{"v":9,"changelogs":{"open":[0,99]}}', "[]", '{"v":1}'])
def test_commit_without_a_note_is_trusted_unless_every_changelog_is_empty(metadata: str) -> None:
    some = {"open": Extent(0, 1), "seen": Extent(0, 0)}
    none = {"open": Extent(0, 0), "seen": Extent(0, 0)}
    assert distrust(some, [metadata], committed=True) == {}
    assert distrust(none, [metadata], committed=False) == {}
    assert set(distrust(none, [metadata], committed=True)) == {"open", "seen"}


def test_a_note_ends_where_a_reader_of_c_strings_looks_for_its_end() -> None:
    changelogs = Changelogs()
    changelogs.accept({(TOPIC, 0): Extent(2, 10)})
    note = changelogs.note(0)
    assert note.endswith("\0")
    assert read_note(note) == read_note(note.rstrip("\0")) == {TOPIC: Extent(2, 10)}
