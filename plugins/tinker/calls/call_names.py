"""The names of models, sampling sessions, saved weights and calls, which the SDK derives in the same way.

SESSION:train:0     SESSION:sample:1     SESSION:loss:0     tinker://SESSION:train:0/weights/NAME
SESSION:train:0:7   the seventh call of that model          SESSION:sample:1:3   its fourth prompt
SESSION-train-0     the policy whose versions are what the model saved
"""

from __future__ import annotations

from typing import Literal, NamedTuple

CheckpointKind = Literal["weights", "sampler_weights"]
SCHEME = "tinker://"


class CheckpointPath(NamedTuple):
    """The parts of a path of saved weights."""

    model_id: str
    kind: str
    name: str


def model_name(session_id: str, number: int) -> str:
    """Return the id of a model."""
    return f"{session_id}:train:{number}"


def sampler_name(session_id: str, number: int) -> str:
    """Return the id of a sampling session."""
    return f"{session_id}:sample:{number}"


def loss_name(session_id: str, number: int) -> str:
    """Return the id of a custom loss."""
    return f"{session_id}:loss:{number}"


def numbered_call(of: str, seq_id: int) -> str:
    """Return the id of a call of a model or a sampling session."""
    return f"{of}:{seq_id}"


def number_of(name: str) -> int:
    """Return the number of a model or a sampling session in its session: the same in a run that is repeated.

    >>> number_of("5f2a:sample:3")
    3
    """
    return int(name.rpartition(":")[2])


def policy_of(model_id: str) -> str:
    """Return the policy whose versions are the weights that a model saved.

    >>> policy_of("red.5f2a:train:0")
    'red.5f2a-train-0'
    """
    return model_id.replace(":", "-")


def checkpoint_path(model_id: str, kind: str, name: str) -> str:
    """Return the path of saved weights."""
    return f"{SCHEME}{model_id}/{kind}/{name}"


def parse_path(path: str) -> CheckpointPath | None:
    """Return the parts of a path of saved weights; None if it is none.

    >>> parse_path("tinker://5f2a:train:0/weights/last")
    CheckpointPath(model_id='5f2a:train:0', kind='weights', name='last')
    """
    model_id, kind, name = [*path.removeprefix(SCHEME).split("/"), "", "", ""][:3]
    is_whole = path == checkpoint_path(model_id, kind, name) and all((model_id, name))
    return CheckpointPath(model_id, kind, name) if is_whole and kind in ("weights", "sampler_weights") else None
