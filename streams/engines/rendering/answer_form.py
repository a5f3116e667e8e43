"""The form that a client forces on an answer, and the grammar of its text.

    response_format, tool_choice, … ──► AnswerForm ──► grammar (Lark, as llguidance reads it) ──► constraint.py

Spaces are allowed where JSON allows them, up to MOST_SPACES: a small model would otherwise write only spaces.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from schemas import json_text
from schemas.events import Tool
from streams.engines.rendering.tool_calls import ToolCallFormat

MOST_SPACES = 24
"""Maximum consecutive spaces and line breaks between the parts of JSON."""
JSON_OBJECT = '{"type":"object"}'
"""The schema of any JSON object."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerForm:
    """The form of an answer: text of a schema, or calls of tools. With both fields it may be either."""

    schema: str | None = None
    """JSON schema of the text; None: the answer has to call a tool."""
    tools: tuple[str, ...] = ()
    """Names of the tools that it may call."""
    several: bool = True
    """Whether it may make several calls."""

    def __str__(self) -> str:
        """Return it as JSON, in the form of the log."""
        fields: dict[str, object] = {} if self.schema is None else {"schema": json_text.parse(self.schema)}
        if self.tools:
            fields |= {"tools": self.tools, "several": self.several}
        return json.dumps(fields, ensure_ascii=False, separators=(",", ":"))


def grammar_of(form: AnswerForm, tools: Sequence[Tool], calls: ToolCallFormat | None, special: int | None) -> str:
    """Return the grammar of an answer; `tools` are those that are offered, `special` is as in `all_calls`."""
    rules, starts = list[str](), list[str]()
    offered = [tool for tool in tools if tool.name in form.tools]
    if offered and calls is not None:
        starts.append("calls")
        alternatives = " | ".join(f"call_{number}" for number in range(len(offered)))
        rules += [f"calls: {calls.all_calls(form.several, special)}", f"call: {alternatives}"]
        for number, tool in enumerate(offered):
            rules.append(f"call_{number}: {calls.one_call(tool.name, f'arguments_{number}')}")
            rules.append(f"arguments_{number}: {of_schema(tool.parameters, is_object=True)}")
    if form.schema is not None:
        starts.append("text")
        rules.append(f"text: {of_schema(form.schema)}")
    return "\n".join([f"start: {' | '.join(starts)}", *rules, ""])


def schema_alone(schema: str, *, is_object: bool = False) -> str:
    """Return the grammar of JSON of this schema, to check whether it can be forced."""
    return f"start: {of_schema(schema, is_object=is_object)}\n"


def of_schema(schema: str, *, is_object: bool = False) -> str:
    """Return the rule for JSON of this schema; `is_object`: it is an object, even if the schema does not say so."""
    value = json_text.parse(schema)
    if isinstance(value, dict):
        value = value | ({"type": "object"} if is_object and "$ref" not in value else {})
        value["x-guidance"] = {"whitespace_flexible": True, "whitespace_pattern": f"[ \\n\\r\\t]{{1,{MOST_SPACES}}}"}
    return f"%json {json.dumps(value)}"
