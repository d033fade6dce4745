"""The kinds of load: each class holds the requests of a session's whole life. Values sent to the
client processes."""

import asyncio
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from .answer import Answer
from .replies import Replies
from .session_shape import SessionShape


def drawn(seed: str, count: int, vocabulary: int) -> list[int]:
    """Return `count` random token ids below `vocabulary`, without 0, because 0 ends answers."""
    return random.Random(seed).choices(range(1, vocabulary), k=count)


class Client(Protocol):
    """One client process, as seen by a load."""

    @property
    def over(self) -> bool:
        """Return True if the client sends no new requests any more."""

    @property
    def vocabulary(self) -> int: ...

    async def ask(
        self, session: int, turn: int, prompt: Sequence[int], asked: int, known: int = 0
    ) -> Answer:
        """Send a turn, and return its answer. asked: length of the answer. known: number of the
        prompt's first tokens computed in earlier turns of the session."""


class Load(Protocol):
    """A kind of load. sessions: number of concurrent sessions. admitted_first: True if the measured
    window begins once every session receives tokens; otherwise the window is the whole run. cut:
    True if answers are cut at the window's end."""

    @property
    def sessions(self) -> int: ...

    @property
    def admitted_first(self) -> bool: ...

    @property
    def cut(self) -> bool: ...

    async def live(self, client: Client, session: int) -> None: ...


@dataclass(frozen=True)
class Streams:
    """A load of independent prompts: each session sends a new one as soon as its answer has ended.
    The first answers have different lengths, so later answers do not all end in one step."""

    sessions: int
    prompt: int
    answer: int
    seed: str
    admitted_first = True
    cut = True

    async def live(self, client: Client, session: int) -> None:
        asked, turn = max(1, self.answer * (session + 1) // self.sessions), 0
        while not client.over:
            prompt = drawn(f"{self.seed} {session} {turn}", self.prompt, client.vocabulary)
            answer = await client.ask(session, turn, prompt, asked)
            if answer.error:
                return
            asked, turn = self.answer, turn + 1


@dataclass(frozen=True)
class Endless:
    """A load of answers without end: every other session has the short prompt, the others the long
    one."""

    sessions: int
    short: int
    long: int
    answer: int
    seed: str
    admitted_first = True
    cut = True

    async def live(self, client: Client, session: int) -> None:
        length = self.long if session % 2 else self.short
        prompt = drawn(f"{self.seed} {session}", length, client.vocabulary)
        await client.ask(session, 0, prompt, self.answer)


@dataclass(frozen=True)
class Agents:
    """A load of agent sessions with a common prefix. Every turn's prompt appends the last answer
    and new tokens."""

    sessions: int
    turns: int
    prefix: int
    turn: int
    answer: int
    seed: str
    admitted_first = False
    cut = False

    def beginning(self, session: str, vocabulary: int) -> list[int]:
        """Return the prompt of a session's first turn: the common prefix and the session's own
        tokens."""
        common = drawn(f"{self.seed} prefix", self.prefix, vocabulary)
        return common + drawn(f"{self.seed} {session} 0", self.turn, vocabulary)

    async def live(self, client: Client, session: int) -> None:
        prompt = self.beginning(str(session), client.vocabulary)
        for turn in range(self.turns):
            answer = await client.ask(session, turn, prompt, self.answer)
            if answer.error:
                return
            new = drawn(f"{self.seed} {session} {turn + 1}", self.turn, client.vocabulary)
            prompt = [*prompt, *answer.tokens, *new]


@dataclass(frozen=True)
class GrowingSessions:
    """A load of agent sessions. A new session follows an ended one at once. Every
    turn's prompt appends the last answer and new tokens. The first sessions begin at turns evenly
    spread over a session, and their first answers have different lengths."""

    sessions: int
    shape: SessionShape
    replies: Replies
    seed: str
    admitted_first = True
    cut = True

    async def live(self, client: Client, session: int) -> None:
        replies = self.replies.of_session(session, self.sessions)
        first, life = session * self.shape.turns // self.sessions, 0
        while not client.over:
            name = f"{self.seed} {session} {life}"
            prompt = drawn(name, self.shape.prompt(first), client.vocabulary)
            known = 0
            for turn in range(first, self.shape.turns):
                reply = next(replies)
                asked = reply.tokens
                if not life and turn == first:
                    asked = max(1, asked * (session + 1) // self.sessions)
                sent = time.monotonic()
                answer = await client.ask(session, turn, prompt, asked, known)
                if answer.error:
                    return
                if client.over or turn + 1 == self.shape.turns:
                    break
                await asyncio.sleep(sent + reply.next_after - time.monotonic())
                known = len(prompt) + len(answer.tokens)
                new = drawn(f"{name} {turn}", self.shape.fresh, client.vocabulary)
                prompt = [*prompt, *answer.tokens, *new]
            first, life = 0, life + 1


@dataclass(frozen=True)
class WarmUp:
    """The load of a warm-up: `times` requests with the agents' common prefix, one after another."""

    agents: Agents
    times: int
    sessions = 1
    admitted_first = False
    cut = False

    async def live(self, client: Client, session: int) -> None:
        for turn in range(self.times):
            prompt = self.agents.beginning(f"warm {turn}", client.vocabulary)
            await client.ask(session, turn, prompt, 4)
