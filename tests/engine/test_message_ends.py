"""The end of a prompt's last message as a checkpoint. The next turn resumes at that exact token and
answers as if nothing had been cached. It costs no forward and one more slot per session."""

from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from tasuki.engine import messages as m
from tasuki.engine.config import Role
from tasuki.engine.request import PlannedCheckpoint
from tasuki.engine.scheduling.checkpoints import plan_checkpoints
from tasuki.model.ops.sampling.params import SamplingParams
from tasuki.model.vision.prompt_positions import PictureRun
from tasuki.pycache._cpp_cache import CheckpointKind
from tasuki.pycache.layout import PAGE_TOKENS
from tests.handover.test_pulls import give, reserve, said, sender_over
from tests.harness.covering import every_value
from tests.harness.engines import Lone, alone, engine_config, prompt, tiny_engine, tiny_parts
from tests.harness.trees import take, text, tree_of

OPENING = prompt(5, seed=1)
"""Opening of an answer."""


@dataclass
class Session:
    """A client that drops the thoughts from each answer. A turn's prompt begins with the messages
    of the turn before, without its answer's opening and thoughts."""

    engine: Lone
    name: str = "s"
    marked: bool = True
    messages: list[int] = field(default_factory=list)
    turns: int = 0

    @property
    def asked(self) -> str:
        return f"{self.name}{self.turns}"

    def ask(self, question: list[int], count: int = 4) -> m.HitBreakdown:
        self.turns += 1
        self.messages += question
        end = len(self.messages) if self.marked else None
        drawn = self.engine.ask(self.asked, self.messages + OPENING, count, message_end=end)
        # The text differs from the sampled one.
        self.messages += [*OPENING[:3], *drawn[-2:]]
        return self.engine.hit(self.asked)


def message_ends(engine: Lone) -> int:
    """Return the number of message ends with a state in the tree."""
    watch = engine.engine._cache.watch("all", 1 << 16)
    events = engine.engine._cache.drain_events(watch)
    engine.engine._cache.unwatch(watch)
    return sum(event.checkpoint_kind is CheckpointKind.MESSAGE_END for event in events)


@pytest.mark.parametrize("chunk", [64, 128, 4096])
def test_each_turn_goes_on_from_the_last_message_s_end(chunk: int) -> None:
    engine = tiny_engine(prefill_chunk_tokens=chunk)
    session = Session(engine)
    before = 0
    for turn in range(8):
        hit = session.ask(prompt(37 + 11 * turn, seed=turn + 2))
        assert hit.usable_tokens == before
        assert hit.checkpoint_source == (None if turn == 0 else "message_end")
        before = len(session.messages) - 5
    engine.assert_at_rest()


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    questions=st.lists(st.integers(1, 150), min_size=2, max_size=5),
    chunk=st.sampled_from([64, 128, 4096]),
    policy=st.sampled_from(["lru", "value", "auto"]),
    slabs=st.sampled_from([8, 12, 40]),
)
def test_turns_that_go_on_from_there_answer_as_cold_ones(
    questions: list[int], chunk: int, policy: str, slabs: int
) -> None:
    """Cases with a small arena are included."""
    engine = tiny_engine(slabs=slabs, prefill_chunk_tokens=chunk, cache_policy=policy)
    assume(sum(questions) + 60 < engine.engine.max_request_tokens)
    session = Session(engine)
    for turn, length in enumerate(questions):
        begun = [*session.messages]
        question = prompt(length, seed=100 + turn)
        session.ask(question, 6)
        assert engine.tokens(session.asked) == alone([*begun, *question, *OPENING], 6)
    engine.assert_at_rest()


def test_it_costs_no_forward_and_no_token_more(forwarded: list[int]) -> None:
    counts = []
    for marked in (False, True):
        forwarded.clear()
        session = Session(tiny_engine(prefill_chunk_tokens=128), marked=marked)
        for turn in range(4):
            session.ask(prompt(150, seed=turn + 2))
        counts.append((len(forwarded), sum(forwarded)))
    (plain, computed), (with_ends, less) = counts
    assert with_ends <= plain and less < computed


@every_value(
    policy={name: name for name in ("lru", "value", "auto")},
    length={str(length): length for length in (41, 60, 64, 97)},
)
def test_a_session_has_at_most_one_state_more(policy: str, length: int) -> None:
    engines = [tiny_engine(arena_mib=32, cache_policy=policy) for _ in range(2)]
    sessions = [
        [Session(engine, name, marked) for name in ("a", "b", "c")]
        for engine, marked in zip(engines, (False, True), strict=True)
    ]
    for turn in range(10):
        for number in range(3):
            for its in sessions:
                its[number].ask(prompt(length, seed=100 * number + turn + 2))
        before, behind = (engine.stats().tree["checkpoints"] for engine in engines)
        assert behind <= before + 3
    assert length == 64 or message_ends(engines[1]) >= 3
    engines[1].assert_at_rest()


def test_sessions_without_it_have_none() -> None:
    engine = tiny_engine()
    session = Session(engine, marked=False)
    for turn in range(3):
        session.ask(prompt(60, seed=turn + 2))
    assert message_ends(engine) == 0


def test_one_that_another_request_stands_on_stays() -> None:
    """Two requests resume from one end at once. The first to leave another end must not remove it
    from the other request."""
    engine = tiny_engine()
    begun = prompt(100, seed=2)
    engine.ask("first", begun + OPENING, 2, message_end=100)
    for name in ("left", "right"):
        longer = begun + prompt(40, seed=ord(name[0]))
        engine.ask(name, longer + OPENING, 30, message_end=140)
    assert engine.hit("left").usable_tokens == 100
    # Its turn was over, and so was the checkpoint it began from.
    assert engine.hit("right").usable_tokens == 64
    engine.assert_at_rest()
    engine = tiny_engine()
    engine.ask("first", begun + OPENING, 2, message_end=100)
    for name in ("left", "right"):
        longer = begun + prompt(40, seed=ord(name[0]))
        engine.post(
            m.Submit(
                m.RequestId(name),
                np.array(longer + OPENING, dtype=np.int32),
                SamplingParams(max_new_tokens=30, ignore_eos=True),
                message_end=140,
            )
        )
    engine.run()
    assert [engine.hit(name).usable_tokens for name in ("left", "right")] == [100, 100]
    engine.assert_at_rest()


def test_several_answers_to_one_prompt_leave_one() -> None:
    engine = tiny_engine()
    begun = prompt(100, seed=2)
    forks = tuple(m.Fork(m.RequestId(f"f{number}"), number) for number in range(3))
    engine.ask("first", begun + OPENING, 3, message_end=100, forks=forks)
    assert message_ends(engine) == 1
    engine.ask("next", begun + prompt(30, seed=3) + OPENING, 3, message_end=130)
    assert engine.hit("next").usable_tokens == 100
    engine.assert_at_rest()


def test_a_prefill_node_keeps_it_for_the_next_ticket(tmp_path: Path) -> None:
    parts = tiny_parts()
    node = Lone(engine_config(tmp_path), Role.PREFILL, parts, sender_over(parts))
    begun = prompt(150, seed=2)
    for transfer_id, (asked, end) in enumerate(
        ((begun + OPENING, 150), (begun + prompt(40, seed=3) + OPENING, 190)), 1
    ):
        wanted = reserve(np.array(asked, dtype=np.int32), 0, m.TransferId(transfer_id))
        wanted = replace(wanted, transfer_request=replace(wanted.transfer_request, message_end=end))
        give(node, wanted)
        give(node, m.PrefillStart(m.Grant(m.TransferId(transfer_id), 1, 0, (), 0)))
        give(node, m.PrefillEnd(m.TransferId(transfer_id)))
    first, second = said(node, m.PrefillToken)
    assert first.hit.usable_tokens == 0
    assert (second.hit.usable_tokens, second.hit.checkpoint_source) == (150, "message_end")
    node.assert_at_rest()


def test_where_it_is_planned() -> None:
    tree = tree_of()
    allocation = take(tree, text(200))

    def planned(message_end: int | None, cached: int = 0) -> list[tuple[int, str]]:
        found = plan_checkpoints(200, cached, allocation.match, (), (), message_end)
        return [(each.position, each.kind.value) for each in found]

    end = (192, "prompt_end")
    assert planned(None) == [end]
    assert planned(195) == [end, (195, "message_end")]
    # The end of a page inside an answer's opening is of no more use than the message's end.
    assert planned(188) == [(188, "message_end")]
    assert planned(188, cached=188) == [end]
    assert planned(100) == [(100, "message_end"), end]
    # At a page's end a repeat of the prompt resumes there too.
    assert planned(192) == [end]
    assert planned(195, cached=195) == planned(200, cached=195) == []


def test_states_inside_a_picture_move_before_it() -> None:
    tree = tree_of()
    allocation = take(tree, text(400))

    def planned(*runs: tuple[int, int], marks: tuple[int, ...] = (), end: int = 400) -> list[int]:
        places = [PictureRun(start, 1, tokens) for start, tokens in runs]
        branch = PlannedCheckpoint(192, CheckpointKind.BRANCH)
        found = plan_checkpoints(end, 0, allocation.match, marks, (branch,), None, places)
        return [each.position for each in found]

    assert planned() == [192, 384]
    # The prompt's end moves behind the picture, with one more before it; the branch moves there.
    assert planned((150, 240)) == [128, 391]
    # Where nothing follows the picture, the prompt's end stays.
    assert planned((150, 249)) == [128, 384]
    # A picture that begins right at a page's end has its opening token before it.
    assert planned((192, 100)) == [128, 384]
    assert planned((193, 100)) == [192, 384]
    # Behind a picture's end nothing moves.
    assert planned((93, 99)) == [192, 384]
    # Two pictures side by side are left together.
    assert planned((70, 60), (132, 100)) == [64, 384]
    assert planned((10, 380), marks=(256, 320)) == [391]
    assert planned((150, 100), marks=(256, 320)) == [128, 256, 320, 384]


def test_the_page_is_its_own_and_the_prompt_goes_on_in_the_other() -> None:
    tree = tree_of(slabs=8)
    tokens = text(2 * PAGE_TOKENS)
    allocation = take(tree, tokens)
    slot = tree.take_checkpoint_slot(allocation)
    assert slot is not None
    copied = tree.insert_midway(allocation, 100, slot, CheckpointKind.MESSAGE_END)
    assert copied is not None and copied[0] == allocation.pages[1]
    assert copied[1] not in allocation.pages.tolist()
    tree.check_integrity()
    # The allocation continues, and its own page becomes the tree's.
    tree.insert(allocation, 128, allocation.working_slots[0], CheckpointKind.TURN_END)
    tree.check_integrity()
    tree.release(allocation)
    fork = take(tree, np.concatenate([tokens[:100], text(50, seed=1)]))
    assert fork.cached_tokens == 100 and fork.tail_copy == (copied[1], fork.pages[1])
    tree.release(fork)
    whole = take(tree, np.concatenate([tokens, text(5, seed=1)]))
    assert whole.cached_tokens == 128
    tree.release(whole)
    tree.check_integrity()


def test_without_a_page_for_it_nothing_stands_and_nothing_is_evicted() -> None:
    tree = tree_of(slabs=3, pages_per_slab=1, blocks_per_slab=1)
    allocation = take(tree, text(100))
    # A page in each of two slabs, and the state's slab: no memory is left for another page.
    assert tree.take_checkpoint_slot(allocation) is None
    slot = allocation.working_slots[0]
    assert tree.insert_midway(allocation, 100, slot, CheckpointKind.MESSAGE_END) is None
    stats = tree.stats()
    assert (stats.checkpoints, stats.slots.working, stats.evicted_checkpoints) == (0, 0, 0)
    tree.check_integrity()
    tree.release(allocation)
    tree.check_integrity()
