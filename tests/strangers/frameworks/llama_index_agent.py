"""LlamaIndex: an agent with a tool, streamed, with a context that it keeps; then a second question."""

import asyncio
import os

from llama_index.core.agent.workflow import FunctionAgent
from llama_index.core.workflow import Context
from llama_index.llms.openai_like import OpenAILike


def calc(a: int, b: int) -> int:
    """Multiply two numbers."""
    return a * b


async def main() -> None:
    llm = OpenAILike(
        model=os.environ["OPENAI_DEFAULT_MODEL"],
        api_base=os.environ["OPENAI_BASE_URL"],
        is_chat_model=True,
        is_function_calling_model=True,
    )
    agent = FunctionAgent(tools=[calc], llm=llm)
    context = Context(agent)
    for question in ("What is 47 * 83?", "Thank you."):
        print(await agent.run(question, ctx=context))


asyncio.run(main())
