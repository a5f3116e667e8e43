"""Errors as A2A's clients read them: the protocol's code, and a google.rpc.ErrorInfo with its reason."""

from __future__ import annotations

from typing import NamedTuple

from gateway.http.errors import ACTIONS
from gateway.http.jsonrpc import INTERNAL_ERROR, INVALID_PARAMS, RpcError
from streams.access.keys import mask
from streams.errors import CallError

ERROR_INFO = "type.googleapis.com/google.rpc.ErrorInfo"
DOMAIN = "a2a-protocol.org"


class TaskError(NamedTuple):
    """A kind of error."""

    code: int
    reason: str


TASK_NOT_FOUND = TaskError(-32001, "TASK_NOT_FOUND")
TASK_NOT_CANCELABLE = TaskError(-32002, "TASK_NOT_CANCELABLE")
PUSH_NOT_SUPPORTED = TaskError(-32003, "PUSH_NOTIFICATION_NOT_SUPPORTED")
UNSUPPORTED = TaskError(-32004, "UNSUPPORTED_OPERATION")
CONTENT_NOT_SUPPORTED = TaskError(-32005, "CONTENT_TYPE_NOT_SUPPORTED")
NO_EXTENDED_CARD = TaskError(-32007, "EXTENDED_AGENT_CARD_NOT_CONFIGURED")
VERSION_NOT_SUPPORTED = TaskError(-32009, "VERSION_NOT_SUPPORTED")
INVALID = TaskError(INVALID_PARAMS, "INVALID_PARAMS")
INTERNAL = TaskError(INTERNAL_ERROR, "INTERNAL_ERROR")


def task_error(error: TaskError, message: str, **metadata: str) -> RpcError:
    """Return an error. A key or token that it repeats is cut short in it."""
    info: dict[str, object] = {"@type": ERROR_INFO, "reason": error.reason, "domain": DOMAIN}
    if metadata:
        info["metadata"] = {name: mask(text) for name, text in metadata.items()}
    return RpcError(error.code, mask(message), [info])


def from_call_error(error: CallError) -> RpcError:
    """Return the error of a call that runs have refused."""
    kind = INTERNAL if error.kind in ("busy", "internal") else INVALID
    metadata = {"suggested_action": error.way_out or ACTIONS[error.kind]}
    if error.parameter is not None:
        metadata["parameter"] = error.parameter
    return task_error(kind, error.message, **metadata)
