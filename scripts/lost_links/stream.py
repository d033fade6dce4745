"""A stream of new requests, and links that are lost meanwhile.

Owns the order of things. Thread rule: the event loop asks, one thread disturbs.
Invariant: every request is counted once, as answered or as a trouble.
"""

import asyncio
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from scripts.command import seed_option
from scripts.lost_links.plan import NEW_TOKENS, Ask, asks, disturbances
from scripts.lost_links.tally import HANDED_OVER, HERE, LOST, PULLED, Tally
from scripts.lost_links.world import Turn, World
from tasuki.client.aio import AsyncClient
from tasuki.client.errors import ClientError
from tasuki.client.prompt import Prompt
from tasuki.client.retry import RetryPolicy
from tasuki.engine.messages import Usage
from tasuki.utils.options import option

_ANSWER_SECONDS = 60.0
"""A request that has no end by then is one that is never answered."""
_REST_SECONDS = 20.0
_TOLD_EVERY = 500
_LOOK_SECONDS = 0.02


@dataclass(frozen=True)
class StreamSettings:
    requests: int = option(10_000, "how many in all")
    seed: int | None = seed_option()
    at_once: int = option(16, "requests in flight")
    patience: float = option(1.0, "factor on deadlines, for a host that is slow")


def play(settings: StreamSettings, say: Callable[[str], None]) -> Tally:
    """Ask all of them while links are lost, then look that nothing is held."""
    tally = Tally()
    with World(settings.patience) as world:
        over = threading.Event()
        disturber = threading.Thread(target=_disturb, args=(world, settings, tally, over))
        disturber.start()
        try:
            asyncio.run(_ask_all(world, settings, tally, say))
        finally:
            over.set()
            disturber.join()
        try:
            world.mend()
            world.assert_at_rest(_REST_SECONDS * settings.patience)
        except AssertionError as error:
            tally.troubles.append(f"held afterwards: {error}")
        tally.lost = world.lost_by_cause()
    return tally


def _disturb(world: World, settings: StreamSettings, tally: Tally, over: threading.Event) -> None:
    for disturbance in disturbances(settings.seed):
        enough = tally.handed_over + disturbance.after
        while tally.handed_over < enough:
            if over.wait(_LOOK_SECONDS):
                return
        time.sleep(disturbance.pause)
        world.disturb(disturbance.fault, disturbance.lasts)
        tally.disturbed(disturbance.fault.value)


async def _ask_all(
    world: World, settings: StreamSettings, tally: Tally, say: Callable[[str], None]
) -> None:
    left = asks(settings.seed, settings.requests)
    # What breaks is a trouble, and not asked again.
    async with AsyncClient(world.decode.address, retry=RetryPolicy(attempts=1)) as client:
        caller = _Caller(client, tally, _ANSWER_SECONDS * settings.patience)

        async def ask_in_turn() -> None:
            for ask in left:
                first, second = world.conversations[ask.conversation]
                await caller.turn(first, ask, "first turn")
                if ask.returns:
                    await caller.turn(second, ask, "second turn")
                if (ask.number + 1) % _TOLD_EVERY == 0:
                    say(f"{ask.number + 1} asked: {tally}")

        async with asyncio.TaskGroup() as callers:
            for _ in range(settings.at_once):
                callers.create_task(ask_in_turn())


@dataclass
class _Caller:
    client: AsyncClient
    tally: Tally
    seconds: float

    async def turn(self, turn: Turn, ask: Ask, name: str) -> None:
        place = f"request {ask.number}, {name}"
        begun = time.monotonic()
        stream = self.client.generate(
            Prompt(token_ids=turn.prompt),
            max_new_tokens=NEW_TOKENS,
            ignore_eos=True,
            cache_salt=ask.salt,
        )
        try:
            async with asyncio.timeout(self.seconds):
                answer = await stream.result()
        except (ClientError, ConnectionError, TimeoutError) as error:
            self.tally.troubles.append(f"{place}: {error!r}")
            return
        self.tally.slowest = max(self.tally.slowest, time.monotonic() - begun)
        if answer.token_ids != turn.tokens:
            self.tally.troubles.append(f"{place}: {answer.token_ids}, not {turn.tokens}")
            return
        self.tally.count(_outcome(answer.usage))


def _outcome(usage: Usage) -> str:
    if usage.local_fallback:
        return LOST
    if usage.prefilled_on == "local":
        return HERE
    return HANDED_OVER if usage.pulled is None else PULLED
