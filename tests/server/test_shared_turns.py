"""A thread's many wake-ups take one turn of the loop, gRPC's completions among them."""

import asyncio
import socket
from collections.abc import Callable
from typing import Any

import pytest

from tasuki.server.text.text_codec import TextCodec
from tasuki.utils.loops import shared_turns as module
from tasuki.utils.loops.shared_turns import shared_turns
from tests.harness.grpc_fixtures import running_front


def test_one_call_finds_the_last_byte_of_all_that_have_come() -> None:
    async def script() -> None:
        loop = asyncio.get_running_loop()
        writing, reading = socket.socketpair()
        reading.setblocking(False)
        calls: list[bytes] = []
        with shared_turns(loop):
            loop.add_reader(reading, lambda: calls.append(reading.recv(1)))
        for sent in (b"abc", b"d", b"ef" * 5000):
            writing.sendall(sent)
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            assert calls.pop() == sent[-1:] and not calls
        loop.remove_reader(reading)
        loop.add_reader(reading, lambda: calls.append(reading.recv(1)))
        writing.sendall(b"gh")
        await asyncio.sleep(0.01)
        assert calls == [b"g", b"h"], "outside of it nothing is different"
        loop.remove_reader(reading)
        writing.close()
        reading.close()

    asyncio.run(script())


def test_completions_of_a_server_s_calls_come_this_way(
    codec: TextCodec, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where gRPC adds its reader elsewhere one day, this shows it: all works, and costs more."""
    call_once = module._call_once
    calls = []

    def counted(fd: Any, callback: Callable[..., Any], *args: Any) -> None:
        calls.append(fd)
        call_once(fd, callback, *args)

    monkeypatch.setattr(module, "_call_once", counted)
    with running_front(codec) as front:
        before = len(calls)
        assert list(front.calls.generate(1))
        assert len(calls) > before
