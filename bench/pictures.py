"""`tasuki bench pictures`: what pictures cost: their stages, first tokens, and answers beside them.

Draws screenshots and a checkpoint with a vision tower, starts a node over it, and sends chats over
HTTP. Rows need no file of the repository; other servers of the checkpoint can be measured in the
same run.
"""

import asyncio
import gc
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, AsyncExitStack, ExitStack
from pathlib import Path

import torch

from tasuki.bench.load.node_main import READ
from tasuki.bench.load.node_process import NodeProcess, node_process
from tasuki.bench.measure.report import Report, reported
from tasuki.bench.vision import beside, first_tokens
from tasuki.bench.vision.beside import BesideStreams
from tasuki.bench.vision.chat_client import ChatClient
from tasuki.bench.vision.checkpoint import write_checkpoint
from tasuki.bench.vision.config import PicturesConfig
from tasuki.bench.vision.costs import PromptCosts
from tasuki.bench.vision.drawn import Screen, Screenshot
from tasuki.bench.vision.first_tokens import FirstTokens
from tasuki.bench.vision.resent import ResentPictures
from tasuki.bench.vision.stages import measure_stages, stage_means
from tasuki.bench.vision.text_only import TextOnly
from tasuki.model.families.registry import load_config
from tasuki.model.vision.config import VisionConfig
from tasuki.model.vision.processor import PixelRules, Size
from tasuki.utils.flags import parse_config

from .config import free_memory
from .errors import BenchError

_SERVED = "m"
"""Name of the model in requests, of all servers."""
_CPU_ARENA_MIB = 512
_OWN = "tasuki"


def main(argv: Sequence[str]) -> int:
    config = parse_config("tasuki bench pictures", "Chats with pictures.", argv, PicturesConfig)
    with tempfile.TemporaryDirectory() as temporary:
        PicturesBench(config, Path(temporary)).run()
    return 0


class PicturesBench:
    """One run of the bench, with its folder and its drawn screenshots."""

    def __init__(self, config: PicturesConfig, temporary: Path) -> None:
        """temporary: folder for the node's log, and for a checkpoint that is not kept. Draws the
        checkpoint if it is not there. Raises BenchError, and the errors of the model's files."""
        self._config = config
        self._temporary = temporary
        self._folder = config.kept_folder(temporary / "model")
        if not (self._folder / "config.json").exists():
            began = time.monotonic()
            size = write_checkpoint(self._folder, config.shape, config.torch_device)
            free_memory(config.torch_device)
            print(f"drew {size / 1e9:.2f} GB in {time.monotonic() - began:.1f} s", flush=True)
        self._model = load_config(self._folder)
        vision = VisionConfig.load(self._folder)
        if vision is None:
            raise BenchError(f"{self._folder}: has no vision tower: give another --model")
        self._vision = vision
        self._rules = PixelRules.load(self._folder, vision)
        self._screen = Screen.of_bytes(config.width, config.height, config.picture_bytes)
        self._next = config.first_number

    def run(self) -> None:
        """Measure all rows. Raises BenchError."""
        config, rows = self._config, self._config.measured
        if rows == ("checkpoint",):
            return
        dtype = torch.bfloat16 if config.device == "cuda" else torch.float32
        report = reported("pictures", config.torch_device, dtype, config.commit, config.out)
        if "stages" in rows:
            shown = list(self._screenshots(max(config.picture_counts)))
            measure_stages(config, self._vision, self._rules, shown, report)
            free_memory(config.torch_device)
        if {"first", "beside"}.intersection(rows):
            with ExitStack() as stack:
                addresses = dict(config.addresses)
                if config.node == "own":
                    began = time.monotonic()
                    node = stack.enter_context(self._node())
                    addresses = {_OWN: node.http, **addresses}
                    report.note(f"the node was ready after {time.monotonic() - began:.0f} s")
                gc.disable()
                asyncio.run(self._chats(addresses, report))
                if config.node == "own":
                    report.note(f"the node's own means: {stage_means(node.counters())}")
        if "resent" in rows:
            with self._node() as node:
                asyncio.run(self._resent(node, report))
        if "text" in rows:
            with self._node() as seeing, self._node("--vision", "off") as blind:
                nodes = {"tower": seeing, "off": blind}
                asyncio.run(self._text(nodes, report))

    async def _chats(self, addresses: dict[str, str], report: Report) -> None:
        config, rows = self._config, self._config.measured
        costs = PromptCosts.of(
            self._model, self._vision, self._rules, Size(config.height, config.width)
        )
        async with AsyncExitStack() as stack:
            clients = {
                name: await stack.enter_async_context(ChatClient(address, _SERVED))
                for name, address in addresses.items()
            }
            if "first" in rows:
                shown = self._screenshots(first_tokens.needed_screenshots(config))
                first = FirstTokens(config, self._model.vocab, costs)
                await first.measure(clients, shown, report)
            if "beside" in rows:
                shown = self._screenshots(beside.needed_screenshots(config))
                streams = BesideStreams(config, self._model.vocab)
                await streams.measure(next(iter(clients.values())), shown, report)

    async def _resent(self, node: NodeProcess, report: Report) -> None:
        shown = list(self._screenshots(self._config.screenshots))
        async with ChatClient(node.http, _SERVED) as client:
            resent = ResentPictures(self._config, self._model.vocab)
            await resent.measure(node, client, shown, report)

    async def _text(self, nodes: dict[str, NodeProcess], report: Report) -> None:
        async with AsyncExitStack() as stack:
            clients = {
                name: await stack.enter_async_context(ChatClient(node.http, _SERVED))
                for name, node in nodes.items()
            }
            text = TextOnly(self._config, self._model.vocab)
            await text.measure(nodes, clients, report)

    def _screenshots(self, count: int) -> Iterator[Screenshot]:
        """Return as many new screenshots."""
        first = self._next
        self._next += count
        return iter(self._screen.all_drawn(range(first, self._next)))

    def _node(self, *more: str) -> AbstractContextManager[NodeProcess]:
        """Return a node of the bench's own, not started yet. more: further flags."""
        config = self._config
        flags = ["--model", str(self._folder), "--served-model-name", _SERVED]
        flags += ["--device", config.device, "--max-batch", str(2 * config.streams)]
        flags += ["--log-level", "warning"]
        if config.device == "cpu":
            flags += ["--arena-mib", str(_CPU_ARENA_MIB)]
        flags += [*config.own_flags, *more]
        log = self._temporary / f"node{len(more)}.log"
        return node_process("serve", ["--weights", READ], flags, log)
