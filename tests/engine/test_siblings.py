"""Requests with one long prefix compute it once. The computed part is kept even if no request reads
it to its end."""

from pathlib import Path
from typing import cast

import numpy as np
import pytest

from tasuki.engine import messages as m
from tasuki.engine.config import Role
from tasuki.engine.progress import ProgressTable
from tasuki.engine.request import Prefilling, Request
from tasuki.engine.runner.cpu_runner import CpuRunner
from tasuki.engine.scheduling.shared_prompts import Leader, common_tokens, follow, leader_of, pays
from tasuki.model.ops.sampling.params import SamplingParams
from tasuki.pycache._cpp_cache import Allocation
from tests.handover.test_pulls import reserve, said, sender_over
from tests.harness.engines import (
    Lone,
    alone,
    assert_answered_as_alone,
    engine_config,
    prompt,
    submit,
    tiny_engine,
    tiny_parts,
)

PREFIX = prompt(2000, seed=7)
CHUNK = 512


def siblings(number: int, own: int = 10) -> dict[str, list[int]]:
    return {f"s{index}": PREFIX + prompt(own, seed=100 + index) for index in range(number)}


@pytest.mark.parametrize("own", [10, 200])
def test_eight_at_once_compute_what_they_share_once(own: int, forwarded: list[int]) -> None:
    engine = tiny_engine(arena_mib=16)
    asked = siblings(8, own)
    engine.ask_all(asked, 2)
    # The prefix, their own tokens, one of each answer, and the prefix's partial page.
    assert sum(forwarded) == 2000 + 8 * (own + 1) + 7 * (2000 % 64)
    assert_answered_as_alone(engine, asked, 2)
    engine.assert_at_rest()


def test_others_wait_behind_the_shorter_part_that_they_share(forwarded: list[int]) -> None:
    """A tree of prefixes: all share 640 tokens, each pair of them 640 more."""
    engine = tiny_engine(arena_mib=16)
    pairs = [PREFIX[:640] + prompt(640, seed=pair) for pair in range(3)]
    asked = {
        f"{pair}{twin}": shared + prompt(40, seed=10 * pair + twin)
        for pair, shared in enumerate(pairs)
        for twin in range(2)
    }
    engine.ask_all(asked, 2)
    assert sum(forwarded) <= 640 + 3 * 640 + 6 * (40 + 64 + 1)
    assert_answered_as_alone(engine, asked, 2)


def test_nobody_waits_for_little_or_for_another_ones_salt(forwarded: list[int]) -> None:
    engine = tiny_engine()
    for salt in (b"a", b"b"):
        engine.post(submit(f"of {salt!r}", PREFIX, 1, salt=salt))
    engine.run()
    assert sum(forwarded) == 2 * 2000
    engine.flush()
    forwarded.clear()
    engine.ask_all({"one": PREFIX[:100], "other": [*PREFIX[:90], 1]}, 1)
    assert sum(forwarded) == 191, "they were begun together"


def test_who_comes_while_a_sibling_computes_waits_for_it_too(forwarded: list[int]) -> None:
    engine = tiny_engine(arena_mib=16, prefill_chunk_tokens=CHUNK)
    first, second, third = siblings(3).items()
    for name, tokens in (first, second, third):
        engine.post(submit(name, tokens, 1))
        engine.step()
    engine.run()
    assert sum(forwarded) == 2000 + 3 * 10 + 2 * (2000 % 64)


def test_a_leader_is_over_once_the_state_is_computed_or_its_prompt_is_begun_anew() -> None:
    leads = computing(PREFIX, 0, "leads")
    state = leads.state
    assert isinstance(state, Prefilling)
    leader = Leader(leads, state.allocation, 128)
    for computed, over in ((64, False), (128, True)):
        state.progress.complete(computed, 0, 0)
        assert leader.is_over is over
    assert not Leader(leads, state.allocation, 192).is_over
    another = cast(Allocation, object())
    assert Leader(leads, another, 192).is_over, "it gave way, and was begun again"


@pytest.mark.parametrize(
    ("position", "usable", "worth_it"),
    [(64, 0, False), (128, 0, True), (192, 64, True), (192, 128, False), (640, 128, False)],
)
def test_waiting_pays_for_two_pages_that_the_leader_will_have_computed_first(
    position: int, usable: int, worth_it: bool
) -> None:
    """usable: tokens of the waiting request; the leader has computed 64."""
    leads = computing(PREFIX, 64, "leads")
    assert isinstance(leads.state, Prefilling)
    assert pays(Leader(leads, leads.state.allocation, position), usable) is worth_it


@pytest.mark.parametrize(("planned", "leads"), [(7, True), (8, False)])
def test_of_one_prompt_so_many_states_are_kept_and_no_more(planned: int, leads: bool) -> None:
    other = computing(PREFIX, 0, "other")
    state = other.state
    assert isinstance(state, Prefilling)
    for page in range(1, planned + 1):
        follow(Leader(other, state.allocation, 64 * page))
    assert len(state.checkpoints) == planned
    follower = Request(m.RequestId("f"), np.asarray(PREFIX[:1500], np.int32), SamplingParams())
    assert (leader_of(follower, [other]) is not None) is leads
    # If a state is already to be kept there, it takes no more slots.
    follower.prompt = follower.prompt[:100]
    assert leader_of(follower, [other]) is not None


def computing(tokens: list[int], scheduled: int, name: str) -> Request:
    """Return a prefilling request with this many tokens scheduled."""
    made = Request(m.RequestId(name), np.asarray(tokens, dtype=np.int32), SamplingParams())
    progress = ProgressTable(1).begin((0,), scheduled)
    made.move(Prefilling(cast(Allocation, object()), progress))
    return made


def test_the_first_of_those_who_will_have_most_leads() -> None:
    follower = Request(m.RequestId("f"), np.asarray(PREFIX, dtype=np.int32), SamplingParams())
    short = computing(PREFIX[:700], 0, "short")
    first, second = (computing(PREFIX[:1500], 0, name) for name in ("first", "second"))
    found = leader_of(follower, [short, first, second])
    assert found is not None and (found.request, found.position) == (first, 1472)
    # No state can be kept before the position that forwards have reached.
    past = computing(PREFIX[:1500], 1472, "past")
    assert leader_of(follower, [past]) is None
    assert leader_of(follower, [computing(prompt(900, seed=9), 0, "other")]) is None
    assert leader_of(follower, []) is None
    again = leader_of(follower, [first])
    assert again == found and hash(again) == hash(found)
    assert leader_of(follower, [second]) != found and found != "found"


@pytest.mark.parametrize("steps", range(1, 6))
def test_a_leader_that_is_aborted_leaves_the_others_what_it_computed(
    steps: int, forwarded: list[int]
) -> None:
    engine = tiny_engine(arena_mib=16, prefill_chunk_tokens=CHUNK)
    asked = siblings(4)
    for name, tokens in asked.items():
        engine.post(submit(name, tokens, 2))
    engine.steps(steps)
    engine.post(m.Abort(m.RequestId("s0")))
    engine.run()
    assert engine.finished("s0").reason is m.FinishReason.ABORT
    # At most the chunk in flight is computed again.
    assert sum(forwarded) <= 2010 + CHUNK + 4 * (10 + 64 + 2)
    assert_answered_as_alone(engine, {name: asked[name] for name in ("s1", "s2", "s3")}, 2)
    engine.assert_at_rest()


def test_who_is_parked_can_be_aborted_and_be_too_late() -> None:
    engine = tiny_engine(arena_mib=16, prefill_chunk_tokens=64)
    for name, tokens in siblings(3).items():
        engine.post(submit(name, tokens, 2, patience=1e-9 if name == "s2" else 60.0))
    engine.step()
    engine.post(m.Abort(m.RequestId("s1")))
    engine.run()
    assert engine.finished("s1").reason is m.FinishReason.ABORT
    assert engine.rejected("s2").kind is m.ErrorKind.QUEUE_TIMEOUT
    assert len(engine.tokens("s0")) == 2
    engine.assert_at_rest()


def test_who_waits_for_a_long_prompt_makes_its_beginning_urgent() -> None:
    engine = tiny_engine(arena_mib=16, prefill_chunk_tokens=CHUNK)
    engine.post(submit("long", PREFIX[:640] + prompt(2500, seed=1), 1))
    engine.step()
    for number in range(6):
        engine.post(submit(f"short {number}", prompt(700, seed=20 + number), 1))
    engine.post(submit("sibling", PREFIX[:640] + prompt(5, seed=2), 1))
    engine.run()
    first = [token.request_id for token in engine.all_said(m.TokenOut)]
    assert first.index("sibling") <= 2


@pytest.mark.parametrize("length", [PREFIX, PREFIX[:1000]])
def test_a_cancelled_prompt_is_computed_from_where_it_was(
    length: list[int], forwarded: list[int]
) -> None:
    engine = tiny_engine(prefill_chunk_tokens=CHUNK)
    engine.post(submit("cancelled", length, 2))
    engine.steps(2)
    engine.post(m.Abort(m.RequestId("cancelled")))
    engine.run()
    forwarded.clear()
    engine.ask("again", length, 1)
    assert engine.hit("again").usable_tokens >= CHUNK
    assert sum(forwarded) == len(length) - engine.hit("again").usable_tokens
    assert engine.tokens("again") == alone(length, 1)


def test_an_answer_that_its_client_stopped_is_what_the_next_turn_goes_on_from() -> None:
    """A stop string ends an answer in this way: the front sees the text, and the engine gets an
    abort."""
    engine = tiny_engine()
    begin = prompt(300)
    engine.post(submit("turn", begin, 500))
    while len(engine.tokens("turn")) < 403:
        engine.step()
    engine.post(m.Abort(m.RequestId("turn")))
    history = begin + engine.tokens("turn")
    engine.ask("next", history + prompt(20, seed=3), 3)
    assert engine.hit("next").usable_tokens >= len(history) - 2
    assert engine.tokens("next") == alone(history + prompt(20, seed=3), 3)
    engine.assert_at_rest()


@pytest.fixture
def prefill(tmp_path: Path) -> Lone:
    parts = tiny_parts(16)
    config = engine_config(tmp_path, prefill_chunk_tokens=CHUNK)
    return Lone(config, Role.PREFILL, parts, sender_over(parts))


def start(node: Lone, transfer_id: int) -> None:
    node.post(m.PrefillStart(m.Grant(m.TransferId(transfer_id), 1, 0, (), 0)))


def test_rooms_that_come_together_compute_what_they_share_once(
    prefill: Lone, forwarded: list[int]
) -> None:
    prompts = {
        transfer_id: np.array(tokens, np.int32)
        for transfer_id, tokens in enumerate(siblings(4).values())
    }
    for transfer_id, tokens in prompts.items():
        prefill.post(reserve(tokens, 0, m.TransferId(transfer_id)))
    granted: set[int] = set()
    for _ in range(200):
        prefill.step()
        for accepted in said(prefill, m.PrefillAccepted):
            if accepted.transfer_id not in granted:
                granted.add(accepted.transfer_id)
                start(prefill, accepted.transfer_id)
    assert len(said(prefill, m.PrefillToken)) == 4
    assert sum(forwarded) <= 2000 + 4 * (10 + 64)
    for transfer_id in prompts:
        prefill.post(m.PrefillEnd(m.TransferId(transfer_id)))
    prefill.run()
    prefill.assert_at_rest()


@pytest.mark.parametrize("steps", [1, 2, 3])
def test_a_room_that_was_cancelled_leaves_what_it_computed(
    prefill: Lone, steps: int, forwarded: list[int]
) -> None:
    tokens = np.array(PREFIX, np.int32)
    prefill.post(reserve(tokens, 0, m.TransferId(1)))
    prefill.step()
    start(prefill, 1)
    prefill.steps(steps)
    prefill.post(m.PrefillEnd(m.TransferId(1)))
    prefill.run()
    prefill.assert_at_rest()
    assert sum(forwarded) == steps * CHUNK
    prefill.post(reserve(tokens, 0, m.TransferId(2)))
    prefill.step()
    start(prefill, 2)
    prefill.run()
    (token,) = said(prefill, m.PrefillToken)
    assert token.hit.usable_tokens == steps * CHUNK
    assert sum(forwarded) == 2000
    assert [token.token] == alone(PREFIX, 1)
    prefill.post(m.PrefillEnd(m.TransferId(2)))
    prefill.run()
    prefill.assert_at_rest()


def test_a_room_whose_forward_failed_leaves_nothing(
    prefill: Lone, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens = np.array(PREFIX, np.int32)
    prefill.post(reserve(tokens, 0, m.TransferId(1)))
    prefill.step()
    start(prefill, 1)
    prefill.step()

    def broken(*_: object) -> None:
        raise RuntimeError("broken on purpose")

    with monkeypatch.context() as patch:
        patch.setattr(CpuRunner, "_compute", broken)
        prefill.step()
    (refused,) = said(prefill, m.PrefillRefused)
    assert "broken on purpose" in refused.error.message
    prefill.post(m.PrefillEnd(m.TransferId(1)))
    prefill.run()
    prefill.assert_at_rest()
    prefill.post(reserve(tokens, 0, m.TransferId(2)))
    prefill.step()
    start(prefill, 2)
    prefill.run()
    (token,) = said(prefill, m.PrefillToken)
    assert token.hit.usable_tokens == 0


@pytest.mark.parametrize(
    ("one", "other", "common"),
    [
        ((), (1,), 0),
        ((1, 2), (3, 2), 0),
        ((5,), (5, 6), 1),
        ((5, 6, 8), (5, 7, 8), 1),
        ((5, 6), (5, 6), 2),
    ],
)
def test_what_two_prompts_begin_with(
    one: tuple[int, ...], other: tuple[int, ...], common: int
) -> None:
    first, second = (np.array(tokens, dtype=np.int32) for tokens in (one, other))
    assert common_tokens(first, second) == common_tokens(second, first) == common
