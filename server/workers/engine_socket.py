"""A front worker's own socket to the engine's process. Thread rule: the worker's event loop."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from tasuki.engine.apart.codec import FrameReader, frame_of
from tasuki.engine.apart.frame_protocol import FrameProtocol
from tasuki.engine.apart.worker_links import NUMBER_BYTES


class EngineSocket(FrameProtocol):
    def __init__(self, take: Callable[[Sequence[Any]], None], on_end: Callable[[], None]) -> None:
        """take: a step's messages for this worker. on_end: the engine takes no more."""
        super().__init__("the engine", FrameReader(), take, lambda why: on_end())

    @classmethod
    async def to(
        cls,
        path: str,
        number: int,
        take: Callable[[Sequence[Any]], None],
        on_end: Callable[[], None],
    ) -> "EngineSocket":
        """path: as NodeSockets.engine. number: this worker's."""
        loop = asyncio.get_running_loop()
        _, link = await loop.create_unix_connection(lambda: cls(take, on_end), path)
        link.write(number.to_bytes(NUMBER_BYTES, "little"))
        return link

    def post(self, messages: Sequence[Any]) -> None:
        """In order. Raises what frame_of() raises."""
        self.write(frame_of(messages))
