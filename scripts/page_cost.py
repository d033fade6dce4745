"""What a page that is looked at costs its node, and how smoothly it runs, over a large tree.

python -m scripts.page_cost [--nodes 100000] [--seconds 10]

A node of the embedded model is started whose tree is filled with random prefixes, and headless
Chromium looks at each view in turn. The node's figure is the CPU time of its process while the view
is open over the time; the page's are the frames that its own loop was called for, and the longest
wait for one.
"""

import argparse
import asyncio
import multiprocessing as mp
import os
import time
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
from tasuki.client.embedded import embedded_model
from tasuki.engine.build import build_engine, build_parts
from tasuki.engine.config import EngineConfig
from tasuki.engine.engine import Engine
from tasuki.engine.role import Role
from tasuki.front.config import FrontConfig
from tasuki.front.node import Node
from tasuki.front.services import front_services
from tasuki.front.text_codec import TextCodec
from tasuki.pycache._cpp_cache import CheckpointKind
from tasuki.pycache.layout import PAGE_TOKENS

from tests.pages import opened

VIEWS = ("overview", "tree", "sessions", "requests", "handovers", "faults")
FRAMES = """seconds => new Promise(done => {
  const begun = performance.now(); let last = begun, frames = 0, longest = 0;
  const next = now => {
    frames += 1; longest = Math.max(longest, now - last); last = now;
    if (now - begun < 1000 * seconds) requestAnimationFrame(next);
    else done([1000 * frames / (now - begun), longest]);
  };
  requestAnimationFrame(next);
})"""


def fill(engine: Engine, nodes: int) -> None:
    """One page each, below a few hundred that they share."""
    random = np.random.default_rng(1)
    shared = random.integers(0, 1000, (256, PAGE_TOKENS), dtype=np.int32)
    for _ in range(nodes):
        own = random.integers(0, 1000, PAGE_TOKENS, dtype=np.int32)
        tokens = np.concatenate([shared[random.integers(len(shared))], own])
        lease = engine._cache.lease(
            tokens,
            salt=b"",
            capacity_tokens=len(tokens),
            working_slots=1,
            checkpoint_slots=0,
            cursor=None,
        )
        assert lease is not None
        engine._cache.publish(lease, len(tokens), None, CheckpointKind.PROMPT_END)
        engine._cache.release(lease)


async def serve(nodes: int, told: Connection) -> None:
    """Until the other end of `told` closes."""
    # Room for all of it; memory that nothing is written to is not taken from the machine.
    config = EngineConfig(model=str(embedded_model()), dtype="float32", arena_mib=16384)
    front = FrontConfig(bind="127.0.0.1:0", http_bind="127.0.0.1:0")
    parts = build_parts(config)
    model = parts.model_config
    codec = TextCodec.load(Path(config.model), model.vocab, model.max_position)
    engine = build_engine(config, Role.FUSED, parts)
    fill(engine, nodes)
    node = Node(engine, front, lambda client: front_services(client, codec, front))
    await node.startup()
    told.send((node.http_address, engine._cache.stats().nodes))
    await asyncio.to_thread(told.poll, None)
    await node.shutdown()


def run(nodes: int, told: Connection) -> None:
    asyncio.run(serve(nodes, told))


def cpu_seconds(process: int) -> float:
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main() -> None:
    parser = argparse.ArgumentParser(description="What a page that is looked at costs.")
    parser.add_argument("--nodes", type=int, default=100_000, help="as far as there is room")
    parser.add_argument("--seconds", type=float, default=10)
    given = parser.parse_args()
    told, theirs = mp.Pipe()
    process = mp.get_context("spawn").Process(target=run, args=(given.nodes, theirs))
    process.start()
    assert process.pid is not None
    address, standing = told.recv()
    print(f"{standing} nodes in the tree")
    with opened(address) as seen:
        for view in VIEWS:
            seen.show(view)
            began, cpu = time.monotonic(), cpu_seconds(process.pid)
            rate, longest = seen.page.evaluate(FRAMES, given.seconds)
            share = (cpu_seconds(process.pid) - cpu) / (time.monotonic() - began)
            print(
                f"{view:<11} node {100 * share:.1f} % of a core, "
                f"page {rate:.0f} frames a second, the longest after {longest:.0f} ms",
                flush=True,
            )
    told.close()
    process.join()


if __name__ == "__main__":
    main()
