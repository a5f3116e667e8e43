"""The place of a server that is frozen while it looks at it."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from streams.kafka import idle_member
from streams.kafka.idle_member import SoleMember
from streams.kafka.retry import BrokerOutage
from streams.settings.model import Settings

FROZEN_S = 3600.0


class Looks:
    """A member's client and its clock: the process is frozen in the call of this name."""

    def __init__(self, frozen_in: str) -> None:
        self.now_s, self._frozen_in = 1000.0, frozen_in

    def _call(self, name: str) -> None:
        self.now_s += FROZEN_S if name == self._frozen_in else 0.001

    def poll(self, _: float) -> None:
        self._call("poll")

    def memberid(self) -> str:
        self._call("memberid")
        return "us"

    def committed(self, *_: object, **__: object) -> list[Any]:
        self._call("committed")
        return [SimpleNamespace(metadata=self.claim)]

    claim = ""


@pytest.mark.parametrize("frozen_in", ["poll", "memberid", "committed", "members", "nothing"])
@pytest.mark.parametrize("is_lost", [False, True])
def test_a_place_is_held_from_when_it_was_asked_for(
    monkeypatch: pytest.MonkeyPatch, frozen_in: str, is_lost: bool
) -> None:
    settings, looks = Settings(), Looks(frozen_in)
    monkeypatch.setattr(idle_member.time, "monotonic", lambda: looks.now_s)
    place = SoleMember(settings, "serve", threading.Event(), BrokerOutage(settings.kafka, threading.Event()))
    rounds = iter([False, False, True, True])
    monkeypatch.setattr(place._stopping, "wait", lambda _: next(rounds))

    def members() -> dict[str, str]:
        looks._call("members")
        return {"us": "this one"}

    monkeypatch.setattr(place, "_members", members)
    looks.claim, place._client = place._claim, looks
    place._member_id = "another" if is_lost else "us"
    place._stay()
    reached = {"poll", "memberid"} | ({"committed", "members"} if is_lost else set())
    assert place.is_held == (frozen_in not in reached)
