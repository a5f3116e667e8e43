"""AutoGen: an agent that reflects on what its tool said; then a second question."""

import asyncio
import os

from autogen_agentchat.agents import AssistantAgent
from autogen_core.models import ModelInfo
from autogen_ext.models.openai import OpenAIChatCompletionClient

INFO = ModelInfo(vision=False, function_calling=True, json_output=True, structured_output=True, family="unknown")


async def calc(a: int, b: int) -> int:
    """Multiply two numbers."""
    return a * b


async def main() -> None:
    client = OpenAIChatCompletionClient(model=os.environ["OPENAI_DEFAULT_MODEL"], model_info=INFO)
    agent = AssistantAgent("desk", client, tools=[calc], reflect_on_tool_use=True)
    for question in ("What is 47 * 83?", "Thank you."):
        result = await agent.run(task=question)
        print(result.messages[-1].to_text())


asyncio.run(main())
