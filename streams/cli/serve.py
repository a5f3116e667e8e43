"""The commands of the server for agents: serve, and chat in a terminal."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import click

from streams.cli.runtime import AppContext, PluginOption, importing, pass_call, plugin_choice, until_stopped, user_name
from streams.errors import ServerError, StreamwardError
from streams.plugins.installed import plugin_entries

if TYPE_CHECKING:
    import httpx2

OPINIONS = {"/good": 1.0, "/bad": 0.0}
"""Commands of `chat` that rate the last answer."""
WORK_S = 30.0
"""Time that a worker of --with has to finish its work when the server ends."""
ANSWER_S = 600.0
"""Time that `chat` waits for the next piece of an answer."""


@click.command()
@click.option("--fleet", is_flag=True, help="Serve every policy in the log (fleet.policies), not only policy.name.")
@click.option(
    "--with",
    "workers",
    cls=PluginOption,
    type=plugin_choice(lambda: list(_workers())),
    multiple=True,
    help="Run this command, too.",
)
@pass_call
def serve(call: AppContext, /, fleet: bool, workers: tuple[str, ...]) -> None:
    """Serve a policy to agents and record every call.

    It speaks OpenAI's chat completions, completions and responses, and Anthropic's messages, at serve.host and
    serve.port (http://127.0.0.1:8790/v1). Each call is a turn in the log before its answer ends. The agent's name is in
    the base URL, /agents/NAME/v1, or in the header X-Agent-ID. /api/v1/jsonrpc takes jobs, and plugins have paths of
    their own. SIGTERM or Ctrl-C ends it, once answers in progress are finished and recorded.

    With --fleet the model of a call names the policy, or a registered agent does: one base model, and fleet.states
    policies in memory (docs/fleet.md).

    --with names a command of a plugin that does what the server records. It is a child process, which is started again
    if it dies.
    """
    call.working = True
    if fleet:
        call.refuse_one_policy("serve")
    with until_stopped() as stop, ExitStack() as children:
        for worker in dict.fromkeys(workers):
            children.enter_context(_child(call, worker))
        from streams.kafka import admin
        from streams.kafka.retry import StoppedWaiting
        from streams.processes import core_files

        core_files.leave_none()
        admin.check_topics(call.settings, patient=True)
        with importing():
            from gateway import server
        try:
            server.run(call.settings, stop=stop, fleet=fleet)
        except StoppedWaiting as exc:
            click.echo(str(exc), err=True)


def _workers() -> Iterable[str]:
    """Return the commands of plugins that --with may name."""
    commands = plugin_entries(lambda plugin: plugin.commands, "command", ())
    return (name for name, (_, command) in commands.items() if command.is_worker)


@contextmanager
def _child(call: AppContext, worker: str) -> Iterator[None]:
    """Run a command while the block runs; one that ends is started again after a second."""
    from streams.processes.child import describe_exit
    from streams.processes.signals import start_ending_with_parent

    command = call.again("--set", "metrics.port=0", *worker.split())  # the port is the server's
    stop = threading.Event()
    child = start_ending_with_parent(command, os.environ)

    def tend() -> None:
        nonlocal child
        while not stop.wait(1.0):
            if (code := child.poll()) is not None:
                click.echo(f"{worker} ended with {describe_exit(code)}: starting it again", err=True)
                child = start_ending_with_parent(command, os.environ)

    thread = threading.Thread(target=tend, name=f"tends-{worker}", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
        child.terminate()
        child.wait_at_most(WORK_S)
        child.kill_group()


@click.command()
@click.option("--system", default=None, metavar="TEXT", help="System message of the conversation.")
@click.option(
    "--model",
    default=None,
    metavar="NAME",
    help="Model to call, such as POLICY@7 for one version.  [default: the serving version]",
)
@click.option(
    "--max-tokens", type=click.IntRange(min=1), default=256, show_default=True, help="Maximum tokens of an answer."
)
@click.option(
    "--temperature", type=click.FloatRange(min=0), default=0.0, show_default=True, help="0: always the likeliest token."
)
@pass_call
def chat(call: AppContext, /, system: str | None, model: str | None, max_tokens: int, temperature: float) -> None:
    """Chat with a policy through `streamward serve`.

    Each line of input is a message; empty lines are skipped, and the end of the input (Ctrl-D) ends the conversation,
    which is recorded under the agent `chat`. A line `/good` or `/bad`, optionally followed by a reason, rates the last
    answer: it becomes a reward of 1 or 0.
    """
    url = f"{call.settings.serve.url}/agents/chat/v1"
    messages = [] if system is None else [{"role": "system", "content": system}]
    body = {"model": model or call.settings.policy.name, "max_tokens": max_tokens, "temperature": temperature}
    stdin, last = click.get_text_stream("stdin"), ""
    while True:
        if stdin.isatty():
            click.echo("> ", nl=False, err=True)
        line = stdin.readline()
        if not line:
            return
        if not line.strip():
            continue
        word, _, reason = line.strip().partition(" ")
        if word in OPINIONS:
            _give_feedback(url, last, OPINIONS[word], reason.strip())
            continue
        messages.append({"role": "user", "content": line.strip()})
        answer = ""
        for answer_id, text in _answer(url, {**body, "messages": messages, "stream": True}):
            click.echo(text, nl=False)
            answer, last = answer + text, answer_id
        click.echo()
        messages.append({"role": "assistant", "content": answer})


def _answer(url: str, body: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the id of an answer and its text as it comes. Raises ServerError."""
    from schemas import json_text

    for line in _post(f"{url}/chat/completions", body):
        data = line.removeprefix("data: ").strip()
        if not data or data == "[DONE]":
            continue
        try:
            chunk = json_text.parse(data)
            if "error" in chunk:
                raise ServerError(chunk["error"]["message"])
            texts = [choice["delta"].get("content") or "" for choice in chunk["choices"]]
            answer_id = chunk["id"]
        except (ValueError, KeyError, TypeError, AttributeError) as exc:
            raise _no_answer(url, exc) from exc
        yield from ((answer_id, text) for text in texts)


def _give_feedback(url: str, answer_id: str, value: float, reason: str) -> None:
    """Record the user's rating of the last answer, or print the reason that it was not recorded."""
    if not answer_id:
        click.echo("There is no answer to rate yet.", err=True)
        return
    body = {"id": answer_id, "value": value, "reason": reason or None, "source": user_name()}
    try:
        list(_post(f"{url}/feedback", body))
        click.echo(f"Recorded as a reward of {value:g}.", err=True)
    except ServerError as exc:
        click.echo(str(exc), err=True)


def _post(url: str, body: dict[str, Any]) -> Iterator[str]:
    """Yield the lines of the server's answer as they come. Raises ServerError."""
    import httpx2

    from streams.egress.http_client import lines_of

    try:
        with httpx2.stream("POST", url, json=body, timeout=ANSWER_S) as response:
            if response.status_code >= 400:
                response.read()
                raise ServerError(_message(response))
            for line in lines_of(response):
                yield line.decode()
    except (httpx2.HTTPError, httpx2.InvalidURL, ValueError) as exc:
        raise _no_answer(url, exc) from exc


def _no_answer(url: str, exc: Exception) -> StreamwardError:
    return StreamwardError(f"{url} gives no answer: {exc}. Is `streamward serve` running?")


def _message(response: httpx2.Response) -> str:
    from schemas import json_text

    try:
        return f"{response.status_code}: {json_text.parse(response.content)['error']['message']}"
    except (ValueError, KeyError, TypeError):
        return f"{response.status_code}: {response.reason_phrase}"
