"""A tool-calling agent over OpenAI's API: ask, run what the model calls, send the result, ask
again.

`python examples/tool_agent.py http://127.0.0.1:8000/v1 [API_KEY]`

Each round sends the whole conversation, and the node's cache finds all but the newest messages.
"""

import json
import sys
from collections.abc import Callable
from typing import Any

from openai import OpenAI

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "distance",
            "description": "Miles between two places.",
            "parameters": {
                "type": "object",
                "properties": {"start": {"type": "string"}, "end": {"type": "string"}},
                "required": ["start", "end"],
            },
        },
    }
]


def distance(start: str, end: str) -> str:
    """A real agent would ask a map."""
    return f"It is {3 * abs(len(start) - len(end)) + 2} miles from {start} to {end}."


RUN: dict[str, Callable[..., str]] = {"distance": distance}


def rounds(client: OpenAI, model: str, question: str, limit: int = 4) -> list[dict[str, int]]:
    """What each round had cached; prints the conversation."""
    messages: list[Any] = [
        {"role": "system", "content": "Answer shortly. Use the tools for distances."},
        {"role": "user", "content": question},
    ]
    usages = []
    for _ in range(limit):
        reply = client.chat.completions.create(
            model=model, messages=messages, tools=TOOLS, max_tokens=64, temperature=0
        )
        usage = reply.usage
        cached = usage.prompt_tokens_details.cached_tokens
        usages.append({"prompt": usage.prompt_tokens, "cached": cached})
        message = reply.choices[0].message
        print(f"[{usage.prompt_tokens} prompt tokens, {cached} cached] {message.content or ''}")
        messages.append(message.model_dump(exclude_none=True))
        if not message.tool_calls:
            break
        for call in message.tool_calls:
            result = RUN[call.function.name](**json.loads(call.function.arguments))
            print(f"  {call.function.name}({call.function.arguments}) -> {result}")
            messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
    return usages


def main(url: str, key: str = "none") -> None:
    with OpenAI(base_url=url, api_key=key) as client:
        model = client.models.list().data[0].id
        print(f"model {model}")
        rounds(client, model, "How far is it from Longbourn to Netherfield?")
        # The same question a second time: nothing but its last token is computed.
        rounds(client, model, "How far is it from Longbourn to Netherfield?")


if __name__ == "__main__":
    main(*sys.argv[1:])
