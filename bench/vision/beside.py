"""Gaps of running answers while pictures arrive, beside gaps without them and with texts as long.

Windows with and without arrivals alternate, because gaps grow with the answers. Each arrival has a
picture of its own and nothing cached. An arrival's answer is short.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from statistics import median

from tasuki.bench.errors import BenchError
from tasuki.bench.measure.report import Report, Row

from .chat_client import Chat, ChatClient, fresh, user
from .config import PicturesConfig
from .drawn import Screenshot
from .vocabulary import TEMPLATE_TOKENS, text_of

_ANSWER = 4
_ENDLESS = 100_000
_ALONE = 5
_ADMITTED_SECONDS = 60.0
_WARM_UPS = 2
_MOST_GAP = 1.5
_MOST_OF_TEXT = 1.15
_MOST_FIRST = 3.0
_P95 = 0.95


@dataclass
class _Window:
    """Gaps of the streams, and first tokens of the arrivals, in some windows of one kind."""

    gaps: list[float] = field(default_factory=list)
    firsts: list[float] = field(default_factory=list)

    @property
    def p95_gap(self) -> float:
        return _quantile(self.gaps, _P95)


class BesideStreams:
    """The measurement. vocabulary: number of the model's tokens."""

    def __init__(self, config: PicturesConfig, vocabulary: int) -> None:
        self._config = config
        self._vocabulary = vocabulary

    async def measure(
        self, client: ChatClient, screenshots: Iterator[Screenshot], report: Report
    ) -> None:
        """Add the rows of gaps and first tokens. screenshots: needed_screenshots() of them. Raises
        BenchError."""
        per_window = self._arrivals
        warm, alone, during = (
            [self._picture(client, next(screenshots)) for _ in range(count)]
            for count in (_WARM_UPS, _ALONE, 2 * per_window)
        )
        firsts = [await fresh(client, body) for body in (*warm, *alone)]
        tokens = firsts[-1].prompt_tokens
        texts = [self._words(client, number, tokens) for number in range(2 * per_window + _ALONE)]
        text_alone = [await fresh(client, body) for body in texts[-_ALONE:]]
        quiet, pictures, words = _Window(), _Window(), _Window()
        async with self._streaming(client) as streams:
            for half in range(2):
                some = slice(half * per_window, (half + 1) * per_window)
                await self._window(client, streams, [], quiet)
                await self._window(client, streams, during[some], pictures)
                await self._window(client, streams, texts[some], words)
            await self._window(client, streams, [], quiet)
        alone_seconds = median(chat.first_token_seconds for chat in firsts[_WARM_UPS:])
        words_alone = median(chat.first_token_seconds for chat in text_alone)
        self._add_rows(report, quiet, pictures, words, tokens)
        self._add_firsts(report, "picture", alone_seconds, pictures, _MOST_FIRST)
        self._add_firsts(report, "text", words_alone, words, None)

    @property
    def _arrivals(self) -> int:
        return max(1, int(self._config.seconds / self._config.every))

    def _picture(self, client: ChatClient, shown: Screenshot) -> bytes:
        seed = f"beside {shown.number}"
        question = text_of(seed, self._config.question_tokens, self._vocabulary)
        return client.body([user(shown, question)], _ANSWER)

    def _words(self, client: ChatClient, number: int, tokens: int) -> bytes:
        text = text_of(f"beside text {number}", max(1, tokens - TEMPLATE_TOKENS), self._vocabulary)
        return client.body([user(text)], _ANSWER)

    @asynccontextmanager
    async def _streaming(self, client: ChatClient) -> AsyncIterator[list[Chat]]:
        """Run the streams until the block ends. Yield their answers, all with a first token.
        Raises BenchError if one has none."""
        chats = [Chat() for _ in range(self._config.streams)]
        bodies = [
            client.body(
                [user(text_of(f"stream {n}", self._config.prompt, self._vocabulary))], _ENDLESS
            )
            for n in range(len(chats))
        ]
        asks = [
            asyncio.create_task(client.ask(body, chat))
            for body, chat in zip(bodies, chats, strict=True)
        ]
        try:
            deadline = time.monotonic() + _ADMITTED_SECONDS
            while not all(chat.times for chat in chats):
                _check_running(chats)
                if time.monotonic() > deadline:
                    raise BenchError(f"streams had no token within {_ADMITTED_SECONDS:.0f} s")
                await asyncio.sleep(0.05)
            yield chats
            _check_running(chats)
        finally:
            for ask in asks:
                ask.cancel()
            await asyncio.gather(*asks, return_exceptions=True)

    async def _window(
        self, client: ChatClient, streams: Sequence[Chat], bodies: Sequence[bytes], into: _Window
    ) -> None:
        """Measure one window with these arrivals, evenly spread. The next begins after their
        ends."""
        await asyncio.sleep(self._config.every)
        begin = time.monotonic()
        asks = []
        for body in bodies:
            asks.append(asyncio.create_task(fresh(client, body)))
            await asyncio.sleep(max(0.0, begin + len(asks) * self._config.every - time.monotonic()))
        await asyncio.sleep(max(0.0, begin + self._config.seconds - time.monotonic()))
        end = time.monotonic()
        arrived = await asyncio.gather(*asks)
        into.gaps += [gap for chat in streams for gap in chat.gaps(begin, end)]
        into.firsts += [chat.first_token_seconds for chat in arrived]
        _check_running(streams)

    def _add_rows(
        self, report: Report, quiet: _Window, pictures: _Window, words: _Window, tokens: int
    ) -> None:
        config = self._config
        streams = f"p95 gap of {config.streams} streams"
        every = f"every {config.every:g} s"
        report.add(_row(f"{streams}, nothing beside", quiet))
        bounds = (
            (f"<= {_MOST_GAP} x without", pictures.p95_gap <= _MOST_GAP * quiet.p95_gap),
            (f"<= {_MOST_OF_TEXT} x text", pictures.p95_gap <= _MOST_OF_TEXT * words.p95_gap),
        )
        size = f"{config.width} x {config.height}"
        report.add(_row(f"{streams}, a picture of {size} {every}", pictures).asked(*bounds))
        report.add(_row(f"{streams}, a text of {tokens} tokens {every}", words))

    def _add_firsts(
        self, report: Report, name: str, alone: float, window: _Window, most: float | None
    ) -> None:
        streams, during = self._config.streams, median(window.firsts)
        report.add(Row(f"first token of a {name} alone", alone))
        extra = {"x alone": during / alone, "p95 ms": 1e3 * _quantile(window.firsts, _P95)}
        row = Row(f"first token of a {name} beside {streams} streams", during, extra=extra)
        bounds = [] if most is None else [(f"<= {most:g} x alone", during <= most * alone)]
        report.add(row.asked(*bounds))


def needed_screenshots(config: PicturesConfig) -> int:
    """Return the number of screenshots of the measurement."""
    return _WARM_UPS + _ALONE + 2 * max(1, int(config.seconds / config.every))


def _row(name: str, window: _Window) -> Row:
    """Return a row of gaps: their p95, with other quantiles beside."""
    quantiles = {"p50 ms": 0.5, "p90 ms": 0.9, "p97 ms": 0.97, "p99 ms": 0.99, "max ms": 1.0}
    extra = {text: 1e3 * _quantile(window.gaps, share) for text, share in quantiles.items()}
    return Row(name, window.p95_gap, extra=extra)


def _check_running(chats: Sequence[Chat]) -> None:
    """Raise BenchError if a stream has ended."""
    for chat in chats:
        if chat.ended:
            raise BenchError(f"a stream ended early: {chat.error or 'its answer was whole'}")


def _quantile(values: Sequence[float], share: float) -> float:
    """Return a quantile of the values. Raises BenchError without any."""
    if not values:
        raise BenchError("nothing was measured in a window: give more --seconds")
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]
