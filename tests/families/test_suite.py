"""The suite that every family must pass, by its set of goldens: see docs/new-family.md.

Tokens equal the goldens in float32 whichever way a prompt is computed, sent, stored and resumed.
Memory with a new owner is NaN until it is written.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tasuki.model.families.registry import load_config
from tasuki.model.weights.safetensors_folder import has_draft_layer
from tests.harness.block_drafters import raw_for, write_drafter
from tests.harness.covering import slow_behind
from tests.harness.engines import Lone, submit
from tests.harness.family_sets import SETS, cold_engine, greedy_in_pieces, longest
from tests.harness.goldens import cases_of, reference_dir
from tests.harness.kept_goldens import answer_all, node
from tests.harness.rank_pairs import handed_over_as_goldens_have_it
from tests.harness.tiered_goldens import come_back_from_below

CHUNKS = {f"{name}-{chunk}": (name, chunk) for chunk in (64, 512) for name in SETS}
RANKS = {
    f"{name}-{senders}-{receivers}": (name, senders, receivers)
    for name in SETS
    for senders, receivers in ((1, 2), (2, 1))
}
PIECES = {f"{name}-{size}": (name, size) for size in (37, 1, 100) for name in SETS}
DRAFTING = tuple(name for name in SETS if has_draft_layer(reference_dir(name)))
OF_ONE_STREAM = tuple(
    name
    for name in SETS
    if (found := load_config(reference_dir(name))).stream_width == found.hidden
)
"""The sets that a block drafter can read: it refuses others by name."""
_QUICK_STEP = 29
"""Distance in tokens between the positions resumed at in `make test`."""


def some_slow(names: tuple[str, ...]) -> list[Any]:
    """Return the sets as parameters. The slow one's family has other tests of the same kind."""
    cases = {name: name for name in names}
    return slow_behind(sum(name != "tiny-dense" for name in names), cases)


def assert_goldens(engine: Lone, name: str) -> None:
    for case_name, case in cases_of(name).items():
        assert engine.tokens(case_name) == case.greedy, case_name


def computed_together(engine: Lone, name: str) -> None:
    for case_name, case in cases_of(name).items():
        engine.post(submit(case_name, case.prompt, len(case.greedy)))
    engine.run()
    assert_goldens(engine, name)
    engine.assert_at_rest()


@pytest.mark.parametrize(("name", "chunk"), slow_behind(2, CHUNKS))
def test_fused_in_chunks(name: str, chunk: int) -> None:
    computed_together(cold_engine(name, chunk), name)


@pytest.mark.parametrize(("name", "size"), slow_behind(1, PIECES))
def test_model_in_pieces(name: str, size: int) -> None:
    for case_name, case in cases_of(name).items():
        assert greedy_in_pieces(name, case, size) == case.greedy, case_name


def resumed(name: str, positions: Iterator[int] | range) -> None:
    """Assert that the longest prompt goes on from each position. The pages and the state are those
    that a prompt of so many tokens left in the cache."""
    case, engine = longest(name), cold_engine(name)
    for position in positions:
        engine.flush()
        engine.ask(f"to {position}", case.prompt[:position], 1)
        answer = engine.ask(f"from {position}", case.prompt, len(case.greedy))
        assert answer == case.greedy, position
        assert engine.hit(f"from {position}").usable_tokens == position
    engine.assert_at_rest()


@pytest.mark.parametrize("name", some_slow(SETS))
def test_resumed_at_some_tokens(name: str) -> None:
    resumed(name, range(1, len(longest(name).prompt), _QUICK_STEP))


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", [*SETS])
def test_resumed_at_every_token(name: str) -> None:
    resumed(name, range(1, len(longest(name).prompt)))


@pytest.mark.parametrize("name", some_slow(SETS))
def test_turns_go_on_from_answers(name: str) -> None:
    """A set's cases may extend each other: they find the earlier answer's state, at its token."""
    engine = cold_engine(name)
    for case_name, case in cases_of(name).items():
        assert engine.ask(case_name, case.prompt, len(case.greedy)) == case.greedy, case_name
        again = engine.ask(f"{case_name} again", case.prompt, len(case.greedy))
        assert again == case.greedy, case_name
    engine.assert_at_rest()


@pytest.mark.parametrize("name", some_slow(SETS))
def test_verified_drafts_change_nothing(name: str) -> None:
    """Drafts are the answer itself, with every fifth token wrong: states are folded after every
    count of accepted tokens."""
    engine = cold_engine(name, speculate="prediction", draft_tokens=4)
    for case_name, case in cases_of(name).items():
        wrong = [token if at % 5 else token ^ 1 for at, token in enumerate(case.greedy, 1)]
        message = submit(
            case_name, case.prompt, len(case.greedy), prediction=np.asarray(wrong, np.int32)
        )
        engine.post(message)
        engine.run()
    assert_goldens(engine, name)
    usages = [engine.finished(case_name).usage for case_name in cases_of(name)]
    assert sum(usage.accepted_tokens for usage in usages) > 10
    assert sum(usage.drafted_tokens - usage.accepted_tokens for usage in usages) > 0
    engine.assert_at_rest()


def drafted(engine: Lone, name: str) -> None:
    """Assert the goldens with drafts of the model's own, together and resumed at some tokens."""
    computed_together(engine, name)
    usages = [engine.finished(case_name).usage for case_name in cases_of(name)]
    assert sum(usage.drafted_tokens for usage in usages) > 0
    case = longest(name)
    for position in range(1, len(case.prompt), 3 * _QUICK_STEP):
        engine.flush()
        engine.ask(f"to {position}", case.prompt[:position], 3)
        answer = engine.ask(f"from {position}", case.prompt, len(case.greedy))
        assert answer == case.greedy, position


@pytest.mark.parametrize("name", some_slow(DRAFTING))
def test_drafts_of_the_draft_layer_change_nothing(name: str) -> None:
    drafted(cold_engine(name, draft_layer="auto", speculate="mtp", draft_tokens=3), name)


@pytest.mark.parametrize("name", slow_behind(1, {name: name for name in OF_ONE_STREAM}))
def test_drafts_of_a_block_drafter_change_nothing(name: str, tmp_path: Path) -> None:
    drafter = write_drafter(tmp_path, raw_for(load_config(reference_dir(name))))
    drafted(cold_engine(name, drafter=str(drafter), speculate="block", draft_tokens=7), name)


@pytest.mark.parametrize("name", some_slow(SETS))
def test_through_two_daemons_and_pulled_back(name: str) -> None:
    handed_over_as_goldens_have_it(name, 1, 1)


@pytest.mark.parametrize(("name", "senders", "receivers"), slow_behind(1, RANKS))
def test_through_nodes_of_unequal_ranks(name: str, senders: int, receivers: int) -> None:
    handed_over_as_goldens_have_it(name, senders, receivers)


@pytest.mark.parametrize("name", some_slow(SETS))
def test_back_from_host_memory(name: str) -> None:
    come_back_from_below(name, "cpu")


@pytest.mark.parametrize("name", some_slow(SETS))
def test_back_from_the_disk_of_a_node_before(name: str, tmp_path: Path) -> None:
    with node("cpu", tmp_path, model=name) as first:
        answer_all(first, name)
    with node("cpu", tmp_path, model=name) as second:
        assert all(hit.loaded["disk"] > 0 for hit in answer_all(second, name).values())
        assert second.stats().tiers[1].kept["restored"] > 0
