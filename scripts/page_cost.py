"""The cost of an open page for its node, and how smoothly it runs, over a large tree.

python -m scripts.page_cost [--nodes 100000] [--seconds 10]

A node over a small model of random weights answers prompts, each with a page of its own below
openings that many share, until its tree has that many nodes; its history is then as full as it
gets. It goes on answering one a second, so that every view has something new to draw, while
headless Chromium looks at each view in turn. The node's figure is the CPU time of its process over
the time, its answers included; the page's are the frames that its own loop was called for, and the
longest wait for one, in the best of short segments: each has answers to draw, and what else the
machine does takes frames away and never adds one. Exit status 1 where a view misses a target.
"""

import argparse
import asyncio
import itertools
import multiprocessing as mp
import sys
import time
from collections.abc import Iterator
from contextlib import aclosing, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection

import numpy as np

from tasuki.bench.measure.rig import random_parts
from tasuki.engine.assembly.engines import build_cache, build_fused_engine
from tasuki.engine.config import EngineConfig
from tasuki.engine.messages import RequestId, Submit
from tasuki.model.config import ModelConfig
from tasuki.model.known_models import PUBLISHED
from tasuki.model.ops.sampling.params import SamplingParams
from tasuki.pycache.layout import PAGE_TOKENS
from tasuki.server.config import ServerConfig
from tasuki.server.daemon.node import Node, about_node
from tasuki.server.daemon.running_engine import NearEngine
from tasuki.server.engine_client import EngineClient
from tasuki.server.grpc.services import grpc_services
from tasuki.server.text.text_codec import TextCodec
from tests.harness.pages import Opened, launched, opened
from tests.harness.processor_time import processor_seconds

VIEWS = ("overview", "tree", "sessions", "requests", "handovers", "faults")
MOST_SHARE = 0.03
LEAST_RATE = 59.5
"""Of 60 a second: a segment may end just before a frame."""
SEGMENTS = 5
# A slot and a page take 8 KiB each: an arena of 100,000 nodes fits into a small machine.
MODEL = ModelConfig.from_dict(
    PUBLISHED["0.8b"]
    | {
        "vocab_size": 1024,
        "hidden_size": 16,
        "num_hidden_layers": 2,
        "layer_types": ["linear_attention", "full_attention"],
        "num_attention_heads": 1,
        "num_key_value_heads": 1,
        "head_dim": 16,
        "linear_num_key_heads": 1,
        "linear_num_value_heads": 1,
        "linear_key_head_dim": 16,
        "linear_value_head_dim": 16,
        "intermediate_size": 16,
        "max_position_embeddings": 1024,
    },
    source="page_cost",
)
_OPENINGS, _SESSIONS, _ASKERS = 256, 64, 64
_SLABS_A_NODE = 5
FRAMES = """seconds => new Promise(done => {
  const begun = performance.now(); let last = begun, frames = 0, longest = 0;
  const next = now => {
    frames += 1; longest = Math.max(longest, now - last); last = now;
    if (now - begun < 1000 * seconds) requestAnimationFrame(next);
    else done([1000 * frames / (now - begun), longest]);
  };
  requestAnimationFrame(next);
})"""


def questions() -> Iterator[Submit]:
    """For ever: two pages and a token each, of which many share the first; in sessions."""
    random = np.random.default_rng(1)
    openings = random.integers(0, MODEL.vocab, (_OPENINGS, PAGE_TOKENS), dtype=np.int32)
    for number in itertools.count():
        own = random.integers(0, MODEL.vocab, PAGE_TOKENS + 1, dtype=np.int32)
        yield Submit(
            RequestId(f"question-{number}"),
            np.concatenate([openings[random.integers(_OPENINGS)], own]),
            SamplingParams(max_new_tokens=1, ignore_eos=True),
            session=f"session-{number % _SESSIONS}",
        )


async def ask(client: EngineClient, question: Submit) -> None:
    async with aclosing(client.generate(question)) as items:
        async for _ in items:
            pass


async def fill(client: EngineClient, asked: Iterator[Submit], nodes: int) -> int:
    """Until the tree has as many; how many it has then."""
    standing = 0

    async def ask_on() -> None:
        while standing < nodes:
            await ask(client, next(asked))

    askers = [asyncio.create_task(ask_on()) for _ in range(_ASKERS)]
    while not all(asker.done() for asker in askers):
        await asyncio.wait(askers, timeout=1)
        standing = (await client.counters()).tree["nodes"]
    await asyncio.gather(*askers)
    return standing


async def serve(nodes: int, pipe: Connection) -> None:
    """Until the other end of `pipe` closes."""
    slab = MODEL.cache_layout("float32", "float32", "float32").slab_bytes
    # Memory that nothing is written to is not taken from the machine.
    config = EngineConfig(dtype="float32", arena_mib=_SLABS_A_NODE * nodes * slab // 2**20 + 64)
    front = ServerConfig(bind="127.0.0.1:0", http_bind="127.0.0.1:0")
    codec = TextCodec(MODEL.vocab, MODEL.max_position, None, None)
    parts = random_parts(MODEL, config)
    engine = build_fused_engine(config, parts, build_cache(config, parts))
    about = about_node("serve", "fused", "model", front)
    node = Node(
        NearEngine(engine), front, lambda client: grpc_services(client, codec, front), about
    )
    await node.startup()
    asked = questions()
    pipe.send((node.http_address, await fill(node.engine, asked, nodes)))
    closed = asyncio.create_task(asyncio.to_thread(pipe.poll, None))
    while not closed.done():
        await ask(node.engine, next(asked))
        await asyncio.wait([closed], timeout=1)
    await node.shutdown()


def run(nodes: int, pipe: Connection) -> None:
    asyncio.run(serve(nodes, pipe))


@dataclass(frozen=True)
class Seen:
    """share: of a core, by the node. rate: frames a second. longest: ms."""

    share: float
    rate: float
    longest: float

    @property
    def passed(self) -> bool:
        return self.share < MOST_SHARE and self.rate >= LEAST_RATE

    def line(self, view: str) -> str:
        return (
            f"{'PASSED' if self.passed else 'FAILED'} {view:<10} node {100 * self.share:.1f} % of "
            f"a core, page {self.rate:.0f} frames a second, the longest after {self.longest:.0f} ms"
        )


def unseen(process: int, seconds: float) -> float:
    """The node's share of a core while nobody looks."""
    cpu = processor_seconds(process)
    time.sleep(seconds)
    return (processor_seconds(process) - cpu) / seconds


def look(page: Opened, view: str, process: int, seconds: float) -> Seen:
    page.show(view)
    began, cpu = time.monotonic(), processor_seconds(process)
    parts = [page.page.evaluate(FRAMES, seconds / SEGMENTS) for _ in range(SEGMENTS)]
    share = (processor_seconds(process) - cpu) / (time.monotonic() - began)
    return Seen(share, *max(parts))


def main() -> int:
    parser = argparse.ArgumentParser(description="What a page that is looked at costs.")
    parser.add_argument("--nodes", type=int, default=100_000)
    parser.add_argument("--seconds", type=float, default=10, help="for each view")
    given = parser.parse_args()
    pipe, theirs = mp.Pipe()
    process = mp.get_context("spawn").Process(target=run, args=(given.nodes, theirs))
    process.start()
    # Else the child's death is not noticed here.
    theirs.close()
    assert process.pid is not None
    address, standing = pipe.recv()
    alone = unseen(process.pid, given.seconds)
    print(f"{standing} nodes in the tree; nobody looks: {100 * alone:.1f} % of a core", flush=True)
    passed = standing >= given.nodes
    with launched() as browser, opened(browser, address) as page:
        for view in VIEWS:
            seen = look(page, view, process.pid, given.seconds)
            passed &= seen.passed
            print(seen.line(view), flush=True)
    with suppress(OSError):
        pipe.close()
    process.join()
    print(
        f"{'PASSED' if passed else 'FAILED'}: asked are {given.nodes} nodes, under "
        f"{100 * MOST_SHARE:.0f} % of a core and 60 frames a second in every view"
    )
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
