"""A tool-calling agent over OpenAI's API: ask, run the model's tool calls, send the results, ask
again.

`python examples/tool_agent.py http://127.0.0.1:8000/v1 [API_KEY]`

Each round sends the whole conversation, and the node's cache finds all but the newest messages. The
agent needs only Python; with the `openai` package, `OpenAI(base_url=url).chat.completions` takes
the same fields. The embedded demonstration model knows no tools: it answers in prose, and the loop
ends after one round. A Qwen3.5 checkpoint calls them.
"""

import json
import sys
import urllib.request
from collections.abc import Callable
from typing import Any

SYSTEM = (
    "You help travellers of long ago to plan their visits. Answer shortly, in one sentence, and "
    "in plain words. Never guess how far two places are from each other: use the tools for "
    "distances, and say the number that they give you. Where a place is not known to you, say so "
    "and ask for a town that is near it. A carriage makes seven miles an hour on a good road, and "
    "half of that in winter or after rain."
)
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
    """Return an invented distance; a real agent would ask a map."""
    return f"It is {3 * abs(len(start) - len(end)) + 2} miles from {start} to {end}."


RUN: dict[str, Callable[..., str]] = {"distance": distance}


Ask = Callable[..., Any]
"""A function calling the API: it takes a path and the fields of a body, if there is one, and
returns the reply's JSON."""


def asking(url: str, key: str) -> Ask:
    """Return a function calling the API. url: the API's address, with its /v1. key: API key."""

    def ask(path: str, **body: Any) -> Any:
        request = urllib.request.Request(url + path, json.dumps(body).encode() if body else None)
        request.add_header("Content-Type", "application/json")
        request.add_header("Authorization", f"Bearer {key}")
        with urllib.request.urlopen(request) as reply:
            return json.load(reply)

    return ask


def rounds(ask: Ask, model: str, question: str, limit: int = 4) -> list[dict[str, int]]:
    """Run the agent's rounds and print the conversation. Returns the prompt and cached tokens of
    each round. limit: largest number of rounds."""
    messages: list[Any] = [
        {"role": "system", "content": SYSTEM},
        {"role": "user", "content": question},
    ]
    usages = []
    for _ in range(limit):
        reply = ask(
            "/chat/completions",
            model=model,
            messages=messages,
            tools=TOOLS,
            max_tokens=64,
            temperature=0,
        )
        prompt = reply["usage"]["prompt_tokens"]
        cached = reply["usage"]["prompt_tokens_details"]["cached_tokens"]
        usages.append({"prompt": prompt, "cached": cached})
        message = reply["choices"][0]["message"]
        print(f"[{prompt} prompt tokens, {cached} cached] {message['content'] or ''}")
        messages.append(message)
        calls = message.get("tool_calls") or []
        if not calls:
            break
        for call in calls:
            function = call["function"]
            result = RUN[function["name"]](**json.loads(function["arguments"]))
            print(f"  {function['name']}({function['arguments']}) -> {result}")
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})
    return usages


def main(url: str, key: str = "none") -> None:
    ask = asking(url, key)
    model = ask("/models")["data"][0]["id"]
    print(f"model {model}")
    rounds(ask, model, "How far is it from Longbourn to Netherfield?")
    # The same question again: only its last page, of at most 64 tokens, is computed.
    rounds(ask, model, "How far is it from Longbourn to Netherfield?")


if __name__ == "__main__":
    main(*sys.argv[1:])
