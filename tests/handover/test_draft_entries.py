"""A node's entries for its draft layer after a turn equal the entries of one forward over the same
tokens. Cases: one node with chunks and steps, after a hand-over and an early step, and the next
turn."""

import numpy as np
import pytest

from tasuki.engine.assembly.parts import EngineParts, build_parts
from tests.harness.engine_pair import engine_pair
from tests.harness.engines import Lone, engine_config, submit
from tests.harness.goldens import golden, reference_dir
from tests.harness.scripted_drafts import assert_kept_as_by_one_forward

MODEL = "small-dense"


def parts(**changes: object) -> EngineParts:
    return build_parts(engine_config(reference_dir(MODEL), **changes))


@pytest.mark.parametrize("chunk", [64, 512])
def test_two_turns_of_one_node(chunk: int) -> None:
    engine = Lone(engine_config(reference_dir(MODEL)), parts=parts(prefill_chunk_tokens=chunk))
    log: list[int] = []
    for name in ("long", "turn2"):
        case = golden(MODEL, name)
        assert engine.ask(name, case.prompt, len(case.greedy)) == case.greedy
        log = case.prompt + case.greedy
        # The last token was sampled and never forwarded.
        assert assert_kept_as_by_one_forward(engine, log) == len(log) - 1
    assert engine.hit("turn2").usable_tokens == 192
    engine.assert_at_rest()


@pytest.mark.parametrize("most", [1, 4])
def test_answers_whose_drafts_are_verified_leave_the_same(most: int, fresh_seed: int) -> None:
    """Entries of rejected drafts are overwritten; the carry belongs to accepted ones."""
    random = np.random.default_rng(fresh_seed)
    engine = Lone(engine_config(reference_dir(MODEL), draft_tokens=most), parts=parts())
    for name in ("three", "chunk", "long"):
        case = golden(MODEL, name)
        new = len(case.greedy)
        prediction = np.array(case.greedy, dtype=np.int32)
        # The whole prediction, then a broken one, also with rejected drafts in the last forward.
        for broken in ([], [new - 1], random.integers(1, new, 3).tolist()):
            prediction[broken] ^= 1
            engine.flush()
            assert engine.ask(name, case.prompt, new, prediction=prediction) == case.greedy
            usage = engine.finished(name).usage
            assert usage.drafted_tokens > 0
            log = case.prompt + case.greedy
            assert assert_kept_as_by_one_forward(engine, log) == len(log) - 1


def test_prompts_that_part_at_a_page_share_it_and_both_have_right_entries() -> None:
    """The last entry of a page does not depend on the token after the page."""
    engine = Lone(engine_config(reference_dir(MODEL)), parts=parts())
    first = golden(MODEL, "turn2").prompt
    random = np.random.default_rng(3)
    # After whole pages, and one token before and after that.
    for name, left in (("at", 128), ("before", 127), ("behind", 129)):
        engine.flush()
        engine.ask("first", first[: left + 1], 1)
        assert assert_kept_as_by_one_forward(engine, first[: left + 2]) == left + 1
        other = first[:left] + random.integers(1, 300, 70).tolist()
        tokens = engine.ask(name, other, 3)
        assert engine.hit(name).kv_tokens >= left // 64 * 64
        assert assert_kept_as_by_one_forward(engine, other + tokens) == len(other) + 2
        assert assert_kept_as_by_one_forward(engine, first[: left + 2]) == left + 1


@pytest.mark.parametrize("case_name", ["chunk", "chunk1", "turn2"])
def test_a_hand_over_brings_entries_and_what_is_carried(case_name: str) -> None:
    case = golden(MODEL, case_name)
    log = case.prompt + case.greedy
    with engine_pair(parts(), parts()) as pair:
        transfer = pair.begin(submit("r", case.prompt, len(case.greedy)))
        # The last page boundary of its prompt usable by a repeat.
        assert assert_kept_as_by_one_forward(pair.prefill, log) == (len(case.prompt) - 1) // 64 * 64
        pair.join(transfer)
        assert pair.decode.tokens("r") == case.greedy
        assert assert_kept_as_by_one_forward(pair.decode, log) == len(log) - 1
        pair.prefill.assert_at_rest()
        pair.decode.assert_at_rest()


def test_a_draft_layer_is_kept_where_a_checkpoint_has_one_unless_it_is_off() -> None:
    kept, off = parts(), parts(draft_layer="off")
    assert (kept.layout.draft_layers, off.layout.draft_layers) == (1, 0)
    assert kept.layout.page_bytes > off.layout.page_bytes
    assert off.model.weights.draft is None
    case = golden(MODEL, "chunk1")
    for each in (kept, off):
        engine = Lone(engine_config(reference_dir(MODEL)), parts=each)
        assert engine.ask("r", case.prompt, len(case.greedy)) == case.greedy
