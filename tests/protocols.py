"""docs/protocols.md: what becomes of each parameter of each protocol, from the bodies in gateway/.

python -m tests.protocols           write the page
python -m tests.protocols --check   exit 1 if the page would change
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel

from gateway.http.body import use
from gateway.rooms.routes import TABLE
from tests.generated_page import write_or_check

PAGE = Path(__file__).parents[1] / "docs" / "protocols.md"
PATHS = (
    *("chat/completions", "completions", "responses", "messages", "messages/count_tokens", "feedback"),
    *("fine_tuning/jobs", "embeddings"),  # of plugins
)
BEGIN = """# Protocols: what becomes of each parameter

An agent speaks OpenAI's chat completions, completions or responses, or Anthropic's messages; `feedback` is Streamward's
own, and its errors have OpenAI's format. The paths follow `/v1`, `/agents/AGENT_ID/v1` or
`/agents/AGENT_ID/trajectories/TRAJECTORY_ID/v1`; `fine_tuning/jobs`, which orders a job, and `embeddings` follow
`/v1` alone. `GET …/models` lists what can be asked for, and `/openapi.json`
describes it all for programs. Without an agent in the path, the header `X-Agent-ID` names it. What has no path here,
such as images, gets status 404.

- **used**: it has its usual meaning.
- **refused**: the request gets status 400 and an error that names it. Accepted values ask for nothing, or for what
  happens anyway.
- **ignored**: it changes no answer. The header `x-streamward-ignored` of the answer names it, and so does the turn in
  the log.

Every other parameter is unknown, and refused by its name. Errors have the format of the protocol: 400 for a parameter,
404 for an unknown model, version or response, 409 for a contradiction with what is recorded, 413 for too long a body,
503 for a log or an engine that cannot take the call now; those of keys and limits are in [security](security.md). A
prompt longer than the context is a 400 with the code `context_length_exceeded` and the words `prompt is too long: 258
tokens > 199 maximum`, by which clients shorten the conversation. The answer's `model` says which version answered, and
the headers `x-request-id` and `x-streamward-trajectory` name its turn and its trajectory.

Content is text: images, sound and files are refused. Several text parts of one message are joined by line breaks. The
role `developer` is `system`, null is absent, and empty arguments of a call are `{}`; files of tasks and of examples are
read so, too. Tool calls are streamed when they are complete; a call that does not parse stays text.
An answer whose form is forced bears no loss ([agents](serve.md#answers-of-a-forced-form)).
Behind a conversation that ends with the model's own message comes another message: a client cannot begin an answer.

`python -m tests.protocols` writes this page from the classes that requests are read into.
"""


def page() -> str:
    """Return the page."""
    parts = [BEGIN]
    for path in PATHS:
        if (match := TABLE.find("POST", f"/v1/{path}")) is None:
            continue  # its plugin is left out
        rows = [f"| `{name}` | {what} | {why} |" for name, what, why in parameters(match.route.takes)]
        parts.append("\n".join([f"## POST {path}\n", "| parameter | | |", "|---|---|---|", *rows]) + "\n")
    return "\n".join(parts)


def parameters(body: type[BaseModel], where: str = "") -> Iterator[tuple[str, str, str]]:
    """Yield what becomes of each parameter; of those within another one, only what is refused or ignored."""
    for name, field in body.model_fields.items():
        path, (what, why) = f"{where}{name}", use(body, name)
        if not where or what != "used":
            yield path, what, why.replace("|", "\\|")
        inner = list(dict.fromkeys(_bodies(field.annotation)))
        yield from dict.fromkeys(row for each in inner for row in parameters(each, f"{path}."))


def _bodies(annotation: Any) -> Iterator[type[BaseModel]]:
    """Yield the models that a value of this type may hold."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for each in get_args(annotation):
        yield from _bodies(each)


if __name__ == "__main__":
    sys.exit(write_or_check(PAGE, page()))
