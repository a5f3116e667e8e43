"""Tool calls as people write them, to try a tool without a model.

{"name": "add", "arguments": {"a": 2}}, <tool_call>…</tool_call>, or another format of tool_calls.py ──► Message
"""

from __future__ import annotations

from schemas.events import Message
from streams.engines.rendering.tool_calls import FORMATS, HermesCalls


def read_handwritten(text: str, name: str) -> Message:
    """Return an answer that a person writes instead of a model; without a readable call, it is text.

    `name` tells its calls from those of others.

    >>> read_handwritten('{"name": "add", "arguments": {"a": 2}}', "1").tool_calls[0].name
    'add'
    """
    tagged = f"{HermesCalls.begin}{text}{HermesCalls.end}"
    replies = [calls.read(text, name).reply for calls in FORMATS] + [HermesCalls().read(tagged, name).reply]
    return next((reply for reply in replies if reply.tool_calls), Message(role="assistant", content=text))
