"""A workload of new requests while connections between nodes are cut, half-open and silent. Each
request must get the right answer.

Thread rule: the event loop sends, one thread disturbs. Invariants: equal seeds give equal plans;
every request is counted once, as answered or as a trouble.
"""

import asyncio
import random
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from scripts.chaos import faults
from scripts.chaos.faults import Disturbance, Fault, fault_option
from scripts.chaos.world import World, undisturbed
from scripts.common.command import seed_option
from scripts.common.tally import Tally
from tasuki.cli.demo import TIE_MARGIN
from tasuki.client.aio import AsyncClient
from tasuki.client.errors import ClientError, RetryPolicy
from tasuki.client.prompt import Prompt
from tasuki.client.session import Client
from tasuki.engine.messages.reports import Usage
from tasuki.utils.options import option
from tests.harness.daemons import Question, flags

FAULTS = (Fault.CUT, Fault.HALF_OPEN, Fault.FREEZE_PREFILL, Fault.FREEZE_DECODE)
OUTCOMES = HANDED_OVER, PULLED, LOST, HERE = (
    *("handed over", "handed over after a pull"),
    *("prefilled here after a loss", "prefilled here"),
)
_CONVERSATIONS = 6
_NEW_TOKENS = 4
_ANSWER_SECONDS = 60.0
"""Time limit of a request, in seconds; without an end by then it counts as unanswered."""
_REST_SECONDS = 20.0
_TOLD_EVERY = 500
_LOOK_SECONDS = 0.02
_LASTS = (0.05, 0.4, 1.2, 1.6)
"""Possible durations of a connection fault, in seconds. Some are shorter than the heartbeat
timeout, so the nodes stay connected."""


@dataclass(frozen=True)
class StreamSettings:
    requests: int = option(10_000, "how many in all")
    seed: int | None = seed_option()
    fault: str = fault_option()
    at_once: int = option(16, "requests in flight")
    patience: float = option(1.0, "factor on deadlines, for a host that is slow")


@dataclass(frozen=True)
class Ask:
    """One request. conversation: index of its conversation. Its salt is used by no other request.
    returns: True if its client sends a second turn too; then a prefill node fetches the first
    answer."""

    number: int
    conversation: int
    returns: bool

    @property
    def salt(self) -> bytes:
        return b"stream %d" % self.number


def asks(seed: int | None, count: int) -> Iterator[Ask]:
    rng = random.Random(f"{seed}/asks")
    for number in range(count):
        yield Ask(number, rng.randrange(_CONVERSATIONS), rng.random() < 0.3)


def disturbances(settings: StreamSettings) -> Iterator[tuple[int, Disturbance]]:
    """Yield a number of prompts and the disturbance after them, without end.

    Prompts are counted instead of seconds, so a slow host breaks and transfers as much as a fast
    one.
    """
    rng = random.Random(f"{settings.seed}/disturbances")
    shares = dict.fromkeys(faults.chosen(settings.fault, FAULTS), 1)
    for disturbance in faults.disturbances(rng, shares, (0.0, 0.3), _LASTS):
        yield rng.randrange(1, 20), disturbance


def _conversations(oracle: Client) -> list[tuple[Question, Question]]:
    """Return conversations of two turns each. Their answers have no near tie between the two
    likeliest tokens. Raises AssertionError if too few."""
    found: list[tuple[Question, Question]] = []
    for seed in range(20 * _CONVERSATIONS):
        rng = random.Random(f"{seed}/prompts")
        first = _question(oracle, faults.tokens(rng, rng.randrange(70, 160)))
        if first is None:
            continue
        said = (*first.prompt, *first.tokens, *faults.tokens(rng, rng.randrange(20, 60)))
        if (second := _question(oracle, said)) is not None:
            found.append((first, second))
        if len(found) == _CONVERSATIONS:
            return found
    raise AssertionError("too few conversations without a near tie")


def _question(oracle: Client, prompt: tuple[int, ...]) -> Question | None:
    answer = undisturbed(oracle, prompt, b"", _NEW_TOKENS)
    return Question(prompt, answer.token_ids) if min(answer.margins) > TIE_MARGIN else None


def stream(settings: StreamSettings, say: Callable[[str], None]) -> Tally:
    """Send all requests while connections are disturbed. Then check for memory or requests still
    held by the nodes. Raises UnknownFault."""
    tally = Tally()
    shared = (*flags(arena_mib=128), "--pull-tokens", "1")
    decode = (*shared, "--local-prefill-tokens", "8", "--http-bind", "127.0.0.1:0")
    named = faults.chosen(settings.fault, FAULTS)
    oracle = tuple(flags(arena_mib=32))
    with World(shared, decode, named, oracle, settings.patience) as world:
        over = threading.Event()
        disturber = threading.Thread(target=_disturb, args=(world, settings, tally, over))
        conversations = _conversations(world.oracle.client)
        disturber.start()
        try:
            asyncio.run(_ask_all(world, conversations, settings, tally, say))
        finally:
            over.set()
            disturber.join()
        try:
            world.fix()
            world.assert_at_rest(_REST_SECONDS * settings.patience)
        except AssertionError as error:
            tally.trouble("leaks", f"held afterwards: {error}")
        tally.lost.update(world.lost_by_cause())
    return tally


def _disturb(world: World, settings: StreamSettings, tally: Tally, over: threading.Event) -> None:
    def handed_over() -> int:
        return tally[HANDED_OVER] + tally[PULLED]

    for more, disturbance in disturbances(settings):
        enough = handed_over() + more
        while handed_over() < enough:
            if over.wait(_LOOK_SECONDS):
                return
        time.sleep(disturbance.after)
        world.disturb(disturbance.fault, disturbance.lasts)
        tally.disturbed(disturbance.fault.value)


async def _ask_all(
    world: World,
    conversations: list[tuple[Question, Question]],
    settings: StreamSettings,
    tally: Tally,
    say: Callable[[str], None],
) -> None:
    left = asks(settings.seed, settings.requests)
    seconds = _ANSWER_SECONDS * settings.patience
    # A broken request is a trouble, and not retried.
    async with AsyncClient(world.decode.address, retry=RetryPolicy(attempts=1)) as client:

        async def ask_in_turn() -> None:
            for ask in left:
                turns = conversations[ask.conversation][: 1 + ask.returns]
                for number, question in enumerate(turns):
                    place = f"request {ask.number}, turn {number}"
                    await _turn(client, question, ask.salt, seconds, tally, place)
                if (ask.number + 1) % _TOLD_EVERY == 0:
                    say(f"{ask.number + 1} asked: {tally}")

        async with asyncio.TaskGroup() as callers:
            for _ in range(settings.at_once):
                callers.create_task(ask_in_turn())


async def _turn(
    client: AsyncClient, question: Question, salt: bytes, seconds: float, tally: Tally, place: str
) -> None:
    begun = time.monotonic()
    prompt = Prompt(token_ids=question.prompt)
    asked = client.generate(prompt, max_new_tokens=_NEW_TOKENS, ignore_eos=True, cache_salt=salt)
    try:
        async with asyncio.timeout(seconds):
            answer = await asked.result()
    except (ClientError, ConnectionError, TimeoutError) as error:
        tally.trouble("unexpected", f"{place}: {error!r}")
        return
    tally.took("answer", time.monotonic() - begun)
    if answer.token_ids != question.tokens:
        tally.trouble("wrong", f"{place}: {answer.token_ids}, not {question.tokens}")
        return
    tally.count(_outcome(answer.usage))


def _outcome(usage: Usage) -> str:
    if usage.local_fallback:
        return LOST
    if usage.prefilled_on == "local":
        return HERE
    return HANDED_OVER if usage.pulled is None else PULLED
