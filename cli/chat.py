"""`tasuki chat`: a conversation in a terminal, and under each answer the cached tokens of its turn.

Owns the daemon that it starts where --target names none, and one session at a time. Reads lines
until their end; `/help` lists its commands.
"""

import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import TextIO

from tasuki.utils.config.flags import parse_config
from tasuki.utils.tls import ClientTls

from .conversation.config import ChatConfig
from .embedded import embedded_model
from .node_target import grpc_address


def main(argv: Sequence[str]) -> int:
    config = parse_config("tasuki chat", "A conversation.", argv, ChatConfig)
    from tasuki.client.session import Client

    from .conversation.screen import Chat
    from .launcher import fused
    from .unreached import asking

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
        Chat(client, config, sys.stdout).run(_lines(sys.stdin, sys.stdout))
    return 0


def _lines(source: TextIO, out: TextIO) -> Iterator[str]:
    """Lines of `source`; with a prompt before each on a terminal."""
    while True:
        if source.isatty():
            out.write("> ")
            out.flush()
        line = source.readline()
        if not line:
            return
        yield line.strip()
