"""smolagents: an agent that writes code, or one that calls tools; then a second question to the same memory."""

import os
import sys

from smolagents import CodeAgent, OpenAIServerModel, ToolCallingAgent, tool


@tool
def calc(a: int, b: int) -> int:
    """Multiply two numbers.

    Args:
        a: The first.
        b: The second.
    """
    return a * b


kinds = {
    "code": (CodeAgent, "Compute 47 * 83.", "Say it again."),
    "calls": (ToolCallingAgent, "Multiply 47 by 83.", "Answer again."),
}
kind, question, second = kinds[sys.argv[1]]
base, model = os.environ["OPENAI_BASE_URL"], os.environ["OPENAI_DEFAULT_MODEL"]
agent = kind(tools=[calc], model=OpenAIServerModel(model, api_base=base), max_steps=3, verbosity_level=0)
print(agent.run(question))
print(agent.run(second, reset=False))
