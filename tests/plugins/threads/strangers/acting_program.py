"""A program with langgraph-sdk, a2a-sdk and MCP's client, run by the strangers' Python: agents that act.

python acting_program.py URL ──► a line of JSON: what each client read of tools, of consent, of a child
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

import httpx
from a2a.client import A2ACardResolver, ClientConfig, ClientFactory
from a2a.types import Message, Part, Role, SendMessageRequest, Task, TaskState
from langgraph_sdk import get_sync_client
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

TOOL, OWN, CONSENT = "weather in Ulm?", "which size?", "book the Lamb"
CHILD, CHILD_WAITS, HANDOFF = "how is Ulm", "a bed, please", "hand me to Ulm"
WAITING = {OWN: ("host", "large"), CONSENT: ("host", "yes"), CHILD_WAITS: ("boss", "yes")}
"""Questions whose runs wait, of which agent, and what is answered."""


def by_langgraph(url: str) -> dict[str, Any]:
    """Return what langgraph-sdk read."""
    client, read = get_sync_client(url=f"{url}/acp"), {}
    threads, runs = client.threads, client.runs

    def last(answer: Any) -> list[str]:
        return [str(message["content"]) for message in answer["messages"]][-2:]

    modes: Any = ["updates", "values"]
    streamed = list(runs.stream(threads.create()["thread_id"], "host", input=_question(TOOL), stream_mode=modes))
    read[TOOL] = [part.event for part in streamed] + last(streamed[-2].data)
    for question, agent in ((CHILD, "boss"), (HANDOFF, "desk")):
        read[question] = last(runs.wait(threads.create()["thread_id"], agent, input=_question(question)))
    for question, (agent, answer) in WAITING.items():
        thread = threads.create()["thread_id"]
        [wait] = runs.wait(thread, agent, input=_question(question))["__interrupt__"]
        status = threads.get(thread)["status"]
        command: Any = {"resume": answer}
        said = last(runs.wait(thread, agent, command=command))
        read[question] = [wait["value"]["name"], wait["value"]["waits_for"], status, *said]
    thread = threads.create()["thread_id"]
    run = runs.wait(thread, "host", input=_question(CONSENT)) and runs.list(thread)[0]["run_id"]
    runs.cancel(thread, run)
    read["cancelled"] = [runs.get(thread, run)["status"], threads.get(thread)["status"]]
    return read


def _question(text: str) -> Any:
    return {"messages": [{"role": "user", "content": text}]}


async def by_a2a(url: str) -> dict[str, Any]:
    """Return what a2a-sdk read."""
    read: dict[str, Any] = {}
    async with httpx.AsyncClient(timeout=60) as http:
        clients = {}
        for agent in ("host", "desk", "boss"):
            card = await A2ACardResolver(http, f"{url}/a2a/{agent}").get_agent_card()
            read[f"card of {agent}"] = list(card.default_input_modes)
            plain = ClientConfig(httpx_client=http, streaming=False)
            clients[agent] = ClientFactory(plain).create(card)
        streaming = ClientFactory(ClientConfig(httpx_client=http, streaming=True)).create(card)

        async def send(agent: str, text: str, task: Task | None = None) -> Task:
            [event] = [event async for event in clients[agent].send_message(_message(text, task))]
            return event.task

        steps = [event async for event in streaming.send_message(_message(CHILD))]
        said = [event.status_update.status.message.parts for event in steps if event.HasField("status_update")]
        read[CHILD] = [part.text for parts in said for part in parts]
        for question, agent in ((TOOL, "host"), (HANDOFF, "desk")):
            read[question] = _task(await send(agent, question))
        for question, (agent, answer) in WAITING.items():
            task = await send(agent, question)
            read[question] = [*_task(task), task.status.message.parts[0].text, *_task(await send(agent, answer, task))]
    return read


def _message(text: str, task: Task | None = None) -> SendMessageRequest:
    names = {} if task is None else {"task_id": task.id, "context_id": task.context_id}
    number = _message.calls = getattr(_message, "calls", 0) + 1
    sent = Message(message_id=f"message-{number}", role=Role.ROLE_USER, parts=[Part(text=text)], **names)
    return SendMessageRequest(message=sent)


def _task(task: Task) -> list[str]:
    return [TaskState.Name(task.status.state), *(part.text for each in task.artifacts for part in each.parts)]


async def by_mcp(url: str) -> dict[str, Any]:
    """Return what MCP's client read."""
    read: dict[str, Any] = {}
    async with Client(streamable_http_client(f"{url}/mcp/policy")) as client:
        read["tools"] = [tool.name for tool in (await client.list_tools()).tools]

        async def call(tool: str, **arguments: Any) -> Any:
            result: Any = await client.call_tool(tool, arguments)
            return json.loads(result.content[-1].text)

        for question, agent in ((TOOL, "host"), (CHILD, "boss"), (HANDOFF, "desk")):
            read[question] = _last(await call("run_agent", agent_id=agent, input=question))
        for question, (agent, answer) in WAITING.items():
            run = (await call("run_agent", agent_id=agent, input=question))["run"]
            [wait] = run["requires_action"]
            await call("resume_run", run_id=run["run_id"], resume=answer)
            ended = await call("wait_run", run_id=run["run_id"])
            read[question] = [run["status"], wait["name"], wait["waits_for"], *_last(ended)]
        read["missing"] = (await call("run_agent", agent_id="stranger", input=TOOL))["message"]
    return read


def _last(result: Any) -> list[str]:
    return [result["run"]["status"], *(message["content"] for message in result["messages"][-2:])]


def main(url: str) -> dict[str, Any]:
    """Return what each read."""
    return {
        "langgraph-sdk": by_langgraph(url),
        "a2a-sdk": asyncio.run(by_a2a(url)),
        "mcp": asyncio.run(by_mcp(url)),
    }


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1])))
