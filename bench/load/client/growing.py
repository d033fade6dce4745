"""The load of a published shape: sessions of growing turns, at all their turns at a time."""

import asyncio
import time
from dataclasses import dataclass

from .loads import Client, drawn
from .replies import Replies
from .session_shape import SessionShape


@dataclass(frozen=True)
class GrowingSessions:
    """A load of agent sessions. A session that has ended is followed by a new one at once. Every
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
                if answer.error or client.over:
                    return
                await asyncio.sleep(sent + reply.next_after - time.monotonic())
                known = len(prompt) + len(answer.tokens)
                new = drawn(f"{name} {turn}", self.shape.fresh, client.vocabulary)
                prompt = [*prompt, *answer.tokens, *new]
            first, life = 0, life + 1
