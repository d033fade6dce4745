"""The callers of a load: conversations that each keep one stream open until the time is up.

Knows the asyncio client only. One event loop's thread. Invariant: a turn that its node gave up in
the middle is asked again while the policy has attempts left, and lost otherwise.
"""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from scripts.load.tally import Tally
from tasuki.client.aio import AsyncClient, AsyncSession
from tasuki.client.errors import ClientError
from tasuki.client.prompt import Prompt
from tasuki.client.retry import RetryPolicy, is_transient

Result = TypeVar("Result")

# Longer than restarts take on a busy machine.
PATIENT = RetryPolicy(attempts=600, first_pause=0.2, longest_pause=2.0, deadline=600.0)
_VOCABULARY = 2000
_TURNS = 4
_PREAMBLE_TOKENS = 192


class Users:
    """streams: how many talk at once. seed: what they say. api_key: that they bear; empty: none."""

    def __init__(
        self, target: str, streams: int, seed: int, tally: Tally, api_key: str = ""
    ) -> None:
        self._api_key = api_key
        self._target = target
        self._streams = streams
        self._seed = seed
        self._tally = tally

    async def talk(self, until: Callable[[], bool]) -> None:
        """Returns once `until` holds and every turn that had begun is over."""
        async with AsyncClient(self._target, retry=PATIENT, api_key=self._api_key) as client:
            await asyncio.gather(
                *(self._converse(client, number, until) for number in range(self._streams))
            )

    async def _converse(self, client: AsyncClient, number: int, until: Callable[[], bool]) -> None:
        rng = random.Random(f"{self._seed}/{number}")
        preamble = _tokens(random.Random(f"{self._seed}/{number % 4}"), _PREAMBLE_TOKENS)
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
                self._tally.lost[str(error)] += 1

    async def _turn(self, session: AsyncSession, rng: random.Random) -> None:
        await session.append(Prompt(token_ids=_tokens(rng, rng.randint(8, 96))))
        begun = time.monotonic()
        answer = await _persist(
            lambda: session.generate(max_new_tokens=rng.randint(8, 24), ignore_eos=True).result(),
            self._asked_again,
        )
        tally = self._tally
        tally.turns += 1
        tally.tokens += len(answer.token_ids)
        tally.prompt_tokens += answer.usage.prompt_tokens
        if answer.usage.hit is not None:
            tally.cached_tokens += answer.usage.hit.usable_tokens
        spent = time.monotonic() - begun - answer.usage.seconds
        tally.first_token_seconds.append(max(0.0, spent) + answer.usage.time_to_first_token)

    def _asked_again(self) -> None:
        self._tally.again += 1


async def _persist(ask: Callable[[], Awaitable[Result]], again: Callable[[], None]) -> Result:
    """The client asks again until the first piece; what breaks after it is for the caller."""
    pauses = PATIENT.pauses()
    while True:
        try:
            return await ask()
        except (ClientError, ConnectionError) as error:
            if isinstance(error, ClientError) and not is_transient(error):
                raise
            pause = next(pauses, None)
            if pause is None:
                raise
        again()
        await asyncio.sleep(pause)


def _tokens(rng: random.Random, length: int) -> tuple[int, ...]:
    return tuple(rng.randrange(_VOCABULARY) for _ in range(length))
