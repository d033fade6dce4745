"""Clients that chat with tools: the conversations, the node's answers, and a reader of streams."""

import asyncio
import json
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from tasuki.bench.load.client.answer import AnswerReader, answered_or_silent
from tasuki.bench.load.client.http_stream import HttpStream
from tasuki.bench.load.client.loads import Client
from tasuki.bench.load.client.process import Caller, Target
from tasuki.bench.load.words import Words

ANSWER = """I look that up first, so that the table below is right: each row has a place, a time and
a price, and the last one is the sum of the others.

<tool_call>
<function=look_up>
<parameter=question>
when does the night train to the coast leave, and from which platform?
</parameter>
<parameter=count>
12
</parameter>
</function>
</tool_call>
"""
"""A call in the syntax of the template's checkpoints, behind some text."""
_PLAIN = """I look that up first, so that the table below is right: each row has a place, a time and
a price, and the last one is the sum of the others. The night train to the coast leaves at noon from
platform seven, and two people with one dog and three bags need a ticket each.

"""
ANSWERS = {"calls": ANSWER, "text": _PLAIN}
"""What the free model writes again and again."""

_TEXT = """the a night train coast leaves from platform seven at noon and we would like to know
which of these tickets is best for two people with one dog and three bags in the second week"""
_WORDS = _TEXT.split()
_SYSTEM_WORDS, _USER_WORDS, _RESULT_WORDS = 120, 60, 80


def _tool(name: str) -> dict[str, Any]:
    fields = {
        "question": {"type": "string", "description": "in whole sentences"},
        "count": {"type": "integer", "description": "the most rows that are wanted"},
    }
    schema = {"type": "object", "properties": fields, "required": ["question"]}
    about = f"Answers a question about {name.replace('_', ' ')}, in rows."
    return {
        "type": "function",
        "function": {"name": name, "description": about, "parameters": schema},
    }


TOOLS = [_tool(name) for name in ("look_up", "book_a_seat", "change_a_seat", "weather")]


def _call(number: int) -> dict[str, Any]:
    """Return an assistant's message that calls a tool."""
    arguments = json.dumps({"question": "when does it leave?", "count": 12})
    call = {
        "id": f"call_{number}",
        "type": "function",
        "function": {"name": "look_up", "arguments": arguments},
    }
    return {"role": "assistant", "content": "I look that up first.", "tool_calls": [call]}


@dataclass(frozen=True)
class Chats:
    """As loads.Load: conversations of so many turns, one after the other in each session. Each turn
    but the first has the call of the turn before and its result. answer: tokens of each."""

    sessions: int
    turns: int
    answer: int
    seed: str
    admitted_first = True
    cut = True

    async def live(self, client: Client, session: int) -> None:
        drawn = random.Random(f"{self.seed} {session}")
        # The first answers are of all lengths, so that later ones do not all end in one step.
        asked, turn = max(1, self.answer * (session + 1) // self.sessions), 0
        messages: list[Any] = []
        while not client.over:
            if turn % self.turns == 0:
                system = {"role": "system", "content": _text(drawn, _SYSTEM_WORDS)}
                messages = [system, {"role": "user", "content": _text(drawn, _USER_WORDS)}]
            answer = await client.ask(session, turn, messages, asked)
            if answer.error:
                return
            result = _text(drawn, _RESULT_WORDS)
            reply = {"role": "tool", "tool_call_id": f"call_{turn}", "content": result}
            messages = [*messages, _call(turn), reply]
            asked, turn = self.answer, turn + 1


def _text(drawn: random.Random, words: int) -> str:
    return " ".join(drawn.choices(_WORDS, k=words))


@dataclass(frozen=True)
class ChatTarget(Target):
    """As Target, for POST /v1/chat/completions over HTTP."""

    def caller(self) -> Caller:
        return ChatCaller(self.address)


class _Delta(msgspec.Struct):
    content: str | None = None
    tool_calls: msgspec.Raw = msgspec.Raw()


class _Choice(msgspec.Struct):
    delta: _Delta = msgspec.field(default_factory=_Delta)


class _Usage(msgspec.Struct):
    completion_tokens: int = 0


class _Event(msgspec.Struct):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: msgspec.Raw = msgspec.Raw()


_decoder = msgspec.json.Decoder(_Event)
TEXT, CALL = 1, 2
"""What an answer's `tokens` has for each event that brought something."""


class ChatStream(HttpStream):
    def _read_event(self, now: float, event: bytes) -> None:
        if not event.startswith(b"data: "):
            return
        if event.endswith(b"[DONE]"):
            self._done = True
            self.close()
            return
        found = _decoder.decode(event[6:])
        answer = self._reader.answer
        if found.error:
            answer.error = bytes(found.error).decode()[:300]
        if found.usage is not None:
            answer.cached_tokens = found.usage.completion_tokens
        for choice in found.choices:
            if choice.delta.tool_calls:
                self._reader.take(now, (CALL,))
            elif choice.delta.content:
                self._reader.take(now, (TEXT,))


class ChatCaller:
    """address: HOST:PORT. Each request has a connection of its own, so that the kernel spreads them
    over the front workers."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._words = Words(0)

    async def ask(self, prompt: Sequence[Any], reader: AnswerReader, patience: float) -> None:
        """prompt: messages. An answer's `cached_tokens` has the tokens that it is said to have."""
        body = json.dumps(
            {
                "messages": prompt,
                "tools": TOOLS,
                "max_tokens": reader.answer.asked,
                "temperature": 0,
                "ignore_eos": True,
                "stream": True,
                "stream_options": {"include_usage": True},
            }
        ).encode()
        head = (
            f"POST /v1/chat/completions HTTP/1.1\r\nHost: {self._address}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
            "Connection: close\r\n\r\n"
        ).encode()
        stream = ChatStream(head, body, reader, self._words)
        host, _, port = self._address.rpartition(":")
        reader.answer.started = reader.last = time.monotonic()
        try:
            loop = asyncio.get_running_loop()
            await loop.create_connection(lambda: stream, host, int(port))
            await answered_or_silent(stream.over, reader, patience)
        except OSError as error:
            reader.answer.error = repr(error)
        finally:
            stream.close()

    async def close(self) -> None:
        """Nothing is open between requests."""
