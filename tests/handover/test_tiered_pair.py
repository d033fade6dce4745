"""A prefill node with host memory below its arena: what it hands over begins with what was loaded,
and nothing of it leaves before it has landed."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import pytest

from tasuki.engine import messages as m
from tasuki.engine.messages.evictions import LOAD_FAILED
from tasuki.engine.role import Role
from tests.handover.test_pulls import prompt_of, reserve, sender_over
from tests.harness.engine_pair import EnginePair, engine_pair
from tests.harness.engines import Lone, alone, engine_config, prompt, submit, tiny_parts
from tests.harness.manual_clock import ManualClock
from tests.harness.tiers import Fault, FaultyCopies, tiered_parts

PROMPT = prompt(400, seed=1)
NEXT = PROMPT + prompt(100, seed=2)
BEGINNING = 384
"""A prefill keeps the state at the last page boundary that a repeat may use."""


@dataclass
class Tiered:
    pair: EnginePair
    copies: FaultyCopies

    def answered(self, name: str, tokens: list[int]) -> m.HitBreakdown:
        """By a hand-over, as one engine would; what the prefill node found of it."""
        self.pair.join(self.pair.begin(submit(name, tokens, 4)))
        assert self.pair.decode.tokens(name) == alone(tokens, 4)
        return self.pair.decode.hit(name)

    def forget(self) -> None:
        """PROMPT stands below the prefill node's arena alone."""
        self.answered("first", PROMPT)
        self.pair.prefill.run()
        self.answered("push", prompt(900, seed=3))
        self.pair.decode.post(m.FlushCache(0))


@pytest.fixture
def tiered() -> Iterator[Tiered]:
    parts, copies = tiered_parts(slabs=22)
    parts = replace(parts, clock=ManualClock())
    with engine_pair(parts, tiny_parts()) as pair:
        yield Tiered(pair, copies.made)
        copies.made.let_go()
        for engine in (pair.prefill, pair.decode):
            engine.run()
            engine.assert_at_rest()
            engine.engine.close()


def test_a_hand_over_begins_with_what_was_loaded(tiered: Tiered) -> None:
    tiered.forget()
    hit = tiered.answered("next", NEXT)
    assert hit.usable_tokens == BEGINNING and hit.loaded == {"host": BEGINNING}
    assert hit.usable_tokens + sum(hit.causes.values()) == len(NEXT)


@pytest.mark.parametrize("fault", Fault)
def test_what_failed_to_load_is_computed_and_handed_over(tiered: Tiered, fault: Fault) -> None:
    tiered.forget()
    tiered.copies.fault = lambda name: fault if name.endswith("_up") else None
    hit = tiered.answered("next", NEXT)
    assert hit.usable_tokens == 0 and hit.causes[LOAD_FAILED] == BEGINNING and not hit.loaded


@pytest.fixture
def prefill(tmp_path: object) -> Iterator[tuple[Lone, FaultyCopies]]:
    parts, copies = tiered_parts(slabs=22)
    config = engine_config(tmp_path)
    lone = Lone(config, Role.PREFILL, replace(parts, clock=ManualClock()), sender_over(parts))
    yield lone, copies.made
    copies.made.let_go()
    lone.run()
    lone.assert_at_rest()
    lone.engine.close()


def computed(lone: Lone, room: int, tokens: int, seed: int) -> None:
    """A room of that prompt, from its begin to its end."""
    number = m.RoomId(room)
    lone.post(reserve(prompt_of(tokens, seed), 0, number))
    lone.run()
    lone.post(m.PrefillStart(m.Grant(number, 1, -(-tokens // 64), (), None)))
    lone.run()
    lone.post(m.PrefillEnd(number))
    lone.run()


def test_nobody_is_let_write_windows_before_the_load_has_landed(
    prefill: tuple[Lone, FaultyCopies],
) -> None:
    lone, copies = prefill
    computed(lone, 1, 400, seed=1)
    computed(lone, 2, 1000, seed=2)
    lone.said.clear()
    copies.hold("slot_up")
    lone.post(reserve(prompt_of(400, 1), 0, m.RoomId(3)))
    lone.step()
    copies.await_inside("slot_up")
    lone.steps(5)
    assert lone.stats().requests == {m.RequestPhase.LOADING: 1}
    assert not lone.all_said(m.PrefillAccepted)
    copies.let_go()
    lone.run()
    assert [message.room for message in lone.all_said(m.PrefillAccepted)] == [3]
    lone.post(m.PrefillEnd(m.RoomId(3)))


def test_a_room_that_ends_while_it_loads_leaves_nothing(
    prefill: tuple[Lone, FaultyCopies],
) -> None:
    lone, copies = prefill
    computed(lone, 1, 400, seed=1)
    computed(lone, 2, 1000, seed=2)
    copies.hold("pages_up")
    lone.post(reserve(prompt_of(400, 1), 0, m.RoomId(3)))
    lone.step()
    copies.await_inside("pages_up")
    lone.post(m.PrefillEnd(m.RoomId(3)))
    assert [message.room for message in lone.all_said(m.RoomEnded)] == [1, 2, 3]
    assert lone.stats().slots["quarantined"] > 0
