"""Tests: prefill and decode nodes with any numbers of ranks. Tokens equal the goldens, next turns
go back and forth, and no process is left behind."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np

from tests.harness.daemons import Node, asked, flags, meet
from tests.harness.goldens import reference_dir
from tests.harness.processes import ended, engine_of, followers_of
from tests.harness.running_nodes import running
from tests.harness.waiting import until

HERE = ("--local-prefill-tokens", "0")
APART = ("--handover-bind", "127.0.0.1:0")


def ranks(count: int) -> tuple[str, ...]:
    return ("--tensor-parallel", str(count))


def on_gpus(count: int) -> tuple[str, ...]:
    """Return the flags of a node with `count` ranks, one GPU each. The first GPU is also the GPU of
    a node with one rank."""
    device = "cuda" if count > 1 else "cuda:0"
    return (*ranks(count), "--device", device, "--transport", "peer_copy", "--max-batch", "4")


@contextmanager
def pair_of(
    name: str,
    senders: int,
    receivers: int,
    *of_sender: str,
    where: Callable[[int], tuple[str, ...]] = ranks,
) -> Iterator[tuple[Node, Node]]:
    """Yield a connected prefill and decode node. name: their golden model. senders, receivers:
    ranks of the prefill and the decode node. of_sender: more flags of the prefill node. `where`:
    flags of a node by its number of ranks. No process of them outlives the block."""
    common = (*flags(reference_dir(name)), "--prefill-chunk-tokens", "64")
    pids: list[int] = []
    with running(Node("prefill", *common, *APART, *where(senders), *of_sender)) as prefill:
        known = ("--prefill", prefill.handover_address)
        decoding = Node("decode", *common, *known, *HERE, *where(receivers))
        with running(decoding) as decode:
            for node, count in ((prefill, senders), (decode, receivers)):
                if count > 1:
                    engine = engine_of(node.pid)
                    assert len(followers_of(engine)) == count - 1
                    pids += [engine, *followers_of(engine)]
            meet(decode)
            yield prefill, decode
    until(lambda: all(map(ended, pids)), "a rank outlives its node")


def handed_over_as_goldens_have_it(
    name: str, senders: int, receivers: int, where: Callable[[int], tuple[str, ...]] = ranks
) -> None:
    cases = json.loads((reference_dir(name) / "golden.json").read_text())["cases"]
    with pair_of(name, senders, receivers, where=where) as (prefill, decode):
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
    """Send a next turn after each answer, once with the caches of both nodes and once without.
    Returns the number of tokens pulled from the decode node."""
    more = np.random.default_rng(1).integers(3, 160, 40).tolist()
    pulled = 0
    for case in cases:
        turn = (*case["prompt"], *case["greedy"], *more)
        answers = [asked(decode, turn, salt, 8).result() for salt in (b"", b"apart")]
        assert answers[0].token_ids == answers[1].token_ids
        assert not any(answer.usage.local_fallback for answer in answers)
        pulled += answers[0].usage.pulled.tokens if answers[0].usage.pulled else 0
    return pulled
