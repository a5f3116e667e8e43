"""One record of the log, all of it.

TOPIC, partition, offset ──► the row of its view ──► fields, what is nested as JSON
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from streams.errors import NotFoundError
from streams.kafka.topics import topics
from streams.settings.model import Settings
from streams.tools.query.views import name_of, quoted
from streams.tools.views.log_view import Look


def sql(label: str, partition: int, offset: int) -> str:
    """Return the statement that finds a record."""
    return f"SELECT * FROM {quoted(name_of(label))} WHERE _partition = {partition} AND _offset = {offset}"  # noqa: S608


def one(look: Look, settings: Settings, label: str, partition: int, offset: int) -> dict[str, Any]:
    """Return a record's fields. Raises NotFoundError if there is none, or it is no event."""
    known = topics(settings.topics)
    if label not in known:
        raise NotFoundError(f"there is no topic {label[:80]!r}; there are {', '.join(known)}")
    row = look.first(sql(label, partition, offset)) if max(partition, offset) < 2**63 else None
    name = known[label].name
    if row is None:
        what = next((bad for bad in look.bad(label) if bad.at == (name, partition, offset)), None)
        if what is not None:
            raise NotFoundError(f"{what.at} cannot be read: {what.reason}: {what.error}")
        raise NotFoundError(f"{name}[{partition}]@{offset}: there is no such record in what this page reads")
    previous, following = beside(look, label, name, partition, offset)
    return {
        "topic": name,
        "time": row["_timestamp"],
        "key": row["_key"],
        "fields": fields({key: value for key, value in row.items() if not key.startswith("_")}),
        "previous": previous,
        "next": following,
    }


def beside(look: Look, label: str, name: str, partition: int, offset: int) -> tuple[int | None, int | None]:
    """Return the offsets of the records before and behind one in its partition, those that cannot be read too."""
    found = look.rows(
        f"SELECT max(_offset) FILTER (_offset < {offset}) AS previous, min(_offset) FILTER (_offset > {offset}) "  # noqa: S608
        f"AS following FROM {quoted(name_of(label))} WHERE _partition = {partition}"
    )[0]
    bad = [one.at.offset for one in look.bad(label) if (one.at.topic, one.at.partition) == (name, partition)]
    before = [one for one in (found["previous"], *bad) if one is not None and one < offset]
    behind = [one for one in (found["following"], *bad) if one is not None and one > offset]
    return max(before, default=None), min(behind, default=None)


def fields(found: Mapping[str, Any]) -> list[tuple[str, str, bool]]:
    """Return names and values as text, and whether a value was text."""
    return [(name, as_json(value), isinstance(value, str)) for name, value in found.items()]


def as_json(value: Any) -> str:
    """Return a value as text: strings as they are, the rest as JSON with lists of numbers on one line.

    >>> print(as_json({"a": [1, 2], "b": "x"}))
    {
      "a": [1, 2],
      "b": "x"
    }
    """
    return value if isinstance(value, str) else _json(value, "")


def _json(value: Any, indent: str) -> str:
    inner = indent + "  "
    if isinstance(value, dict) and value:
        parts = [
            f"{inner}{json.dumps(str(name), ensure_ascii=False)}: {_json(one, inner)}" for name, one in value.items()
        ]
        return "{\n" + ",\n".join(parts) + f"\n{indent}}}"
    if isinstance(value, list) and any(isinstance(one, dict | list) for one in value):
        return "[\n" + ",\n".join(inner + _json(one, inner) for one in value) + f"\n{indent}]"
    return json.dumps(value, ensure_ascii=False, default=str)
