"""Run the suites that others wrote against the server, and compare what they find with what they found before.

    python -m tests.strangers            exit 1 if a suite finds something else
    python -m tests.strangers --write    write what it finds, and the exchanges that `make test` repeats

`make test-strangers` installs what it needs into .venv-strangers. The server is that of `streamward serve` on the
scripted engine with a Kafka node of its own. Between it and the first two suites is a proxy (proxy.py).

What a suite finds is in findings.json: for llmprobe its scores and each check that did not pass, for openai-python's
own tests how many passed and what the others were told, for schemathesis each check that failed, for each agent of a
framework what it said and what its calls are to each other (agents_of_others.py), and for the clients in clients/ what
would change if they are generated again, and what the example prints (described.py). Of MCP's conformance suite it has
each scenario that fails, with why, and how many pass on the SDK's own server in our mount (mcp_conformance.py), and of
MCP's inspector what it reads (mcp_inspector.py). Of the Agent Protocol it has what langgraph-sdk reads, and what
schemathesis finds by the protocol's document; of A2A what a2a-sdk reads. While schemathesis runs, another caller is
answered within a second (latency.py).
"""

from __future__ import annotations

import json
import os
import re
import sys
import tempfile
from collections import Counter
from contextlib import ExitStack
from importlib.metadata import version
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from streams.kafka.node import process as broker
from streams.settings.model import Settings
from tests.strangers import agents_of_others, described, exchanges, latency, mcp_conformance, mcp_inspector
from tests.strangers.agent_protocol import suite as agent_protocol
from tests.strangers.described import HOME, run
from tests.strangers.proxy import Exchange, between
from tests.strangers.stand_ins import mended
from tests.support.agent_server import serving, settings_of, turns

FINDINGS = Path(__file__).parent / "findings.json"
MODEL = "sums"
UNIQUE = re.compile(r"\b(?:file-[0-9a-f]{64}|[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})\b")
"""An id that is another one in each run."""

Finding = dict[str, Any]


def llmprobe(url: str, folder: Path) -> Finding:
    """Run llmprobe: coverage by tier, MUST assertions, and what did not pass."""
    report = folder / "llmprobe.json"
    program = HOME / "node" / "node_modules" / "llmprobe" / "bin" / "dist" / "llmprobe.mjs"
    options = [
        "--model",
        MODEL,
        "-k",
        "none",
        "--no-bench",
        "--no-save",
        "--reasoning",
        "default",
        "--save",
        str(report),
    ]
    run(["node", str(program), f"{url}/v1", *options], folder)
    found = json.loads(report.read_text())
    tiers = found["coverage"]["byTier"]
    return {
        "coverage": {tier["tier"]: f"{tier['supported']} of {tier['total']}" for tier in tiers},
        "must": f"{found['conformance']['passed']} of {found['conformance']['total']}",
        "failed": {
            each["id"]: [failure["message"] for failure in each["failures"] if failure["severity"] == "MUST"]
            for each in found["conformance"]["results"]
            if each["outcome"] == "fail"
        },
        "not supported": sorted(
            each["id"] for each in found["conformance"]["results"] if each["outcome"] == "unsupported"
        ),
    }


def openai_python(url: str, folder: Path) -> Finding:
    """Run openai-python's own tests of chat, completions, responses, models, files and fine-tuning."""
    source = HOME / f"openai-{version('openai')}"
    names = ("chat/test_completions", "test_completions", "test_responses", "test_models", "test_files")
    files = [*(f"tests/api_resources/{name}.py" for name in names), "tests/api_resources/fine_tuning"]
    loops = ["-o", "asyncio_mode=auto", "-o", "asyncio_default_fixture_loop_scope=session"]
    report = folder / "openai.xml"
    plain = ["-c", os.devnull, "--rootdir", str(source), "-p", "no:cacheprovider", "-q", "--junitxml", str(report)]
    environment = {"TEST_API_BASE_URL": f"{url}/v1", "PYTHONPATH": str(source)}
    run([str(HOME / "bin" / "python"), "-m", "pytest", *plain, *loops, *files], source, environment)
    told: Counter[str] = Counter()
    for case in ElementTree.parse(report).iter("testcase"):  # noqa: S314 - of our own run
        failure = case.find("failure")
        if failure is None and case.find("error") is not None:
            failure = case.find("error")
        said = "passed" if failure is None else (failure.get("message") or "").partition("\n")[0]
        told[UNIQUE.sub("…", said)] += 1
    return dict(sorted(told.items()))


def frameworks(settings: Settings, folder: Path) -> tuple[Finding, list[Exchange]]:
    """Run agents and clients of others, and return what they said to the server, too."""
    found: Finding = {}
    with serving(settings) as server, between(server) as (url, exchanged):
        for name, command in agents_of_others.programs(HOME).items():
            print(name, flush=True)
            said = agents_of_others.said_by(command, url + agents_of_others.path_of(name), MODEL, folder / name)
            found[name] = {"said": said, "turns": agents_of_others.tree(turns(settings, name))}
    return found, exchanged


def main() -> int:
    """Return the exit code."""
    found: dict[str, Finding] = {}
    said: list[Exchange] = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        with ExitStack() as stack:
            bootstrap = stack.enter_context(broker.embedded(folder / "kafka")).bootstrap
            found["frameworks"], of_frameworks = frameworks(agents_of_others.settings(bootstrap, folder), folder)
            settings = settings_of(bootstrap, folder)
            server = stack.enter_context(serving(settings))
            found["mcp"] = mcp_conformance.conformance(server, folder)
            found["mcp, every feature in our mount"] = mcp_conformance.of_our_mount(settings, folder)
            with between(server) as (url, of_inspector):
                found["mcp inspector"] = mcp_inspector.inspected(url, folder)
            with between(server) as (url, of_threads):
                found["langgraph-sdk"] = agent_protocol.langgraph(url)
            with between(server) as (url, of_tasks):
                found["a2a-sdk"] = agent_protocol.a2a(url)
            found["agent protocol"] = agent_protocol.described(server, folder)
            with between(server) as (url, spoken):
                found["llmprobe"] = llmprobe(url, folder)
                said += spoken
            with between(server, mended(MODEL, server)) as (url, spoken):
                found["openai-python"] = openai_python(url, folder)
                said += spoken
            with latency.probed(server) as probe:
                found["schemathesis"] = described.openly(server, folder)  # its requests are odd, and need no repetition
            found["others meanwhile"] = {"schemathesis": probe.verdict}
            with described.keyed(bootstrap, folder) as keyed:
                found["clients"] = described.clients(keyed, folder)
                with latency.probed(keyed.url) as probe:
                    found["schemathesis by role"] = described.by_role(keyed, folder)
            found["others meanwhile"]["schemathesis by role"] = probe.verdict
    text = json.dumps(found, indent=2, sort_keys=True, ensure_ascii=False) + "\n"
    if "--write" in sys.argv[1:]:
        FINDINGS.write_text(text, encoding="utf-8")
        exchanges.write(exchanges.compact(said))
        exchanges.write(agents_of_others.in_order(of_frameworks, folder), agents_of_others.FILE)
        mcp_inspector.write(of_inspector)
        agent_protocol.write(of_threads)
        agent_protocol.write(of_tasks, agent_protocol.A2A_FILE)
        return 0
    before = json.loads(FINDINGS.read_text(encoding="utf-8"))
    for name in found:
        print(f"{name}: {'as before' if found[name] == before[name] else f'before {before[name]}, now {found[name]}'}")
    return int(found != before)


if __name__ == "__main__":
    sys.exit(main())
