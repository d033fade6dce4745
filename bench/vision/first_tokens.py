"""First tokens of chats with pictures over HTTP, from several servers by turns.

| row | the server computes |
| --- | --- |
| cold | pictures and prompt |
| prompt | the prompt: the pictures came before, behind another text |
| hit | nothing but the last token |
| next turn | a short text behind the pictures and an answer |
| text, text hit | a prompt of text with as many tokens, and the same once more |
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

from tasuki.bench.measure.report import Report, Row

from .chat_client import Chat, ChatClient, assistant, fresh, user
from .config import PicturesConfig
from .costs import PromptCosts
from .drawn import Screenshot
from .vocabulary import TEMPLATE_TOKENS, text_of

_ANSWER = 8
_OWN_TEXT = 32
"""Tokens of the text before the pictures, different in each round."""
_HIT_MORE_SECONDS = 0.005
KINDS = ("cold", "prompt", "hit", "next turn", "text", "text hit")

Clients = Mapping[str, ChatClient]


@dataclass
class _Times:
    """Answers of one server to one number of pictures, by kind."""

    chats: dict[str, list[Chat]] = field(default_factory=lambda: defaultdict(list))

    def seconds(self, kind: str) -> float:
        return median(chat.first_token_seconds for chat in self.chats[kind])

    def tokens(self, kind: str) -> int:
        return self.chats[kind][-1].prompt_tokens

    def cached(self, kind: str) -> int:
        return self.chats[kind][-1].cached_tokens


class FirstTokens:
    """The measurement of first tokens. Every server gets the same prompts."""

    def __init__(self, config: PicturesConfig, vocabulary: int, costs: PromptCosts) -> None:
        self._config = config
        self._vocabulary = vocabulary
        self._costs = costs

    async def measure(
        self, clients: Clients, screenshots: Iterator[Screenshot], report: Report
    ) -> None:
        """Add the rows for each number of pictures. clients: by server's name, the judged one
        first. screenshots: enough for all rounds, and one number of them for the warm-up. Raises
        BenchError."""
        for count in self._config.picture_counts:
            found = {name: _Times() for name in clients}
            for number in range(-1, self._config.rounds):
                shown = [next(screenshots) for _ in range(count)]
                order = list(clients) if number % 2 else list(clients)[::-1]
                for name in order:
                    # The first round compiles and warms up.
                    times = found[name] if number >= 0 else _Times()
                    await self._round(clients[name], f"{count} {number}", shown, times)
            self._add_rows(count, found, report)

    async def _round(
        self, client: ChatClient, seed: str, shown: Sequence[Screenshot], times: _Times
    ) -> None:
        question = self._text(f"{seed} question", self._config.question_tokens)
        first = [user(self._text(f"{seed} first", _OWN_TEXT), *shown, question)]
        body = client.body(first, _ANSWER)
        cold = await fresh(client, body)
        hit = await fresh(client, body)
        later = [*first, assistant(cold.text), user(self._text(f"{seed} later", _OWN_TEXT))]
        turn = await fresh(client, client.body(later, _ANSWER))
        other = [user(self._text(f"{seed} other", _OWN_TEXT), *shown, question)]
        prompt = await fresh(client, client.body(other, _ANSWER))
        words = [user(self._text(f"{seed} text", max(1, cold.prompt_tokens - TEMPLATE_TOKENS)))]
        text = await fresh(client, client.body(words, _ANSWER))
        again = await fresh(client, client.body(words, _ANSWER))
        for kind, chat in zip(KINDS, (cold, prompt, hit, turn, text, again), strict=True):
            times.chats[kind].append(chat)

    def _text(self, seed: str, tokens: int) -> str:
        return text_of(seed, tokens, self._vocabulary)

    def _add_rows(self, count: int, found: Mapping[str, _Times], report: Report) -> None:
        (own, times), *others = found.items()
        for kind in KINDS:
            seconds = times.seconds(kind)
            beside = {name: other.seconds(kind) for name, other in others}
            extra: dict[str, float] = {"prompt tokens": times.tokens(kind)}
            extra |= {"cached": times.cached(kind)}
            extra |= {f"cached, {name}": other.cached(kind) for name, other in others}
            row = Row(
                f"first token of {own}, {count} x {self._config.width} x {self._config.height}: "
                f"{kind}",
                seconds,
                self._floor(kind, count, times.tokens(kind), report),
                others=beside,
                extra=extra,
            )
            report.add(row.asked(*self._bounds(kind, times, beside)))

    def _floor(self, kind: str, count: int, tokens: int, report: Report) -> float | None:
        """Return the least seconds by FLOPs, for prompts that are computed whole."""
        pictures = count if kind == "cold" else 0
        if kind not in ("cold", "prompt", "text"):
            return None
        return report.floors.of_flops(self._costs.flops(tokens, pictures))

    def _bounds(
        self, kind: str, times: _Times, beside: Mapping[str, float]
    ) -> Iterator[tuple[str, bool]]:
        """Yield the targets of a kind: ahead of each other server, and a hit as fast as in text."""
        seconds = times.seconds(kind)
        if kind in ("cold", "hit", "next turn"):
            for name, other in beside.items():
                yield f"ahead of {name}", seconds < other
        if kind == "hit":
            least = times.seconds("text hit") + _HIT_MORE_SECONDS
            yield "within 5 ms of text", seconds <= least


def needed_screenshots(config: PicturesConfig) -> int:
    """Return the number of screenshots for all rounds."""
    return (config.rounds + 1) * sum(config.picture_counts)
