"""A prefill node with host memory below its arena. Its hand-over begins with the loaded prefix, and
no byte is sent before its load has completed."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import pytest

from tasuki.engine import messages as m
from tasuki.engine.config import Role
from tasuki.engine.messages.reports import LOAD_FAILED
from tasuki.engine.roles.early_steps import EarlySteps
from tasuki.engine.tiers.digests import page_bytes, slot_bytes
from tests.handover.test_pulls import prompt_of, reserve, sender_over
from tests.harness.engine_pair import EnginePair, engine_pair
from tests.harness.engines import Lone, alone, engine_config, prompt, submit, tiny_parts
from tests.harness.tiers import Fault, FaultyCopies, tiered_parts
from tests.harness.waiting import ManualClock

PROMPT = prompt(400, seed=1)
NEXT = PROMPT + prompt(100, seed=2)
BEGINNING = 384
"""Tokens up to the last page boundary usable by a repeat; a prefill keeps the state there."""


@dataclass
class Tiered:
    pair: EnginePair
    copies: FaultyCopies

    def answered(self, name: str, tokens: list[int]) -> m.HitBreakdown:
        """Answer by a hand-over and assert the tokens of a single engine. Return the hit at the
        prefill node."""
        self.pair.join(self.pair.begin(submit(name, tokens, 4)))
        assert self.pair.decode.tokens(name) == alone(tokens, 4)
        return self.pair.decode.hit(name)

    def forget(self) -> None:
        """Leave PROMPT only below the prefill node's arena."""
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
    assert tiered.pair.prefill.engine.computed_behind_loads == 1


def test_a_forward_that_breaks_behind_a_load_spoils_the_only_slot(
    tiered: Tiered, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The forward may have overwritten the loaded state, so no request starts from it."""

    def broken(*args: object) -> None:
        raise RuntimeError("broken on purpose")

    tiered.forget()
    monkeypatch.setattr(EarlySteps, "_compute", broken)
    hit = tiered.answered("next", NEXT)
    assert hit.usable_tokens == 0 and hit.causes[LOAD_FAILED] == BEGINNING
    assert tiered.pair.prefill.engine.computed_behind_loads == 0


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


def computed(lone: Lone, transfer_id: int, tokens: int, seed: int) -> None:
    """Run a transfer of this prompt from begin to end."""
    number = m.TransferId(transfer_id)
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
    lone.post(reserve(prompt_of(400, 1), 0, m.TransferId(3)))
    lone.step()
    copies.await_inside("slot_up")
    lone.steps(5)
    assert lone.stats().requests == {m.RequestPhase.LOADING: 1}
    assert not lone.all_said(m.PrefillAccepted)
    copies.let_go()
    lone.run()
    assert [message.transfer_id for message in lone.all_said(m.PrefillAccepted)] == [3]
    lone.post(m.PrefillEnd(m.TransferId(3)))


def test_a_room_that_ends_while_it_loads_leaves_nothing(
    prefill: tuple[Lone, FaultyCopies],
) -> None:
    lone, copies = prefill
    computed(lone, 1, 400, seed=1)
    computed(lone, 2, 1000, seed=2)
    copies.hold("pages_up")
    lone.post(reserve(prompt_of(400, 1), 0, m.TransferId(3)))
    lone.step()
    copies.await_inside("pages_up")
    lone.post(m.PrefillEnd(m.TransferId(3)))
    assert [message.transfer_id for message in lone.all_said(m.TransferEnded)] == [1, 2, 3]
    assert lone.stats().slots["quarantined"] > 0


def below(lone: Lone) -> None:
    """Leave the first 384 tokens of prompt_of(400, 1) only below the arena."""
    computed(lone, 1, 400, seed=1)
    computed(lone, 2, 1000, seed=2)
    lone.said.clear()


def fetch(transfer_id: int = 5) -> m.FetchReserve:
    return m.FetchReserve(
        m.FetchRequest(m.TransferId(transfer_id), 3, b""), prompt_of(400, 1)[:BEGINNING], "d"
    )


def content(lone: Lone, pages: list[int], slot: int) -> list[bytes]:
    arena = lone.parts.arena
    return [page_bytes(arena, page).tobytes() for page in pages] + [
        slot_bytes(arena, slot).tobytes()
    ]


def test_a_state_is_loaded_before_another_node_reads_it(
    prefill: tuple[Lone, FaultyCopies],
) -> None:
    lone, copies = prefill
    computed(lone, 1, 400, seed=1)
    cache = lone.engine._cache
    stands = cache.allocate_to_send(prompt_of(400, 1)[: BEGINNING + 1])
    assert stands is not None and stands.cached_tokens == BEGINNING
    assert stands.cow_source_slot is not None
    wanted = content(lone, stands.pages.tolist(), stands.cow_source_slot)
    cache.release(stands)
    computed(lone, 2, 1000, seed=2)
    lone.said.clear()
    copies.hold("slot_up")
    lone.post(fetch())
    copies.await_inside("slot_up")
    lone.steps(5)
    assert not lone.all_said(m.PrefillAccepted) and not lone.all_said(m.FetchRefused)
    # Nothing has been loaded yet, so nothing may be sent.
    lone.post(m.PrefillStart(m.Grant(m.TransferId(5), 3, 0, tuple(range(6)), 0)))
    lone.steps(2)
    assert not lone.all_said(m.StateHeld)
    copies.let_go()
    lone.run()
    assert [said.transfer_id for said in lone.all_said(m.PrefillAccepted)] == [5]
    lone.post(m.PrefillStart(m.Grant(m.TransferId(5), 3, 0, tuple(range(6)), 0)))
    lone.run()
    assert [said.transfer_id for said in lone.all_said(m.StateHeld)] == [5]
    held = lone.engine._handover._fetched.held[m.TransferId(5)][1]  # type: ignore[attr-defined]
    pages, slot = held.sent
    assert content(lone, list(pages), slot) == wanted
    lone.post(m.PrefillEnd(m.TransferId(5)))


@pytest.mark.parametrize("fault", Fault)
def test_a_state_that_fails_to_load_is_refused(
    prefill: tuple[Lone, FaultyCopies], fault: Fault
) -> None:
    lone, copies = prefill
    below(lone)
    copies.fault = lambda name: fault if name.endswith("_up") else None
    lone.post(fetch())
    lone.run()
    assert [said.refusal for said in lone.all_said(m.FetchRefused)] == [m.FetchRefusal.NOT_HELD]
    assert not lone.all_said(m.PrefillAccepted)


def test_a_fetch_that_ends_while_it_loads_leaves_nothing(
    prefill: tuple[Lone, FaultyCopies],
) -> None:
    lone, copies = prefill
    below(lone)
    copies.hold("pages_up")
    lone.post(fetch())
    copies.await_inside("pages_up")
    lone.post(m.PrefillEnd(m.TransferId(5)))
    assert lone.stats().slots["quarantined"] == 1
    copies.let_go()
    lone.run()
    assert not lone.all_said(m.PrefillAccepted)
    lone.post(fetch(6))
    lone.run()
    assert [said.transfer_id for said in lone.all_said(m.PrefillAccepted)] == [6]
    lone.post(m.PrefillEnd(m.TransferId(6)))


@pytest.fixture
def decode(tmp_path: object) -> Iterator[tuple[Lone, FaultyCopies]]:
    parts, copies = tiered_parts(slabs=22)
    config = engine_config(tmp_path, local_prefill_tokens=64, route="fixed")
    lone = Lone(config, Role.DECODE, replace(parts, clock=ManualClock()))
    yield lone, copies.made
    copies.made.let_go()
    lone.run()
    lone.assert_at_rest()
    lone.engine.close()


def turn_below(lone: Lone, more: int) -> list[int]:
    """Return the next turn of a conversation whose turn end is only below the arena. more: tokens
    beyond it."""
    first = prompt(350, seed=1)
    lone.ask("turn", first, 5)
    lone.ask("push", prompt(1100, seed=4), 1)
    log = [*first, *lone.tokens("turn"), *prompt(more, seed=7)]
    lone.said.clear()
    return log


def test_a_decode_node_keeps_turn_ends_that_nobody_pulled(
    decode: tuple[Lone, FaultyCopies],
) -> None:
    lone, _ = decode
    log = turn_below(lone, 40)
    assert lone.ask("next", log, 4) == alone(log, 4)
    hit = lone.hit("next")
    assert hit.usable_tokens == 354 and hit.loaded == {"host": 354}


@pytest.mark.parametrize("fault", [None, Fault.FLIP])
def test_a_turn_end_is_loaded_before_a_prefill_node_pulls_it(
    decode: tuple[Lone, FaultyCopies], fault: Fault | None
) -> None:
    lone, copies = decode
    log = turn_below(lone, 100)
    lone.post(m.PeersChanged(True))
    lone.post(submit("next", log, 4))
    lone.step()
    (wanted,) = lone.all_said(m.HandoverWanted)
    assert wanted.transfer_request.offered == 354 and wanted.transfer_request.kv_matched == 0
    copies.fault = lambda name: fault if name.endswith("_up") else None
    copies.hold("pages_up")
    lone.post(m.PullAsked(wanted.transfer_request.transfer_id, 354, 2))
    copies.await_inside("pages_up")
    lone.steps(3)
    assert not lone.all_said(m.PullPinned) and not lone.all_said(m.PullRefused)
    copies.let_go()
    lone.run()
    if fault is None:
        (pinned,) = lone.all_said(m.PullPinned)
        assert len(pinned.source.pages) == 4
        lone.post(m.PullEnd(wanted.transfer_request.transfer_id))
    else:
        (refused,) = lone.all_said(m.PullRefused)
        assert "not here any more" in refused.reason
    lone.post(m.Abort(m.RequestId("next")))
