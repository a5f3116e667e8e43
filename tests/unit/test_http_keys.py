"""Keys in HTTP headers: copied with blanks around them, and never shown."""

from __future__ import annotations

import pytest

from streams.egress.http_client import bearer
from streams.errors import SettingsError


@pytest.mark.parametrize(("key", "sent"), [("k-1", "k-1"), ("k-1\n", "k-1"), (" k-1\r\n", "k-1")])
def test_blanks_and_line_ends_around_a_key_are_left_out(key: str, sent: str) -> None:
    assert bearer(key, "KEY") == {"Authorization": f"Bearer {sent}"}


@pytest.mark.parametrize("key", [None, "", " \n"])
def test_an_empty_key_is_none(key: str | None) -> None:
    assert bearer(key, "KEY") == {}


@pytest.mark.parametrize("key", ["k\n1", "k\x001", "ké", "k\x7f"])
def test_a_key_that_no_header_can_have_is_refused_and_not_shown(key: str) -> None:
    with pytest.raises(SettingsError) as caught:
        bearer(f"secret{key}secret", "OPENAI_API_KEY")
    assert "OPENAI_API_KEY" in str(caught.value) and "secret" not in str(caught.value)
