"""pydantic-ai: an agent whose tool is another agent, a new one each time, which has a tool of its own."""

import os

from pydantic_ai import Agent, RunContext
from pydantic_ai.models.openai import OpenAIChatModel

model = OpenAIChatModel(os.environ["OPENAI_DEFAULT_MODEL"])
desk = Agent(model, instructions="Ask whoever knows.")
calculator = Agent(model, instructions="Use the tool.")


@desk.tool
async def ask_calculator(context: RunContext[None], question: str) -> str:
    """Ask somebody who can calculate."""
    return (await calculator.run(question, usage=context.usage)).output


@calculator.tool_plain
def calc(a: int, b: int) -> int:
    """Multiply two numbers."""
    return a * b


first = desk.run_sync("Ask somebody: what is 47 * 83?")
print(first.output)
print(desk.run_sync("Thank you.", message_history=first.all_messages()).output)
