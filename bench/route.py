"""`tasuki bench route`: the CPU time of a decode node's choice of a prefill node.

Measures the choice for one long prompt, and the memory of the prefix index. All nodes hold the same
number of prefixes, and some hold parts of the prompt. Prints a JSON object. Sends nothing.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, field
from random import Random
from typing import Any, cast

import numpy as np

from tasuki.decode_node.prefill_connection import PrefillConnection, PrefillNodeLoad
from tasuki.decode_node.prefill_links import PrefillLink
from tasuki.decode_node.prefill_router import PrefillRouter
from tasuki.engine import messages as m
from tasuki.model.ops.sampling.params import SamplingParams
from tasuki.proto import handover_pb2 as pb
from tasuki.pycache._cpp_cache import prefix_hashes
from tasuki.pycache.layout import PAGE_TOKENS
from tasuki.routing.prefix_hints import HintTrust

_SALT = b"salt"
_HELD = 80
"""Number of nodes holding a part of the prompt."""


@dataclass
class _Connection:
    """A stand-in for PrefillConnection, with the fields read by a choice."""

    number: int | None = None
    alive: bool = True
    load: PrefillNodeLoad = field(default_factory=PrefillNodeLoad)
    hints: HintTrust = field(default_factory=HintTrust)


@dataclass(frozen=True, eq=False)
class _Link:
    target: str


def measure(nodes: int, prefixes: int, tokens: int, choices: int) -> dict[str, Any]:
    """Measure choices of a prefill node. nodes: number of nodes. prefixes: number of prefixes held
    by each node. tokens: length of the prompt. choices: number of measured choices. Times are this
    thread's CPU time."""
    random = Random(0)
    router = PrefillRouter("cost", "decode", seed=0, follow=lambda *_: nullcontext())
    prompt = np.random.default_rng(0).integers(0, 50_000, tokens, dtype=np.int32)
    wanted = m.HandoverWanted(
        m.RequestId("r"), m.TransferRequest(m.TransferId(1), 1, 0, SamplingParams(), _SALT), prompt
    )
    names = prefix_hashes(prompt, _SALT)
    with ExitStack() as standing:
        numbers = [_stand(router, standing, node, random) for node in range(nodes)]
        before = _resident()
        for number in numbers:
            router.index.apply(number, _listed(prefixes, random), 0.0)
        grown = _resident() - before
        for number in random.sample(numbers, min(_HELD, nodes)):
            pages = random.randrange(1, len(prompt) // PAGE_TOKENS)
            held = pb.Prefixes(
                names=names[pages], parents=names[pages - 1], tokens=[PAGE_TOKENS * pages]
            )
            router.index.apply(number, pb.UsableBatch(sequence=2, stored=held), 0.0)
        seconds = _timed(lambda: _routed(router, wanted), choices)
        return {
            "nodes": nodes,
            "prefixes": len(router.index),
            "prompt_tokens": tokens,
            "index_bytes": grown,
            "choice_p50_ms": 1e3 * float(np.quantile(seconds, 0.5)),
            "choice_p99_ms": 1e3 * float(np.quantile(seconds, 0.99)),
        }


def _routed(router: PrefillRouter, wanted: m.HandoverWanted) -> None:
    chosen = router.choose(wanted, (), ())
    assert chosen is not None
    if router.holder(wanted, chosen, PAGE_TOKENS) is None:
        router.sent(chosen)


def _stand(router: PrefillRouter, standing: ExitStack, node: int, random: Random) -> int:
    connection, now = _Connection(), time.monotonic()
    load = pb.Load(wait_seconds=random.random(), fixed_seconds=0.01, token_seconds=1e-5)
    connection.load.take(load, now, now)
    link = _Link(f"10.0.{node // 250}.{node % 250}:50051")
    standing.enter_context(
        router.standing(cast(PrefillLink, link), cast(PrefillConnection, connection))
    )
    assert connection.number is not None
    return connection.number


def _listed(prefixes: int, random: Random) -> pb.UsableBatch:
    stored = pb.Prefixes(
        names=random.randbytes(16 * prefixes),
        parents=random.randbytes(16 * prefixes),
        tokens=[random.randrange(1, 100_000) for _ in range(prefixes)],
    )
    return pb.UsableBatch(sequence=1, snapshot=True, stored=stored)


def _timed(choose: Callable[[], object], choices: int) -> Sequence[float]:
    seconds = []
    for _ in range(choices):
        began = time.thread_time()
        choose()
        seconds.append(time.thread_time() - began)
    return seconds


def _resident() -> int:
    """Return the resident bytes of this process."""
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser("tasuki bench route", description=__doc__)
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--prefixes", type=int, default=1000, help="that each node holds")
    parser.add_argument("--tokens", type=int, default=110_000, help="of the prompt")
    parser.add_argument("--choices", type=int, default=1000)
    asked = parser.parse_args(argv)
    figures = measure(asked.nodes, asked.prefixes, asked.tokens, asked.choices)
    sys.stdout.write(f"{json.dumps(figures, indent=2)}\n")
    return 0
