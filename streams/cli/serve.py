"""The commands around the server for agents: serve, and chat with it in a terminal."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import click

from streams.cli.runtime import AppContext, importing, pass_call, until_stopped
from streams.errors import ServerError, StreamwardError

ANSWER_S = 600.0
"""How long `chat` waits for the next piece of an answer."""


@click.command()
@pass_call
def serve(call: AppContext, /) -> None:
    """Serve the policy to agents, and record every call.

    It speaks OpenAI's chat completions, completions and responses, and Anthropic's messages, at serve.host and
    serve.port (http://127.0.0.1:8790/v1). Each call is a turn in the log before its answer ends. An agent's name is in
    the base URL, /agents/NAME/v1, or in the header X-Agent-ID. SIGTERM or Ctrl-C ends it, once answers in progress are
    finished and recorded.
    """
    call.working = True
    with until_stopped() as stop:
        from streams.kafka import admin

        admin.check_topics(call.settings, patient=True)
        with importing():
            from gateway import server
        server.run(call.settings, stop=stop)


@click.command()
@click.option("--system", default=None, metavar="TEXT", help="The system message before the conversation.")
@click.option("--model", default=None, metavar="NAME", help="POLICY@7: one version.  [default: whoever serves]")
@click.option("--max-tokens", type=click.IntRange(min=1), default=256, show_default=True, help="Most tokens to answer.")
@click.option(
    "--temperature", type=click.FloatRange(min=0), default=0.0, show_default=True, help="0: always the likeliest token."
)
@pass_call
def chat(call: AppContext, /, system: str | None, model: str | None, max_tokens: int, temperature: float) -> None:
    """Talk to the policy that `streamward serve` answers for.

    It reads lines. An empty one is skipped; the end of the input (Ctrl-D) ends the conversation, which is recorded as
    that of agent `chat`.
    """
    rule = call.settings.serve
    host = f"[{rule.host}]" if ":" in rule.host else rule.host
    url = f"http://{host}:{rule.port}/agents/chat/v1/chat/completions"
    messages = [] if system is None else [{"role": "system", "content": system}]
    body = {"model": model or call.settings.policy.name, "max_tokens": max_tokens, "temperature": temperature}
    stdin = click.get_text_stream("stdin")
    while True:
        if stdin.isatty():
            click.echo("> ", nl=False, err=True)
        line = stdin.readline()
        if not line:
            return
        if not line.strip():
            continue
        messages.append({"role": "user", "content": line.strip()})
        answer = ""
        for text in _answer(url, {**body, "messages": messages, "stream": True}):
            click.echo(text, nl=False)
            answer += text
        click.echo()
        messages.append({"role": "assistant", "content": answer})


def _answer(url: str, body: dict[str, Any]) -> Iterator[str]:
    """Yield the text of an answer as it comes. Raises ServerError."""
    from schemas import json_text

    request = urllib.request.Request(  # noqa: S310 - always http://, of a host on this machine
        url, json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    try:
        with urllib.request.urlopen(request, timeout=ANSWER_S) as answer:  # noqa: S310
            for line in answer:
                data = line.decode().removeprefix("data: ").strip()
                if not data or data == "[DONE]":
                    continue
                chunk = json_text.parse(data)
                if "error" in chunk:
                    raise ServerError(chunk["error"]["message"])
                for choice in chunk["choices"]:
                    yield choice["delta"].get("content") or ""
    except urllib.error.HTTPError as exc:
        raise ServerError(_said(exc)) from exc
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as exc:
        raise StreamwardError(f"{url} gives no answer: {exc}. Is `streamward serve` running?") from exc


def _said(exc: urllib.error.HTTPError) -> str:
    from schemas import json_text

    try:
        return f"{exc.code}: {json_text.parse(exc.read())['error']['message']}"
    except (OSError, ValueError, KeyError, TypeError):
        return f"{exc.code}: {exc.reason}"
