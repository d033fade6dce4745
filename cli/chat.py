"""`tasuki chat`: a conversation in a terminal, with the cached tokens of each turn under its
answer.

Owns one session at a time, and the daemon it starts when --target is not given. Reads lines until
the input ends; `/help` lists its commands.
"""

import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, TextIO

from tasuki.model.named_checkpoints import embedded_model
from tasuki.utils.flags import parse_config
from tasuki.utils.options import option
from tasuki.utils.tls import ClientTls

from .node_target import grpc_address

if TYPE_CHECKING:
    from tasuki.client.prompt import SamplingOptions


@dataclass(frozen=True)
class ChatConfig:
    target: str = option("", "HOST:PORT of a running node's HTTP or gRPC; none: start one here")
    model: str = option(
        "",
        "checkpoint folder of a new node; the embedded model if empty",
        argument="MODEL",
    )
    ca: str = option("", "PEM file of a CA: connect by TLS and check the node against it")
    api_key: str = option("", "key of the node, if it requires one")
    system: str = option("", "a system message to begin with")
    max_new_tokens: int = option(256, "tokens of an answer at most")
    temperature: float = option(0.7, "0 takes the likeliest token")
    top_p: float = option(0.95, "draw from the likeliest tokens of this share")
    seed: int = option(0, "seed of the sampling")


def main(argv: Sequence[str]) -> int:
    config = parse_config("tasuki chat", "A conversation.", argv, ChatConfig)
    from tasuki.client.session import Client

    from .chat_screen import Chat
    from .launcher import fused
    from .node_target import asking

    with ExitStack() as stack:
        if config.target:
            target = grpc_address(config.target, config.ca, config.api_key)
        else:
            print("starting a node ...", file=sys.stderr, flush=True)
            model = config.model or str(embedded_model())
            target = stack.enter_context(fused(["--model", model]))
        tls = ClientTls(config.ca) if config.ca else None
        stack.enter_context(asking(target))
        client = stack.enter_context(Client(target, tls=tls, api_key=config.api_key))
        chat = Chat(client, config.system, sampling_of(config), sys.stdout)
        chat.run(_lines(sys.stdin, sys.stdout))
    return 0


def sampling_of(config: ChatConfig) -> "SamplingOptions":
    """Return the sampling options used for every answer of the chat. config: the command's
    settings."""
    return {
        "max_new_tokens": config.max_new_tokens,
        "temperature": config.temperature,
        "top_p": config.top_p,
        "seed": config.seed,
    }


def _lines(source: TextIO, out: TextIO) -> Iterator[str]:
    """Yield the lines of `source`. If it is a terminal, write a prompt to `out` before each
    line."""
    while True:
        if source.isatty():
            out.write("> ")
            out.flush()
        line = source.readline()
        if not line:
            return
        yield line.strip()
