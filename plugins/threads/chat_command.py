"""`streamward agents chat`: talk with an agent of a running server, and see each call of its tools.

a line ──► POST /acp/runs/stream ──► steps and the answer ──► it waits: a question ──► a line ──► resumed
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from streams.cli.runtime import AppContext, pass_call
from streams.errors import ServerError, StreamwardError

if TYPE_CHECKING:
    import httpx2

ANSWER_S = 600.0
"""Time that is waited for the next step of a run."""


@click.command()
@click.argument("name")
@click.option("--key", envvar="STREAMWARD_KEY", default=None, help="Key of the server.  [default: $STREAMWARD_KEY]")
@pass_call
def chat(call: AppContext, /, name: str, key: str | None) -> None:
    """Chat with a registered agent.

    It answers through `streamward serve`. Each line of input is a message of one thread. Calls of tools are printed as
    they are made. A call that needs consent is asked about: answer yes or no. For a tool that the server does not have,
    type its result.
    """
    import httpx2

    url, stdin = f"{call.settings.serve.url}/acp", click.get_text_stream("stdin")
    headers = {} if key is None else {"X-Api-Key": key, "X-Agent-ID": name}
    try:
        with httpx2.Client(headers=headers, timeout=ANSWER_S) as client:
            thread = client.post(f"{url}/threads", json={})
            _check(thread)
            target = {"thread_id": thread.json()["thread_id"], "agent_id": name, "stream_mode": ["updates"]}
            while line := stdin.readline():
                fields: dict[str, Any] = {"input": line.strip()}
                while line.strip() and (waits := _say(client, url, target | fields)):
                    fields = {"command": {"resume": {wait["tool_call_id"]: _ask(wait, stdin) for wait in waits}}}
    except (httpx2.HTTPError, httpx2.InvalidURL) as exc:
        raise StreamwardError(f"{url} gives no answer: {exc}. Is `streamward serve` running?") from exc


def _say(client: httpx2.Client, url: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    """Print what a run does, and return the calls that it waits for. Raises ServerError."""
    with client.stream("POST", f"{url}/runs/stream", json=body) as response:
        _check(response)
        for event, data in _events(response):
            if event == "error":
                click.echo(f"{data['error']}: {data['message']}", err=True)
            elif event == "updates" and "__interrupt__" in data:
                return [interrupt["value"] for interrupt in data["__interrupt__"]]
            elif event == "updates":
                for update in data.values():
                    for message in update["messages"]:
                        _print(message)
    return []


def _print(message: dict[str, Any]) -> None:
    if message["content"] or not message.get("tool_calls"):
        click.echo(f"  = {message['content']}" if message["role"] == "tool" else message["content"])
    for call in message.get("tool_calls", ()):
        click.echo(f"  {_call_text(call['name'], call['args'])}")


def _call_text(name: str, arguments: dict[str, Any]) -> str:
    return f"{name}({', '.join(f'{key}={value!r}' for key, value in arguments.items())})"


def _ask(wait: dict[str, Any], stdin: Any) -> str:
    """Return a person's answer to a call that waits; at the end of the input: no."""
    question = {
        "results": "Its result",
        "consent": "Allow it",
        "unfinished": "It may have been made. Make it again",
        "child": "Its run waits. Your answer to that run",
        "remote": f"It asks: {wait.get('question')}. Your answer",
    }
    click.echo(f"  {_call_text(wait['name'], wait['arguments'])}: {question[wait['waits_for']]}?", err=True)
    return stdin.readline().strip() or "no"


def _events(response: httpx2.Response) -> Iterator[tuple[str, Any]]:
    from schemas import json_text

    event = ""
    for line in response.iter_lines():
        name, _, value = line.partition(": ")
        if name == "event":
            event = value
        elif name == "data":
            try:
                yield event, json_text.parse(value)
            except ValueError as exc:
                raise ServerError(f"the stream has no JSON: {exc}") from exc


def _check(response: httpx2.Response) -> None:
    from schemas import json_text

    if response.is_success:
        return
    try:
        message = json_text.parse(response.read())["message"]
    except (ValueError, KeyError, TypeError):
        message = response.reason_phrase
    raise ServerError(f"{response.status_code}: {message}")
