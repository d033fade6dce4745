"""A workload of random conversations under random faults, in rounds. After each round all nodes
must be at rest.

The prefill and decode node use drafts, and the prefill node has host memory below its arena. The
oracle (an undisturbed node) has neither. Thread rule: the caller's thread disturbs, a pool's
threads converse. Invariants: equal seeds and round numbers give the same requests and faults,
independent of earlier rounds. Every token received by a client is judged, even if the client left
or the decode node died.
"""

import random
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice

from scripts.chaos import faults
from scripts.chaos.faults import Disturbance, Fault, fault_option
from scripts.chaos.world import World, undisturbed
from scripts.common.command import seed_option
from scripts.common.tally import Tally
from tasuki.client.answer import Answer
from tasuki.client.errors import ClientError
from tasuki.client.prompt import Prompt
from tasuki.client.session import Client
from tasuki.engine.messages.reports import Usage
from tasuki.utils.options import option
from tests.harness.daemons import flags

SHARES = {
    Fault.KILL_PREFILL: 3,
    Fault.KILL_DECODE: 2,
    Fault.FREEZE_PREFILL: 2,
    Fault.FREEZE_DECODE: 2,
    Fault.STOP_PREFILL: 1,
    Fault.CUT: 3,
    Fault.HALF_OPEN: 3,
    Fault.DELAY: 1,
    Fault.THROTTLE: 1,
    Fault.STORM: 2,
}
"""Relative frequency of each fault."""
_LASTS = (0.1, 0.5, 1.5, 4.0)
_REST_SECONDS = 10.0
_TURN_SECONDS = 120.0
_PREFIXES = 4
_SALTS = (b"", b"", b"red", b"blue")


@dataclass(frozen=True)
class SoakSettings:
    seconds: float = option(3600.0, "how long new rounds begin")
    seed: int | None = seed_option()
    fault: str = fault_option()
    first_round: int = option(0, "where in the seed's series: one that failed")
    clients: int = option(5, "who converse at once")
    storm_clients: int = option(500, "who ask and leave at once in an abort storm")
    host_cache_gib: float = option(0.25, "below the prefill node's arena; 0: none")
    pause: float = option(0.0, "seconds between rounds, for a host that has other work")
    patience: float = option(
        1.0, "factor on deadlines of what must rest or be answered, for a host that is slow"
    )


@dataclass(frozen=True)
class Turn:
    """One turn of a conversation. tokens: new tokens of its prompt. answer_tokens: length of its
    answer. leave_after: seconds until its client disconnects; None: it stays to the end."""

    tokens: tuple[int, ...]
    answer_tokens: int
    leave_after: float | None


@dataclass(frozen=True)
class Conversation:
    """One conversation. prefix: tokens at its start, shared with other conversations."""

    salt: bytes
    prefix: tuple[int, ...]
    turns: tuple[Turn, ...]


@dataclass(frozen=True)
class Round:
    conversations: tuple[Conversation, ...]
    disturbances: tuple[Disturbance, ...]


def draw(settings: SoakSettings, number: int) -> Round:
    """Return the random round `number`, determined by the settings' seed. Raises UnknownFault."""
    seed = settings.seed
    rng = random.Random(f"{seed}/{number}")
    prefixes = [faults.tokens(random.Random(f"{seed}/prefix/{i}"), 700) for i in range(_PREFIXES)]
    conversations = tuple(_conversation(rng, prefixes) for _ in range(settings.clients))
    shares = {fault: SHARES[fault] for fault in faults.chosen(settings.fault, [*SHARES])}
    series = faults.disturbances(rng, shares, (0.1, 2.0), _LASTS)
    return Round(conversations, tuple(islice(series, rng.randint(1, 3))))


def _conversation(rng: random.Random, prefixes: list[tuple[int, ...]]) -> Conversation:
    prefix = rng.choice(prefixes)[: rng.choice((0, 130, 448, 700))]
    turns = tuple(_turn(rng) for _ in range(rng.randint(1, 4)))
    return Conversation(rng.choice(_SALTS), prefix, turns)


def _turn(rng: random.Random) -> Turn:
    length = rng.choice((rng.randint(1, 100), rng.randint(129, 600), rng.randint(600, 1500)))
    leave = rng.uniform(0.0, 1.5) if rng.random() < 0.25 else None
    return Turn(faults.tokens(rng, length), rng.randint(1, 60), leave)


def soak(settings: SoakSettings, say: Callable[[str], None]) -> Tally:
    """Run whole rounds until `seconds` have passed, or until one saw a forbidden result. say:
    receives one line for each round. Raises UnknownFault."""
    tally, number = Tally(), settings.first_round
    drafts = ("--speculate", "tree", "--draft-tokens", "3")
    small = (*flags(arena_mib=48), *drafts)
    below = ("--host-cache-gib", str(settings.host_cache_gib)) if settings.host_cache_gib else ()
    with World(
        (*small, "--prefill-chunk-tokens", "128", "--max-batch", "2", *below),
        small,
        faults.chosen(settings.fault, [*SHARES]),
        (*flags(arena_mib=128), "--speculate", "off"),
        settings.patience,
        settings.storm_clients,
    ) as world:
        # Begin the count now: on a busy host the daemons' start takes longer than a short soak.
        begun = time.monotonic()
        while tally.good and time.monotonic() - begun < settings.seconds:
            _play(world, tally, settings, number)
            say(f"round {number}, {time.monotonic() - begun:.0f} s: {tally}")
            number += 1
            time.sleep(settings.pause)
    return tally


def _play(world: World, tally: Tally, settings: SoakSettings, number: int) -> None:
    drawn = draw(settings, number)
    with ThreadPoolExecutor(len(drawn.conversations)) as pool:
        # Before any disturbance, because answers are drafted from the expected ones.
        answers = [*pool.map(lambda one: _expected(one, world), drawn.conversations)]
        talks = [
            pool.submit(_converse, one, answers[client], world, tally, f"round {number}, {client}")
            for client, one in enumerate(drawn.conversations)
        ]
        for disturbance in drawn.disturbances:
            time.sleep(disturbance.after)
            world.disturb(disturbance.fault, disturbance.lasts)
            tally.disturbed(disturbance.fault.value)
        for talk in talks:
            talk.result()
    try:
        world.fix()
        begun = time.monotonic()
        world.assert_at_rest(_REST_SECONDS * settings.patience)
        tally.took("at rest", time.monotonic() - begun)
    except AssertionError as error:
        tally.trouble("leaks", f"round {number}: {error}")


def _expected(conversation: Conversation, world: World) -> list[Answer]:
    """Return the undisturbed node's answers to a conversation, turn by turn."""
    history, answers = conversation.prefix, list[Answer]()
    with Client(world.oracle.address) as client:
        for turn in conversation.turns:
            prompt = (*history, *turn.tokens)
            answers.append(undisturbed(client, prompt, conversation.salt, turn.answer_tokens))
            history = (*prompt, *answers[-1].token_ids)
    return answers


def _converse(
    conversation: Conversation, answers: Sequence[Answer], world: World, tally: Tally, story: str
) -> None:
    """Run one conversation, and judge its answers. answers: the undisturbed node's answers. story:
    text naming the round and conversation in reports."""
    history = conversation.prefix
    for number, (turn, answer) in enumerate(zip(conversation.turns, answers, strict=True)):
        prompt = (*history, *turn.tokens)
        place = f"{story}, turn {number}, {len(prompt)} tokens"
        deaths = world.wait_for_decode(_TURN_SECONDS * world.patience)
        prediction = _broken(answer.token_ids, random.Random(place))
        found, end = _ask(world, conversation.salt, prompt, turn, prediction)
        if isinstance(end, Usage):
            _count(tally, end)
            if len(found) != turn.answer_tokens:
                tally.trouble("wrong", f"{place}: {len(found)} of {turn.answer_tokens} tokens")
        elif turn.leave_after is not None:
            tally.count("left")
        elif world.decode_deaths > deaths:
            tally.count("lost with decode")
        else:
            tally.trouble("unexpected", f"{place}: {end!r}")
        tally.judge(found, answer.token_ids, answer.margins, place)
        history = (*prompt, *answer.token_ids)


def _count(tally: Tally, usage: Usage) -> None:
    tally.count("answers")
    tally.count("local fallbacks", int(usage.local_fallback))
    tally.count("pulls", int(usage.pulled is not None))
    tally.count("loaded tokens", sum(usage.hit.loaded.values()) if usage.hit is not None else 0)
    tally.count("drafts", usage.drafted_tokens)
    tally.count("accepted drafts", usage.accepted_tokens)


def _broken(answer: tuple[int, ...], chance: random.Random) -> list[int]:
    """Return a plausible wrong prediction of the answer: about one token in six is changed, new or
    missing."""
    found: list[int] = []
    for token in answer:
        found += chance.choices([[token], [token ^ 1], [], [token, 1]], (15, 1, 1, 1))[0]
    return found


def _ask(
    world: World, salt: bytes, prompt: tuple[int, ...], turn: Turn, prediction: Sequence[int]
) -> tuple[list[int], Usage | Exception]:
    """Run one turn. Returns the received tokens, and the turn's end: its usage or the error seen by
    the client."""
    found: list[int] = []
    with Client(world.decode.address) as client:
        stream = client.generate(
            Prompt(token_ids=prompt),
            prediction=prediction,
            max_new_tokens=turn.answer_tokens,
            ignore_eos=True,
            cache_salt=salt,
        )
        most = _TURN_SECONDS * world.patience
        leaving = threading.Timer(
            most if turn.leave_after is None else turn.leave_after, stream.cancel
        )
        leaving.start()
        try:
            for piece in stream:
                found.extend(piece.token_ids)
            return found, stream.result().usage
        except (ClientError, ConnectionError) as error:
            return found, error
        finally:
            leaving.cancel()
            leaving.join()
