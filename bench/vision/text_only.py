"""The same text workload on two nodes of one checkpoint: with its tower, and with `--vision off`.

Both have arenas of equal bytes. Their runs alternate, and every run has prompts of its own. Wall
clocks of a shared machine differ by more than the target, so the CPU time of the nodes counts too.
"""

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median

from tasuki.bench.errors import BenchError
from tasuki.bench.load.cpu_by_role import use_between
from tasuki.bench.load.node_process import NodeProcess
from tasuki.bench.measure.report import Report, Row

from .chat_client import Chat, ChatClient, Message, assistant, fresh, user
from .config import PicturesConfig
from .vocabulary import text_of

_RUNS = 4
"""Pairs of runs, after one to warm up."""
_PREFIX = 300
_ANSWER = 16
_MOST_DIFFERENCE = 0.01


@dataclass(frozen=True)
class _Run:
    """One run of the workload on one node. wall, cpu: seconds. texts: all answers."""

    wall: float
    cpu: float
    texts: tuple[str, ...]
    prompt_tokens: int
    cached_tokens: int


class TextOnly:
    """The measurement. seeing, blind: names of the two nodes, the first with a tower."""

    def __init__(self, config: PicturesConfig, vocabulary: int) -> None:
        self._config = config
        self._vocabulary = vocabulary

    async def measure(
        self,
        nodes: Mapping[str, NodeProcess],
        clients: Mapping[str, ChatClient],
        report: Report,
    ) -> None:
        """Add the rows. nodes, clients: by name, the one with a tower first. Raises BenchError."""
        seeing, blind = nodes
        runs: dict[str, list[_Run]] = {seeing: [], blind: []}
        for number in range(-1, _RUNS):
            order = (seeing, blind) if number % 2 else (blind, seeing)
            for name in order:
                run = await self._run(nodes[name], clients[name], f"run {number}")
                if number >= 0:
                    runs[name].append(run)
        own, other = runs[seeing], runs[blind]
        equal = all(
            (a.texts, a.prompt_tokens, a.cached_tokens)
            == (b.texts, b.prompt_tokens, b.cached_tokens)
            for a, b in zip(own, other, strict=True)
        )
        prompt, cached = (sum(getattr(run, name) for run in own) for name in _COUNTS)
        extra = {"prompt tokens": float(prompt), "hit rate": cached / prompt}
        for kind in ("cpu", "wall"):
            ratios = [getattr(a, kind) / getattr(b, kind) for a, b in zip(own, other, strict=True)]
            ratio = median(ratios)
            row = Row(
                f"{kind} time of a run of text, with a tower",
                median(getattr(run, kind) for run in own),
                others={"--vision off": median(getattr(run, kind) for run in other)},
                extra={**extra, "x without": ratio, "spread": max(ratios) - min(ratios)},
            )
            close = ("within 1%", ratio <= 1 + _MOST_DIFFERENCE)
            report.add(row.asked(("tokens and hits equal", equal), close))

    async def _run(self, node: NodeProcess, client: ChatClient, seed: str) -> _Run:
        before, began = node.begin_sample(), time.monotonic()
        sessions = [self._session(client, seed, each) for each in range(self._config.sessions)]
        chats = [chat for some in await asyncio.gather(*sessions) for chat in some]
        wall, after = time.monotonic() - began, node.end_sample()
        use = use_between(node.pid, before.cpu, after.cpu)
        if not use.engine:
            raise BenchError("the node's engine used no time: its threads have other names")
        return _Run(
            wall,
            use.engine + use.front,
            tuple(chat.text for chat in chats),
            sum(chat.prompt_tokens for chat in chats),
            sum(chat.cached_tokens for chat in chats),
        )

    async def _session(self, client: ChatClient, seed: str, number: int) -> list[Chat]:
        """Run the turns of one agent. All agents of a run have a common prefix."""
        first = self._text(f"{seed} prefix", _PREFIX) + self._text(f"{seed} {number}", 20)
        messages: list[Message] = [user(first)]
        chats = []
        for turn in range(self._config.turns):
            chats.append(await fresh(client, client.body(messages, _ANSWER)))
            later = self._text(f"{seed} {number} {turn}", self._config.question_tokens)
            messages += [assistant(chats[-1].text), user(later)]
        return chats

    def _text(self, seed: str, tokens: int) -> str:
        return text_of(seed, tokens, self._vocabulary)


_COUNTS = ("prompt_tokens", "cached_tokens")
