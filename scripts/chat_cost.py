"""What rendering and encoding a long chat costs in processor time: its first turn and the next one.

python -m scripts.chat_cost [--model DIR] [--messages 402] [--scale 0.3]

An agent's conversation with tools, by the embedded model's tokenizer and a template of Qwen3.5's
shape, or by those of a checkpoint. Each figure is the processor time of one thread, in the best of
a few rounds, since a busy machine adds to it: `first` for a template that has seen nothing, `next`
the median of the turns after it, each of two messages more, `read` for parsing the request's JSON
before. Exit status 1 where the first two miss their targets for 402 messages of 45K tokens.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from tasuki.model.named_checkpoints import embedded_model
from tasuki.server.openai.messages import read_chat_messages, read_tools
from tasuki.server.openai.request_fields import read_fields
from tasuki.server.text.chat_message import ChatMessage
from tasuki.server.text.chat_renderer import ChatRenderer
from tasuki.server.text.rendering.chat_template import ChatTemplate
from tasuki.server.text.text_codec import TextCodec
from tasuki.server.text.tokenizer import Tokenizer
from tests.harness.agent_chat import AGENT_TEMPLATE, agent_messages, agent_tools

MOST_FIRST_SECONDS = 0.150
MOST_NEXT_SECONDS = 0.020
ROUNDS = 5
TURNS = 8
CONTEXT = 1 << 20


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m scripts.chat_cost")
    parser.add_argument("--model", type=Path, help="a checkpoint with a chat template")
    parser.add_argument("--messages", type=int, default=402, help="of the first turn")
    parser.add_argument("--scale", type=float, default=0.3, help="of the messages' lengths")
    asked = parser.parse_args(argv)
    folder = asked.model or Path(embedded_model())
    tokenizer = Tokenizer.load(folder)
    if tokenizer is None:
        parser.error(f"{folder} has no tokenizer.json")
    source = Path(argparse.__file__).read_text(encoding="utf-8")
    messages = agent_messages(asked.messages + 2 * TURNS, source, asked.scale)
    rounds = []
    for _ in range(ROUNDS):
        template = ChatTemplate(AGENT_TEMPLATE, tokenizer, {})
        if asked.model is not None:
            loaded = ChatTemplate.load(folder, tokenizer)
            if loaded is None:
                parser.error(f"{folder} has no chat template")
            template = loaded
        renderer = ChatRenderer(TextCodec(CONTEXT, CONTEXT, tokenizer, template))
        rounds.append(turn_seconds(renderer, messages, asked.messages))
    tokens = rounds[0][0]
    first = min(seconds for _, seconds, _ in rounds)
    following = min(median(turns) for _, _, turns in rounds)
    read = min(read_seconds(messages[: asked.messages]) for _ in range(ROUNDS))
    print(f"{asked.messages} messages, {tokens} tokens, milliseconds of one thread's CPU time:")
    print(f"first {first * 1e3:6.1f}   of at most {MOST_FIRST_SECONDS * 1e3:.0f}")
    print(f"next  {following * 1e3:6.1f}   of at most {MOST_NEXT_SECONDS * 1e3:.0f}")
    print(f"read  {read * 1e3:6.1f}   the request's JSON, before either")
    return int(first > MOST_FIRST_SECONDS or following > MOST_NEXT_SECONDS)


def turn_seconds(
    renderer: ChatRenderer, messages: Sequence[ChatMessage], count: int
) -> tuple[int, float, list[float]]:
    """Tokens and seconds of the first turn, of `count` messages, and seconds of those after it."""
    tools = agent_tools()

    def render(count: int) -> int:
        rendered = renderer.conversation(messages[:count], open_answer=True, salt=b"", tools=tools)
        return len(rendered.tokens)

    tokens, first = timed(lambda: render(count))
    later = [timed(lambda n=n: render(n))[1] for n in range(count + 2, len(messages) + 1, 2)]
    return tokens, first, later


def read_seconds(messages: Sequence[ChatMessage]) -> float:
    shown = [{"role": item.role, "content": item.content, **_calls(item)} for item in messages]
    body = json.dumps({"messages": shown, "tools": agent_tools()}).encode()

    def read() -> None:
        fields = read_fields(bytearray(body))
        read_chat_messages(fields)
        read_tools(fields)

    return timed(read)[1]


def _calls(message: ChatMessage) -> dict[str, Any]:
    if not message.tool_calls:
        return {}
    return {
        "tool_calls": [
            {"function": {"name": call.name, "arguments": json.dumps(call.arguments)}}
            for call in message.tool_calls
        ]
    }


def timed(work: Callable[[], Any]) -> tuple[Any, float]:
    begun = time.thread_time()
    result = work()
    return result, time.thread_time() - begun


if __name__ == "__main__":
    sys.exit(main())
