"""Recognise clients of older protocol versions, and answer them with a helpful sentence.

a path without a route ──► older_form ──► the sentence of its error
a method, a header, a field, a role of an older version ──► sentence ──► the error of its own protocol
"""

from __future__ import annotations

import re
from typing import NamedTuple


class OlderForm(NamedTuple):
    """A form of an older version."""

    got: str
    spoken: str
    way_out: str

    @property
    def text(self) -> str:
        """The sentence that a client reads."""
        return f"this is {self.got}, and this server speaks {self.spoken}: {self.way_out}"


OlderPaths = tuple[tuple[str, OlderForm], ...]
"""Patterns of paths that have no route here, each with its older form."""
FUNCTIONS = OlderForm(
    "OpenAI's form of calls before `tools`",
    "the one with `tools`, `tool_choice` and `tool_calls`",
    'send each function as {"type": "function", "function": …}, and results with role `tool` and `tool_call_id`',
)
MCP_HEADER = OlderForm(
    "MCP {version}", "MCP {versions}", "send one of these as mcp-protocol-version, and as protocolVersion of initialize"
)
RESPONSES = ("OpenAI's Responses API", "send the conversation to POST /v1/responses")
PATHS: OlderPaths = (
    (r".*/v1/(assistants|threads)(/.*)?", OlderForm("OpenAI's Assistants API", *RESPONSES)),
    (
        r".*/v1/(engines/.+|edits|answers|classifications|search)",
        OlderForm("OpenAI's API of engines", "the one of models", "name the model in POST /v1/completions"),
    ),
    (
        r".*/v1/fine-tunes(/.*)?",
        OlderForm("OpenAI's API of fine-tunes", "the one of fine-tuning jobs", "POST /v1/fine_tuning/jobs"),
    ),
    (
        r".*/v1/complete",
        OlderForm("Anthropic's Text Completions API", "its Messages API", "send messages to POST /v1/messages"),
    ),
    (
        r"(/mcp(/.+)?)?/(sse|messages)",
        OlderForm("MCP 2024-11-05 over HTTP and SSE", "MCP over streamable HTTP", "send requests to POST /mcp"),
    ),
)
"""Those of OpenAI, Anthropic and MCP; the others are declared with their interfaces."""


def older_form(path: str, paths: OlderPaths) -> OlderForm | None:
    """Return the older form with this path, if any."""
    return next((form for pattern, form in paths if re.fullmatch(pattern, path)), None)
