"""CrewAI: a crew of one agent with a tool, and two tasks, of which the second has the answer to the first."""

from crewai import Agent, Crew, Task
from crewai.tools import tool


@tool("calc")
def calc(a: int, b: int) -> int:
    """Multiply two numbers."""
    return a * b


clerk = Agent(role="Clerk", goal="Calculate.", backstory="You calculate.", tools=[calc])
questions = ("What is 47 * 83?", "Thank you.")
tasks = [Task(description=question, expected_output="A sentence.", agent=clerk) for question in questions]
for output in Crew(agents=[clerk], tasks=tasks).kickoff().tasks_output:
    print(output.raw)
