"""A call's messages to its client, of which gRPC takes one at a time.

One event loop's thread, which the call's method runs on. Invariants: messages leave in the order in
which they are begun; while one is under way no other is begun, which is how a client that reads
slowly is noticed.
"""

from typing import Any

from tasuki.proto import inference_pb2 as pb
from tasuki.server.errors import CallContext
from tasuki.utils.loops.begun import Begun


class MessageFlow:
    """Close it (contextlib.closing), which gives up what is under way."""

    def __init__(self, context: CallContext) -> None:
        self._context: Any = context
        self._under_way: Begun | None = None

    @property
    def flows(self) -> bool:
        """Whether a message may be begun now. Raises what the last one has failed with."""
        return self._under_way is None or self._under_way.ended

    def begin(self, message: pb.GenerateResponse) -> None:
        """It leaves; nobody waits until it has. REQUIRES: it flows."""
        self._under_way = Begun(self._context.write(message))

    async def write(self, message: pb.GenerateResponse) -> None:
        """Begin it as soon as it flows."""
        await self.settle()
        self.begin(message)

    async def settle(self) -> None:
        """Until nothing is under way. Others may begin something as soon as it returns."""
        while not self.flows:
            assert self._under_way is not None
            await self._under_way.end()

    def close(self) -> None:
        if self._under_way is not None:
            self._under_way.close()
