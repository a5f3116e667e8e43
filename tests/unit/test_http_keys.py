"""Keys in HTTP headers: copied with blanks around them, and never shown."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from streams.environments.environment_pool import credential_of
from streams.environments.episodes.environment import EpisodeError
from streams.errors import SettingsError
from streams.http_client import bearer
from streams.settings.model import Environments

SERVER = "http://127.0.0.1:9000/mcp"


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


def test_a_credential_of_a_tool_is_read_as_any_key(tmp_path: Path) -> None:
    file = tmp_path / "credentials.json"
    limits = Environments(servers=SERVER, credentials=file)
    file.write_text(json.dumps({SERVER: "k-1\n"}))
    assert credential_of(SERVER, limits) == "k-1"
    file.write_text(json.dumps({SERVER: "secret\nsecret"}))
    with pytest.raises(EpisodeError) as caught:
        credential_of(SERVER, limits)
    assert caught.value.reason == "not_allowed" and "secret" not in str(caught.value)
