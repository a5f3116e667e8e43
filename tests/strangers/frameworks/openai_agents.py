"""openai-agents: an agent that hands over to another, which has a tool; then a second question, streamed."""

import asyncio
import sys

from agents import Agent, Runner, SQLiteSession, function_tool, set_default_openai_api


@function_tool
def calc(a: int, b: int) -> int:
    """Multiply two numbers."""
    return a * b


async def main() -> None:
    calculator = Agent(name="Calculator", instructions="Use the tool.", tools=[calc])
    desk = Agent(name="Desk", instructions="Hand over to whoever knows.", handoffs=[calculator])
    session = SQLiteSession("one")
    answer = await Runner.run(desk, "Hand me over: what is 47 * 83?", session=session)
    print(answer.last_agent.name, answer.final_output)
    streamed = Runner.run_streamed(answer.last_agent, "Thank you.", session=session)
    async for _ in streamed.stream_events():
        pass
    print(streamed.final_output)


set_default_openai_api(sys.argv[1])
asyncio.run(main())
