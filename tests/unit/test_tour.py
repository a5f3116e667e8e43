"""The tour shows the bytes that the product writes."""

from __future__ import annotations

import pytest

from tests import tour


def test_the_tour_shows_the_bytes_of_today() -> None:
    page = tour.PAGE.read_text(encoding="utf-8")
    assert tour.filled(page) == page, "run `python -m tests.tour`, and see whether the words around it still hold"


def test_every_stop_of_the_tour_is_on_the_page() -> None:
    page = tour.PAGE.read_text(encoding="utf-8")
    for name, record in tour.walk():
        assert f"<!-- bytes: {name} -->\n```text\n{record.at} " in page


def test_a_stop_that_nothing_leads_to_is_named() -> None:
    with pytest.raises(KeyError, match="castle"):
        tour.filled("<!-- bytes: castle -->\n<!-- end -->\n")


def test_the_files_that_the_tour_names_are_there() -> None:
    root = tour.PAGE.parents[1]
    named = [word.strip("`") for word in tour.PAGE.read_text(encoding="utf-8").split() if word.startswith("`")]
    files = [word for word in named if word.endswith(".py")]
    assert files and [name for name in files if not (root / name).is_file()] == []
