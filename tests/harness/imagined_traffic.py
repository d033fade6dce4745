"""Simulated events of five minutes of agents' conversations on one node, in the form of the node's
history.

They are random by a seed. Most turns resume at the end of the last turn. Sometimes the state of a
turn was evicted.
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from tasuki.dashboard.history.events import Event, event_of, pools_event
from tasuki.dashboard.observed import NodeReport
from tasuki.engine import messages as m
from tasuki.engine.messages import EvictedCheckpoint, Eviction, LifeMark, RequestPhase
from tasuki.model.ops.sampling.params import SamplingParams

SECONDS = 300
_SESSIONS = 12
_SHARED = 6000
_SLOTS, _PAGES = 64, 4800
_SLAB_BYTES = 38 * 2**20
_PAGES_A_SLAB = 75


@dataclass
class _Session:
    name: str
    tokens: int = 0
    turns: int = 0


def traffic(begun: float, seed: int = 5) -> Iterator[Event]:
    """Return the history's events in order. begun: time of the first, seconds since 1970."""
    chance = random.Random(seed)
    talk = [event for number in range(_SESSIONS) for event in _talk(number, chance)]
    events = [*talk, *_pools(talk, chance)]
    for at, event in sorted(events, key=lambda timed: timed[0]):
        yield {**event, "at": begun + at}


def _talk(number: int, chance: random.Random) -> Iterator[tuple[float, Event]]:
    session = _Session(f"session {number + 1}")
    at = chance.uniform(0, 60)
    while at < SECONDS - 15:
        name = f"agent-{number + 1}-turn-{session.turns + 1}"
        usage = _turn(session, chance)
        prompt = np.zeros(usage.prompt_tokens, np.int32)
        asked = m.Submit(
            m.RequestId(name),
            prompt,
            SamplingParams(),
            session=session.name,
            caller=("agents", "chat")[number % 2],
        )
        first = usage.time_to_first_token
        life = (
            LifeMark(RequestPhase.PREFILLING, 0.2 * first),
            LifeMark(RequestPhase.DECODING, first),
            LifeMark(RequestPhase.FINISHED, usage.seconds),
        )
        yield at, event_of(asked)
        ended = m.Finished(m.RequestId(name), m.FinishReason.STOP, usage, life)
        yield at + usage.seconds, event_of(ended)
        at += usage.seconds + chance.lognormvariate(2.4, 0.6)


def _turn(session: _Session, chance: random.Random) -> m.Usage:
    """Return the session's next turn: its prompt is the conversation so far plus new text."""
    new = int(chance.lognormvariate(6.2, 0.8))
    known = session.tokens or (_SHARED if chance.random() < 0.8 else 0)
    prompt = max(_SHARED, session.tokens) + new
    hit = m.HitBreakdown(prompt, known, known, {"new": prompt - known}, "turn_end")
    if session.turns and chance.random() < 0.12:
        taker = m.RequestId(f"agent-{chance.randint(1, _SESSIONS)}-turn-{session.turns + 1}")
        gone = Eviction(session.turns, "checkpoint", "turn_end", known, 1.0, 0.002, taker)
        hit = replace(
            hit,
            usable_tokens=_SHARED,
            causes={"new": new, "checkpoint_evicted": known - _SHARED},
            checkpoint_source="branch",
            lost=EvictedCheckpoint(known, chance.choice((2.0, 4.0, 5.0, 7.0)), gone),
        )
    answer = 20 + int(chance.lognormvariate(4.6, 0.6))
    first = 0.06 + (prompt - hit.usable_tokens) / 9000 + chance.expovariate(12)
    session.tokens = prompt + answer
    session.turns += 1
    return m.Usage(prompt, answer, hit, None, "local", False, first, first + 0.011 * answer)


def _written(talk: Sequence[tuple[float, Event]], until: float) -> int:
    """Return the number of answer tokens written at the time `until`. An answer writes evenly from
    its first token to its end."""
    tokens = 0.0
    for at, event in talk:
        if event["kind"] == "finished":
            usage = event["usage"]
            took = usage["seconds"] - usage["time_to_first_token"]
            tokens += usage["completion_tokens"] * min(1.0, max(0.0, 1 - (at - until) / took))
    return int(tokens)


def _pools(
    talk: Sequence[tuple[float, Event]], chance: random.Random
) -> Iterator[tuple[float, Event]]:
    working, tree = 4.0, 10.0
    for second in range(SECONDS):
        working = min(16.0, max(2.0, working + chance.uniform(-1.5, 1.6)))
        tree = min(46.0, tree + chance.uniform(-0.4, 0.9))
        stats = m.StatsReply(
            query_id=0,
            slots=_pool(_SLOTS, working, tree),
            pages=_pool(_PAGES, _PAGES_A_SLAB * working, _PAGES_A_SLAB * tree),
            slabs={"free": 1, "pages": 64, "slots": 63},
            slab_bytes=_SLAB_BYTES,
            each_bytes={"page": _SLAB_BYTES // _PAGES_A_SLAB, "slot": _SLAB_BYTES},
            tree={"nodes": int(9 * tree), "checkpoints": int(tree)},
            lost={},
            requests={RequestPhase.DECODING: int(working), RequestPhase.WAITING: second % 2},
            policy="value",
        )
        yield float(second), pools_event(NodeReport(stats), _written(talk, second))


def _pool(total: int, working: float, tree: float) -> dict[str, int]:
    return {
        "working": int(working),
        "tree": int(tree),
        "pinned": int(0.3 * tree),
        "granted": 0,
        "quarantined": 0,
        "free": total - int(working) - int(tree),
        "total": total,
    }
