"""Pairs of nodes with unequal numbers of ranks: tokens of the goldens, next turns back and forth,
and nothing left behind."""

import json

import pytest

from tests.harness.daemons import asked, flags, random_prompt
from tests.harness.goldens import BESIDE, reference_dir
from tests.harness.rank_pairs import APART, handed_over_as_goldens_have_it, pair_of, ranks
from tests.harness.running_nodes import refused_start, require_nixl

pytestmark = pytest.mark.usefixtures("nixl")
# test_what_several_ranks_load_from_below_is_handed_over has goldens from two ranks to one.
QUICK = [("tiny-moe", 1, 2)]
SLOW = [
    (name, senders, receivers)
    for name, most in (("tiny-moe", 2), ("tp4-dense", 4))
    if (BESIDE / name).is_dir()
    for senders in (1, 2, 4)
    for receivers in (1, 2, 4)
    if 1 < max(senders, receivers) <= most and (name, senders, receivers) not in QUICK
]


@pytest.fixture
def nixl() -> None:
    require_nixl()


def test_what_several_ranks_load_from_below_is_handed_over() -> None:
    cases = json.loads((reference_dir("tiny-moe") / "golden.json").read_text())["cases"]
    case = max(cases, key=lambda found: len(found["prompt"]))
    below = ("--arena-mib", "3", "--host-cache-gib", "0.05", "--pull-tokens", "100000")
    with pair_of("tiny-moe", 2, 1, *below) as (prefill, decode):
        loaded = 0
        for turn in range(2):
            answer = asked(decode, tuple(case["prompt"]), b"", len(case["greedy"])).result()
            assert list(answer.token_ids) == case["greedy"], turn
            assert answer.usage.prefilled_on == "prefill" and not answer.usage.local_fallback
            loaded = answer.usage.hit.loaded.get("host", 0)
            for seed in range(8):
                push = [token % 500 for token in random_prompt(250, 10 * turn + seed)]
                asked(decode, tuple(push), b"", 1).result()
        assert loaded > 0
        for node in (prefill, decode):
            node.assert_at_rest()


@pytest.mark.parametrize(("name", "senders", "receivers"), QUICK)
def test_goldens_of_one_model(name: str, senders: int, receivers: int) -> None:
    handed_over_as_goldens_have_it(name, senders, receivers)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "senders", "receivers"), SLOW)
def test_goldens_of_others(name: str, senders: int, receivers: int) -> None:
    handed_over_as_goldens_have_it(name, senders, receivers)


def test_what_ranks_cannot_hand_over_is_one_line() -> None:
    """Each before anything is loaded."""
    for command, more, word in (
        ("prefill", (*APART, "--wire-kv", "fp8"), "give --wire-kv and --wire-state exact"),
        ("prefill", (), "give --handover-bind"),
        ("decode", ("--engine-process", "thread", "--prefill", "127.0.0.1:1"), "leave engine"),
        ("prefill", (*APART, "--tensor-parallel", "3"), "give --tensor-parallel one of 1, 2"),
    ):
        words = refused_start(command, *flags(), *ranks(2), *more)
        assert word in words[-1], words
