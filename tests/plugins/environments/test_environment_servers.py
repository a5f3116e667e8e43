"""Environments behind a server: OpenEnv's own server and an MCP server, on loopback."""

from __future__ import annotations

import gc
import json
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, cast

import psutil
import pytest
from click.testing import CliRunner
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response
from websockets.sync.server import ServerConnection, serve

from plugins.environments.by_reference import load
from plugins.environments.environment_pool import EnvironmentPool, credential_of
from plugins.environments.episodes.environment import Action, EpisodeError
from plugins.environments.episodes.running_episode import LiveEpisode
from plugins.environments.episodes.trial_episode import try_twice
from plugins.environments.settings import Environments
from schemas.events import EpisodeStart, Message, ToolCall
from streams.cli.root import cli
from tests import skips
from tests.support.doubles import plain_mcp
from tests.support.processes import until

ROOT = Path(__file__).parents[3]
TOOLS = ROOT / "tests" / "support" / "doubles" / "mcp_tools.py"
STDIO = f"mcp:{sys.executable} {TOOLS}"
PLAIN = f"mcp:{sys.executable} {TOOLS.with_name('plain_mcp.py')}"
ADD = {"prompt": "What is 2 + 3? Use the tool."}


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


@contextmanager
def served(program: Path) -> Iterator[int]:
    """Run a server at a port, and yield the port once it listens."""
    port = free_port()
    process = subprocess.Popen([sys.executable, str(program), str(port)])
    try:
        until(lambda: process.poll() is not None or _listens(port), "a server that listens")
        assert process.poll() is None, "the server did not start"
        yield port
    finally:
        process.kill()
        process.wait()


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def calls(*named: tuple[str, Any]) -> Action:
    made = (ToolCall(id=f"c{at}", name=name, arguments=json.dumps(given)) for at, (name, given) in enumerate(named))
    return Action("", tuple(made))


# --- what is refused before a server is asked -------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["openenv:http://127.0.0.1:1", "mcp:http://127.0.0.1:1/mcp", "mcp:rm -rf /"])
def test_a_task_cannot_name_a_server_or_a_command_that_is_not_listed(name: str) -> None:
    with closing(EnvironmentPool(Environments(network=True))) as pool, pytest.raises(EpisodeError) as caught:
        pool.open(EpisodeStart(name=name, seed=0))
    assert caught.value.reason == "not_allowed" and "lists no server, and a task can only name" in str(caught.value)


def test_a_missing_package_is_named_with_the_extra_that_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in [one for one in sys.modules if one.split(".")[0] == "mcp" or one.endswith("v_env")]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.delitem(sys.modules, "plugins.environments.adapters.mcp_env", raising=False)
    monkeypatch.setitem(sys.modules, "mcp", None)
    with pytest.raises(EpisodeError, match=r"mcp.*pip install 'streamward\[mcp\]'") as caught:
        load("mcp:x", ADD)
    assert caught.value.reason == "missing_package"


def test_an_answer_without_end_is_too_large_and_not_slow() -> None:
    name = f"{PLAIN} pour"
    with closing(EnvironmentPool(Environments(servers=name, timeout_s=45))) as pool:
        environment = pool.open(EpisodeStart(name=name, settings='{"prompt": ""}', seed=0))
        environment.reset(0)
        with pytest.raises(EpisodeError, match="pour answers with more than 4194304 characters") as caught:
            environment.step(calls(("pour", {})))
    assert caught.value.reason == "too_large"


# --- sessions of a server that counts them ----------------------------------------------------------------------------


@contextmanager
def counted_sessions() -> Iterator[tuple[str, Callable[[], int]]]:
    """Run a server that speaks OpenEnv's messages; yield its name and the number of its open sessions."""
    documents = {
        "/schema": {"action": {"properties": {"text": {"type": "string"}}}},
        "/metadata": {"version": "1"},
    }
    open_sessions: set[ServerConnection] = set()

    def answer(session: ServerConnection) -> None:
        open_sessions.add(session)
        with suppress(ConnectionClosed):
            for _ in session:
                session.send(json.dumps({"type": "observation", "data": {"observation": {"text": "on"}}}))
        open_sessions.discard(session)

    def document(session: ServerConnection, request: Request) -> Response | None:
        body = documents.get(request.path)
        return None if body is None else session.respond(HTTPStatus.OK, json.dumps(body))

    with serve(answer, "127.0.0.1", 0, process_request=document) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"openenv:http://127.0.0.1:{server.socket.getsockname()[1]}", lambda: len(open_sessions)
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize("closes", [True, False])
def test_an_episode_that_is_left_holds_no_session_of_its_server(closes: bool) -> None:
    """It was cut off, or its agent is gone: the server would otherwise refuse the episodes of all others."""
    with counted_sessions() as (name, sessions), closing(EnvironmentPool(Environments(servers=name))) as pool:
        for number in range(2):
            environment = pool.open(EpisodeStart(name=name, settings="{}", seed=number))
            episode = LiveEpisode(environment, name, number, 1)
            episode.begin()
            assert sessions() == 1
            assert episode.act(Action("go")).truncated
            if closes:
                episode.close()
            del environment, episode
            gc.collect()
            until(lambda: sessions() == 0, "the end of the session")


# --- OpenEnv ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def guess() -> Iterator[str]:
    pytest.importorskip("openenv", reason=skips.OPENENV)
    with served(TOOLS.with_name("openenv_guess.py")) as port:
        yield f"openenv:http://127.0.0.1:{port}"


@pytest.mark.environments
def test_an_openenv_server_gives_the_same_episode_again_in_a_process_that_reaches_no_other_host(guess: str) -> None:
    settings = Environments(servers=f"openenv:http://127.0.0.1:1, {guess}", timeout_s=60)
    with closing(EnvironmentPool(settings)) as pool:
        for seed in range(3):
            actions = [Action(str(number)) for number in range(1, 9)]
            tried = try_twice(pool.open, EpisodeStart(name=guess, seed=seed), 8, actions)
            assert tried.steps[-1][1].terminated and tried.steps[-1][1].reward == 1.0
        assert tried.observed[0].environment == f"{guess}@1.0.0"


@pytest.mark.environments
def test_what_an_openenv_server_cannot_read_is_answered_and_what_breaks_it_ends_the_episode(guess: str) -> None:
    environment = load(guess, {"prompt": "Guess.", "highest": 3})
    episode = LiveEpisode(environment, guess, 0, 9)
    observation = episode.begin()
    assert [message.content for message in observation.messages] == [
        "Guess.\nAnswer with only the number, as JSON of type integer.",
        "a number",
    ]
    for wrong in ("seven", "", '"x"', "[1]", "null"):
        result = episode.act(Action(wrong))
        assert (result.ok, result.is_over, result.observation.messages[0].content) == (
            False,
            False,
            "error: expected the number, as JSON of type integer",
        )
    assert environment.step(Action("0")).observation.messages == (Message(role="user", content="higher"),)
    with pytest.raises(EpisodeError, match="the server says EXECUTION_ERROR: no such number"):
        environment.step(Action("99"))
    with pytest.raises(EpisodeError, match="it shows more than 1048576 bytes at once") as caught:
        environment.step(Action("98"))
    assert caught.value.reason == "too_large"
    assert environment.reset(0) == observation


@pytest.mark.environments
def test_an_openenv_server_that_is_not_there_or_is_something_else_is_named(guess: str) -> None:
    with pytest.raises(EpisodeError, match="is the server running") as caught:
        load(f"openenv:http://127.0.0.1:{free_port()}", {})
    assert caught.value.reason == "crashed"
    with pytest.raises(EpisodeError, match=r"/nothing/schema is not OpenEnv's: .*404"):
        load(f"{guess}/nothing", {})
    with pytest.raises(EpisodeError, match="expected the address of a server"):
        load("openenv:guess", {})


# --- MCP --------------------------------------------------------------------------------------------------------------


@pytest.mark.environments
@pytest.mark.parametrize("over", ["stdio", "http"])
def test_the_tools_of_an_mcp_server_are_offered_for_a_prompt(over: str) -> None:
    pytest.importorskip("mcp", reason=skips.ENVIRONMENTS)
    if over == "stdio":
        return _play(STDIO)
    with served(TOOLS) as port:
        return _play(f"mcp:http://127.0.0.1:{port}/mcp")


class PouringServer(BaseHTTPRequestHandler):
    """An MCP server over HTTP whose tool answers with 5 MB, as JSON or as an event."""

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if request["method"] == "tools/call":
            answer = {"result": {"content": [{"type": "text", "text": "x" * 5_000_000}]}}
        else:
            answer = plain_mcp.answer(request["method"], request.get("params") or {}, [plain_mcp.described("pour")])
        body = json.dumps({"jsonrpc": "2.0", "id": request.get("id"), **answer}).encode()
        is_event = self.path == "/events"
        self.send_response(200 if "id" in request else 202)
        self.send_header("Content-Type", "text/event-stream" if is_event else "application/json")
        self.end_headers()
        if "id" in request:
            with suppress(ConnectionError):  # of a client that has read enough
                self.wfile.write(b"data: " + body + b"\n\n" if is_event else body)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.mark.environments
@pytest.mark.parametrize("kind", ["json", "events"])
def test_an_answer_of_an_mcp_server_over_http_has_an_end(kind: str) -> None:
    pytest.importorskip("mcp", reason=skips.ENVIRONMENTS)
    from plugins.environments.adapters.mcp_env import McpEnvironment

    with ThreadingHTTPServer(("127.0.0.1", 0), PouringServer) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        with closing(
            cast(McpEnvironment, load(f"mcp:http://127.0.0.1:{server.server_port}/{kind}", ADD))
        ) as environment:
            environment.reset(0)
            with pytest.raises(EpisodeError, match="pour answers with more than 4194304") as caught:
                environment.step(calls(("pour", {})))
        server.shutdown()
    assert caught.value.reason == "too_large"


@pytest.mark.environments
def test_a_worked_example_is_shown_between_the_system_message_and_the_prompt() -> None:
    pytest.importorskip("mcp", reason=skips.ENVIRONMENTS)
    call = {"id": "1", "name": "add", "arguments": '{"a": 4, "b": 7}'}
    example = [
        {"role": "user", "content": "What is 4 + 7?"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "11", "name": "add", "tool_call_id": "1"},
        {"role": "assistant", "content": "11"},
    ]
    environment = load(f"{PLAIN} add", ADD | {"system": "Be brief.", "messages": example})
    shown = environment.reset(0).messages
    environment.close()  # type: ignore[attr-defined]
    assert [message.role for message in shown] == ["system", "user", "assistant", "tool", "assistant", "user"]
    assert shown[2].tool_calls == (ToolCall(**call),) and shown[-1].content == ADD["prompt"]


@pytest.mark.environments
@pytest.mark.parametrize(
    ("messages", "problem"),
    [
        ("hello", "messages: Input should be a valid tuple"),
        ([{"role": "user"}], "messages.0.content: Field required"),
        (
            [{"role": "assistant", "content": "", "tool_calls": [{"id": "1", "name": "add", "arguments": "{a"}]}],
            "messages: the arguments of call 1 are no JSON object",
        ),
        (
            [{"role": "assistant", "content": "", "tool_calls": [{"id": "1", "name": "add", "arguments": "[1]"}]}],
            "messages: the arguments of call 1 are no JSON object",
        ),
    ],
)
def test_messages_that_no_policy_can_read_are_refused_before_the_episode(messages: Any, problem: str) -> None:
    pytest.importorskip("mcp", reason=skips.ENVIRONMENTS)
    with pytest.raises(EpisodeError) as caught:
        load(f"{PLAIN} add", ADD | {"messages": messages})
    assert caught.value.reason == "bad_settings" and problem in str(caught.value)


@pytest.mark.environments
def test_an_answer_that_is_an_object_alone_is_read_as_json() -> None:
    pytest.importorskip("mcp", reason=skips.ENVIRONMENTS)
    environment = load(f"{PLAIN} whereabouts", ADD)
    environment.reset(0)
    result = environment.step(calls(("whereabouts", {})))
    environment.close()  # type: ignore[attr-defined]
    assert result.ok and result.observation.messages[0].content == '{"room": 3}'


@pytest.mark.environments
def test_a_tool_is_tried_on_the_command_line() -> None:
    pytest.importorskip("mcp", reason=skips.ENVIRONMENTS)
    call = json.dumps({"name": "add", "arguments": {"a": 2, "b": 3}})
    name = f"{PLAIN} add"
    line = [
        "--set",
        f"environments.servers={name}",
        "agents",
        "environments",
        "try",
        name,
        "--settings",
        json.dumps(ADD),
    ]
    result = CliRunner().invoke(cli, [*line, "--action", call, "--action", "5", "--output", "jsonl"])
    rows = [json.loads(row) for row in result.stdout.splitlines()]
    assert [(row["action"], row["shown"]) for row in rows[1:2]] == [('add({"a": 2, "b": 3})', "5")], result.stderr
    assert rows[1]["tool"] == "add" and rows[1]["ok"] and rows[2]["ended"]


def _play(name: str) -> None:
    actions = [calls(("add", {"a": 2, "b": 3})), calls(("add", {"a": 1, "b": 1}), ("fail", {})), Action("5")]
    start = EpisodeStart(name=name, settings=json.dumps(ADD), seed=0)
    with closing(EnvironmentPool(Environments(servers=name, timeout_s=60))) as pool:
        tried = try_twice(pool.open, start, 8, actions)
    assert tried.observed[0].environment == f"{name}@7"
    assert [tool.name for tool in tried.observation.tools] == ["add", "fail", "leave"]
    assert json.loads(tried.observation.tools[0].parameters)["required"] == ["a", "b"]
    first, second, last = (result for _, result in tried.steps)
    assert first.observation.messages == (Message(role="tool", content="5", name="add", tool_call_id="c0"),)
    assert [message.content[:13] for message in second.observation.messages] == ["2", "error: Error "]
    assert (first.ok, second.ok, last.terminated, last.reward) == (True, False, True, None)


@pytest.mark.environments
def test_what_an_mcp_server_cannot_use_is_answered_and_its_end_ends_the_episode() -> None:
    pytest.importorskip("mcp", reason=skips.ENVIRONMENTS)
    environment = load(STDIO, ADD)
    episode = LiveEpisode(environment, STDIO, 0, 99)
    episode.begin()
    wrong = [
        (("nothing", {}), "error: there is no tool nothing, only add, fail, leave"),
        (("add", [1, 2]), "error: add takes a JSON object of arguments"),
        (("add", {"a": "two"}), "error: "),
    ]
    for call, said in wrong:
        result = episode.act(calls(call))
        assert not result.ok and not result.is_over and result.observation.messages[0].content.startswith(said)
    many = episode.act(calls(*[("add", {"a": 1, "b": 1})] * 40))
    assert (
        len(many.observation.messages) == 17
        and many.observation.messages[-1].content == "error: at most 16 calls at once"
    )
    with pytest.raises(EpisodeError) as caught:
        episode.act(calls(("leave", {})))
    assert caught.value.reason == "crashed"
    environment.close()  # type: ignore[attr-defined]


@pytest.mark.environments
def test_a_command_ends_with_the_process_that_started_it() -> None:
    pytest.importorskip("mcp", reason=skips.ENVIRONMENTS)
    name = f"{PLAIN} pid"
    pool = EnvironmentPool(Environments(servers=name, timeout_s=60))
    environment = pool.open(EpisodeStart(name=name, settings=json.dumps(ADD), seed=0))
    environment.reset(0)
    pid = int(environment.step(calls(("pid", {}))).observation.messages[0].content)
    assert psutil.pid_exists(pid)
    pool.close()
    until(lambda: not psutil.pid_exists(pid), "an end of the server")


@pytest.mark.environments
def test_a_process_ends_that_has_not_closed_an_environment_and_so_does_its_server() -> None:
    pytest.importorskip("mcp", reason=skips.ENVIRONMENTS)
    program = (
        "from plugins.environments.adapters.mcp_env import McpEnvironment; "
        f"environment = McpEnvironment({f'{PLAIN} pid'.removeprefix('mcp:')!r}, 'p'); environment.reset(0); "
        "print(environment._invoke('pid', {})[0])"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")
    until(lambda: not psutil.pid_exists(int(ended.stdout)), "an end of the server")


@pytest.mark.environments
def test_an_mcp_server_that_is_not_there_or_a_task_without_a_prompt_is_named() -> None:
    pytest.importorskip("mcp", reason=skips.ENVIRONMENTS)
    with pytest.raises(EpisodeError, match=r"no session: .*is the server running") as caught:
        load(f"mcp:http://127.0.0.1:{free_port()}/mcp", ADD)
    assert caught.value.reason == "crashed"
    with pytest.raises(EpisodeError, match="missing 1 required positional argument: 'prompt'"):
        load(STDIO, {})


def test_a_credential_of_a_server_is_read_as_any_key(tmp_path: Path) -> None:
    file, server = tmp_path / "credentials.json", "http://127.0.0.1:9000/mcp"
    limits = Environments(servers=server, credentials=file)
    file.write_text(json.dumps({server: "k-1\n"}))
    assert credential_of(server, limits) == "k-1"
    file.write_text(json.dumps({server: "secret\nsecret"}))
    with pytest.raises(EpisodeError) as caught:
        credential_of(server, limits)
    assert caught.value.reason == "not_allowed" and "secret" not in str(caught.value)
