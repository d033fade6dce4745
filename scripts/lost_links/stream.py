"""A stream of new requests, and links that are lost meanwhile.

Owns the order of things. Thread rule: the event loop asks, one thread disturbs.
Invariant: every request is counted once, as answered or as a trouble.
"""

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import grpc
from tasuki.proto import inference_pb2 as pb
from tasuki.proto import inference_pb2_grpc as pb_grpc
from tasuki.utils.config.options import option

from scripts.command import seed_option
from scripts.lost_links.plan import NEW_TOKENS, Ask, asks, disturbances
from scripts.lost_links.tally import HANDED_OVER, HERE, LOST, PULLED, Tally
from scripts.lost_links.world import Turn, World

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
        tally.faults[disturbance.fault.value] += 1


async def _ask_all(
    world: World, settings: StreamSettings, tally: Tally, say: Callable[[str], None]
) -> None:
    left = asks(settings.seed, settings.requests)
    async with grpc.aio.insecure_channel(world.decode.address) as channel:
        stub = pb_grpc.InferenceStub(channel)  # type: ignore[no-untyped-call]
        caller = _Caller(stub, world, tally, _ANSWER_SECONDS * settings.patience)
        async with asyncio.TaskGroup() as callers:
            for _ in range(settings.at_once):
                callers.create_task(_ask_in_turn(caller, left, tally, say))


async def _ask_in_turn(
    caller: "_Caller", left: Iterator[Ask], tally: Tally, say: Callable[[str], None]
) -> None:
    for ask in left:
        await caller.ask(ask)
        if (ask.number + 1) % _TOLD_EVERY == 0:
            say(f"{ask.number + 1} asked: {tally}")


class _Caller:
    def __init__(
        self, stub: pb_grpc.InferenceStub, world: World, tally: Tally, seconds: float
    ) -> None:
        self._stub = stub
        self._conversations = world.conversations
        self._tally = tally
        self._seconds = seconds

    async def ask(self, ask: Ask) -> None:
        first, second = self._conversations[ask.conversation]
        await self._turn(first, ask, "first turn")
        if ask.returns:
            await self._turn(second, ask, "second turn")

    async def _turn(self, turn: Turn, ask: Ask, name: str) -> None:
        request = pb.GenerateRequest(
            token_ids=pb.TokenIds(ids=turn.prompt),
            sampling=pb.Sampling(max_new_tokens=NEW_TOKENS, ignore_eos=True),
            cache_salt=ask.salt,
        )
        begun, tokens, usage = time.monotonic(), [], None
        try:
            async for response in self._stub.Generate(request, timeout=self._seconds):
                if response.WhichOneof("event") == "finished":
                    usage = response.finished.usage
                else:
                    tokens += response.chunk.token_ids
        except grpc.aio.AioRpcError as error:
            what = f"{error.code().name}: {error.details()}"
            self._tally.troubles.append(f"request {ask.number}, {name}: {what}")
            return
        self._tally.slowest = max(self._tally.slowest, time.monotonic() - begun)
        if usage is None or tuple(tokens) != turn.tokens:
            story = f"request {ask.number}, {name}: {tokens}, not {turn.tokens}"
            self._tally.troubles.append(story)
            return
        self._tally.outcomes[_outcome(usage)] += 1


def _outcome(usage: pb.Usage) -> str:
    if usage.local_fallback:
        return LOST
    if usage.prefilled_on == "local":
        return HERE
    return PULLED if usage.HasField("pulled") else HANDED_OVER
