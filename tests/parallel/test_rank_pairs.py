"""Pairs of nodes of unequal numbers of ranks: tokens of the goldens, next turns that go back and
forth, and nothing left behind."""

import json
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest

from tests.harness.daemons import Node, asked, flags, meet, random_prompt
from tests.harness.goldens import BESIDE, reference_dir
from tests.harness.processes import ended, engine_of, followers_of
from tests.harness.running_nodes import refused_start, require_nixl, running
from tests.harness.waiting import until

HERE = ("--local-prefill-tokens", "0")
APART = ("--handover-bind", "127.0.0.1:0")
QUICK = [("tiny-moe", 2, 1), ("tiny-moe", 1, 2)]
SLOW = [
    (name, senders, receivers)
    for name, most in (("tiny-moe", 2), ("tp4-dense", 4))
    if (BESIDE / name).is_dir()
    for senders in (1, 2, 4)
    for receivers in (1, 2, 4)
    if 1 < max(senders, receivers) <= most and (name, senders, receivers) not in QUICK
]


def ranks(count: int) -> tuple[str, ...]:
    return ("--tensor-parallel", str(count))


@contextmanager
def pair_of(
    name: str, senders: int, receivers: int, *of_sender: str
) -> Iterator[tuple[Node, Node]]:
    """A prefill and a decode node that have met; none of their processes outlives the block.
    of_sender: more flags of the prefill node."""
    require_nixl()
    common = (*flags(reference_dir(name)), "--prefill-chunk-tokens", "64")
    pids: list[int] = []
    with running(Node("prefill", *common, *APART, *ranks(senders), *of_sender)) as prefill:
        known = ("--prefill", prefill.handover_address)
        decoding = Node("decode", *common, *known, *HERE, *ranks(receivers))
        with running(decoding) as decode:
            for node, count in ((prefill, senders), (decode, receivers)):
                if count > 1:
                    engine = engine_of(node.pid)
                    assert len(followers_of(engine)) == count - 1
                    pids += [engine, *followers_of(engine)]
            meet(decode)
            yield prefill, decode
    until(lambda: all(map(ended, pids)), "a rank outlives its node")


def as_goldens_have_it(name: str, senders: int, receivers: int) -> None:
    cases = json.loads((reference_dir(name) / "golden.json").read_text())["cases"]
    with pair_of(name, senders, receivers) as (prefill, decode):
        streams = [asked(decode, tuple(case["prompt"]), b"", len(case["greedy"])) for case in cases]
        for case, stream in zip(cases, streams, strict=True):
            answer = stream.result()
            assert list(answer.token_ids) == case["greedy"], case["name"]
            assert answer.usage.prefilled_on == "prefill" and not answer.usage.local_fallback
        pulled = next_turns(decode, cases)
        assert pulled > 0
        for node in (prefill, decode):
            node.assert_at_rest()


def next_turns(decode: Node, cases: list[dict[str, list[int]]]) -> int:
    """Ask on behind each answer, once with the cache of both nodes and once without any; how many
    tokens were pulled from the decode node."""
    more = np.random.default_rng(1).integers(3, 160, 40).tolist()
    pulled = 0
    for case in cases:
        turn = (*case["prompt"], *case["greedy"], *more)
        answers = [asked(decode, turn, salt, 8).result() for salt in (b"", b"apart")]
        assert answers[0].token_ids == answers[1].token_ids
        assert not any(answer.usage.local_fallback for answer in answers)
        pulled += answers[0].usage.pulled.tokens if answers[0].usage.pulled else 0
    return pulled


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
    as_goldens_have_it(name, senders, receivers)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "senders", "receivers"), SLOW)
def test_goldens_of_others(name: str, senders: int, receivers: int) -> None:
    as_goldens_have_it(name, senders, receivers)


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
