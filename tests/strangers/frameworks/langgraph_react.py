"""LangGraph: an agent with a tool and a memory, over chat, responses or messages; then a second question."""

import os
import sys

from langchain_anthropic import ChatAnthropic
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.prebuilt import create_react_agent


def calc(a: int, b: int) -> int:
    """Multiply two numbers."""
    return a * b


name = os.environ["OPENAI_DEFAULT_MODEL"]
models = {
    "chat": lambda: ChatOpenAI(model=name),
    "responses": lambda: ChatOpenAI(model=name, use_responses_api=True),
    "messages": lambda: ChatAnthropic(model=name),
}
agent = create_react_agent(models[sys.argv[1]](), [calc], checkpointer=InMemorySaver())
for question in ("What is 47 * 83?", "Thank you."):
    state = agent.invoke({"messages": question}, {"configurable": {"thread_id": "1"}})
    print(state["messages"][-1].text)
