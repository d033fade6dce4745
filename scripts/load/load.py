"""One load: users and a watch over the nodes' memory, for a given time."""

import asyncio
import time
from collections.abc import Awaitable, Callable

from scripts.load.nodes import Nodes
from scripts.load.tally import Tally
from scripts.load.users import Users

_TELL_SECONDS = 15.0


async def load(
    nodes: Nodes,
    streams: int,
    seconds: float,
    seed: int = 1,
    turns: int = 0,
    meanwhile: Callable[[], Awaitable[None]] = lambda: asyncio.sleep(0),
    say: Callable[[str], None] = lambda line: None,
) -> Tally:
    """meanwhile: what happens to the nodes under the load. The load outlasts `meanwhile`, `seconds`
    and so many `turns`."""
    tally = Tally()
    deadline = time.monotonic() + seconds
    happening = asyncio.ensure_future(meanwhile())
    talking: asyncio.Future[None] = asyncio.ensure_future(
        Users(nodes.decode.address, streams, seed, tally).talk(
            lambda: time.monotonic() >= deadline and tally.turns >= turns and happening.done()
        )
    )
    watching = asyncio.ensure_future(nodes.watch_memory(tally, talking.done))
    telling = asyncio.ensure_future(_tell(tally, seconds, say))
    try:
        await talking
        await happening
        await watching
    finally:
        telling.cancel()
    return tally


async def _tell(tally: Tally, seconds: float, say: Callable[[str], None]) -> None:
    begun = time.monotonic()
    while True:
        await asyncio.sleep(_TELL_SECONDS)
        say(f"{time.monotonic() - begun:.0f} of {seconds:.0f} s: {tally}")
