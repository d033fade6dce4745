"""An endpoint for the checks of the conformance kit. A test damages replies on their way to the
kit."""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from tasuki.cli.conformance.endpoint import Endpoint, Reply

Damage = Callable[["Exchange"], Reply]


@dataclass(frozen=True)
class Exchange:
    """One request and its reply. asked: the request's JSON body if it is an object, else empty."""

    method: str
    path: str
    asked: Mapping[str, Any]
    reply: Reply

    @property
    def is_stream(self) -> bool:
        return self.reply.content_type == "text/event-stream"

    def with_body(self, text: str) -> Reply:
        return replace(self.reply, body=text.encode())


@dataclass(frozen=True)
class DamagedEndpoint(Endpoint):
    """An endpoint changing each reply before the kit sees it. known: stored replies by request, so
    each is requested once; None: every request is sent."""

    damage: Damage = lambda exchange: exchange.reply
    known: dict[tuple[str, str, bytes | None], Reply] | None = None

    async def _ask(self, method: str, path: str, body: bytes | None) -> Reply:
        reply = None if self.known is None else self.known.get((method, path, body))
        if reply is None:
            reply = await super()._ask(method, path, body)
            if self.known is not None:
                self.known[method, path, body] = reply
        try:
            asked = json.loads(body or b"{}")
        except ValueError:
            asked = {}
        return self.damage(Exchange(method, path, asked, reply))


Change = Callable[[Any], Any]
"""A function damaging a body or one event's data. It returns the data, changed in place or new."""


def bodies(change: Change) -> Damage:
    """Return a damage applying `change` to the bodies of whole replies."""

    def damage(exchange: Exchange) -> Reply:
        if exchange.is_stream:
            return exchange.reply
        return exchange.with_body(json.dumps(change(json.loads(exchange.reply.body))))

    return damage


def events(change: Change) -> Damage:
    """Return a damage applying `change` to each event of streams; a result of None leaves the event
    out."""

    def damage(exchange: Exchange) -> Reply:
        if not exchange.is_stream:
            return exchange.reply
        blocks = exchange.reply.body.decode().removesuffix("\n\n").split("\n\n")
        kept = (_changed_block(block, change) for block in blocks)
        return exchange.with_body("".join(f"{block}\n\n" for block in kept if block is not None))

    return damage


def _changed_block(block: str, change: Change) -> str | None:
    head, found, data = block.rpartition("data: ")
    if not found or data == "[DONE]":
        return block
    body = change(json.loads(data))
    return None if body is None else f"{head}data: {json.dumps(body)}"


def both(change: Change) -> Damage:
    """Return a damage applying `change` to whole replies and to each event of streams."""
    return lambda exchange: events(change)(replace(exchange, reply=bodies(change)(exchange)))


def text(pattern: str, by: str) -> Damage:
    """Return a damage replacing the first match of the expression `pattern` in every reply."""
    return lambda exchange: exchange.with_body(
        re.sub(pattern, by, exchange.reply.body.decode(), count=1, flags=re.DOTALL)
    )


def status(number: int) -> Damage:
    return lambda exchange: replace(exchange.reply, status=number)


def content_type(name: str) -> Damage:
    return lambda exchange: replace(exchange.reply, content_type=name)


def set_keys(**values: Any) -> Change:
    """Return a change setting these keys at any depth of every body. A function as a value makes
    the new value from the old one."""

    def change(value: Any) -> Any:
        if isinstance(value, list):
            return [change(item) for item in value]
        if not isinstance(value, dict):
            return value
        return {key: _new(values, key, change(inner)) for key, inner in value.items()}

    return change


def _new(values: Mapping[str, Any], key: str, old: Any) -> Any:
    if key not in values:
        return old
    made = values[key]
    return made(old) if callable(made) else made


def without(key: str) -> Change:
    """Return a change leaving out a key at the top level of a body."""
    return lambda value: {name: inner for name, inner in value.items() if name != key}


def said(key: str, words: str) -> Damage:
    """Return a damage replacing each text under `key` by `words`. In a stream the first piece has
    the words, and the others are empty."""

    def damage(exchange: Exchange) -> Reply:
        begun: list[str] = []

        def change(old: Any) -> Any:
            if not isinstance(old, str) or not old:
                return old
            if exchange.is_stream and begun:
                return ""
            begun.append(old)
            return words

        return both(set_keys(**{key: change}))(exchange)

    return damage
