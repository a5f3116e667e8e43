"""A program with a2a-sdk, run by the strangers' Python: the card of an agent, its tasks and their streams.

python a2a_program.py URL ──► a line of JSON: what it read
"""

from __future__ import annotations

import asyncio
import json
import sys
import uuid
from typing import Any

import httpx
from a2a.client import A2ACardResolver, ClientConfig, ClientFactory
from a2a.types import (
    CancelTaskRequest,
    GetTaskRequest,
    ListTasksRequest,
    Message,
    Part,
    Role,
    SendMessageRequest,
    SubscribeToTaskRequest,
    TaskPushNotificationConfig,
    TaskState,
)


def message(text: str, context: str = "") -> SendMessageRequest:
    """Return a request with a message."""
    sent = Message(message_id=str(uuid.uuid4()), role=Role.ROLE_USER, parts=[Part(text=text)], context_id=context)
    return SendMessageRequest(message=sent)


async def events(stream: Any) -> list[Any]:
    """Return the events of a stream."""
    return [event async for event in stream]


def text_of(streamed: list[Any]) -> str:
    """Return the answer in the events of a stream: how many pieces it comes in depends on the time."""
    artifacts = [*streamed[0].task.artifacts, *(event.artifact_update.artifact for event in streamed)]
    return "".join(part.text for artifact in artifacts for part in artifact.parts)


async def refusal(call: Any) -> str:
    """Return what the SDK makes of a refusal."""
    try:
        await call
    except Exception as exc:  # whatever the SDK raises: its name is what is read
        return type(exc).__name__
    return ""


async def main(url: str) -> dict[str, Any]:
    """Return what a walk through the protocol read."""
    read: dict[str, Any] = {}
    async with httpx.AsyncClient(timeout=60) as http:
        card = await A2ACardResolver(http, f"{url}/a2a/default").get_agent_card()
        read["card"] = [card.name, [each.protocol_binding for each in card.supported_interfaces]]
        client = ClientFactory(ClientConfig(httpx_client=http, streaming=True)).create(card)
        plain = ClientFactory(ClientConfig(httpx_client=http, streaming=False)).create(card)
        [sent] = await events(plain.send_message(message("Thank you.")))
        task = sent.task
        read["send"] = [TaskState.Name(task.status.state), task.artifacts[0].parts[0].text]
        streamed = await events(client.send_message(message("Thank you.", task.context_id)))
        read["stream"] = [streamed[0].WhichOneof("payload"), text_of(streamed)]
        second = streamed[0].task.id
        read["get"] = TaskState.Name((await client.get_task(GetTaskRequest(id=second))).status.state)
        listed = await client.list_tasks(ListTasksRequest(context_id=task.context_id))
        read["list"] = [each.id == name for each, name in zip(listed.tasks, (second, task.id), strict=True)]
        read["cancel"] = await refusal(client.cancel_task(CancelTaskRequest(id=second)))
        read["subscribe"] = await refusal(events(client.subscribe(SubscribeToTaskRequest(id=second))))
        read["missing"] = await refusal(client.get_task(GetTaskRequest(id=str(uuid.uuid4()))))
        push = TaskPushNotificationConfig(task_id=second, url="http://127.0.0.1:9/")
        read["push"] = await refusal(client.create_task_push_notification_config(push))
        image = message("")
        image.message.parts[0].CopyFrom(Part(url="http://127.0.0.1:9/a.png", media_type="image/png"))
        read["image"] = await refusal(events(plain.send_message(image)))
    return read


if __name__ == "__main__":
    print(json.dumps(asyncio.run(main(sys.argv[1]))))
