"""The interface of the Tinker API: its paths, the prefix of its keys, and errors as its SDK reads them."""

from __future__ import annotations

from typing import Literal

from gateway.http.body import Answer
from gateway.http.errors import STATUS, Dialect
from gateway.http.route import Interface
from streams.access.roles import PluginAction
from streams.errors import CallError


class TinkerErrorAnswer(Answer):
    """Why a request has no other answer, as Tinker's SDK prints it."""

    detail: str
    category: Literal["user", "server"]
    param: str | None


class TinkerDialect(Dialect):
    """Errors as Tinker's SDK reads them. It sends again what got 408, 409, 429 or 5xx, for minutes."""

    model = TinkerErrorAnswer

    def problem(self, error: CallError) -> TinkerErrorAnswer:
        category: Literal["user", "server"] = "server" if STATUS[error.kind] >= 500 else "user"
        return TinkerErrorAnswer(detail=error.message, category=category, param=error.parameter)

    def refusal(self, status: int, message: str) -> TinkerErrorAnswer:
        return TinkerErrorAnswer(detail=message, category="server" if status >= 500 else "user", param=None)


TRAIN = PluginAction("training.call")
TINKER = Interface(("/api/v1",), TinkerDialect(), described_in="tinker.md", key_prefix="tml-")
