"""A prompt as people write it: a text, or messages in JSON, with the types of its variables.

    {"template": "Answer in {{language}}."}                                     ─┐
    {"messages": [{"role": "system", "content": …}, …], "variables": {"n": …}}  ─┴─► PromptBody ──► PromptText

Files, commands and requests have the same fields and the same error messages.
"""

from __future__ import annotations

from pydantic import Field, model_validator

from plugins.prompts.prompt_log import PromptText
from schemas.events import Message, PromptVariable
from schemas.faults import OutsideObject
from schemas.prompt_text import VariableType, types_of


class PromptMessageBody(OutsideObject):
    """A message of a prompt."""

    role: str
    content: str
    name: str | None = None


class PromptBody(OutsideObject):
    """The text of a version."""

    template: str | None = Field(None, description="a system message; {{name}} is where the value of a variable goes")
    messages: list[PromptMessageBody] | None = Field(None, description="or several, of system, user and assistant")
    variables: dict[str, VariableType] | None = Field(
        None, description="types of variables, by name; default: every {{name}} is a string"
    )

    @model_validator(mode="after")
    def _says_it_once(self) -> PromptBody:
        if (self.template is None) == (self.messages is None):
            raise ValueError("give either template or messages")
        return self

    def text(self, prompt: str, *, actor: str, reason: str) -> PromptText:
        """Return the text of a new version of `prompt`."""
        if self.messages is None:
            messages: tuple[Message, ...] = (Message(role="system", content=self.template or ""),)
        else:
            messages = tuple(Message(**message.model_dump()) for message in self.messages)
        types = types_of(message.content for message in messages) if self.variables is None else self.variables
        variables = tuple(PromptVariable(name=name, type=kind) for name, kind in types.items())
        return PromptText(prompt=prompt, messages=messages, variables=variables, actor=actor, reason=reason)
