"""Every error Streamward raises on purpose.

    StreamwardError                    exit 1
    ├── SettingsError        the run cannot start as configured             exit 2
    │   ├── UnknownSettingError  no setting has this key                say which option may be meant
    │   └── JobRequestError      a parameter of a job is wrong
    ├── NotFoundError        what was named does not exist                  exit 3
    ├── RefusedError         a rule forbids it: a lock, a stale expectation exit 4
    │   ├── OtherBaseError       the policy is of another base model        a fleet leaves it alone
    │   ├── ContaminatedError    rows have questions that a suite holds out leave them out, or say who lets them in
    │   └── LoginRefused         nobody is let in by this                   say why, or when to try again
    ├── LogError             the broker did not answer, or refused          retry, then stop: exit 5
    │   ├── BrokerUnreachable    it did not answer in time; it may later
    │   ├── StoppedWaiting       asked to stop during an outage             end, without an error
    │   │   └── StoppedReading       asked to stop during a long read
    │   └── RegistryUnavailable  the schema registry did not answer
    ├── ClusterError         Ray did not answer, or has no room             when it does: exit 5
    ├── LostProcessError     a process that this one works with is gone     start all of them again: exit 75
    ├── ModelServerError     a server that samples for an engine failed
    │   ├── ServerUnavailable    it cannot be asked now                     wait, then ask again
    │   ├── ServerError          it failed on this request                  try again, elsewhere if possible
    │   ├── BadAnswer            what it sent is no answer to this request  try again, elsewhere if possible
    │   ├── RequestRejected      it will never answer this request          the request fails
    │   └── WrongModel           its weights or logprobs are not ours       use another server
    ├── ProviderError        an outside API of fine-tuning did not answer   repeat the command: exit 5
    ├── CallError            an agent's call of the model gets no answer    tell its client
    └── EventError           this one event cannot be used                  dead-letter, go on
        ├── UndecodableEvent     its bytes are not what they should be
        ├── ContradictoryEvent   well formed, and at odds with a rule or a sibling
        └── ScoreError           a response has no score

The branches are decisions: code that catches one knows what to do without reading the message. The message is for
people: where, what, expected and got, and what to do. `schemas` imports nothing of `streams`, so its EncodeError and
SchemaError are outside the tree; the command line treats them as exit 1.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Literal

EXIT_RESTART = 75
"""EX_TEMPFAIL: this process cannot continue, its committed offsets are sound, and it should be restarted."""


class StreamwardError(Exception):
    """Base of all; `exit_code` is what the process ends with when nobody catches it."""

    exit_code = 1


class SettingsError(StreamwardError):
    """The run cannot start as configured."""

    exit_code = 2


class UnknownSettingError(SettingsError):
    """No setting has this key; `hint` names the nearest."""

    def __init__(self, key: str, problem: str, hint: str) -> None:
        super().__init__(f"{problem}; {hint}")
        self.key, self.problem = key, problem


class JobRequestError(SettingsError):
    """A parameter of a job is wrong; `parameter` is its path, if it is one alone."""

    def __init__(self, message: str, parameter: str | None = None) -> None:
        super().__init__(message)
        self.parameter = parameter


class NotFoundError(StreamwardError):
    """What was named does not exist."""

    exit_code = 3


def check_policy(policy: str, policies: Collection[str]) -> None:
    """Raise NotFoundError, which names the policies of the log, if it has some and this is none of them."""
    if policies and policy not in policies:
        raise NotFoundError(
            f"the log has no policy {policy!r}, only {', '.join(sorted(policies))}: name one with --policy, or set "
            "policy.name"
        )


class RefusedError(StreamwardError):
    """A rule forbids it."""

    exit_code = 4


class OtherBaseError(RefusedError):
    """The policy is of another base model than this process has."""


class ContaminatedError(RefusedError):
    """Rows that would be trained on have questions that a suite holds out."""


class LoginRefused(RefusedError):
    """Nobody is let in by what was sent; `wait_ms`: it was not looked at, and may be sent again after so long.

    `about` is whom it names, for the log: who is refused is not told whether there is such a person.
    """

    def __init__(self, message: str, *, wait_ms: int | None = None, about: str | None = None) -> None:
        super().__init__(message)
        self.wait_ms, self.about = wait_ms, about


class LogError(StreamwardError):
    """The broker did not answer, or refused."""

    exit_code = 5


class ClusterError(StreamwardError):
    """The cluster that processes are to run on did not answer, or has no room for them."""

    exit_code = 5


class LostProcessError(StreamwardError):
    """A process that this one works with is gone or silent; restart all of them."""

    exit_code = EXIT_RESTART


class ModelServerError(StreamwardError):
    """A server that samples for an engine failed."""


class ServerUnavailable(ModelServerError):
    """It cannot be asked now. `lost`: it may have restarted, so what was known of it no longer holds."""

    def __init__(self, message: str, *, lost: bool, wait_s: float | None = None) -> None:
        super().__init__(message)
        self.lost, self.wait_s = lost, wait_s


class ServerError(ModelServerError):
    """A healthy server failed on this request (HTTP 5xx)."""


class BadAnswer(ModelServerError):
    """What it sent is no answer to this request."""


class RequestRejected(ModelServerError):
    """It will not answer this request, now or later (HTTP 4xx); `status` and `said` are its own."""

    def __init__(self, message: str, status: int, said: str) -> None:
        super().__init__(message)
        self.status, self.said = status, said


class WrongModel(ModelServerError):
    """It must not answer: its weights are not those asked for, or it reports other logprobs."""


CallErrorKind = Literal[
    "invalid",  # what was sent is malformed, or cannot be answered as it is
    "unknown_parameter",
    "unsupported",  # well formed, and not something this server can do
    "not_found",  # a model, a version, a trajectory or a turn
    "too_large",
    "unsupported_media_type",  # its body is compressed in a way that is not read here
    "context_length_exceeded",  # as OpenAI calls it, whose clients shorten the conversation
    "conflict",  # it contradicts what is recorded
    "permission_denied",  # what it names takes more than the role has
    "request_timeout",  # its body did not arrive in time
    "gone",  # what it names has ended for good
    "busy",  # the broker or the engine cannot take it now; try again later
    "content_filter",  # a guard refuses what it says
    "internal",
]


EXIT_CODES: Mapping[CallErrorKind, int] = {
    "invalid": 2, "unknown_parameter": 2, "not_found": 3, "gone": 3, "conflict": 4, "permission_denied": 4,
    "content_filter": 4, "busy": 5,
}  # fmt: skip
"""Of a command that a route answers, those of the errors above; of every other kind 1."""


class ProviderError(StreamwardError):
    """An outside API of fine-tuning did not answer, or its answer cannot be read; repeating the command continues."""

    exit_code = 5


class CallError(StreamwardError):
    """A model call gets no answer; each protocol tells it in its own format."""

    def __init__(
        self,
        kind: CallErrorKind,
        message: str,
        parameter: str | None = None,
        *,
        found: Mapping[str, Any] | None = None,
        way_out: str | None = None,
    ) -> None:
        """`parameter` is the path of the one that is wrong, e.g. `messages[0].role`; `found`: what is there instead.

        `way_out`: what to do about it, where that is more than the kind of error says.
        """
        super().__init__(message)
        self.kind, self.message, self.parameter, self.found = kind, message, parameter, found
        self.way_out = way_out
        self.exit_code = EXIT_CODES.get(kind, 1)


class EventError(StreamwardError):
    """This one event cannot be used; `reason` is the short word dead letters are grouped by."""

    reason = "unusable"

    def __init__(self, message: str, *, reason: str | None = None) -> None:
        super().__init__(message)
        if reason is not None:
            self.reason = reason


class UndecodableEvent(EventError):
    """Its bytes are not what they should be."""

    reason = "undecodable"


class ContradictoryEvent(EventError):
    """Well formed, and at odds with a rule or with a sibling."""

    reason = "contradictory"
