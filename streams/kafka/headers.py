"""The headers of a record, where Kafka's Python client can read them.

    message ──► headers_of ──► names as text, values as bytes
                          └──► a name that is not UTF-8: LEFT_OUT, in place of all headers of this record

Kafka takes any bytes as a header's name. The client reads the headers of a record at once and fails if one name is not
UTF-8, so the others cannot be kept either. Every reader follows this rule, the Faust worker's too
(streams/worker/faust/header_names.py), and `audit`, `admin archive sync` and `admin archive restore` count the records.
"""

from __future__ import annotations

from collections.abc import Iterable
from operator import methodcaller
from typing import Any

Headers = tuple[tuple[str, bytes | None], ...]

LEFT_OUT: Headers = (("streamward-headers-left-out", None),)
"""The headers of a record whose own could not be read. Dead letters, archives and restored topics copy it, so that the
loss stays visible."""

_read_headers = methodcaller("headers")
"""A client that fails returns a value and leaves its exception behind. Once Python has specialised the call, a plain
`message.headers()` takes that value; this one always looks for the exception, and raises it as a SystemError. Call it
once for a message: a second call returns a list with a NULL inside, which ends the process."""


def headers_of(message: Any) -> Headers:
    """Return the headers of a message, or LEFT_OUT. Call it once for a message."""
    try:
        return tuple(_read_headers(message) or ())
    except SystemError:
        return LEFT_OUT


def decode_headers(pairs: Iterable[tuple[bytes, bytes | None]]) -> Headers:
    """Return headers from names in bytes, or LEFT_OUT: an archive of an older release may hold any."""
    try:
        return tuple((name.decode(), value) for name, value in pairs)
    except UnicodeDecodeError:
        return LEFT_OUT
