"""A workload of many concurrent conversations with a prefill and a decode node: no turn may be
lost, and memory stays flat.

Uses only the asyncio client. Runs on one event loop's thread; another thread disturbs the nodes.
Invariant: a turn interrupted by its node is sent again while the policy has attempts left, and is
lost otherwise.
"""

import asyncio
import random
import time
from collections.abc import Callable
from dataclasses import dataclass

from scripts.chaos import faults
from scripts.chaos.faults import Fault
from scripts.chaos.world import World
from scripts.common.command import seed_option
from scripts.common.probe import resident
from scripts.common.tally import MemoryTrail, Tally
from tasuki.client.aio import AsyncClient, AsyncSession
from tasuki.client.answer import Answer
from tasuki.client.errors import ClientError, RetryPolicy, is_transient
from tasuki.client.prompt import Prompt
from tasuki.utils.options import option
from tests.harness.daemons import flags

FAULTS = (Fault.KILL_PREFILL, Fault.STOP_PREFILL, Fault.STOP_DECODE, Fault.KILL_DECODE)
# Longer than restarts take on a busy machine.
_PATIENT = RetryPolicy(attempts=600, first_pause=0.2, longest_pause=2.0, deadline=600.0)
_TURNS = 4
_PREAMBLE_TOKENS = 192
_SAMPLE_SECONDS = 0.5
_JUDGED_SAMPLES = 120
"""Number of memory samples needed to judge a process; one with fewer samples is not judged."""
_TELL_SECONDS = 15.0
_FAULT_SECONDS = 1.0


@dataclass(frozen=True)
class LoadSettings:
    seconds: float = option(300.0, "how long new turns begin")
    seed: int | None = seed_option()
    fault: str = option("none", "what befalls the nodes in turn, by commas: kill, stop-decode ...")
    streams: int = option(256, "conversations at once")
    turns: int = option(0, "at least so many")
    arena_mib: int = option(192, "small enough to be full before memory is judged")


class Users:
    """Clients of a load; each keeps one stream open until the time is up."""

    def __init__(
        self, target: str, streams: int, seed: int | None, tally: Tally, api_key: str = ""
    ) -> None:
        """Set up the clients. streams: number of concurrent streams. seed: seed of their prompts.
        api_key: API key of the calls; empty: none."""
        self._api_key = api_key
        self._target = target
        self._streams = streams
        self._seed = seed
        self._tally = tally

    async def talk(self, until: Callable[[], bool]) -> None:
        """Run conversations until `until` returns True. Returns once every begun turn is over."""
        async with AsyncClient(self._target, retry=_PATIENT, api_key=self._api_key) as client:
            await asyncio.gather(
                *(self._converse(client, number, until) for number in range(self._streams))
            )

    async def _converse(self, client: AsyncClient, number: int, until: Callable[[], bool]) -> None:
        rng = random.Random(f"{self._seed}/{number}")
        preamble = faults.tokens(random.Random(f"{self._seed}/{number % 4}"), _PREAMBLE_TOKENS)
        while not until():
            try:
                session = await client.open_session()
                await session.append(Prompt(token_ids=preamble))
                for _ in range(_TURNS):
                    await self._turn(session, rng)
                    if until():
                        break
                await session.close()
            except (ClientError, ConnectionError) as error:
                self._tally.trouble("lost", str(error))

    async def _turn(self, session: AsyncSession, rng: random.Random) -> None:
        await session.append(Prompt(token_ids=faults.tokens(rng, rng.randint(8, 96))))
        begun = time.monotonic()
        answer = await self._persist(session, rng.randint(8, 24))
        tally, usage = self._tally, answer.usage
        tally.count("turns")
        tally.count("tokens", len(answer.token_ids))
        tally.count("prompt tokens", usage.prompt_tokens)
        tally.count("cached tokens", usage.hit.usable_tokens if usage.hit is not None else 0)
        spent = time.monotonic() - begun - usage.seconds
        tally.took("first token", max(0.0, spent) + usage.time_to_first_token)

    async def _persist(self, session: AsyncSession, new_tokens: int) -> Answer:
        """Generate an answer, and retry a turn broken after its first part. The client itself
        retries before the first part."""
        pauses = _PATIENT.pauses()
        while True:
            try:
                return await session.generate(max_new_tokens=new_tokens, ignore_eos=True).result()
            except (ClientError, ConnectionError) as error:
                if isinstance(error, ClientError) and not is_transient(error):
                    raise
                pause = next(pauses, None)
                if pause is None:
                    raise
            self._tally.count("asked again")
            await asyncio.sleep(pause)


def nodes(settings: LoadSettings) -> World:
    """Start a prefill and a decode node for more concurrent requests than they serve in a minute.
    Raises UnknownFault."""
    small = tuple(flags(arena_mib=settings.arena_mib))
    return World(small, (*small, "--drain-timeout", "60", "--http-bind", "127.0.0.1:0"))


def run(settings: LoadSettings, say: Callable[[str], None]) -> Tally:
    """Run a load on new nodes. Afterwards the nodes must be at rest, and their memory no larger
    than before. Raises UnknownFault."""
    named = _named(settings)
    with nodes(settings) as world:
        tally = asyncio.run(load(world, settings, named, say))
        world.assert_at_rest()
    for name, trail in tally.memory.items():
        if len(trail) >= _JUDGED_SAMPLES and not trail.is_flat():
            tally.trouble("leaks", f"{name}: {trail}")
    return tally


def _named(settings: LoadSettings) -> tuple[Fault, ...]:
    return () if settings.fault == "none" else faults.chosen(settings.fault, FAULTS)


async def load(
    world: World,
    settings: LoadSettings,
    befall: tuple[Fault, ...] = (),
    say: Callable[[str], None] = lambda line: None,
) -> Tally:
    """Run a load on the world's nodes. befall: faults of the nodes in turn, repeated. The load
    lasts at least one round of faults, and the settings' seconds and turns. A load without a
    completed turn is a trouble."""
    tally = Tally()
    deadline = time.monotonic() + settings.seconds
    happening = asyncio.ensure_future(_disturb(world, befall, deadline, tally))
    users = Users(world.decode.address, settings.streams, settings.seed, tally)
    talking: asyncio.Future[None] = asyncio.ensure_future(
        users.talk(
            lambda: (
                time.monotonic() >= deadline
                and tally["turns"] >= settings.turns
                and happening.done()
            )
        )
    )
    watching = asyncio.ensure_future(_watch_memory(world, tally, talking.done))
    telling = asyncio.ensure_future(_tell(tally, settings.seconds, say))
    try:
        await talking
        await happening
        await watching
    finally:
        telling.cancel()
    if not tally["turns"]:
        tally.trouble("lost", "no turn ended")
    return tally


async def _disturb(world: World, befall: tuple[Fault, ...], deadline: float, tally: Tally) -> None:
    while befall:
        for fault in befall:
            await asyncio.sleep(_FAULT_SECONDS)
            await asyncio.to_thread(world.disturb, fault)
            await asyncio.to_thread(world.fix)
            tally.disturbed(fault.value)
        if time.monotonic() >= deadline:
            return


async def _watch_memory(world: World, tally: Tally, over: Callable[[], bool]) -> None:
    """Sample the memory of each node's processes until `over` is set. A restarted process gets a
    trail of its own."""
    while not over():
        for name, node in (("prefill", world.prefill), ("decode", world.decode)):
            trail = tally.memory.setdefault(f"{name} {node.pid}", MemoryTrail())
            if held := resident(node.pid):
                trail.add(held)
        await asyncio.sleep(_SAMPLE_SECONDS)


async def _tell(tally: Tally, seconds: float, say: Callable[[str], None]) -> None:
    begun = time.monotonic()
    while True:
        await asyncio.sleep(_TELL_SECONDS)
        say(f"{time.monotonic() - begun:.0f} of {seconds:.0f} s: {tally}")
