"""CPU time of pictures resent each turn, as agents do: a whole conversation in each request.

A turn is compared with the same turn of a conversation of text with as many tokens, a hit as well.
The difference is what pictures cost from the socket to the first step: reading megabytes, names,
keys. Decodes and encodes are the node's own counters.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from tasuki.bench.load.cpu_by_role import CpuUse, use_between
from tasuki.bench.load.node_counters import NodeCounters
from tasuki.bench.load.node_process import NodeProcess
from tasuki.bench.measure.report import Report, Row

from .chat_client import Chat, ChatClient, Message, assistant, fresh, user
from .config import PicturesConfig
from .drawn import Screenshot
from .vocabulary import TEMPLATE_TOKENS, text_of

_MOST_SECONDS = 1.2e-3
_ANSWER = 2
_SHOWN_THREADS = 6
_DECODED = ("picture_seconds_count", "decode")
_ENCODED = ("pictures_total", "encoded")


@dataclass(frozen=True)
class _Turn:
    """One measured turn. cpu: of the node's threads. decodes, encodes: within it."""

    chat: Chat
    cpu: CpuUse
    decodes: int
    encodes: int

    @property
    def seconds(self) -> float:
        """Return the CPU seconds of all threads."""
        return self.cpu.front + self.cpu.engine


class ResentPictures:
    """The measurement, against one node without other clients."""

    def __init__(self, config: PicturesConfig, vocabulary: int) -> None:
        self._config = config
        self._vocabulary = vocabulary

    async def measure(
        self,
        node: NodeProcess,
        client: ChatClient,
        screenshots: Sequence[Screenshot],
        report: Report,
    ) -> None:
        """Add the rows. screenshots: of each turn. Raises BenchError."""
        turns = await self._turns(node, client, "pictures", screenshots)
        tokens = turns[0].chat.prompt_tokens - TEMPLATE_TOKENS - self._config.question_tokens
        long = text_of("words", max(1, tokens), self._vocabulary)
        words = await self._turns(node, client, "words", (long,))
        again, plain = turns[1:], words[1:]
        count = len(screenshots)
        name = f"{count} pictures of {len(screenshots[0].file) / 1e6:.2f} MB"
        own = median(turn.seconds for turn in again) - median(turn.seconds for turn in plain)
        least = min(turn.seconds for turn in again) - min(turn.seconds for turn in plain)
        each = max(0.0, own) / count
        met = each <= _MOST_SECONDS
        extra = {
            "least ms": 1e3 * least / count,
            "turn ms": 1e3 * median(turn.seconds for turn in again),
            "turn of text ms": 1e3 * median(turn.seconds for turn in plain),
            "front ms": 1e3 * median(turn.cpu.front for turn in again),
            "front of text ms": 1e3 * median(turn.cpu.front for turn in plain),
            "first token ms": 1e3 * median(turn.chat.first_token_seconds for turn in again),
            "prompt tokens": float(again[-1].chat.prompt_tokens),
            "cached": float(again[-1].chat.cached_tokens),
        }
        row = Row(f"CPU of a picture, {name} resent in {len(again)} turns", each, extra=extra)
        report.add(row.asked(("<= 1.2 ms", met), *self._bounds(again)))
        first = turns[0]
        shown = {"decodes": float(first.decodes), "encodes": float(first.encodes)}
        report.add(Row(f"CPU of the first turn, {name}", first.seconds, extra=shown))
        report.note(f"threads of a resent turn, ms: {_threads(again[-1].cpu)}")
        report.note(f"threads of a turn of text, ms: {_threads(plain[-1].cpu)}")

    def _bounds(self, again: Sequence[_Turn]) -> list[tuple[str, bool]]:
        decodes, encodes = sum(turn.decodes for turn in again), sum(turn.encodes for turn in again)
        return [(f"{decodes} decodes", not decodes), (f"{encodes} encodes", not encodes)]

    async def _turns(
        self,
        node: NodeProcess,
        client: ChatClient,
        seed: str,
        shown: Sequence[Screenshot | str],
    ) -> list[_Turn]:
        """Run one conversation, measured turn by turn. shown: in its first message."""
        messages: list[Message] = [user(*shown, self._text(f"{seed} 0"))]
        found = []
        for number in range(self._config.turns):
            body = client.body(messages, _ANSWER)
            before = node.begin_sample()
            chat = await fresh(client, body)
            after = node.end_sample()
            found.append(
                _Turn(
                    chat,
                    use_between(node.pid, before.cpu, after.cpu),
                    _grown(before.counters, after.counters, *_DECODED),
                    _grown(before.counters, after.counters, *_ENCODED),
                )
            )
            messages += [assistant(chat.text), user(self._text(f"{seed} {number + 1}"))]
        return found

    def _text(self, seed: str) -> str:
        return text_of(seed, self._config.question_tokens, self._vocabulary)


def _grown(before: NodeCounters, after: NodeCounters, name: str, label: str) -> int:
    """Return the growth of a counter whose label has this value."""
    labels = {"outcome" if name == "pictures_total" else "stage": label}
    return int(after.grown(before, name, **labels))


def _threads(use: CpuUse) -> str:
    most = sorted(use.threads.items(), key=lambda item: -item[1])[:_SHOWN_THREADS]
    return ", ".join(f"{name} {1e3 * seconds:.1f}" for name, seconds in most)
