"""LiteLLM: its own call of each protocol with a tool, and a second question."""

import json
import os
import sys

import litellm

NUMBER = {"type": "integer"}
CALC = {"name": "calc", "parameters": {"type": "object", "properties": {"a": NUMBER, "b": NUMBER}}}

litellm.suppress_debug_info = True
messages = []
for question in ("What is 47 * 83?", "Thank you."):
    messages.append({"role": "user", "content": question})
    while True:
        answer = litellm.completion(
            model=f"{sys.argv[1]}/{os.environ['OPENAI_DEFAULT_MODEL']}",
            messages=messages,
            tools=[{"type": "function", "function": CALC}],
        )
        reply = answer.choices[0].message
        messages.append(reply.model_dump(exclude_none=True))
        if not reply.tool_calls:
            break
        for call in reply.tool_calls:
            numbers = json.loads(call.function.arguments)
            result = str(numbers["a"] * numbers["b"])
            messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
    print(reply.content)
