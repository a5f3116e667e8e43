"""Connections to other servers are opened in streams/egress alone, which checks the host and the address.

Each other module that opens one is named here with its reason, and each that connects through a library checks the host
with `require_host` or `check_hub_requests`.
"""

from __future__ import annotations

import ast

from tests.import_graph import Source, sources

CLIENTS = {"aiohttp", "boto3", "ftplib", "grpc", "http.client", "requests", "smtplib", "urllib.request", "urllib3"}
"""Modules that open connections; http.client's errors are for modules that open them."""
OPENING = {
    "httpx2": "Client AsyncClient HTTPTransport AsyncHTTPTransport delete get head options patch post put query "
    "request stream websocket",
    "socket": "create_connection",
    "asyncio": "open_connection",
    "anyio": "connect_tcp",
}
"""Functions and classes that open connections, by module."""
BY_LIBRARY = {"from_url", "SchemaRegistryClient", "OTLPSpanExporter", "snapshot_download"}
CHECKS = {"require_host", "check_hub_requests"}
OWN = {
    "gateway/http/several_servers.py": "the other servers of this log, by their URLs in the consumer group",
    "gateway/mcp/mcp_stdio.py": "the program's own server, for an MCP client on this machine",
    "plugins/agents/runs/connection_pool.py": "the program's own server, once a turn: httpx2 takes four times the CPU",
    "plugins/agents/runs/run_server.py": "the program's own server; it catches what connection_pool raises",
    "plugins/distributed/ray_cluster.py": "the head of a Ray cluster, whose own protocol does the rest",
    "plugins/environments/episode_calls.py": "the program's own server; it catches what connection_pool raises",
    "plugins/threads/chat_command.py": "the program's own server",
    "streams/cli/serve.py": "the program's own server",
    "streams/engines/base_model.py": "the errors of the hub's client, whose requests are checked",
    "streams/observability/grafana/upload.py": "the errors of grafana-client, whose address is checked",
    "streams/kafka/node/process.py": "the embedded Kafka, which it starts",
    "streams/tools/doctor.py": "the program's own server",
}
"""Why a module may open connections itself. Kafka's clients and fsspec's stores have protocols of their own."""


def openings(source: Source) -> set[str]:
    """Return what opens connections in a source file."""
    found = set()
    for node in source.nodes:
        if isinstance(node, ast.Import):
            found |= {name.name for name in node.names if name.name in CLIENTS | {"httpx"}}
        elif isinstance(node, ast.ImportFrom):
            module = node.module or ""
            names = {name.name for name in node.names}
            found |= {module} if module in CLIENTS or module.endswith("websockets.client") else set()
            found |= {f"{module}.{name}" for name in names if f"{module}.{name}" in CLIENTS}
            found |= names & set(OPENING.get(module, "").split())
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            module = getattr(node.func.value, "id", "")
            if node.func.attr in OPENING.get(module, "").split():
                found.add(f"{module}.{node.func.attr}")
            if node.func.attr in ("connect", "connect_ex") and "socket" in module:
                found.add(f"{module}.connect")
    return found


def called(source: Source) -> set[str]:
    """Return the names of the functions that a source file calls."""
    functions = (node.func for node in source.nodes if isinstance(node, ast.Call))
    return {str(getattr(function, "id", getattr(function, "attr", ""))) for function in functions}


def test_connections_to_other_servers_are_opened_in_one_place() -> None:
    opened = {source.path: openings(source) for source in sources() if not source.path.startswith("streams/egress/")}
    wrong = {path: found for path, found in opened.items() if found and path not in OWN}
    assert not wrong, "open it with streams.egress.http_client"
    assert {path for path in OWN if not opened.get(path)} == set(), "they open none any more"


def test_a_library_that_connects_gets_a_checked_url() -> None:
    unchecked = [source.path for source in sources() if called(source) & BY_LIBRARY and not called(source) & CHECKS]
    assert unchecked == []


def test_websockets_connect_over_a_checked_socket() -> None:
    for source in sources():
        imports = [node for node in source.nodes if isinstance(node, ast.ImportFrom)]
        if any(node.module == "websockets.sync.client" for node in imports):
            calls = [node for node in source.nodes if isinstance(node, ast.Call)]
            connects = [node for node in calls if getattr(node.func, "id", "") == "connect"]
            assert connects and all("sock" in {word.arg for word in node.keywords} for node in connects), source.path
